"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version


def tool_version() -> str:
    """Return the version of the installed package, or "unknown" in a bare checkout."""
    try:
        return version("depgraph")
    except PackageNotFoundError:
        return "unknown"
