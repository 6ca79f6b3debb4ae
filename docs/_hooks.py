"""Build hooks of mkdocs: the navigation follows the pages that there are."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Leave out what does not exist, put in every page of a folder that is named or has one."""
    docs = Path(config["docs_dir"])
    config["nav"] = _kept(config["nav"], docs)
    named = set(_paths(config["nav"]))
    others = sorted(
        path.relative_to(docs).as_posix()
        for path in docs.rglob("*.md")
        if path.relative_to(docs).as_posix() not in named
    )
    if others:
        config["nav"].append({"More": others})
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Take the page for contributors from the root, and that of the notebook from the notebook."""
    if page.file.src_uri == "notebook.md":
        text = (Path(config["docs_dir"]) / "notebook.ipynb").read_text(encoding="utf-8")
        return "\n\n".join(part for cell in json.loads(text)["cells"] for part in _cell(cell))
    if page.file.src_uri != "contributing.md":
        return markdown
    source = Path(config["docs_dir"]).parent / "CONTRIBUTING.md"
    return source.read_text(encoding="utf-8").replace("](docs/", "](")


def _cell(cell: dict[str, Any]) -> list[str]:
    """Return a cell of a notebook, and what it shows, as Markdown."""
    source = "".join(cell["source"])
    if cell["cell_type"] != "code":
        return [source]
    parts = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = {kind: "".join(text) for kind, text in output.get("data", {}).items()}
        if "image/png" in data:
            name = html.escape(data["text/plain"])
            parts.append(f'<img alt="{name}" src="data:image/png;base64,{data["image/png"]}">')
        elif "text/html" in data:
            lines = [line for line in data["text/html"].splitlines() if line.strip()]
            parts.append("\n".join(["<div>", *lines, "</div>"]))
        else:
            text = data.get("text/plain") or "".join(output["text"])
            parts.append(f"```text\n{text.rstrip()}\n```")
    return parts


def _kept(entries: list[Any], docs: Path) -> list[Any]:
    kept: list[Any] = []
    for entry in entries:
        ((title, target),) = entry.items()
        if isinstance(target, list):
            inside = _kept(target, docs)
            folders = {Path(path).parent for path in _paths(target)} - {Path()}
            known = set(_paths(inside))
            inside += [
                path.relative_to(docs).as_posix()
                for folder in sorted(folders)
                for path in sorted((docs / folder).glob("*.md"))
                if path.relative_to(docs).as_posix() not in known
            ]
            if inside:
                kept.append({title: inside})
        elif (docs / target).is_dir():
            pages = sorted(
                path.relative_to(docs).as_posix() for path in (docs / target).glob("*.md")
            )
            kept.append({title: pages})
        elif (docs / target).is_file():
            kept.append(entry)
    return kept


def _paths(entries: list[Any]) -> list[str]:
    paths: list[str] = []
    for entry in entries:
        targets = entry.values() if isinstance(entry, dict) else [entry]
        for target in targets:
            paths += _paths(target) if isinstance(target, list) else [target]
    return paths
