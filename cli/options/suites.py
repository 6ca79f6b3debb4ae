"""Options for many stores at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

from depgraph.cli.options.values import JOBS

if TYPE_CHECKING:
    from collections.abc import Callable

Function = TypeVar("Function", bound="Callable[..., Any]")


def suite_options(function: Function) -> Function:
    """Add --jobs and --scheduler."""
    for option in (
        click.option(
            "--scheduler", metavar="ADDRESS",
            help="Of several stores: work on a dask scheduler (tcp://host:port), or on local:N "
            "processes. Its workers must see the stores under the same paths.",
        ),
        click.option(
            "-j", "--jobs", type=JOBS,
            help="Of several stores: how many at a time [default: all processors, as far as there "
            "is memory].",
        ),
    ):  # fmt: skip
        function = option(function)
    return function
