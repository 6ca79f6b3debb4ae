"""A policy of the user's own, described in a TOML file."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from depgraph.errors import ModelError
from depgraph.graph.block_graph import dependent_operations
from depgraph.mechanisms.base import (
    Availability,
    Charges,
    Cost,
    Launching,
    Mechanism,
    ahead,
    once,
    one_by_one,
    parse_cost,
)
from depgraph.mechanisms.mega import workers_of
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import (
    ALL_ENDED,
    ALL_PLACED,
    ALL_TRIGGERED,
    HOLDS,
    IGNORED,
    PLACES,
    PRIORITIES,
    Against,
    Gates,
    Rules,
)
from depgraph.system.described import Field, ModelFile, flag, one_of, real, text, whole
from depgraph.system.text import LARGEST_PARAMETER, clean_text

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
_TEXTS = ("name", "rule", "source")
_COSTS = {
    "kernel": "before each kernel, once it may start",
    "enter": "for each kernel, one after another, ahead of the GPU",
    "block": "added to each block",
}
_SHARE = real(0, 1, "a share from 0 to 1")
_COUNT = whole(0, LARGEST_PARAMETER)
POLICY = (
    Field("name", text, "what tables call it"),
    Field("rule", text, "in a few words"),
    Field("source", text, "where it is described"),
    Field("needs", one_of(_AVAILABLE), "to use it", default="code"),
    Field("unit", one_of(("block", "kernel")), "what waits for what of its sort", default="block"),
    Field("waits", one_of(("before", "inside")), "inside: holding a slot", default="before"),
    Field("after", one_of(_EVENTS), "of the kernel before one takes slots", default="nothing"),
    Field("priority", one_of(PRIORITIES), "which block is first", default="oldest-first"),
    Field("launches", one_of(_LAUNCHING), "what they cost", default="ahead"),
    Field("trigger", _SHARE, "of a block's work, before it triggers", default=1.0),
    Field("prefetch", _SHARE, "of a block's work that it can do before it waits", default=0.0),
    Field("window", _COUNT, "kernels known at a time, 0 for any number", default=0),
    Field("workers", _COUNT, "equal slots of an SM; 0: what blocks need", default=0),
    Field("cluster", _COUNT, "blocks placed together in a GPC", default=1),
    Field("in_order", flag, "the window moves on past its oldest kernel only", default=False),
    Field("strict", flag, "a block that fits nowhere holds up others; by default as it waits"),
    *(Field(name, text, meaning, "us") for name, meaning in _COSTS.items()),
)


class Custom(Mechanism):
    """What a file describes; a `ModelError` names the line of what is no policy."""

    name = "custom"
    rule = "what its file says"
    availability = Availability.CODE
    source = "a file of your own"

    def __init__(self, path: Path) -> None:
        self._file = ModelFile(path)
        self._settings = settings = self._file.table("", 0, self._file.content, POLICY)
        self._check_together()
        about: dict[str, Any] = {"name": path.stem}
        about |= {key: clean_text(settings[key]) for key in _TEXTS if settings[key] is not None}
        about["availability"] = _AVAILABLE[settings["needs"]]
        about["costs"] = tuple(self._costs(path))
        for key, value in about.items():  # what other mechanisms say of their class
            setattr(self, key, value)

    def _costs(self, path: Path) -> list[Cost]:
        costs = []
        for key, meaning in _COSTS.items():
            if self._settings[key] is not None:
                try:
                    _, _, given = parse_cost(f"{path.stem}.{key}={self._settings[key]}")
                except ModelError:
                    self._refuse(key, 'a time, such as "0.5us"')
                costs.append(Cost(key, given.value, given.unit or "us", meaning, str(path)))
        return costs

    def _check_together(self) -> None:
        """Refuse what other keys would leave without effect, or would contradict."""
        settings = self._settings
        of_kernels, inside = settings["unit"] == "kernel", settings["waits"] == "inside"
        if settings["prefetch"] > 0 and (of_kernels or not inside):
            self._refuse("prefetch", 'none without unit = "block" and waits = "inside"')
        if settings["cluster"] > 1 and not (of_kernels or inside):
            self._refuse("cluster", '1 where blocks wait before; give waits = "inside"')
        if settings["cluster"] > 1 and settings["priority"] == "longest-path-first":
            self._refuse("cluster", "1 with longest-path-first, which mixes kernels")

    def _refuse(self, key: str, expected: str) -> NoReturn:
        self._file.wrong("", 0, key, self._settings[key], expected)

    def rules(self, program: Scenario, charges: Charges) -> Rules:
        """Return the rules that the file describes."""
        settings, graph = self._settings, program.graph
        inside = settings["waits"] == "inside"
        joins = HOLDS if inside else PLACES
        gates = Gates.none()
        prefetch = settings["prefetch"]
        if settings["unit"] == "kernel":
            joins = IGNORED
            gates += Gates.between(*dependent_operations(graph), ALL_ENDED, holds=inside)
        event = _EVENTS[settings["after"]]
        if event is not None:
            order = np.arange(graph.n_operations)
            gates += Gates.between(order[:-1], order[1:], event)
        costs = dict.fromkeys(_COSTS, 0.0) | {c.name: charges.time(c.name) for c in self.costs}
        launching = _LAUNCHING[settings["launches"]](program, charges)
        block = costs["block"] * program.is_kernel[graph.operation_of_block]
        workers = settings["workers"]
        held = workers_of(program)
        notes = (f"workers of an SM: {held}, as many as it holds",) if workers > held else ()
        cluster = max(1, settings["cluster"])
        divides = program.is_kernel & (np.diff(graph.first_block) % cluster == 0)
        return Rules(
            joins=joins,
            join_need=np.full(len(graph.join_kind), prefetch) if joins == HOLDS else None,
            gates=gates,
            launch=launching.launch + program.is_kernel * costs["kernel"],
            enter=launching.enter + program.is_kernel * costs["enter"],
            trigger=settings["trigger"],
            cluster=np.where(divides, cluster, 1) if joins != PLACES else 1,
            workers=min(workers, held),
            window=settings["window"],
            in_order=settings["in_order"],
            order=PRIORITIES[settings["priority"]](graph, program.durations),
            strict=inside if settings["strict"] is None else settings["strict"],
            durations=program.durations + block if costs["block"] else None,
            against=Against.WORK if joins == HOLDS and prefetch else Against.BLOCK,
            assumptions=notes,
        )
