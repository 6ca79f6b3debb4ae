"""The list of an Accel-Sim trace: kernel files and host copies, in launch order."""

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from depgraph.errors import TraceError
from depgraph.parsers.scanning.inputs import TraceInput
from depgraph.trace.records import Damage, FileState, MemoryOperation, ScannedPart, SourceFiles

_MAX_LIST_BYTES = 64 << 20
_HEAD_BYTES = 1 << 12
_PIECE_BYTES = 1 << 20
_MAX_PATH = 4096
_ADDRESS_END = 1 << 57
_MAX_COPY_BYTES = 1 << 40  # more than any GPU holds
# Some tracers add the name of a file with what was copied.
_COPY = re.compile(r"MemcpyHtoD,(?:0x)?([0-9a-fA-F]{1,16}),(\d{1,19})(?:,.*\.\w+)?")
_KERNEL_FILE = re.compile(
    r"kernel-(\d{1,18})(?:-ctx_0x([0-9a-fA-F]{1,16}))?\.trace[gz]?(?:\.(?:xz|gz|zst|bz2))?"
)
_LIST = "kernelslist"  # begins the names of lists
_KERNEL_ENTRY = re.compile(rb"(?:[^\s,]*/)?kernel(?:-\d+|slist)[^\s/]*")
_COMPRESSIONS = (".xz", ".gz", ".zst", ".bz2")
# What the tracer's other versions and forks write between kernels, without effect on memory here.
_IGNORED_WORDS = {
    "MemcpyDtoH": "device-to-host copies",
    "MemcpyVulkan": "Vulkan copies",
    "cudaMalloc": "allocations",
    "nccl": "collective operations (NCCL)",
}


@dataclass(frozen=True, slots=True)
class KernelFile:
    """A kernel file of the list."""

    path: Path
    state: FileState  # as the file was when it was found
    context: int = 0  # of the CUDA context, 0 where the name does not give it


@dataclass(slots=True)
class KernelList:
    """What to read, in launch order, and what is wrong with it."""

    name: str  # of the list, or of the folder without one
    entries: list[KernelFile | MemoryOperation] = field(default_factory=list)
    sources: SourceFiles = field(default_factory=SourceFiles)  # the list and every file it names
    part: ScannedPart = field(default_factory=ScannedPart)  # what is to be said of the list

    def add_kernel(self, path: Path) -> None:
        """Add a kernel file, as it is now."""
        context, _ = kernel_number(path) or (0, 0)
        self.entries.append(KernelFile(path, self.sources.add(path), context))


def is_list(path: Path, *, by_content: bool) -> bool:
    """Tell whether a file is a list by its name, or by how it begins."""
    is_named = path.name.startswith(_LIST)
    return is_regular_file(path) and (
        is_named or (by_content and looks_like_list(TraceInput(path).head(_HEAD_BYTES)))
    )


def looks_like_list(text: bytes) -> bool:
    """Tell whether a text begins as a list does."""
    lines = [line for line in text[:_HEAD_BYTES].split(b"\n")[:8] if line.strip()]
    return bool(lines) and all(
        line.startswith((b"MemcpyHtoD,", b"cudaMalloc,")) or _KERNEL_ENTRY.fullmatch(line.strip())
        for line in lines[: max(1, len(lines) - 1)]
    )


def kernel_number(path: Path) -> tuple[int, int] | None:
    """Return (context, number) by the name of a kernel file; None if it has another form."""
    match = _KERNEL_FILE.fullmatch(path.name)
    return None if match is None else (int(match[2] or "0", 16), int(match[1]))


