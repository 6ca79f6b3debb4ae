"""Numbers and text: read within limits, made harmless where they come from outside, shown.

Beyond a limit is a slip, or an attack on memory. One of two times that are compared may be 0.
"""

import math
import re
import reprlib
import unicodedata
from collections.abc import Collection, Iterable, Sequence

MOST_SMS = 1 << 20
MOST_SM_COUNTS = 10_000  # of one sweep: each is a schedule
MOST_BLOCKS_PER_SM = 64
MOST_JOBS = 1024
MOST_ROWS = 1 << 31
LARGEST_ID = (1 << 63) - 1  # of a device, a process, a kernel: what a column of a table holds
LARGEST_PARAMETER = (1 << 31) - 1  # of a mechanism
LONGEST_TIME = 1e15  # of a block, a kernel, a gap or a cost, in any unit: 30 years in us
GREATEST_FACTOR = 1e9
SLOWEST_MEMORY, FASTEST_MEMORY = 1e-3, 1e9  # GB/s

MICROSECONDS = {"us": 1.0, "ns": 1e-3, "ms": 1e3, "s": 1e6}
TIMES = frozenset({*MICROSECONDS, "cycles"})

_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")
_NUMBER = re.compile(
    r"[+-]?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?|\.[0-9]{1,400})(?:[eE][+-]?[0-9]{1,9})?"
)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-_]")
# What a spreadsheet takes for the beginning of a formula: OWASP, "CSV Injection". The last four are
# the wide forms, which some locales read as the plain ones.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_LONG_WORD = re.compile(r"\S{500,}")  # a path, or what someone wrote instead of a number
_LISTED = 8
_LONGEST_GUESSED = 100  # of longer words nobody types, telling them apart takes for ever
_LONGEST_FILE_NAME = 100
_THOUSAND, _KIBI = 1000, 1024
_HUNDRED = 100
_TIME_UNITS = ((1e6, "s"), (1e3, "ms"), (1.0, "us"))
_UNPRINTABLE = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})


def read_whole_number(text: str, least: int, most: int) -> int | None:
    """Read a whole number in plain digits, None where it is none from `least` to `most`."""
    text = text.strip()
    if not _WHOLE.fullmatch(text):
        return None
    value = int(text)
    return value if least <= value <= most else None


def read_number(text: str, least: float, most: float) -> float | None:
    """Read a number in plain digits, None where it is none from `least` to `most`."""
    text = text.strip()
    if not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return value if least <= value <= most else None


def convert_time(value: float, unit: str, wanted: str, clock_mhz: float | None) -> float | None:
    """Return a time in another unit; None where there is no telling, as of cycles of no clock."""
    if value == 0 or unit == wanted:
        return value
    if not {unit, wanted} <= TIMES:
        return None
    if "cycles" not in (unit, wanted):
        return value * MICROSECONDS[unit] / MICROSECONDS[wanted]
    if clock_mhz is None:
        return None
    if unit == "cycles":
        return value / clock_mhz / MICROSECONDS[wanted]
    return value * MICROSECONDS[unit] * clock_mhz


def ratio(numerator: float, denominator: float) -> float:
    """Return a ratio of times; 1 where there is nothing to do."""
    return numerator / denominator if denominator > 0 else 1.0


def share_of_gain(speedup: float, possible: float) -> float | None:
    """Return which share of a possible speedup's gain a speedup has; None if there is none."""
    return None if possible == 1 else (speedup - 1) / (possible - 1)


def share_of(part: float, whole: float) -> float:
    """Return a part of a whole, 0 to 1; it is above by rounding at most."""
    return min(1.0, part / whole) if whole > 0 else 0.0


def clean_text(text: str) -> str:
    """Drop terminal escapes and replace every control or formatting character by U+FFFD."""
    if text.isascii() and text.isprintable():
        return text
    text = _ESCAPE.sub("", text)
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in _UNPRINTABLE else c for c in text
    )


def csv_cell(text: str) -> str:
    """Return a text, no number, as a CSV cell that no spreadsheet takes for a formula."""
    text = clean_text(text)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def one_line(text: str) -> str:
    """Return a message as one line, without anything in it that is endless or not for people."""
    return _LONG_WORD.sub(lambda word: in_short(word[0]), clean_text(" ".join(text.split())))


