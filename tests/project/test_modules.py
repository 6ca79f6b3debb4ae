"""How many modules a line of a log passes until its bound is known: each is one to read."""

import json
import subprocess
import sys

from programs import BASE, access_line, launch_line

# What a program loads today. Lower them as modules are folded; raise them for no convenience.
MOST_TO_THE_STORE = 32
MOST_TO_THE_BOUND = 45

SCRIPT = """
import json, sys
from depgraph import parsers
import depgraph

def loaded():
    \"\"\"Modules, without the packages that only hold them.\"\"\"
    named = {name: module for name, module in sys.modules.items() if name.startswith("depgraph.")}
    return sorted(name for name, module in named.items() if not hasattr(module, "__path__"))

store = depgraph.extract(parsers.open_trace("trace.log"), "out", jobs=1)
to_the_store = loaded()
depgraph.bound(store.graph(), sms=80).to_pandas()
json.dump([to_the_store, loaded()], sys.stdout)
"""


def test_few_modules_stand_between_a_log_line_and_its_bound(tmp_path):
    (tmp_path / "trace.log").write_bytes(
        launch_line(0) + access_line(0, 1, "STG.E", [BASE])
        + launch_line(1) + access_line(1, 2, "LDG.E", [BASE])
    )  # fmt: skip
    command = [sys.executable, "-c", SCRIPT]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    to_the_store, to_the_bound = json.loads(result.stdout)
    print(f"{len(to_the_store)} modules to the store, {len(to_the_bound)} to the bound")  # noqa: T201 - with -s
    assert len(to_the_store) <= MOST_TO_THE_STORE, to_the_store
    assert len(to_the_bound) <= MOST_TO_THE_BOUND, to_the_bound