def read_list(path: Path, *, allow_outside: bool = False) -> KernelList:
    """Read a list and find the files that it names, beside it."""
    result = KernelList(str(path), sources=SourceFiles([path]))
    result.part.bytes = result.sources.bytes
    absent: list[tuple[int, str]] = []
    for number, line in enumerate(_lines_of(path), start=1):
        result.part.lines = number
        entry = line.strip()
        if entry.startswith("MemcpyHtoD"):
            _take_copy(result, number, entry, is_cut=not line.endswith("\n"))
        elif entry.startswith("kernel") or _is_path(entry):
            if entry.rsplit("/", 1)[-1].startswith(_LIST):
                found = f"names {entry[:80]}, a kernelslist, where a kernel file should be"
                raise TraceError(path, found, "give one kernelslist at a time", line=number)
            file = _find(path, entry, number, allow_outside=allow_outside)
            if file is None:
                absent.append((number, entry))
            else:
                # Kernels are missing in front of others: dependences through them are lost.
                for line_number, name in absent:
                    found = f"kernel file {name[:80]} is listed but absent"
                    result.part.damage.append(Damage(line_number, found, result.name))
                absent.clear()
                result.add_kernel(file)
        elif entry:
            known = (kind for word, kind in _IGNORED_WORDS.items() if entry.startswith(word))
            result.part.skipped[f"lines of the list: {next(known, 'not known to depgraph')}"] += 1
    if not any(isinstance(entry, KernelFile) for entry in result.entries):
        _refuse_without_kernels(path, absent)
    if absent:
        # Nothing that is here depends on them.
        result.part.warnings["kernel files at the end of the list that are absent"] += len(absent)
    _note_unlisted(result, path.parent)
    return result


def _lines_of(path: Path) -> Iterator[str]:
    text = bytearray()
    with TraceInput(path).open() as stream:
        # To the end: that a packed list is cut or damaged shows only behind what can be read.
        while len(text) <= _MAX_LIST_BYTES and (piece := stream.read(_PIECE_BYTES)):
            text += piece
    if len(text) > _MAX_LIST_BYTES:
        found = f"is a list of more than {_MAX_LIST_BYTES >> 20} MiB"
        raise TraceError(path, found, "give the kernelslist of one run")
    for line in io.BytesIO(text):
        yield line.decode("utf-8", "replace")


def _refuse_without_kernels(path: Path, absent: list[tuple[int, str]]) -> NoReturn:
    if not absent:
        raise TraceError(path, "the list names no kernel file", "trace the program again")
    number, entry = absent[0]
    found = f"none of its {len(absent)} kernel files is here (first: {entry[:80]})"
    hint = f"put the kernel files into {path.parent}, beside the list"
    raise TraceError(path, found, hint, line=number)


def parse_copy(entry: str) -> MemoryOperation:
    """Decode ``MemcpyHtoD,ADDRESS,BYTES[,FILE]``; a `ValueError` says what is wrong with it."""
    match = _COPY.fullmatch(entry)
    if match is None:
        raise ValueError(f"host copy is damaged ({entry[:80]})")
    address, size = int(match[1], 16), int(match[2])
    if size > _MAX_COPY_BYTES:
        raise ValueError(f"host copy of {size} bytes is more than a GPU holds")
    if address + size >= _ADDRESS_END:
        raise ValueError(f"host copy is to an address that no GPU has ({entry[:80]})")
    return MemoryOperation(address, size)


def _take_copy(result: KernelList, number: int, entry: str, *, is_cut: bool) -> None:
    try:
        result.entries.append(parse_copy(entry))
    except ValueError as error:
        if is_cut:
            result.part.warnings["the last line of the list is cut"] += 1
        else:
            result.part.damage.append(Damage(number, str(error), result.name))


def _note_unlisted(result: KernelList, folder: Path) -> None:
    try:
        names = [item.name for item in folder.iterdir() if kernel_number(item)]
    except OSError:
        return
    # The raw and the grouped form of a kernel often lie side by side.
    listed = {path.name.split(".trace", 1)[0] for path in result.sources.paths}
    if unlisted := {name.split(".trace", 1)[0] for name in names} - listed:
        result.part.warnings["kernel files in the folder that the list does not name"] += len(
            unlisted
        )


def _is_path(entry: str) -> bool:
    return "/" in entry and "," not in entry


def _find(path: Path, entry: str, number: int, *, allow_outside: bool) -> Path | None:
    if "\0" in entry or len(entry) > _MAX_PATH:
        return None
    folder = path.parent
    candidates = (folder / name for name in _names_to_try(entry))
    found = next((file for file in candidates if is_regular_file(file)), None)
    leading_out = [folder / entry] if _is_path(entry) else []
    if found is not None and found.is_symlink():
        leading_out.append(found)
    if not allow_outside and not all(is_inside(file, folder) for file in leading_out):
        found_outside = f"names {entry[:80]}, which lies outside {folder}"
        hint = "pass --allow-outside if you trust the list"
        raise TraceError(path, found_outside, hint, line=number)
    return found


