"""Check that a change of the code changes no answer: many commands, their output kept and compared.

Run it before the first move and after each one; it says which commands answer otherwise::

    python benchmarks/same_answers.py keep /tmp/answers
    python benchmarks/same_answers.py compare /tmp/answers

What is kept is what each command prints on standard output, and every file that it writes but
pictures and pages: exit codes and errors, too.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared/data"
SAMPLES = ROOT / "samples"
_TIME_TAKEN = r" in [\d.]+ s(?:, \d+ MB/s)?"
NOT_COMPARED = {".png", ".svg", ".html", ".recording", ".xz"}
"""Pictures and pages show what the other outputs say; inputs are nobody's answer."""

OF_A_STORE = (
    "bound STORE --sms 80",
    "bound STORE --sms 8,16,132 --deps raw",
    "bound STORE --sms inf",
    "bound STORE --sms 46 --mechanism all",
    "bound STORE --sms 8,132 --mechanism all --launch gpu --gpu H100",
    "bound STORE --sms 108 --gpu A100 --launch 4,1,0.5 --mechanism pdl --mechanism cuda-graph",
    "bound STORE --sms 16 --occupancy 2 --what-if gap=0 --memory-bandwidth gpu",
    "bound STORE --sms 16 --what-if 'kernel=1 duration*=0.5' --what-if 'merge=2,3'",
    "show kernels STORE",
    "show pairs STORE --cusync",
    "show path STORE",
    "show buffers STORE",
    "show block STORE 3:0",
    "compare STORE STORE --sms 80",
    "report STORE --sms 46 -o page",
    "export STORE --what graph --to json -o graph.json",
    "export STORE --what schedule --sms 46 --to csv -o schedule.csv",
    "export STORE --what blocks --to csv -o blocks.csv",
    "export STORE --what cuda-graph --to json -o cuda.json",
)
OF_TIMES = (
    "bound STORE --timing TIMES --sms 132",
    "bound STORE --timing TIMES --sms 132,264 --mechanism all --launch measured",
    "bound STORE --timing TIMES --sms 132 --mechanism all --contention none --launch gpu",
    "bound STORE --timing TIMES --gpu H200 --contention sm --iteration min --launch gpu",
    "bound STORE --timing TIMES --gpu A100 --mechanism all --memory-bandwidth gpu",
    "bound STORE --timing TIMES --sms 132 --what-if 'kernel=2 duration*=0.5'",
    "show path STORE --timing TIMES --sms 132",
    "show buffers STORE --timing TIMES --sms 132",
    "report STORE --timing TIMES --launch gpu -o page",
    "export STORE --timing TIMES --what kernels --to csv -o kernels.csv",
    "export STORE --timing TIMES --what schedule --sms 132 --to json -o schedule.json",
    "timing TIMES STORE",
    "compare STORE STORE --timing TIMES",
)
ALONE = (
    "mechanisms",
    "gpus",
    "overlap SAMPLES/timing/overlap/rank0.json.gz SAMPLES/timing/overlap/rank1.json.gz",
    "bound FOLDER --sms 46",
    "bound FOLDER --sms 46 --mechanism all",
)
WITH_FORMAT = {"bound", "show", "compare", "timing", "mechanisms", "gpus", "overlap"}


def cases() -> Iterator[tuple[str, Path, Path | None]]:
    """Yield a name, an input and its measured times for each program of the corpus."""
    yield "recording", SAMPLES / "recording/gru_train.recording", None
    for log in sorted((DATA / "nvbit").glob("*.log.xz")) or [SAMPLES / "nvbit/gru_train.log.xz"]:
        name = log.name.removesuffix(".log.xz")
        times = DATA / f"timing/{name}.kineto.json"
        yield name, log, times if times.exists() else None
    yield "accelsim", SAMPLES / "accelsim/gru_train/kernelslist.g", None


def run(words: list[str], folder: Path) -> tuple[int, str, str]:
    """Run a command in a folder; return its exit code and what it printed."""
    from depgraph.cli.app import main
    from depgraph.cli.progress import FIRST_RUN

    out, err = io.StringIO(), io.StringIO()
    os.chdir(folder)
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            code = end.code or 0
    return int(str(code)), out.getvalue(), err.getvalue().replace(f"{FIRST_RUN}\n", "")


