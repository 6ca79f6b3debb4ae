"""Cases in which something happens while a command runs: files change, disks fill, signals come."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from faults import inputs
from faults.damaged_stores import some_questions
from faults.ending import ANSWERED, MEMORY, REFUSED, SAME, files, no_litter
from faults.ground import edges_in
from faults.program import (
    HANG,
    LITTER,
    SIGNAL,
    SILENT,
    UNCLEAR,
    Finding,
    Outcome,
    judge_end,
    must,
    run,
)

import depgraph
from depgraph import cli, parsers
from depgraph.system import interrupts

SECONDS = 60
FOLDERS = [Path(module.__file__).parent for module in (depgraph, cli, parsers)]
STARTING = {
    *(Path(module.__file__) for module in (depgraph, cli, interrupts)),
    Path(depgraph.__file__).with_name("__main__.py"),
}


@contextmanager
def meanwhile(delay, action):
    """Do something in another thread, some seconds after the body has begun."""

    def later():
        time.sleep(delay)
        action()

    thread = threading.Thread(target=later)
    thread.start()
    try:
        yield
    finally:
        thread.join()


# Files that change


def long_log(shift, times):
    """Return the log of the small program with every access written many times."""
    lines = inputs.chain_log(shift).splitlines(keepends=True)
    launches = [line for line in lines if b"LAUNCH" in line]
    return b"".join(
        [lines[0], *launches, *(line * times for line in lines[1:] if line not in launches)]
    )


def change(path, how, second, at):
    """Change a file as others might."""
    if how == "truncated":
        os.truncate(path, at)
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "deleted":
        path.unlink()
    elif how == "replaced":
        Path("new").write_bytes(second)
        Path("new").replace(path)
    else:
        with path.open("ab" if how == "appended to" else "r+b") as file:
            if how == "overwritten":
                file.seek(at)
            file.write(second[at:])


CHANGES = ("truncated", "emptied", "deleted", "replaced", "appended to", "overwritten")


def source(rng, _ground):
    """Change a trace while it is read: the graph must be that of one state that it was in."""
    times = rng.choice([1, 200, 1500, 1500])
    packing = rng.choice(["plain"] * 6 + ["gz", "zst", "xz"])
    pack = inputs.PACKERS[packing]
    words = ["extract", "trace.log", "-j", "1", *MEMORY]
    first, second = (pack(long_log(shift, times)) for shift in (1, 2))
    path = Path("trace.log")
    states = []
    for data in (second, first):
        path.write_bytes(data)
        began = time.perf_counter()
        must(*words, "-o", "out")
        took = time.perf_counter() - began
        states.append(edges_in("out"))
        shutil.rmtree("out")
    how = rng.choice(CHANGES)
    at = rng.randrange(min(len(first), len(second)))
    share = rng.choice([rng.uniform(0, 0.5), rng.uniform(-0.1, 1.1)])  # it is read at first
    with meanwhile(max(share, 0) * took, lambda: change(path, how, second, at)):
        outcome = run(*words, "-o", "out")
    about = f"{packing}, {len(first)} bytes, {how} at byte {at} after {share:.2f} of the time"
    no_litter({"trace.log"}, outcome, ["out"])
    if outcome.code:
        return REFUSED, about
    found = edges_in("out")
    if path.exists() and run(*words, "-o", "final").code == 0:
        states.append(edges_in("final"))
    if found not in states and not outcome.said:
        expected = [len(state) for state in states]
        raise Finding(SILENT, f"{about}: {len(found)} edges, where its states have {expected}")
    return SAME, about


def replaced(rng, ground):
    """Replace a store by another while it is asked: the answer must be that of one of them."""
    names = rng.sample(["chain", "other", "lines"], 2)
    (question,) = some_questions(rng, 1)
    whole = [ground.answer(name, question) for name in names]
    for name in names:
        shutil.copytree(ground.stores[name], name)
    shutil.move(names[0], "store")

    def swap():
        Path("store").rename("old")
        Path(names[1]).rename("store")

    delay = rng.uniform(0, 0.05)
    with meanwhile(delay, swap):
        outcome, answer = ground.ask("store", question)
    about = f"{names[0]} by {names[1]} after {delay:.3f} s, {question}"
    if outcome.code:
        return REFUSED, about
    if (0, answer) not in whole and not outcome.said:
        raise Finding(SILENT, f"{about}: the answer of neither")
    return SAME, about


# Disks


@contextmanager
def little_room(rng, ground):
    """Yield a folder where little can be written: on a full disk, else in files of some size."""
    room = rng.choice([0, 1 << 12, 1 << 14, 1 << 16, 1 << 18])
    if ground.small_disk is not None and rng.random() < 0.7:
        for path in ground.small_disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        filler = ground.small_disk / "filler"
        free = os.statvfs(ground.small_disk)
        with filler.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - room, 1))
        try:
            yield ground.small_disk, f"a disk with {room} bytes left"
        finally:
            filler.unlink()
        return
    folder = Path("some")
    folder.mkdir()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        yield folder, f"no file above {room} bytes"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def disk(rng, ground):
    """Run out of disk while a result is written: nothing half-written, or the right answer."""
    name = rng.choice(["chain", "copies", "real"])
    store = ground.stores[name]
    what = rng.choice(["extract", "extract", "resume", "spill", "edges", "blocks", "graph", "page"])
    with little_room(rng, ground) as (folder, how):
        before = files(folder)
        target = folder / {"edges": "made.csv", "blocks": "made.csv", "graph": "made.json"}.get(
            what, "out"
        )
        extract = ["extract", ground.sources[name], "-o", target]
        words = {
            "extract": [*extract, *MEMORY],
            "resume": [*extract, *MEMORY, "--resume"],
            "spill": [*extract, "--memory-limit", "64MiB"],
            "page": ["report", store, "--sms", "2", "-o", target],
        }.get(what, ["export", store, "--what", what, "-o", target])
        outcome = run(*words)
        new = files(folder) - before
    about = f"{how}, {what} of {name}"
    new -= {"out.partial"} if what == "resume" and outcome.code else set()
    if new != ({target.name} if outcome.code == 0 else set()):
        raise Finding(LITTER, f"{about}: exit code {outcome.code} left {sorted(new)}")
    if outcome.code:
        if str(folder) not in outcome.err:
            raise Finding(UNCLEAR, f"{about}: names no path: {outcome.err}")
        return REFUSED, about
    if words[0] == "extract" and edges_in(target) != edges_in(store):
        raise Finding(SILENT, f"{about}: other edges")
    return SAME if words[0] == "extract" else ANSWERED, about


# Signals

FRAME = re.compile(r'^ *File "([^"]+)", line \d+, in (.+)$', re.MULTILINE)


def is_handled(frame):
    """Whether a frame is of code of ours that runs once interrupts are handled."""
    path, function = frame
    if not any(path.startswith(f"{folder}{os.sep}") for folder in FOLDERS):
        return False
    return function != "<module>" or Path(path) not in STARTING


def signalled(rng, ground):
    """Send a process a signal: it ends soon, with one line, and leaves nothing half-written."""
    name = rng.choice(["copies", "real", "real"])
    store, extract = ground.stores[name], ["extract", ground.sources[name], "-o", "out"]
    words = rng.choice(
        [
            extract,
            extract,
            [*extract, "--resume"],
            ["check", ground.sources[name]],
            ["bound", store, "--sms", "2,8"],
            ["export", store, "--what", "edges", "-o", "out"],
            ["report", store, "--sms", "2", "-o", "out"],
        ]
    )
    number = rng.choice(
        [signal.SIGINT, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL]
    )
    delay = rng.choice([rng.uniform(0, 0.4), rng.uniform(0, 2.5)])
    about = f"{number.name} after {delay:.3f} s to {words[0]} of {name}"
    process = subprocess.Popen(
        [sys.executable, "-m", "depgraph", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    time.sleep(delay)
    process.send_signal(number)
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Finding(HANG, about) from None
    judge_death(process.returncode, number, about, out, err, words)
    kept = {"out.partial"} if "--resume" in words and process.returncode else set()
    new = files() - kept
    is_whole = process.returncode == 0 or (words[0] == "extract" and new == {"out"})
    if number != signal.SIGKILL and new - ({"out"} if is_whole else set()):
        raise Finding(LITTER, f"{about}: exit code {process.returncode} left {sorted(new)}")
    if words[0] != "extract":
        return ANSWERED if process.returncode == 0 else REFUSED, about
    if not Path("out").exists():
        again = run(*words)
        if again.code:
            raise Finding(UNCLEAR, f"{about}: the next run fails: {again.err}")
    if edges_in("out") != edges_in(store):
        raise Finding(SILENT, f"{about}: other edges")
    return SAME, about


def judge_death(code, sent, about, out, err, words):
    """Raise a `Finding` unless a process ended as one that was sent a signal may."""
    if code < 0:
        if -code != sent:
            raise Finding(SIGNAL, f"{about}: ended with {signal.Signals(-code).name}: {err}")
        return
    if "Traceback" in err and not any(map(is_handled, FRAME.findall(err))):
        return  # the interpreter was still starting: our handler of signals was not in place
    try:
        judge_end(Outcome(tuple(map(str, words)), code, out, err))
    except Finding as finding:
        raise Finding(finding.kind, f"{about}\n{finding.detail}") from None
