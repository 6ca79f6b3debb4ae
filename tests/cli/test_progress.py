"""Bars for people who wait: on a terminal only, and not for what is done at once."""

import io
import sys

from depgraph.cli import progress
from depgraph.system.workers import NOBODY


class Terminal(io.StringIO):
    def isatty(self):
        return True


def terminal(monkeypatch):
    """Let standard error be a terminal; return what is written to it."""
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    written = Terminal()
    monkeypatch.setattr(sys, "stderr", written)
    return written


def work(steps):
    steps.begin("bounds", 4)
    steps.done()


def test_a_bar_says_what_is_done_and_how_much_of_it(monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BEFORE_A_BAR", 0)
    written = terminal(monkeypatch)
    with progress.step_progress(quiet=False) as steps:
        work(steps)
    assert "bounds" in written.getvalue()
    assert "25%" in written.getvalue()


def test_no_bar_for_what_is_done_at_once(monkeypatch):
    written = terminal(monkeypatch)
    with progress.step_progress(quiet=False) as steps:
        work(steps)
    assert steps is not NOBODY
    assert written.getvalue() == ""


def test_no_bar_where_nobody_watches(monkeypatch):
    terminal(monkeypatch)
    with progress.step_progress(quiet=True) as steps:
        assert steps is NOBODY
    monkeypatch.setenv("CI", "true")
    with progress.step_progress(quiet=False) as steps:
        assert steps is NOBODY
    monkeypatch.delenv("CI")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.step_progress(quiet=False) as steps:
        assert steps is NOBODY
