"""Public models by `parallelize`, as tables: which run with their real edges alone, and how fast.

``python -m benchmarks models --rows models.jsonl --minutes 10`` measures what is not yet in the
file, each in a process of its own, until the time is over; run it again to go on.
``python -m benchmarks models --rows models.jsonl --write docs/models.md`` puts the tables into the
page. Models that are measured beside their peers run alone. Where others run several `--at-once`
their times are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from math import inf
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any

import pages

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from depgraph.reports.plots.style import Plot

_MEASURE = "depgraph.samples.models.measure"
_REFUSED, _ERROR, _PLAIN, _EDGED = "refused", "error", "plain", "re-edged"
_OURS, _PLAIN_GRAPH = ("ours", "ours, compiled"), "CUDA graph"
_OVERWRITTEN = "ours, overwritten"
_COMPILED = "the best of torch.compile"
_DRAWN = {
    "the better of ours": _OURS,
    "Opara's rule": ["Opara's rule"],
    "Nimble's rule": ["Nimble's rule"],
    _COMPILED: ["torch.compile", "reduce-overhead", "combo kernels", "max-autotune"],
}
_INSTALLED = re.compile(r"/\S*/(site|dist)-packages/")
_GPU = re.compile(r"NVIDIA | \S+GB.*")  # what the names of GPUs have besides
_TO_END = 5.0  # seconds
_NOISE = 0.97  # of the plain graph's time
Job = tuple[str, str, int, str]  # model, type, batch, kind


def jobs(kinds: Sequence[str], models: Sequence[str]) -> Iterator[Job]:
    """Yield all that is to be measured, what says most first."""
    from depgraph.samples.models.zoo import MODELS, TRAINED, TWENTY

    found: list[Job] = []
    found += [(name, "fp32", 1, "peers") for name in TWENTY]
    found += [(name, type_, 1, "call") for name in MODELS for type_ in ("fp32", "bf16")]
    found += [(name, type_, 1, "step") for name in TRAINED for type_ in ("fp32", "bf16")]
    found += [(name, "fp16", 1, "call") for name in TWENTY]
    found += [(name, "fp32", 8, "call") for name in TWENTY]
    found += [(name, "fp32", 1, "compiled") for name in TWENTY]
    for job in found:
        if job[3] in kinds and (not models or job[0] in models):
            yield job


def read_rows(*paths: Path) -> dict[Job, dict[str, Any]]:
    """Return the rows of files; of several of one job the last."""
    texts = (path.read_text(encoding="utf-8") for path in paths if path.is_file())
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    return {(row["model"], row["type"], row["batch"], row["kind"]): row for row in rows}


def measure(
    job: Job, rows: Path, seconds: float, left: float = float("inf"), *, alone: bool = True
) -> None:
    """Measure one model in a process of its own; add a row unless there is no time `left`."""
    name, type_, batch, kind = job
    words = ["--type", type_, "--batch", str(batch), "--seconds", str(seconds)]
    words += ["--peers"] if kind == "peers" else ["--kind", kind]
    words += [] if alone else ["--beside-others"]
    before = len(read_rows(rows))
    command = [sys.executable, "-m", _MEASURE, name, *words, "--add-to", str(rows.absolute())]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        _, said = process.communicate(timeout=min(seconds, left))
        why = f"exit code {process.returncode}: {_last_line(said)}"
    except subprocess.TimeoutExpired:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_TO_END)  # it ends what it has started
        if left < seconds:
            return  # the next run begins with it
        why = f"not done after {seconds:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode == 0 or (before < len(read_rows(rows)) and job in read_rows(rows)):
        return
    row = {"model": name, "type": type_, "batch": batch, "kind": kind, "came": _ERROR, "why": why}
    with rows.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def measure_all(waiting: list[Job], rows: Path, ends: float, seconds: float, at_once: int) -> None:
    """Measure what waits until a time, several in processes beside each other."""
    lock = threading.Lock()

    def work() -> None:
        while True:
            with lock:
                left = ends - time.monotonic()
                if not waiting or left < 1:
                    return
                job = waiting.pop(0)
            print(*job, flush=True)
            measure(job, rows, seconds, left, alone=at_once == 1)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def tables(rows: dict[Job, dict[str, Any]]) -> str:
    """Return what the page shows."""
    of_models = [row for row in rows.values() if row["kind"] != "peers"]
    of_peers = [row for row in rows.values() if row["kind"] == "peers" and "ways" in row]
    parts = [*_coverage(of_models), *_beside(of_peers), *_of_each(of_models)]
    return "\n".join(parts)


def _coverage(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield how many models came to what."""
    settings = dict.fromkeys((row["kind"], row["type"], row["batch"]) for row in rows)
    yield "## Coverage\n"
    heads = (
        "what", "type", "batch", "models", "PyTorch captures", "end without an error",
        "re-edged", "plain graph is used", "calls, re-edged",
    )  # fmt: skip
    cells = []
    for kind, type_, batch in settings:
        own = [r for r in rows if (r["kind"], r["type"], r["batch"]) == (kind, type_, batch)]
        captured = [row for row in own if row.get("captured")]
        well = [row for row in captured if row["came"] in {_PLAIN, _EDGED}]
        edged = [row for row in well if row["came"] == _EDGED]
        timed = [row for row in edged if row["alone"]]
        share = f"{len(well)} ({100 * len(well) / len(captured):.0f} %)" if captured else "-"
        faster = (
            f"{geometric_mean(r['plain_call_us'] / r['call_us'] for r in timed):.2f}x"
            if timed else "-"
        )  # fmt: skip
        counts = len(edged), len(well) - len(edged)
        cells.append((_NAMES[kind], type_, batch, len(own), len(captured), share, *counts, faster))
    yield f"{pages.table(heads, 'llrrrrrrr', cells)}\n"


