"""A process that runs one case after the other: reads names, writes how each ended."""

import contextlib
import faulthandler
import json
import os
import re
import resource
import shutil
import sys
import time
import traceback
from pathlib import Path

from compiling import compile_in_turn
from faults.cases import run_case
from faults.ground import Ground
from faults.program import MEMORY, SUITE, Finding

from depgraph.system.compiled import compile_always

GROWTH = 1 << 30
ADDRESS_SPACE = 6 << 30  # what a case may take before it is told that there is no more


def main(folder, seconds):
    """Serve until standard input ends; everything happens below `folder`."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what anything prints past `sys.stdout` goes to the log
    faulthandler.enable()
    compile_always()
    compile_in_turn()
    used = int(_status("VmSize"))
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    room = folder / "case"
    room.mkdir()
    os.chdir(room)
    ground = Ground(folder)
    ground.answer("chain", "report")  # what has to be compiled is compiled now
    _reply(replies, {"ready": True})
    for line in sys.stdin:
        os.chdir(folder)
        shutil.rmtree(room, ignore_errors=True)
        room.mkdir()
        os.chdir(room)
        faulthandler.dump_traceback_later(0.8 * seconds)
        result = one_case(line.strip(), ground)
        faulthandler.cancel_dump_traceback_later()
        _reply(replies, result)


def one_case(name, ground):
    """Run a case and measure it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _status("VmHWM")
    began = time.perf_counter()
    result = {"case": name, "about": "", "ended": "", "detail": ""}
    try:
        result["ended"], result["about"] = run_case(name, ground)
    except Finding as finding:
        result |= {"ended": finding.kind, "detail": finding.detail}
    except Exception:  # noqa: BLE001 - told, and the next case runs
        result |= {"ended": SUITE, "detail": traceback.format_exc()}
    grown = _status("VmHWM") - before
    if grown > GROWTH and not result["detail"]:
        result |= {"ended": MEMORY, "detail": f"{result['about']}: {grown >> 20} MiB"}
    return result | {"seconds": time.perf_counter() - began, "bytes": grown}


def _status(key):
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+) kB", text)[1]) << 10


def _reply(stream, reply):
    stream.write(json.dumps(reply) + "\n")
    stream.flush()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(Path(sys.argv[1]), float(sys.argv[2]))
