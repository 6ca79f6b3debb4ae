"""Every option of every command, given what makes no sense: one line, and no bug in depgraph."""

import importlib
import unicodedata

import click
import pytest
from profiles_made import kineto
from program_runs import LOG
from programs import BASE, access_line

import depgraph
from depgraph import parsers
from depgraph.cli.app import COMMANDS

BIG = "1" + 24 * "0"
NUMBERS = (
    "", " ", "-1", "0", "1.5", "nan", "inf", "-inf", "1e308", "1e400", "5000000000",
    str(2**31), str(2**63), str(2**64), BIG, 400 * "9", 5000 * "9", "1:2:3", "1_0", "0x10",
    "\N{SUPERSCRIPT TWO}", "\N{ARABIC-INDIC DIGIT TWO}", "=1", ",", "a=b", "\x1b[31mred",
)  # fmt: skip
PATHS = ("", ".", "no/such/folder", "\x1b[31mred/x", 400 * "9", 5000 * "9")
MORE = {
    "--sms": (f"1:{BIG}", "1:5000000000", f"1:2:{BIG}", "8,inf,nan", "1,,2", "0:0:0", "1:3:0"),
    "--kernels": (f"0:{BIG}", f"{BIG}:", f":{BIG}", "-1:5", "::", "0:" + 5000 * "9"),
    "--launch": (
        "measured", "gpu", "none", "1e300", "1e-320", "1us", "1,2,3", "1,2", "gpu,host=nan",
        "gpu,host=1e300", "gpu,gpu", "host=1,host=2", "=", ",", 5000 * "9",
    ),
    "--memory-bandwidth": ("gpu", "1e-320", "1e300"),
    "--memory-limit": ("1e9GiB", 400 * "9" + "TiB", "64", "KiB", "-5GiB", "nanGiB"),
    "--pair": ("0:1", "1:0", "-1:0", f"{BIG}:{BIG}", "0:" + 5000 * "9", "a:b"),
    "--iteration": ("mean", "-1", BIG, 5000 * "9"),
    "--scheduler": ("local:", "local:0", "local:-1", "local:\N{SUPERSCRIPT TWO}", "tcp://", "x:y"),
    "--fail-under": ("bound=nan", "bound=inf", "bound=1e400", "bound=", "=1", "nothing=1"),
    "--fail-over": ("bound=nan", "bound=-inf", "bound=1e400", "bound=", "=1", "nothing=1"),
    "--what-if": (
        "buffer=0100:0200 drop=war", "buffer=0100:0200", f"buffer=0:{2**64} drop=war",
        f"buffer=0x1{16 * '0'}:0x2{16 * '0'} drop=waw", f"buffer=0+{BIG} drop=war",
        f"buffer={BIG}:{BIG}0 drop=war", "buffer=1:0 drop=war", "buffer=0:1 drop=raw",
        f"buffer=0:{5000 * '9'} drop=war", "merge=0,0", "merge=0,1", "merge=1", f"merge=0,{BIG}",
        f"merge=0,{5000 * '9'}", "merge=-1,0", "merge=\N{SUPERSCRIPT TWO},0",
        "kernel=0 duration*=nan",
        "kernel=0 duration*=1e400", "kernel=0 duration*=1e308", "kernel=0 duration/=1e-320",
        "kernel=0 duration/=0", "kernel=* duration*=0", f"kernel={BIG} duration*=2",
        f"kernel={5000 * '9'} duration*=2", f"kernel=0:{5000 * '9'} duration*=2",
        "kernel=\N{SUPERSCRIPT TWO} duration*=2", "kernel=[ duration*=2", "gap*=2", "gap/=1e-320",
        "gap=1e308", "gap=inf", "gap=-1", "duration*=2", "kernel=0", "\x1b[31m=1",
    ),
    "--mechanism": (
        "all", f"wireframe({BIG})", "wireframe(5000000000)", f"wireframe({5000 * '9'})",
        "wireframe(0)", "wireframe(-1)", "wireframe(nan)", "wireframe(1,2)", "wireframe()",
        "wireframe(", f"acs-hw({BIG})", f"acs-sw({BIG})", f"acs-sw({BIG},{BIG})",
        f"cusync-strided({BIG})", "cusync-strided(0)", f"cusync-conv2d({BIG},{BIG})",
        f"c3({BIG})", f"c3-reserved({BIG})", "c3-dma(0)", f"c3-groups({5000 * '9'})",
        f"streamk({BIG})", f"dataflow-bloom({BIG})", f"dataflow-bloom({BIG},{BIG})",
        f"dataflow-bloom(1,{BIG})", f"blockmaestro({BIG})", f"dataflow-learned({BIG})",
        f"pdl({BIG})", "pdl(nan)", "ideal(1)", "no-such", "os:path", "os:", ":x", "a:b:c", "...:x",
        ".:x", ".os:path", "dataflow,,", "no such module:X", "\x1b[31m",
    ),
    "--communication": ("(", "[", "*", "(?P<n>x)(?P<n>y)", "x{99999999999}", 5000 * "(a)"),
    "--cost": (
        "acs-sw.launch=1e308us", "acs-sw.launch=1e400us", f"acs-sw.launch={BIG}us",
        f"acs-sw.launch={400 * '9'}us", "acs-sw.launch=nan", "acs-sw.launch=-1us", "acs-sw.launch=",
        "acs-sw.launch=1 parsec", "acs-sw.none=1us", "none.launch=1us", "=", ".=1us", "a.b",
        "acs-sw.launch=1.2.3us", "acs-sw.launch=1e-320us", "acs-sw.launch=5%",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    log = folder / "some.log"
    log.write_bytes(LOG + access_line(1, 3, "STG.E", [BASE + 64]))
    table = folder / "times.csv"
    table.write_text("kernel,duration_us\n0,10\n1,20\n", encoding="utf-8")
    kineto(folder / "steps.json", [("gemm", 10, 100, 8)], steps=[("step 1", 0, 200)])
    depgraph.extract(parsers.open_trace(log), folder / "out")
    return folder


def words_of(command, store):
    """Return a call of a command that works, less what it needs of options."""
    return {
        "extract": ["extract", store / "some.log", "--force"],
        "bound": ["bound", store / "out"],
        "report": ["report", store / "out", "--format", "csv"],
        "compare": ["compare", store / "out", store / "out"],
        "show": ["show", store / "out", "path"],
        "export": ["export", store / "out", "--what", "schedule", "--force"],
        "mechanisms": ["mechanisms"],
        "sweep-hints": ["sweep-hints", store / "out", "--sms", "2"],
        "timing": ["timing", store / "times.csv", store / "out"],
        "overlap": ["overlap", store / "steps.json"],
        "gpus": ["gpus"],
        "reproduce": ["reproduce", "kuper", "--force"],
        "check": ["check", store / "some.log"],
        "demo": ["demo", "--force"],
        "record": ["record", "true"],
        "apply": ["apply", "true"],
        "calibrate": ["calibrate"],
    }[command]


NEEDED = {
    ("bound", "--sms"): "2",
    ("report", "--sms"): "2",
    ("export", "--sms"): "2",
    ("export", "--output"): "schedule.csv",
}


def options_of(name):
    command = importlib.import_module(f"depgraph.cli.commands.{name.replace('-', '_')}").command
    for option in command.params:
        is_option = isinstance(option, click.Option) and not option.is_flag
        if is_option and not isinstance(option.type, click.Choice):
            yield option


def is_told_in_one_line(outcome, *words):
    """Check that a run worked or failed in order."""
    text = outcome.err
    assert outcome.code in {0, 1, 2, 3}, (words, outcome)
    for forbidden in ("bug in depgraph", "Traceback", "Warning"):
        assert forbidden not in text, (words, text)
    if outcome.code == 1:
        assert text.count("depgraph: error: ") == 1, (words, text)
        assert text.splitlines()[-1].startswith("depgraph: error: "), (words, text)
    elif outcome.code == 2:
        assert text.count("\nError: ") == 1, (words, text)
    elif outcome.code == 3:
        assert text.startswith("depgraph: "), (words, text)
    if outcome.code:
        last = text.splitlines()[-1]
        assert len(last) < 1500, (words, len(last))
        assert not {"Cc", "Cf"} & set(map(unicodedata.category, last)), (words, last)
    return True


def flag_of(option):
    return max(option.opts, key=len)


ASKED = [(name, option) for name in COMMANDS for option in options_of(name)]


@pytest.mark.jit_only
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("command", "option"), ASKED, ids=lambda part: part if isinstance(part, str) else part.name
)
def test_an_option(program, store, command, option, is_whole):
    flag = flag_of(option)
    words = words_of(command, store)
    needed = [
        word
        for (name, other), value in NEEDED.items()
        if name == command and other != flag
        for word in (other, value)
    ]
    if flag == "--cost" or (flag == "--launch-gap" and command == "bound"):
        needed += ["--mechanism", "all"]
    is_path = isinstance(option.type, click.Path)
    values = PATHS if is_path else MORE.get(flag, ()) + NUMBERS
    if not is_whole:  # each value with one of the commands that take the option
        commands = [name for name, other in ASKED if flag_of(other) == flag]
        values = values[commands.index(command) :: len(commands)]
    for value in values:
        call = [*words, *needed, flag, value]
        assert is_told_in_one_line(program(*call), *call)