def is_regular_file(path: Path) -> bool:
    """Tell whether there is a file, or a link to one, of a name that may be any text."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_inside(path: Path, folder: Path) -> bool:
    """Tell whether a file lies in a folder, symbolic links followed."""
    try:
        return path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links
        return False


def _refuse_link_outside(path: Path, *, allow_outside: bool) -> None:
    if not allow_outside and not is_inside(path, path.parent):
        hint = "pass --allow-outside if you trust it"
        raise TraceError(path, "is a link to a file outside its folder", hint)


def _unpacked_name(name: str) -> str:
    for suffix in _COMPRESSIONS:
        name = name.removesuffix(suffix)
    return name


def _names_to_try(entry: str) -> Iterable[str]:
    plain = _unpacked_name(entry)
    yield entry
    # A list names raw files where only grouped ones are left, or was cut in its last letters.
    for name in dict.fromkeys((plain, plain + "g")):
        for suffix in ("", *_COMPRESSIONS):
            yield name + suffix


def list_folder(folder: Path, *, allow_outside: bool = False) -> KernelList:
    """Find what to read in a folder: its list, else its kernel files by their numbers."""
    try:
        items = sorted(folder.iterdir())
    except OSError as error:
        raise TraceError(folder, f"cannot be read ({error.strerror or error})") from None
    lists = [item for item in items if item.name.startswith(_LIST) and item.is_file()]
    for item in lists:
        _refuse_link_outside(item, allow_outside=allow_outside)
    files = [item for item in items if kernel_number(item) and item.is_file()]
    usable = [item for item in lists if _has_kernels(item)]
    grouped = [item for item in usable if item.name.endswith(".g")]
    chosen = _one_list(folder, grouped or usable)
    if chosen is not None:
        return read_list(chosen, allow_outside=allow_outside)
    if files:
        return from_files(files, name=str(folder), allow_outside=allow_outside)
    if lists:
        return read_list(lists[0], allow_outside=allow_outside)
    if any(item.name == "commands.json" for item in items):
        from depgraph.parsers.formats import other_files

        kind = other_files()["gpucachesim"]
        raise TraceError(folder, kind["found"], kind["hint"])
    inside = next((item for item in items if any(item.glob("kernelslist*"))), None)
    hint = "give the folder of kernelslist.g, or a trace file"
    if inside is not None:
        hint = f"give the folder of the kernelslist: {inside}"
    raise TraceError(folder, "the folder holds no Accel-Sim trace", hint)


def _has_kernels(path: Path) -> bool:
    try:
        return any(
            is_regular_file(path.parent / name)
            for entry in map(str.strip, _lines_of(path))
            if entry.startswith("kernel") or _is_path(entry)
            for name in _names_to_try(entry)
        )
    except TraceError:
        return False


def _one_list(folder: Path, lists: list[Path]) -> Path | None:
    if len(lists) <= 1:
        return next(iter(lists), None)
    names = ", ".join([*(item.name for item in lists[:3]), *(["..."] if lists[3:] else [])])
    found = f"holds {len(lists)} kernel lists ({names}), one for each CUDA context"
    raise TraceError(folder, found, "give one of them")


def from_files(files: list[Path], *, name: str, allow_outside: bool = True) -> KernelList:
    """Order kernel files that come without a list, by their numbers."""
    chosen: dict[tuple[int, int] | str, Path] = {}
    for path in sorted(files, key=lambda path: (_preference(path), path.name)):
        chosen.setdefault(kernel_number(path) or str(path), path)
    contexts = {key[0] for key in chosen if isinstance(key, tuple)}
    if len(contexts) > 1:
        found = f"kernel files of {len(contexts)} CUDA contexts, in no known order"
        raise TraceError(name, found, "give the kernelslist of one of them")
    ordered = sorted(key for key in chosen if isinstance(key, tuple))
    paths = [chosen[key] for key in ordered]
    if len(ordered) < len(chosen):
        paths = [path for path in files if path in chosen.values()]
    result = KernelList(name)
    for path in paths:
        _refuse_link_outside(path, allow_outside=allow_outside)
        result.add_kernel(path)
    if len(paths) > 1:
        result.part.warnings[
            "no kernelslist: kernels in the order of their numbers, no host copies"
        ] = 1
    return result


def _preference(path: Path) -> int:
    """Prefer the grouped form of a kernel to its raw form, and what needs no unpacking."""
    plain = _unpacked_name(path.name)
    return 2 * (not plain.endswith("g")) + (plain != path.name)
