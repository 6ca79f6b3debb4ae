"""Programs as graphs with only their real edges, all in one process of a machine with a GPU.

``python benchmarks/apply_programs.py --add-to rows.jsonl --prove 3`` measures every program of
``samples/validation/applied.py``: a call of it beside a call of the graph as PyTorch captures it.
With `--prove` so many edges of each chosen graph are drawn and taken away, one at a time: the
comparison with the function must notice.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path

import torch

from depgraph.apply.may_sets import DATA
from depgraph.errors import DepgraphError
from depgraph.samples.validation.applied import PROGRAMS
from depgraph.torch.arguments import Arguments
from depgraph.torch.check_here import Check
from depgraph.torch.choose import choose
from depgraph.torch.parallel import Request, prepared_for
from depgraph.torch.parallelized import Parallelized
from depgraph.torch.rerun import Stage


def measured(name: str, prove: int, chance: random.Random) -> dict[str, object]:
    """Return a row of what came of a program, and how many missing edges were noticed."""
    torch.manual_seed(0)
    function, inputs = PROGRAMS[name]()
    request = Request(0, function, inputs, None, (), 1 << 30, name, False, "own", 0, 600.0)  # noqa: FBT003
    arguments = Arguments(inputs)
    started = time.perf_counter()
    prepared = prepared_for(request, arguments)
    check = Check(prepared, request, Stage())
    verdicts = check.found()
    checked = time.perf_counter()
    noticed = drawn = 0
    best = {v.name for v in verdicts.graphs[:1] if not v.wrong}
    for graph in prepared.graphs(prepared.graph(weights=verdicts.weights), best.__contains__):
        checker = check.runs.checker(graph)
        units = {(graph.plan.units[a].end - 1, graph.plan.units[b].first): (a, b)
                 for a, b in graph.plan.unit_edges}  # fmt: skip
        real = [e for e in graph.edges if e in units and DATA in graph.plan.why(*units[e])]
        for edge in chance.sample(real, min(prove, len(real))):
            drawn += 1
            found = checker.check([e for e in graph.edges if e != edge])
            noticed += bool(found.wrong)
            if not found.wrong:
                nodes = graph.plan.captured.nodes
                print(f"  not noticed: {edge}, {nodes[edge[0]].label} -> {nodes[edge[1]].label}")
    prepared.lanes.given_back()
    made = Parallelized(function, arguments, name)
    again = prepared_for(request, arguments)
    begun = time.perf_counter()
    report = choose(again, request, verdicts, None, made)
    seconds = checked - started, time.perf_counter() - begun
    row = {**report.row(), "edges_drawn": drawn, "edges_noticed": noticed, "guards": report.guards}
    reasons = [(each.reason, each.edges, round(each.costs_us, 1)) for each in report.edges[:3]]
    print(
        f"{name:20s} replay {report.before.measured:8.1f} -> {report.after.measured:8.1f} us, call "
        f"{report.plain_call_us:8.1f} -> {report.call_us:8.1f} us, {report.speedup:.2f}x, "
        f"{report.chosen}, noticed {noticed}/{drawn}, {seconds[0]:.1f} + {seconds[1]:.1f} s "
        f"{reasons}",
        flush=True,
    )
    for each in report.tried:
        if each.refused:
            print(f"  refused: {each.name}: {each.refused}")
    return row


def main() -> None:
    """Measure the programs that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(PROGRAMS))
    parser.add_argument("--add-to", type=Path, metavar="FILE", help="add a line of JSON for each")
    parser.add_argument("--prove", type=int, default=0, metavar="N", help="edges to take away")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    print(f"seed {arguments.seed}, {torch.cuda.get_device_name()}")
    chance = random.Random(arguments.seed)  # noqa: S311 - the same edges every time
    rows = []
    for name in arguments.names:
        try:
            rows.append(measured(name, arguments.prove, chance))
        except DepgraphError as error:
            print(f"{name:20s} refused: {error}", flush=True)
        if arguments.add_to is not None and rows:
            with arguments.add_to.open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row) + "\n" for row in rows)
    product = 1.0
    for row in rows:
        product *= float(str(row["speedup"])) ** (1 / len(rows))
    total = (
        sum(int(str(row["edges_noticed"])) for row in rows),
        sum(int(str(row["edges_drawn"])) for row in rows),
    )
    print(f"geometric mean {product:.2f}x, missing edges noticed {total[0]} of {total[1]}")


if __name__ == "__main__":
    main()
