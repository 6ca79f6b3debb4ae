"""What other packages bring: entry points of theirs, by group and name."""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from depgraph.errors import ModelError
from depgraph.system.text import in_short

PARSERS, MECHANISMS, EXPORTS = "depgraph.parsers", "depgraph.mechanisms", "depgraph.exports"


def installed(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name."""
    return {point.name: point for point in sorted(entry_points(group=group), key=str)}


def loaded(point: EntryPoint) -> Any:
    """Import what an entry point names; `ModelError` if that fails, whatever the package does."""
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001 - it is the code of another package
        package = point.dist.name if point.dist else "a package"
        raise ModelError(
            f"{package} cannot provide {in_short(point.name)!r} ({point.value}): "
            f"{in_short(str(error) or repr(error), 400)}"
        ) from None
