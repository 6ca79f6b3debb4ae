"""Signals at any moment: exit code 130, one line, nothing left behind."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
SAID = b"depgraph: interrupted\n"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# Runs the program, and sends it a signal when it looks for its n-th module.
IN_AN_IMPORT = """
import os, sys
from depgraph.cli import main
number, left = int(sys.argv[1]), int(sys.argv[2])
class Finder:
    def find_spec(name, path=None, target=None):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Finder)
main(sys.argv[3:])
"""


def run(*words, cwd):
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, env=ENVIRONMENT, capture_output=True, check=False
    )


def is_interrupted(code, out, err):
    assert err == SAID
    return (code, out) == (130, b"")


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("module", [1, 2, 40])
def test_while_the_program_is_imported(tmp_path, number, module):
    words = str(int(number)), str(module), "extract", "no.log"
    done = run("-c", IN_AN_IMPORT, *words, cwd=tmp_path)
    assert is_interrupted(done.returncode, done.stdout, done.stderr)


def when_caught(process):
    """Wait until a process has taken over from Python what happens at a signal."""

    def has_caught():
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return process.poll() is not None or bool(caught >> (signal.SIGTERM - 1) & 1)

    wait_until(has_caught)


@pytest.mark.jit_only
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc")
@pytest.mark.parametrize(
    "seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 12))]
)
def test_at_a_random_moment(tmp_path, sample_trace, seed):
    chance = random.Random(seed)  # noqa: S311
    number, delay = chance.choice(SIGNALS), 2.0 * chance.random() ** 2
    words = "extract", str(sample_trace), "--memory-limit", "64MiB"
    process = subprocess.Popen(
        [sys.executable, "-m", "depgraph", *words],
        cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    when_caught(process)
    time.sleep(delay)
    process.send_signal(number)
    process.send_signal(number)  # people press Ctrl-C twice
    out, err = process.communicate(timeout=60)
    left = sorted(path.name for path in tmp_path.iterdir())
    if process.returncode == -number:  # all is done, and the interpreter is shutting down
        assert b"Wrote depgraph.out" in err
        assert left == ["depgraph.out"]
    elif process.returncode:
        assert process.returncode == 130
        lines = err.splitlines(keepends=True)
        assert lines.pop() == SAID
        assert not [line for line in lines if not line.startswith((b"depgraph: c", b"Wrote "))]
        assert left in ([], ["depgraph.out"])
    else:
        assert out
        assert left == ["depgraph.out"]


def ends(body, tmp_path):
    """Run a script that has installed the handler, and return how it ended."""
    script = f"""
import os, signal, sys, threading, time
from pathlib import Path
from depgraph.system import interrupts
from depgraph.system.interrupts import *
from depgraph.system.output import WorkFolder
def interrupt():
    os.kill(os.getpid(), signal.SIGINT)
{body}
print("went on")
"""
    done = run("-c", script, cwd=tmp_path)
    return done.returncode, done.stdout, done.stderr


def test_a_folder_is_removed_though_a_thread_still_writes_into_it(tmp_path):
    body = """
end_on_signals()
work = WorkFolder(Path.cwd(), "some")
folder = work.path
def write():
    for i in range(10**9):
        (folder / str(i)).write_bytes(b"x")
threading.Thread(target=write, daemon=True).start()
time.sleep(0.2)
interrupt()
"""
    assert is_interrupted(*ends(body, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_second_signal_does_not_disturb_the_clean_up(tmp_path):
    body = """
end_on_signals()
folder = WorkFolder(Path.cwd(), "some")
with interrupts.closed_on_interrupt(interrupt):
    interrupt()
"""
    assert is_interrupted(*ends(body, tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_signal_in_a_callback_from_c(tmp_path):
    """An exception could not leave it: it would be printed, and the caller told nothing."""
    body = """
import ctypes
end_on_signals()
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
@kind
def compare(a, b):
    interrupt()
    return 0
ctypes.CDLL(None).qsort((ctypes.c_int * 2)(2, 1), 2, 4, compare)
"""
    assert is_interrupted(*ends(body, tmp_path))


def test_what_must_not_be_left_half_done_is_done_first(tmp_path):
    body = """
end_on_signals()
with interrupts.interrupts_held():
    interrupt()
    Path("first").touch()
    Path("second").touch()
"""
    assert is_interrupted(*ends(body, tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_a_signal_that_was_ignored_stays_so(tmp_path):
    body = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
end_on_signals()
interrupt()
"""
    assert ends(body, tmp_path) == (0, b"went on\n", b"")


def test_a_forked_process_removes_nothing_of_its_parent(tmp_path):
    body = """
end_on_signals()
folder = WorkFolder(Path.cwd(), "some")
if not os.fork():
    interrupt()
os.wait()
assert folder.path.exists()
folder.remove()
"""
    assert ends(body, tmp_path) == (0, b"went on\n", b"")
    assert list(tmp_path.iterdir()) == []


def test_the_api_leaves_signals_alone():
    before = [signal.getsignal(n) for n in SIGNALS]
    import depgraph.cli  # noqa: F401

    assert [signal.getsignal(n) for n in SIGNALS] == before
