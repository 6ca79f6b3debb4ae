"""How a case may end, and what no command may leave behind."""

from pathlib import Path

from faults.program import LITTER, Finding

REFUSED, SAID, SAME, ANSWERED = "refused", "said", "same", "answered"
ENDINGS = (REFUSED, SAID, SAME, ANSWERED)
MEMORY = "--memory-limit", "256MiB"


def files(folder="."):
    return {path.name for path in Path(folder).iterdir()}


def no_litter(before, outcome, made=()):
    """Raise a `Finding` if a command that failed left anything, or any left a temporary file."""
    new = files() - before - (set(made) if outcome.code == 0 else set())
    if new:
        raise Finding(LITTER, f"exit code {outcome.code} of {outcome.words[0]} left {sorted(new)}")
