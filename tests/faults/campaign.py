"""Run many cases in a few processes, and say what was found.

    python tests/faults --seeds 100 --write docs/reliability.md
    python tests/faults --only store-17

A seed is a hundred cases of all kinds. A case that kills its process, or takes longer than a minute
twice, is a finding of that case; the process is started anew.
"""

import argparse
import itertools
import json
import os
import platform
import queue
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from faults.cases import KINDS, cases_of
from faults.ending import ENDINGS
from faults.program import FINDINGS, HANG, SIGNAL

SECONDS = 60
SECONDS_TO_START = 900  # all that is compiled is compiled then
WORKERS = 2
DISK_SIZE = "4m"
LOG_SHOWN = 3000
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


class Worker:
    """A process that runs cases, and its folder."""

    def __init__(self, folder, seconds=SECONDS):
        self.folder = folder
        self.seconds = seconds
        self.process = None

    def start(self):
        """Start the process anew, in an empty folder."""
        self.stop()
        self.folder.mkdir()
        disk = self.folder / "disk"
        disk.mkdir()
        mount = shutil.which("mount")
        if mount and os.geteuid() == 0:
            command = [mount, "-t", "tmpfs", "-o", f"size={DISK_SIZE}", "depgraph", str(disk)]
            subprocess.run(command, check=False, capture_output=True)
        tests = Path(__file__).resolve().parents[1]
        given = os.environ.get("PYTHONPATH")
        path = os.pathsep.join(map(str, filter(None, [tests, tests / "support", given])))
        self.log = (self.folder / "log").open("w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.worker", str(self.folder), str(self.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={**os.environ, "PYTHONPATH": path, "CI": "1", "PYTHONHASHSEED": "0"},
        )
        if self._reply(SECONDS_TO_START) is None:
            raise RuntimeError(f"no case can run:\n{self._said()}")

    def run(self, case):
        """Run a case; return how it ended."""
        for attempt in range(2):
            if self.process is None:
                self.start()
            self.log.truncate(0)
            self.process.stdin.write(f"{case}\n".encode())
            self.process.stdin.flush()
            result = self._reply(self.seconds)
            if result is not None:
                return result
            code, said = self.process.poll(), self._said()
            self.stop()
            result = {
                "case": case,
                "about": "",
                "detail": said,
                "seconds": self.seconds,
                "bytes": 0,
            }
            if code is not None:
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                return result | {"ended": SIGNAL, "detail": f"{name}\n{said}"}
            if attempt:
                break  # not only because this machine was busy
        return result | {"ended": HANG}

    def _reply(self, seconds):
        """Return the next reply, or None if the process ends or takes too long."""
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else b""
        if ready and not line:
            self.process.wait()
        return json.loads(line) if line else None

    def _said(self):
        self.log.seek(0)
        return self.log.read().decode("utf-8", "replace").strip("\0")[-LOG_SHOWN:]

    def stop(self):
        """End the process and remove its folder."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.log.close()
            self.process = None
        disk = self.folder / "disk"
        if disk.is_mount():
            subprocess.run([shutil.which("umount"), "-l", str(disk)], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def pool(n_workers=WORKERS, seconds=SECONDS):
    """Yield a function that runs cases and yields how each ended, in no order."""
    folder = Path(tempfile.mkdtemp(prefix="depgraph.faults."))
    workers = [Worker(folder / str(number), seconds) for number in range(n_workers)]
    try:
        yield partial(_results, workers)
    finally:
        for worker in workers:
            worker.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _results(workers, cases):
    waiting, done = queue.SimpleQueue(), queue.SimpleQueue()
    for case in cases:
        waiting.put(case)
    for worker in workers[: len(cases)]:
        threading.Thread(target=_serve, args=(worker, waiting, done), daemon=True).start()
    for _ in cases:
        result = done.get()
        if isinstance(result, BaseException):
            raise result
        yield result


def _serve(worker, waiting, done):
    while True:
        try:
            done.put(worker.run(waiting.get_nowait()))
        except queue.Empty:
            return
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            done.put(error)
            return


def findings_in(results):
    """Return what should not have happened."""
    return [result for result in results if result["ended"] in FINDINGS]


def show(result):
    """Return a finding as text: the case, what it was, what was seen."""
    where = f"{result['case']}: {result['ended']}"
    about = f" ({result['about']})" if result["about"] else ""
    return f"{where}{about}\n    " + result["detail"].strip().replace("\n", "\n    ")


def table(results):
    """Return the figures as two tables in Markdown."""
    ends = defaultdict(Counter)
    for result in results:
        ends[result["case"].partition("-")[0]][result["ended"]] += 1
    heads = ["damaged", "cases", *ENDINGS, "findings"]
    rows = [
        [kind.meaning, ends[name].total(), *(ends[name][end] for end in ENDINGS),
         sum(ends[name][found] for found in FINDINGS)]
        for name, kind in KINDS.items() if name in ends
    ]  # fmt: skip
    rows.append(["all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])])
    total = sum(ends.values(), Counter())
    return "\n\n".join(
        [
            _markdown(heads, rows),
            _markdown(["finding", "cases"], [[found, total[found]] for found in FINDINGS]),
        ]
    )


def _markdown(heads, rows):
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    cells = [[_shown(cell) for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _shown(cell):
    return f"{cell:,}".replace(",", " ") if isinstance(cell, int) else cell


def write(path, results, seconds):
    """Put the figures into a page, between its two marks."""
    from depgraph.system.output import tool_version

    slowest = max(results, key=lambda result: result["seconds"])
    largest = max(result["bytes"] for result in results) >> 20
    text = path.read_text(encoding="utf-8")
    figures = (
        f"depgraph {tool_version()}, Python {platform.python_version()}, {len(results)} cases in "
        f"{seconds / 60:.0f} minutes on {WORKERS} processes. The slowest case took "
        f"{slowest['seconds']:.1f} s, the largest {largest} MiB.\n\n{table(results)}"
    )
    pattern = re.compile(f"(?<={re.escape(BEGIN)}\n).*(?={re.escape(END)})", re.DOTALL)
    path.write_text(pattern.sub(lambda _: f"{figures}\n", text), encoding="utf-8")


def main():
    """Run cases, print findings as they come and the figures at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=1, help="hundreds of cases")
    parser.add_argument("--seed", type=int, default=0, help="the first of them")
    parser.add_argument("--only", action="append", help="a case (store-17) or a kind (store)")
    parser.add_argument("--write", type=Path, help="page whose figures to replace")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="most that a case may take")
    options = parser.parse_args()
    only = options.only or list(KINDS)
    cases = [case for case in only if "-" in case]
    kinds = [cases_of(kind, options.seeds, options.seed) for kind in only if "-" not in kind]
    cases += [case for some in itertools.zip_longest(*kinds) for case in some if case]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and clean up
    began = time.monotonic()
    results = []
    with pool(options.workers, options.seconds) as run_all:
        for result in run_all(cases):
            results.append(result)
            if result["ended"] in FINDINGS:
                print(show(result), flush=True)
            elif options.only and "-" in options.only[0]:
                print(f"{result['case']}: {result['ended']} ({result['about']})", flush=True)
    seconds = time.monotonic() - began
    print(f"\n{len(results)} cases in {seconds:.0f} s\n\n{table(results)}")
    if options.write:
        write(options.write, results, seconds)
    return 1 if findings_in(results) else 0
