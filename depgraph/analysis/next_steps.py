"""What to do next: a sentence and, where the program can do it, the command."""

import shlex
from typing import NamedTuple


class Step(NamedTuple):
    """Something to do."""

    text: str  # what, and why
    command: str = ""  # ready for a shell; empty where there is none


class Invocation(NamedTuple):
    """How the user asked, so that a command can ask further."""

    store: str = "depgraph.out"
    # options that say which program on which GPU is meant, as the user gave them: the name and, but
    # for a flag, the value
    options: tuple[tuple[str, ...], ...] = ()

    def has(self, option: str) -> bool:
        """Tell whether the user gave an option."""
        return any(name == option for name, *_ in self.options)

    def command(self, verb: str, *words: str) -> str:
        """Return a command line about the same program; what `show` is to show stands first."""
        of_show = words[:1] if verb == "show" else ()
        rest = words[len(of_show) :]
        options = [
            word for option in self.options if _is_taken(option[0], verb, words) for word in option
        ]
        return shlex.join(["depgraph", verb, self.store, *of_show, *rest, *options])


def _is_taken(option: str, verb: str, words: tuple[str, ...]) -> bool:
    """Tell whether a command takes an option that another one was given."""
    if option in words:
        return False
    if words == ("pairs",):
        return option in {"--deps", "--what-if"}
    if verb != "show" or (option == "--launch" and "--cusync" in words):
        return True
    return option not in {"--launch", "--contention", "--memory-bandwidth", "--wall"}


AS_USUAL = Invocation()
"""The store that `extract` writes, and no options."""
LAUNCH_BOUND = 0.25
"""Share of the time that the GPU waits for the host or for launches, from which a program is called
launch-bound."""
PROFILER_SLOWS = "A profiler slows the host; bound --wall TIME counts with the real time."