_NAMES = {"call": "calls", "step": "training steps", "compiled": "calls, the better of both"}


def _of_each(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what came of each model."""
    yield "## Every model\n"
    heads = (
        "model", "package", "what", "type", "batch", "nodes", "plain graph, us", "call, us",
        "faster", "graph, or why not",
    )  # fmt: skip
    cells = []
    for row in sorted(rows, key=lambda r: (r["kind"], r.get("package", ""), r["model"], r["type"])):
        numbers: tuple[str, ...] = ("-",) * 3
        text = _INSTALLED.sub("", row.get("why", "")).replace("|", "\\|").replace("<", "&lt;")
        if "call_us" in row:
            before, after, text = row["plain_call_us"], row["call_us"], row["graph"]
            if row["alone"]:
                numbers = f"{before:.1f}", f"{after:.1f}", f"{before / after:.2f}x"
        what = row["model"], row.get("package", ""), _NAMES[row["kind"]], row["type"], row["batch"]
        cells.append((*what, row.get("nodes", "-"), *numbers, text))
    yield f"{pages.table(heads, 'llllrrrrrl', cells)}\n"


def _beside(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what each way to call the models takes."""
    if not rows:
        return
    fullest = sorted(rows, key=lambda row: -len(row["ways"]))
    ways = list(dict.fromkeys(way for row in fullest for way in row["ways"]))
    yield "## Beside what others would use\n"
    yield "Microseconds a call; in brackets where the bits are not the model's own.\n"
    cells = [
        (row["model"], _GPU.sub("", row["gpu"]), *(_cell(row["ways"].get(w, {})) for w in ways))
        for row in sorted(rows, key=lambda r: r["model"])
    ]
    yield f"{pages.table(['model', 'GPU', *ways], 'll' + 'r' * len(ways), cells)}\n"
    yield from _compared(rows, ways)
    yield "### What they take\n"
    yield "GPU memory that PyTorch reserved for each, beyond what those made before it had let go,"
    yield "and seconds to prepare it.\n"
    made = [way for way in ways if way != _OVERWRITTEN]
    cells = [
        (row["model"], *(_takes(row["ways"].get(way, {})) for way in made))
        for row in sorted(rows, key=lambda r: r["model"])
    ]
    yield f"{pages.table(['model', *made], 'l' + 'r' * len(made), cells)}\n"


def _takes(fact: dict[str, Any]) -> str:
    """Say what one way took; nothing where it gave memory back."""
    if "bytes" not in fact:
        return "-"
    return f"{max(0, fact['bytes']) / 2**20:.0f} MiB, {fact['prepare_s']:.0f} s"


def _cell(fact: dict[str, Any]) -> str:
    if "us" not in fact:
        return "-"
    return f"{fact['us']:.1f}" if fact.get("bits_equal") else f"({fact['us']:.1f})"


def _best(row: dict[str, Any], ways: Sequence[str]) -> float | None:
    found = [row["ways"][way]["us"] for way in ways if "us" in row["ways"].get(way, {})]
    return min(found, default=None)


def _compared(rows: list[dict[str, Any]], ways: Sequence[str]) -> Iterator[str]:
    """Yield how much faster the better of ours is than each other way, and where it is not."""
    yield "The better of ours against each, geometric mean over the models that both run:\n"
    cells = []
    others = {way: [way] for way in ways if way not in _OURS and not way.startswith("ours")}
    if len(set(_DRAWN[_COMPILED]) & set(others)) > 1:
        others[_COMPILED] = _DRAWN[_COMPILED]
    for title, its_ways in others.items():
        pairs = [(r["model"], _best(r, _OURS), _best(r, its_ways)) for r in rows]
        known = [(model, its / mine) for model, mine, its in pairs if mine and its]
        if known:
            behind = ", ".join(model for model, factor in known if factor < _NOISE) or "none"
            cells.append((title, len(known), f"{geometric_mean(f for _, f in known):.2f}x", behind))
    yield f"{pages.table((None, 'models', 'faster', 'behind on'), 'lrrl', cells)}\n"
    for row in sorted(rows, key=lambda r: r["model"]):
        yield from _why_behind(row, [way for its_ways in others.values() for way in its_ways])
        for way, fact in row["ways"].items():
            if said := fact.get("why") or fact.get("note"):
                yield f"- {row['model']}, {way}: {said}"
            elif fact.get("wrong"):
                yield f"- {row['model']}, {way}: {len(fact['wrong'])} graphs did not pass the check"
    yield ""


def _why_behind(row: dict[str, Any], others: Sequence[str]) -> Iterator[str]:
    """Yield what a call takes besides its graph where another way takes less."""
    mine, its = _best(row, _OURS), _best(row, others)
    for way in _OURS:
        fact = row["ways"].get(way, {})
        if mine and its and fact.get("us") == mine and its / mine < _NOISE and "graph_us" in fact:
            graph = f"the graph ({fact['graph']}) takes {fact['graph_us']:.1f} us by itself"
            yield f"- {row['model']}, {way}: {graph}; the rest are guards and copies"


def _drawn(rows: dict[Job, dict[str, Any]], name: str) -> Plot:
    """Draw how much faster than the plain graph each way calls the models."""
    from depgraph.reports.plots.style import COLOURS, MARKERS, Plot, new_figure

    models = [row for row in rows.values() if "us" in row.get("ways", {}).get(_PLAIN_GRAPH, {})]
    models.sort(key=lambda row: (_best(row, _OURS) or inf) / row["ways"][_PLAIN_GRAPH]["us"])
    figure = new_figure(1.0 + 0.2 * max(1, len(models)))
    axes = figure.subplots()
    for place, (title, ways) in enumerate(_DRAWN.items()):
        known = [(y, us) for y, row in enumerate(models) if (us := _best(row, ways))]
        axes.plot(
            [models[y]["ways"][_PLAIN_GRAPH]["us"] / us for y, us in known],
            [y for y, _ in known], MARKERS[place], label=title, color=COLOURS[1 + place],
            zorder=3 - 0.1 * place, clip_on=False,
        )  # fmt: skip
    axes.grid(axis="y", linewidth=0.4)
    axes.set_yticks(range(len(models)), [row["model"] for row in models])
    axes.set_ylim(max(1, len(models)) - 0.5, -0.5)
    axes.set_xlabel("calls, times as fast as a plain CUDA graph")
    axes.axvline(1, color="grey", linewidth=0.6)
    figure.legend(loc="outside upper center", ncols=2)
    return Plot(name, "Calls of public models", "", "", figure)


def main(words: Sequence[str] | None = None) -> None:
    """Measure, or write the page, as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--rows", type=Path, required=True, nargs="+", metavar="FILE",
        help="JSON, a line each; new ones are added to the first file",
    )  # fmt: skip
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write the tables, measure nothing"
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=300.0, help="that one model may take")
    parser.add_argument("--at-once", type=int, default=1, metavar="N")
    parser.add_argument("--kinds", nargs="+", default=["peers", "call", "step", "compiled"])
    parser.add_argument("--models", nargs="+", default=[])
    chosen = parser.parse_args(words)
    if chosen.write is not None:
        rows = read_rows(*chosen.rows)
        pages.write_tables(chosen.write, {"tables": tables(rows)})
        pages.draw_beside(chosen.write, lambda: _drawn(rows, chosen.write.stem))
        return
    done = read_rows(*chosen.rows)
    ends = time.monotonic() + 60 * chosen.minutes
    waiting = [job for job in jobs(chosen.kinds, chosen.models) if job not in done]
    alone = [job for job in waiting if job[3] == "peers"]
    measure_all(alone, chosen.rows[0], ends, chosen.seconds, 1)
    beside = [job for job in waiting if job[3] != "peers"]
    measure_all(beside, chosen.rows[0], ends, chosen.seconds, chosen.at_once)


if __name__ == "__main__":
    main()
