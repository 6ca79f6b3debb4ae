"""Run the notebook of the documentation, and keep what it shows.

``python docs/_notebook.py`` writes it anew; with ``--check`` it says whether anything has changed.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).resolve().parent / "notebook.ipynb"
_SECONDS = 300
_SIZE = re.compile(r"[0-9.]+ KiB")


def run(notebook: Any) -> Any:
    """Return a notebook with the outputs of its cells, run in an empty folder."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=_SECONDS, resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            # What goes to stderr is about this machine: whether anything had to be compiled.
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
    return notebook


def shown(notebook: Any) -> list[list[str]]:
    """Return what cells show but for what differs between machines.

    That are pictures, by their fonts, and the size of the store, by the versions that it names.
    """
    return [
        [
            _SIZE.sub("... KiB", output.get("text") or data.get("text/html") or data["text/plain"])
            for output in cell.outputs
            for data in [output.get("data", {})]
        ]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def main() -> int:
    """Run the notebook; return the exit code."""
    import nbformat

    before = nbformat.read(NOTEBOOK, as_version=4)
    kept = shown(before)
    after = run(before)
    if "--check" in sys.argv:
        for old, new in zip(kept, shown(after), strict=True):
            if old != new:
                sys.stderr.write(f"{NOTEBOOK.name} shows\n{new}\nnot\n{old}\n")
                sys.stderr.write("run: python docs/_notebook.py\n")
                return 1
        return 0
    NOTEBOOK.write_text(json.dumps(after, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
