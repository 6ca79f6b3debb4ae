"""Options for many stores at once."""

from __future__ import annotations

import click

from depgraph.cli.options.shared import together
from depgraph.cli.options.values import JOBS

suite_options = together(
    click.option(
        "-j", "--jobs", type=JOBS,
        help="Of several stores: how many at a time [default: all processors, as far as there "
        "is memory].",
    ),
    click.option(
        "--scheduler", metavar="ADDRESS",
        help="Of several stores: work on a dask scheduler (tcp://host:port), or on local:N "
        "processes. Its workers must see the stores under the same paths.",
    ),
)  # fmt: skip
