"""The version of the installed package."""


def tool_version() -> str:
    """Return the version of the installed package, or "unknown" in a bare checkout."""
    from importlib.metadata import PackageNotFoundError, version  # slow to load

    try:
        return version("depgraph")
    except PackageNotFoundError:
        return "unknown"
