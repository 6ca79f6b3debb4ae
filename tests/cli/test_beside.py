"""A file beside a store that has changed is refused by every command that reads it.

What commands there are, and what they take, click says: a new one is among them by itself.
"""

import shutil
import sys
from pathlib import Path

import click
import pytest
from small_captures import captured

from depgraph.apply.captured import write_captures
from depgraph.apply.verdicts import Verdicts
from depgraph.cli.app import COMMANDS, depgraph
from depgraph.samples import RECORDING, sample_path
from depgraph.store.companions import captures_of, times_of, verdict_files_of, verdicts_of

STORE, TIMES, SUITE, NEW = "STORE", "STORE.times.json", "suite.toml", "NEW"
BESIDE = {STORE, TIMES, SUITE}
KERNELS = ["kernels", "pairs", "path", "buffers", ["block", "1:0"]]
# What an argument may be, by its name.
ARGUMENTS = {
    "store": [[STORE]],
    "stores": [[STORE], [SUITE]],
    "base": [[STORE]],
    "new": [[STORE]],
    "words": [[STORE, *([one] if isinstance(one, str) else one)] for one in KERNELS],
    "file": [[TIMES]],
    "profiles": [[TIMES]],
    "trace": [[sample_path(RECORDING)]],
    "program": [["--", sys.executable, "-c", ""]],
    "name": [["kuper"]],
}
BEHIND = {"apply": ["--", sys.executable, "-c", ""]}  # what click does not see
# What an option may be that is neither a choice nor a path, by its name.
VALUES = {
    "sms": "8", "top": "3", "rows": "3", "pair": "0:1", "kinds": "raw", "mechanisms": "serial",
    "costs": "acs-sw.launch=8us", "device": "0", "process": "0", "context": "0", "stream": "7",
    "iteration": "last", "measured_sms": "80", "gpu": "V100", "fixed_occupancy": "2",
    "launch": "gpu", "what_ifs": "kernel=0 duration*=0.5", "memory_bandwidth": "100",
    "jobs": "1", "scheduler": "local:1", "wall": "2ms", "fail_below": "upper_bound=1",
    "fail_above": "upper_bound=9", "tolerance": "5", "communication": "nccl",
    "max_extra_memory": "1GiB", "kernels": "0:3", "name": "gemm", "nvtx": "step", "skip": "1",
    "count": "1", "gpu_memory": "1GiB", "memory_limit": "512MiB",
    "share": "streams", "window": "8", "hashes": "2",
}  # fmt: skip
# What else an option may need.
WITH = {
    "costs": ["--mechanism", "acs-sw"], "hypothetical": ["--mechanism", "all"],
    "launch": ["--cusync"], "timing": ["--new-timing", TIMES], "new_timing": ["--timing", TIMES],
    "share": [STORE], "as_is": ["--to", "accel-sim"], "traces": ["--to", "accel-sim"],
    "repeat_timing": ["--timing", TIMES, "--new-timing", TIMES, "--repeat", STORE],
}  # fmt: skip
WRITTEN = {"output", "keep", "add_to", "picture"}
USAGE = 2
NEED_OTHERS = {"github"}  # needs a file that GitHub names


def takes_path(option):
    return isinstance(option.type, click.Path) and option.name not in WRITTEN


def values_of(option):
    """Return what may stand behind an option."""
    if getattr(option, "is_flag", False):
        return [[]]
    if isinstance(option.type, click.Choice):
        return [[choice] for choice in option.type.choices]
    if isinstance(option.type, click.Path):
        return [[NEW]] if option.name in WRITTEN else [[TIMES], [STORE]]
    return [[VALUES[option.name]]]


def combinations_of(name):
    """Yield what a command may be asked: each option alone, with all arguments and needed ones."""
    command = depgraph.get_command(None, name)
    known = [p for p in command.params if p.name not in {"debug", "show"}]  # opens a browser
    starts = [[name]]
    for argument in (p for p in known if isinstance(p, click.Argument)):
        starts = [[*start, *words] for start in starts for words in ARGUMENTS[argument.name]]
    for option in (p for p in known if isinstance(p, click.Option) and p.required):
        values = values_of(option)
        starts = [[*start, option.opts[0], *value] for start in starts for value in values]
    reads = any(word in BESIDE for start in starts for word in start)
    for start in starts if reads else []:
        yield "", [*start, *BEHIND.get(name, [])]
    for option in (p for p in known if isinstance(p, click.Option) and not p.required):
        if reads or takes_path(option):
            for value in values_of(option):
                for start in starts:
                    words = [*start, option.opts[-1], *value]
                    yield option.name, [*words, *BEHIND.get(name, [])]
                    if more := WITH.get(option.name):
                        yield option.name, [*words, *more]


def with_another_digit(text):
    at = max(text.rfind(digit) for digit in b"123456789")
    return text[:at] + b"0" + text[at + 1 :]


class InThisProcess:
    """Stands for processes of their own: a suite is asked a hundred times here."""

    def __init__(self, jobs):
        del jobs

    def attempt(self, function, items):
        return enumerate(map(function, items))


@pytest.fixture
def asking(program, timed_store, monkeypatch):
    """Return a function that asks when files beside the store are whole, gone or changed."""
    monkeypatch.setattr("depgraph.system.processes.Processes", InThisProcess)
    monkeypatch.setattr("depgraph.system.workers.limit_jobs", lambda _: None)
    store = timed_store
    write_captures(captures_of(store.path), [captured(before=3)], store=store.identity)
    Verdicts(weights=[1.0]).write(verdicts_of(store.path, 0), store=store.identity)
    beside = [times_of(store.path), captures_of(store.path), *verdict_files_of(store.path)]
    suite = store.path.with_name(SUITE)
    suite.write_text('[[program]]\nname = "it"\nstore = "it.out"\n')
    whole = {path: path.read_bytes() for path in beside}
    changed = {path: with_another_digit(text) for path, text in whole.items()}
    there = {STORE: store.path, TIMES: beside[0], SUITE: suite}

    def ask(words, state):
        for path in beside:
            path.unlink(missing_ok=True)
        for path, text in {"whole": whole, "changed": changed, "gone": {}}[state].items():
            path.write_bytes(text)
        made = Path("made")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        words = [there.get(word, made / "it.json" if word == NEW else word) for word in words]
        return program(*words)

    return ask


def is_refused(result):
    said = " ".join(f"{result.out} {result.err}".split())  # of a suite, its table
    return result.code == 1 and "has changed since it was written" in said


@pytest.mark.jit_only
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_what_has_changed_beside_a_store_is_refused(asking, name, step):
    asked = list(combinations_of(name))[::step]
    refused, untried = 0, {option for option, _ in asked}
    for option, words in asked:
        result = asking(words, "changed")
        if result.code == USAGE:
            continue
        untried.discard(option)
        if is_refused(result):
            refused += 1
            continue
        # Then it takes nothing from there.
        answers = [asking(words, state)[:2] for state in ("whole", "gone")]
        assert answers == [result[:2]] * 2, words
    takes_one = any(word in BESIDE for _, words in asked for word in words)
    assert (refused > 0) == (takes_one and name != "calibrate")  # of measurements: no such file
    assert step > 1 or untried <= NEED_OTHERS
