"""A policy of the user's own, described in a TOML file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from depgraph.errors import ModelError
from depgraph.mechanisms.base import Availability, Mechanism, dependent_operations
from depgraph.mechanisms.costs import Cost, parse_cost
from depgraph.mechanisms.launching import ahead, once, one_by_one
from depgraph.mechanisms.mega import workers_of
from depgraph.schedule.policy import (
    ALL_ENDED,
    ALL_PLACED,
    ALL_TRIGGERED,
    HOLDS,
    IGNORED,
    PLACES,
    Against,
    Gates,
    Rules,
)
from depgraph.schedule.priorities import PRIORITIES
from depgraph.system.limits import LARGEST_PARAMETER
from depgraph.system.text import clean_text, in_short
from depgraph.system.toml_file import (
    TomlError,
    check_keys,
    line_of_key,
    parse_toml,
    read_toml_text,
    show_value,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from depgraph.mechanisms.costs import Charges
    from depgraph.mechanisms.launching import Launching
    from depgraph.scenario.scenario import Scenario

SUFFIX = ".toml"
_AVAILABLE = {
    "today": Availability.SHIPS, "code": Availability.CODE, "hardware": Availability.HARDWARE,
}  # fmt: skip
_EVENTS = {
    "nothing": None, "placed": ALL_PLACED, "triggered": ALL_TRIGGERED, "ended": ALL_ENDED,
}  # fmt: skip
_LAUNCHING: dict[str, Callable[[Scenario, Charges], Launching]] = {
    "each": one_by_one, "ahead": ahead, "once": once,
}  # fmt: skip
_CHOICES = {
    "needs": tuple(_AVAILABLE),
    "unit": ("block", "kernel"),
    "waits": ("before", "inside"),
    "after": tuple(_EVENTS),
    "priority": tuple(PRIORITIES),
    "launches": tuple(_LAUNCHING),
}
_SHARES = ("trigger", "prefetch")
_COUNTS = ("window", "workers", "cluster")
_FLAGS = ("in_order", "strict")
_TEXTS = ("name", "rule", "source")
_COSTS = {
    "kernel": "before each kernel, once it may start",
    "enter": "for each kernel, one after another, ahead of the GPU",
    "block": "added to each block",
}


class Custom(Mechanism):
    """What a file describes.

    Parameters
    ----------
    path : Path

    Raises
    ------
    ModelError
        If it is no policy; the message names the line.
    """

    name = "custom"
    rule = "what its file says"
    availability = Availability.CODE
    source = "a file of your own"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._text, settings = _read(path)
        for key, value in settings.items():
            self._check(key, value)
        self._settings: dict[str, Any] = settings
        self._check_together()
        about: dict[str, Any] = {"name": path.stem, **settings}
        about = {key: clean_text(about[key]) for key in _TEXTS if key in about}
        about["availability"] = _AVAILABLE[settings.get("needs", "code")]
        about["costs"] = tuple(self._costs())
        for key, value in about.items():  # what other mechanisms say of their class
            setattr(self, key, value)

    def _costs(self) -> list[Cost]:
        costs = []
        for key, meaning in _COSTS.items():
            if key in self._settings:
                try:
                    _, _, given = parse_cost(f"{self._path.stem}.{key}={self._settings[key]}")
                except ModelError:
                    raise self._refused(key, 'a time, such as "0.5us"') from None
                costs.append(Cost(key, given.value, given.unit or "us", meaning, str(self._path)))
        return costs

    def _check(self, key: str, value: object) -> None:
        if key in _CHOICES and value not in _CHOICES[key]:
            raise self._refused(key, f"one of {', '.join(_CHOICES[key])}")
        if key in _FLAGS and not isinstance(value, bool):
            raise self._refused(key, "true or false")
        if key in (*_TEXTS, *_COSTS) and not (isinstance(value, str) and value.strip()):
            raise self._refused(key, "a text")
        if key in (*_SHARES, *_COUNTS) and (
            isinstance(value, bool)
            or not isinstance(value, int | float if key in _SHARES else int)
            or not 0 <= value <= (1 if key in _SHARES else LARGEST_PARAMETER)
        ):
            what = "a share from 0 to 1" if key in _SHARES else "a whole number from 0"
            raise self._refused(key, what)

    def _check_together(self) -> None:
        """Refuse what other keys would leave without effect, or would contradict."""
        settings = self._settings
        of_kernels, inside = settings.get("unit") == "kernel", settings.get("waits") == "inside"
        if settings.get("prefetch", 0) > 0 and (of_kernels or not inside):
            raise self._refused("prefetch", 'none without unit = "block" and waits = "inside"')
        if settings.get("cluster", 1) > 1 and not (of_kernels or inside):
            raise self._refused("cluster", '1 where blocks wait before; give waits = "inside"')
        if settings.get("cluster", 1) > 1 and settings.get("priority") == "longest-path-first":
            raise self._refused("cluster", "1 with longest-path-first, which mixes kernels")

    def _refused(self, key: str, expected: str) -> ModelError:
        found = show_value(_read(self._path)[1].get(key))
        line = line_of_key(self._text, key)
        return ModelError(f"{self._path}:{line}: {key} = {found}: expected {expected}")

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Return the rules that the file describes."""
        settings, graph = self._settings, program.graph
        inside = settings.get("waits") == "inside"
        joins = HOLDS if inside else PLACES
        gates = Gates.none()
        prefetch = settings.get("prefetch", 0.0)
        if settings.get("unit") == "kernel":
            joins = IGNORED
            gates += Gates.between(*dependent_operations(graph), ALL_ENDED, holds=inside)
        event = _EVENTS[settings.get("after", "nothing")]
        if event is not None:
            order = np.arange(graph.n_operations)
            gates += Gates.between(order[:-1], order[1:], event)
        costs = dict.fromkeys(_COSTS, 0.0) | {c.name: charges.time(c.name) for c in self.costs}
        launching = _LAUNCHING[settings.get("launches", "ahead")](program, charges)
        block = costs["block"] * program.is_kernel[graph.operation_of_block]
        workers = settings.get("workers", 0)
        held = workers_of(program)
        notes = (f"workers of an SM: {held}, as many as it holds",) if workers > held else ()
        cluster = max(1, settings.get("cluster", 1))
        divides = program.is_kernel & (np.diff(graph.first_block) % cluster == 0)
        return Rules(
            joins=np.full(len(graph.join_kind), joins, np.uint8),
            join_need=np.full(len(graph.join_kind), prefetch) if joins == HOLDS else None,
            gates=gates,
            launch=launching.launch + program.is_kernel * costs["kernel"],
            enter=launching.enter + program.is_kernel * costs["enter"],
            trigger=settings.get("trigger", 1.0),
            cluster=np.where(divides, cluster, 1) if joins != PLACES else 1,
            workers=min(workers, held),
            window=settings.get("window", 0),
            in_order=settings.get("in_order", False),
            order=PRIORITIES[settings.get("priority", "oldest-first")](graph, program.durations),
            strict=settings.get("strict", inside),
            durations=program.durations + block if costs["block"] else None,
            against=Against.WORK if joins == HOLDS and prefetch else Against.BLOCK,
            assumptions=notes,
        )


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a file and its keys, of which all are known."""
    try:
        text = read_toml_text(path)
        settings = parse_toml(text)
        check_keys(text, settings, (*_TEXTS, *_CHOICES, *_SHARES, *_COUNTS, *_FLAGS, *_COSTS))
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except TomlError as error:
        place = path if error.line is None else f"{path}:{error.line}"
        hint = f"; {error.hint}" if error.hint else ""
        raise ModelError(f"{place}: {in_short(error.found, 200)}{hint}") from None
    return text, settings