def answers_of(case: tuple[str, Path, Path | None]) -> dict[str, str]:
    """Return what all commands answer for one program, by command."""
    name, trace, times = case
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        given = folder / trace.name
        words = ["extract", trace.name, "-o", "store", "--quiet"]
        if trace.name == "kernelslist.g":
            shutil.copytree(trace.parent, folder / "traces")
            words[1] = "traces"
        else:
            shutil.copy(trace, given)
        if times is not None:
            shutil.copy(times, folder / "times.json")
        code, out, err = run(words, folder)
        found[f"{name}: extract"] = f"{code}\n{re.sub(_TIME_TAKEN, '', out)}{err}"
        for line in (*OF_A_STORE, *(OF_TIMES if times else ())):
            words = shlex.split(line.replace("STORE", "store").replace("TIMES", "times.json"))
            found.update(answers(name, line, words, folder))
    return found


def answers_alone() -> dict[str, str]:
    """Return what commands answer that are not about one store."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        for k, (_, trace, _) in enumerate(list(cases())[:2]):
            run(["extract", str(trace), "-o", f"stores/{k}.out", "--quiet"], folder)
        for line in ALONE:
            text = line.replace("SAMPLES", str(SAMPLES)).replace("FOLDER", "stores")
            found.update(answers("alone", line, shlex.split(text), folder))
    return {key: text.replace(str(SAMPLES), "SAMPLES") for key, text in found.items()}


def answers(name: str, line: str, words: list[str], folder: Path) -> dict[str, str]:
    """Run one command, as JSON and as text where it can do both; return all that it said."""
    forms = ("json", "table") if words[0] in WITH_FORMAT else ("",)
    found = {}
    for form in forms:
        asked = [*words, "--format", form] if form else words
        before = {path for path in folder.rglob("*") if path.is_file()}
        code, out, err = run(asked, folder)
        said = [f"exit {code}", out, err]
        for path in sorted({p for p in folder.rglob("*") if p.is_file()} - before):
            if path.suffix not in NOT_COMPARED:
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                said.append(f"{path.relative_to(folder)}: {digest}")
        for path in set(folder.rglob("*")) - before:
            if path.is_file():
                path.unlink()
        found[f"{name}: {line} {form}".strip()] = "\n".join(said)
    return found


def all_answers(only: str) -> dict[str, str]:
    """Return the answers of the whole corpus, or of one program of it."""
    wanted = [case for case in cases() if only in case[0]]
    found: dict[str, str] = {}
    with ProcessPoolExecutor(2, max_tasks_per_child=1) as pool:
        for part in pool.map(answers_of, wanted):
            found.update(part)
        if not only:
            found.update(pool.submit(answers_alone).result())
    return found


def main() -> int:
    """Keep the answers of this checkout, or compare them with kept ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("keep", "compare"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="programs whose names hold this")
    options = parser.parse_args()
    found = all_answers(options.only)
    kept = options.folder / "answers.json"
    if options.what == "keep":
        options.folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(found, indent=1, sort_keys=True))
        print(f"kept {len(found)} answers in {kept}")
        return 0
    before = {
        key: text
        for key, text in json.loads(kept.read_text()).items()
        if not options.only or options.only in key.split(":")[0]
    }
    differing = sorted(key for key in before | found if before.get(key) != found.get(key))
    for key in differing:
        print(f"--- {key}\n{first_difference(before.get(key, ''), found.get(key, ''))}")
    print(f"{len(found) - len(differing)} of {len(before)} answers are the same")
    return 1 if differing else 0


def first_difference(old: str, new: str) -> str:
    """Return the first lines that differ."""
    olds, news = old.splitlines(), new.splitlines()
    for k in range(max(len(olds), len(news))):
        pair = [lines[k] if k < len(lines) else "(no line)" for lines in (olds, news)]
        if pair[0] != pair[1]:
            return f"  line {k + 1}\n  was {pair[0][:300]}\n  is  {pair[1][:300]}"
    return "  nothing"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
