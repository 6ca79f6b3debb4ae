"""Options that name mechanisms and their costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from depgraph.cli.options.shared import together
from depgraph.cli.options.values import wrong_usage

if TYPE_CHECKING:
    from collections.abc import Iterable

    from depgraph.mechanisms import Quantity


def _split_names(_: click.Context, __: click.Parameter, value: str | None) -> tuple[str, ...]:
    if value is None:
        return ()
    from depgraph.mechanisms import find_mechanisms, split_names

    names = tuple(split_names(value))
    # What the user wrote is read later: whatever is wrong there is no wrong usage.
    with wrong_usage():
        find_mechanisms(n for n in names if ":" not in n and not n.endswith(".toml"))
    return names


def _checked_costs(
    _: click.Context, __: click.Parameter, value: tuple[str, ...]
) -> tuple[str, ...]:
    if value:
        with wrong_usage():
            parse_costs(value)
    return value


mechanism_options = together(
    click.option(
        "--mechanism", "mechanisms", metavar="NAME[,...]", callback=_split_names,
        help="Mechanisms to compare, or all; MODULE:CLASS or FILE.toml for one of "
        "your own. See: depgraph mechanisms.",
    ),
    click.option(
        "--cost", "costs", multiple=True, metavar="M.COST=VALUE", callback=_checked_costs,
        help="Change a cost of a mechanism, such as acs-sw.launch=8us. May be repeated.",
    ),
)  # fmt: skip


hypothetical_option = click.option(
    "--hypothetical", is_flag=True,
    help="Let --mechanism all show what ships for other GPUs or kernels, too.",
)  # fmt: skip


def parse_costs(costs: Iterable[str]) -> dict[str, dict[str, Quantity]]:
    """Read the values of --cost."""
    from depgraph.mechanisms import parse_cost

    changed: dict[str, dict[str, Quantity]] = {}
    for text in costs:
        mechanism, name, quantity = parse_cost(text)
        changed.setdefault(mechanism, {})[name] = quantity
    return changed
