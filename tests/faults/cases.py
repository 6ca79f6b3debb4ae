"""All kinds of cases, and one case from its name.

A case is a name such as `store-17`, and the same every time: it is the seed. It runs in the current
folder, which is empty, and says how it ended:

- `refused`: exit code 1 or 2 and one line that says why;
- `said`: an answer, with a word about what was skipped, damaged or left out;
- `same`: the answer of the undamaged input, or that of a slow reading of the damaged one;
- `answered`: an answer with nothing to compare it with.

Anything else is a `Finding`.
"""

import random
from typing import NamedTuple

from faults import damaged_inputs, damaged_recordings, damaged_stores, while_running


class Kind(NamedTuple):
    """What is damaged in some cases, how many of a seed's hundred are such, and their function."""

    meaning: str
    share: int
    run: object


KINDS = {
    "trace": Kind("traces", 27, damaged_inputs.trace),
    "profile": Kind("profiles", 18, damaged_inputs.profile),
    "workload": Kind("described programs", 5, damaged_inputs.workload),
    "gpu": Kind("GPU models", 3, damaged_inputs.gpu),
    "option": Kind("what-ifs and other options", 5, damaged_inputs.option),
    "store": Kind("a file of a store", 16, damaged_stores.store),
    "mixture": Kind("files of two stores mixed", 5, damaged_stores.mixture),
    "recording": Kind("recordings", 2, damaged_recordings.recording),
    "companion": Kind("what lies beside a store", 3, damaged_recordings.companion),
    "flip": Kind("one bit of a recording, or beside a store", 2, damaged_recordings.flip),
    "checkpoint": Kind("what `--resume` kept", 4, damaged_stores.checkpoint),
    "source": Kind("a trace that changes while it is read", 3, while_running.source),
    "replaced": Kind("a store that is replaced while it is read", 2, while_running.replaced),
    "disk": Kind("a disk that is full", 3, while_running.disk),
    "signal": Kind("signals at random moments", 2, while_running.signalled),
}


def cases_of(kind, seeds, first=0):
    """Return the names of the cases of one kind that some seeds stand for."""
    share = KINDS[kind].share
    return [f"{kind}-{number}" for number in range(first * share, (first + seeds) * share)]


def run_case(name, ground):
    """Run a case in the current folder; return how it ended and what was damaged."""
    kind, _, _ = name.partition("-")
    return KINDS[kind].run(random.Random(name), ground)
