"""Every error that depgraph raises on purpose: one line for the user, one exit code."""

from pathlib import Path


class DepgraphError(Exception):
    """Base of all expected failures; ``str(error)`` is the one line shown to the user."""

    exit_code = 1

    def __init__(self, found: str, hint: str = "") -> None:
        super().__init__(f"{found}; {hint}" if hint else found)


class InputError(DepgraphError):
    """An input file cannot be read or trusted: what was found in it, and a hint what to do."""

    def __init__(
        self, path: str | Path, found: str, hint: str = "", *, line: int | None = None
    ) -> None:
        place = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {found}" + (f"; {hint}" if hint else ""))
        self.path = str(path)
        self.line = line
        self.found = found
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        """Keep the parts when the error comes back from another process."""
        return _rebuilt, (type(self), self.path, self.found, self.hint, self.line)


def _rebuilt(
    kind: type[InputError], path: str, found: str, hint: str, line: int | None
) -> InputError:
    return kind(path, found, hint, line=line)


class TraceError(InputError):
    """A memory-access trace is missing, damaged, or not a trace."""


class ProfileError(InputError):
    """A file of kernel or block times is missing, damaged, or of no use."""


class SuiteError(InputError):
    """A suite file is missing, or says something that makes no sense."""


class StoreError(InputError):
    """A store is missing, damaged, or of another schema version."""


class OutputError(InputError):
    """An output file or folder cannot be written."""


class OutputExistsError(DepgraphError):
    """The output path is taken and ``force`` was not given."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(f"{path}: already exists; pass --force to replace it, or -o another path")


class ModelError(DepgraphError):
    """A GPU model, an occupancy or a duration makes no sense for the graph at hand."""


class NotApplicableError(ModelError):
    """A mechanism needs something that the program at hand does not have."""


class DeadlockError(ModelError):
    """Blocks wait for each other forever: the first, by its number in its kernel, and others."""

    def __init__(self, schedule: str, kernel: int, block: int, others: int) -> None:
        self.place = f"block {block} of kernel {kernel}"
        self.others = others
        super().__init__(
            f"{schedule}: {self.place} waits forever, as do {others} more: the mechanism's rules "
            "wait for each other"
        )


class ClusterError(DepgraphError):
    """The cluster that should do the work cannot be used."""


class RecorderError(DepgraphError):
    """A program cannot be recorded: something is missing on this machine, or the program fails."""


class ApplyError(DepgraphError):
    """A program cannot be run with its real edges alone."""
