"""Run the program inside this process, and find fault with how it ends."""

import contextlib
import io
import re
import traceback
import warnings
from dataclasses import dataclass

from depgraph.cli import main

TRACEBACK = "traceback"
FAULT = "bug in depgraph"
SIGNAL = "killed by a signal"
HANG = "longer than 60 s"
SILENT = "silently different answer"
MEMORY = "more than 1 GiB"
UNCLEAR = "no clear line"
LITTER = "left files behind"
SUITE = "the suite itself failed"
FINDINGS = (TRACEBACK, FAULT, SIGNAL, HANG, SILENT, MEMORY, UNCLEAR, LITTER, SUITE)

_LONGEST_MESSAGE = 2000
_FAULT = "this is a bug in depgraph"
_ERROR = re.compile(r"^depgraph: error: .+$", re.MULTILINE)
_WARNING_OF_PYTHON = re.compile(r"^\S+:\d+: \w+Warning: .*$", re.MULTILINE)
_NOISE = re.compile(r"^(?:Wrote .*|depgraph: compiling, .*)\n", re.MULTILINE)


class Finding(Exception):  # noqa: N818 - it is what the suite looks for
    """What should never happen, and what was seen of it."""

    def __init__(self, kind, detail):
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail


@dataclass(frozen=True)
class Outcome:
    """How a run ended, and what it said."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def said(self):
        """What stderr says beyond the names of what was written."""
        return _NOISE.sub("", self.err)


def run(*words):
    """Run a command; raise a `Finding` unless it ended as a command may."""
    words = tuple(map(str, words))
    out, err = _stream("strict"), _stream("backslashreplace")
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("always")
        for hidden in (ResourceWarning, DeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", hidden)  # as for a user
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
        except BaseException:  # noqa: BLE001 - whatever main lets through, a user sees
            raise Finding(TRACEBACK, f"{_line(words)}\n{traceback.format_exc()}") from None
    outcome = Outcome(words, code, _text(out), _text(err))
    judge_end(outcome)
    return outcome


def must(*words):
    """Run a command on what is whole; it has no reason to fail."""
    outcome = run(*words)
    if outcome.code:
        raise AssertionError(outcome)
    return outcome


def judge_end(outcome):
    """Raise a `Finding` if a run did not end as it may."""
    code, err = outcome.code, outcome.err
    where = _line(outcome.words)
    if "Traceback (most recent call last)" in err:
        raise Finding(TRACEBACK, f"{where}\n{err[-3000:]}")
    if _FAULT in err:
        raise Finding(FAULT, f"{where}\n{err[-600:]}")
    if found := _WARNING_OF_PYTHON.search(err):
        raise Finding(UNCLEAR, f"{where}\na warning of Python's: {found[0]}")
    if code not in {0, 1, 2, 130}:
        raise Finding(UNCLEAR, f"{where}\nexit code {code}: {err[-600:]}")
    errors = _ERROR.findall(err)
    is_told = {
        0: not errors,
        1: len(errors) == 1 or (outcome.words[:1] == ("check",) and outcome.out and not errors),
        2: "Error: " in err or len(errors) == 1,
        130: err.endswith("depgraph: interrupted\n"),
    }
    if not is_told[code] or any(len(line) > _LONGEST_MESSAGE for line in err.splitlines()):
        raise Finding(UNCLEAR, f"{where}\nexit code {code}: {err[-600:]!r}")


def _stream(errors):
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors, write_through=True)


def _text(stream):
    return stream.buffer.getvalue().decode("utf-8", "replace")


def _line(words):
    return "depgraph " + " ".join(word if len(word) < 200 else word[:200] + "..." for word in words)
