"""Programs as graphs with only their real edges, all in one process of a machine with a GPU.

``python benchmarks/apply_programs.py --add-to rows.jsonl --prove 3`` measures every program of
``samples/validation/applied.py``: a call of it beside a call of the graph as PyTorch captures it.
With `--prove` so many edges of each chosen graph are drawn and taken away, one at a time: the
comparison with the function must notice. Checks may run side by side, measurements must not:
``--check --verdicts FOLDER NAME`` in several processes, then one with ``--verdicts FOLDER`` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

import torch

from depgraph.apply.may_sets import DATA
from depgraph.apply.verdicts import Verdicts
from depgraph.errors import ApplyError, DepgraphError
from depgraph.samples.validation.applied import PROGRAMS
from depgraph.torch.arguments import Arguments
from depgraph.torch.check_here import Check
from depgraph.torch.choose import choose
from depgraph.torch.parallel import Request
from depgraph.torch.parallelized import Parallelized
from depgraph.torch.prepare import Prepared
from depgraph.torch.rerun import Stage

if TYPE_CHECKING:
    from depgraph.apply.applied import Applied

Kept = tuple[Verdicts, int, int]  # what a check found, edges that it missed, of how many


def checked(name: str, prove: int, chance: random.Random) -> tuple[Verdicts, int, int]:
    """Return what a check finds of a program, and how many missing edges it noticed of how many."""
    request, arguments = _asked(name)
    prepared = Prepared(request, arguments)
    check = Check(prepared, Stage())
    verdicts = check.run()
    noticed = drawn = 0
    best = {v.name for v in verdicts.graphs[:1] if not v.wrong}
    for graph in prepared.graphs(prepared.graph(weights=verdicts.weights), best.__contains__):
        checker = check.runs.checker(graph)
        units = {(graph.plan.units[a].end - 1, graph.plan.units[b].first): (a, b)
                 for a, b in graph.plan.unit_edges}  # fmt: skip
        real = []
        for edge in graph.edges:
            source, target = units.get(edge, (0, 0))
            if edge in units and graph.plan.before[target].get(DATA, 0) >> source & 1:
                real.append(edge)
        for edge in chance.sample(real, min(prove, len(real))):
            drawn += 1
            try:
                found = checker.check([e for e in graph.edges if e != edge])
            except ApplyError as error:  # kernels that wait for a counter wait for ever
                print(f"  noticed, and no more are drawn: {error}")
                return verdicts, noticed + 1, drawn
            noticed += bool(found.wrong)
            if not found.wrong:
                nodes = graph.plan.captured.nodes
                print(f"  not noticed: {edge}, {nodes[edge[0]].label} -> {nodes[edge[1]].label}")
    prepared.lanes.release()
    return verdicts, noticed, drawn


def measured(name: str, verdicts: Verdicts) -> Applied:
    """Measure the graphs of a program that passed a check, and a call of it."""
    request, arguments = _asked(name)
    made = Parallelized(request.function, arguments, name)
    return choose(Prepared(request, arguments), verdicts, None, made)


def _asked(name: str) -> tuple[Request, Arguments]:
    torch.manual_seed(0)
    function, inputs = PROGRAMS[name]()
    return Request(0, function, inputs, name=name), Arguments(inputs)


def _row(report: Applied, noticed: int, drawn: int) -> dict[str, object]:
    reasons = [(each.reason, each.edges, round(each.costs_us, 1)) for each in report.edges[:3]]
    print(
        f"{report.name:20s} replay {report.before.measured:8.1f} -> {report.after.measured:8.1f} "
        f"us, call {report.plain_call_us:8.1f} -> {report.call_us:8.1f} us, "
        f"{report.speedup:.2f}x, {report.chosen}, noticed {noticed}/{drawn}, {reasons}",
        flush=True,
    )
    for each in report.tried:
        if each.refused:
            print(f"  refused: {each.name}: {each.refused}")
    for note in report.notes:
        print(f"  note: {note}")
    row = report.row()
    return {**row, "edges_drawn": drawn, "edges_noticed": noticed, "guards": report.guards}


def _kept(name: str, arguments: argparse.Namespace, chance: random.Random) -> Kept:
    """Return what a check found, of this run or of one before that kept it in a folder."""
    folder = arguments.verdicts
    path = None if folder is None else folder / f"{name}.json"
    counts = None if folder is None else folder / f"{name}.counts"
    if path is not None and counts is not None and path.is_file():
        noticed, drawn = map(int, counts.read_text(encoding="utf-8").split())
        return Verdicts.read(path), noticed, drawn
    found = checked(name, arguments.prove, chance)
    if path is not None and counts is not None:
        found[0].write(path)
        counts.write_text(f"{found[1]} {found[2]}", encoding="utf-8")
    return found


def main() -> None:
    """Measure the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--add-to", type=Path, metavar="FILE", help="add a line of JSON for each")
    parser.add_argument("--prove", type=int, default=0, metavar="N", help="edges to take away")
    parser.add_argument(
        "--verdicts",
        type=Path,
        metavar="FOLDER",
        help="keep what checks find there, and take it",
    )
    parser.add_argument("--check", action="store_true", help="measure nothing: fill --verdicts")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(f"seed {arguments.seed}, {torch.cuda.get_device_name()}")
    chance = random.Random(arguments.seed)  # noqa: S311 - the same edges every time
    rows = []
    for name in arguments.names:
        try:
            verdicts, noticed, drawn = _kept(name, arguments, chance)
            if not arguments.check:
                rows.append(_row(measured(name, verdicts), noticed, drawn))
        except DepgraphError as error:
            print(f"{name:20s} refused: {error}", flush=True)
        if arguments.add_to is not None and rows:
            with arguments.add_to.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    if arguments.check:
        sys.stdout.flush()
        os._exit(0)  # a graph without one of its edges may never end
    mean = geometric_mean([float(str(row["speedup"])) for row in rows] or [1.0])
    noticed, drawn = (
        sum(int(str(row[f"edges_{k}"])) for row in rows) for k in ("noticed", "drawn")
    )
    print(f"geometric mean {mean:.2f}x, missing edges noticed {noticed} of {drawn}")


if __name__ == "__main__":
    main()