def as_file_name(text: str, otherwise: str = "program") -> str:
    """Return a text as a name that a file may have on any system."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in clean_text(text))
    return kept.strip(".-")[:_LONGEST_FILE_NAME] or otherwise


def shown_in_short(value: object) -> str:
    """Return what a message quotes of a value, however deep it is nested."""
    return in_short(ascii(value)) if isinstance(value, int | float) else reprlib.repr(value)


def in_short(text: str, width: int = 80) -> str:
    """Cut what someone wrote to `width` characters, for a message that quotes it."""
    if len(text) <= width:
        return text
    kept = (width - 3) // 2
    return f"{text[:kept]}...{text[-kept:]}"


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'bound'?`` for what is closest to a wrong word; "" if nothing is."""
    from difflib import get_close_matches

    names = {name.casefold(): name for name in known}
    close = get_close_matches(wrong[:_LONGEST_GUESSED].casefold(), names, n=1)
    return f"; did you mean {names[close[0]]!r}?" if close else ""


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 kernel``, ``25 kernels``, ``1024 blocks``."""
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


COPIES = ("copy or memset", "copies and memsets")
"""One, and several."""


def operations_text(numbers: Collection[int], kernels: int | None = None) -> str:
    """Return how many kernels, of how many, and copies (below 0) some operations are."""
    copies = sum(number < 0 for number in numbers)
    n = len(numbers) - copies
    text = counted(n, "kernel") if kernels is None else f"{n} of {counted(kernels, 'kernel')}"
    return f"{text} and {counted(copies, *COPIES)}" if copies else text


def size_text(sms: float) -> str:
    """Name a GPU size: ``80 SMs``, ``1 SM``, ``unlimited SMs``."""
    return "unlimited SMs" if math.isinf(sms) else counted(int(sms), "SM")


def kernels_text(numbers: Sequence[int]) -> str:
    """Name kernels by their numbers, of many the first eight: ``kernel 3``, ``kernels 3, 5``."""
    listed = ", ".join(map(str, numbers[:_LISTED])) + ", ..." * (len(numbers) > _LISTED)
    return f"kernel{'s' * (len(numbers) != 1)} {listed}"


def show_number(value: float | None) -> str:
    """Show a number with four significant digits, and nothing between them, as programs read it."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value == int(value) and (isinstance(value, int) or abs(value) >= _THOUSAND):
        return str(int(value))
    if abs(value) >= _THOUSAND:
        return f"{value:.0f}"
    return f"{value:#.4g}".rstrip(".") if value else "0"


def show_time(microseconds: float) -> str:
    """Show a time with three significant digits, in the unit that a reader would choose."""
    rounded = float(f"{microseconds:.3g}")
    size, unit = next((each for each in _TIME_UNITS if rounded >= each[0]), _TIME_UNITS[-1])
    return f"{microseconds / size:#.3g}".rstrip(".") + f" {unit}"


def show_bytes(value: int) -> str:
    """Show a number of bytes in the binary unit that leaves at most four digits."""
    size = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < _KIBI or unit == "TiB":
            break
        size /= _KIBI
    return f"{value} B" if unit == "B" else f"{size:.1f} {unit}"


def size_read(in_files: int, as_text: int) -> str:
    """Say how much was read: the bytes of files and, of compressed ones, of the text in them."""
    if as_text <= in_files:
        return show_bytes(in_files)
    return f"{show_bytes(in_files)} ({show_bytes(as_text)} decompressed)"


def show_percent(value: float | None) -> str:
    """Show a share of one as percent."""
    if value is None or math.isnan(value):
        return "-"
    return f"{round(100 * round(value, 9), 1) + 0.0:.1f} %"


def show_factor(value: float | None) -> str:
    """Show a speedup."""
    if value is None:
        return "-"
    return f"{value:.2f}x" if value < _HUNDRED else f"{value:.0f}x"


def nor_more(count: int, verb: str, what: str = "") -> str:
    """Say of how many more than the one that was named the same is not."""
    return f", nor {verb} {count - 1} more{what}" if count > 1 else ""
