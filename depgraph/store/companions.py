"""The files beside a store: which store they go with, and that nothing in them has changed.

A companion is a JSON object that begins with two lines of its own::

    {
    "store": "5f0c...",              the id of the store, "" for none
    "digest": "9d2e...",             SHA-256 of the id and of all that follows this line
    ...
"""

from __future__ import annotations

import hashlib
import json
import re
from glob import escape
from typing import TYPE_CHECKING, Any

from depgraph.errors import StoreError
from depgraph.system.output import stable_path

if TYPE_CHECKING:
    from pathlib import Path

    from depgraph.store.store import Store

_BEGINNING = re.compile(rb'\{\n"store": "([0-9a-f]*)",\n"digest": "([0-9a-f]{64})",\n')
_LONGEST_BEGINNING = 200
_HINT = "remove it, or record the program again"
_OF_ANOTHER = "pass it with --timing if it is of the same program, else remove it"


def times_of(store: Path) -> Path:
    """Return where the times are that a recorded program took, beside its store."""
    return _beside(store, "times")


def captures_of(store: Path) -> Path:
    """Return where the captured graphs of a recorded program are, beside its store."""
    return _beside(store, "captures")


def verdicts_of(store: Path, call: int) -> Path:
    """Return where it stands what a check found of a call, beside the store."""
    return _beside(store, f"checked-{call}")


def verdicts_beside(store: Path) -> list[Path]:
    """Return where what checks found of calls stands beside a store."""
    store = stable_path(store)
    return sorted(store.parent.glob(f"{escape(store.name)}.checked-[0-9]*.json"))


def _beside(store: Path, what: str) -> Path:
    store = stable_path(store)
    return store.with_name(f"{store.name}.{what}.json")


def write_companion(path: Path, content: dict[str, Any], *, store: str = "") -> None:
    """Write at least one member beside ``store``, an identity, "" if there is none yet."""
    rest = json.dumps(content, indent=0).removeprefix("{\n")
    digest = _digest(store.encode(), rest.encode())
    path.write_text(
        f'{{\n"store": "{store}",\n"digest": "{digest}",\n{rest}', encoding="utf-8", newline="\n"
    )


def read_companion(path: Path, store: str | None = None) -> dict[str, Any]:
    """Return what goes with a store, of that identity if one is given, as it was written."""
    text = _intact(path, store)
    try:
        found: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StoreError(path, f"is damaged ({error})", _HINT) from None
    return found


def check_companion(path: Path, store: str | None = None) -> None:
    """Refuse what `read_companion` refuses, without making anything of it."""
    _intact(path, store)


def _intact(path: Path, store: str | None) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise StoreError(path, error.strerror or "cannot be read", _HINT) from None
    begins = _BEGINNING.match(text)
    if begins is None:
        raise StoreError(path, "was not written by this depgraph, or is damaged", _HINT)
    if _digest(begins[1], text[begins.end() :]).encode() != begins[2]:
        raise StoreError(path, "has changed since it was written", _HINT)
    if store is not None and begins[1].decode() != store:
        raise StoreError(path, "goes with another store, not with the one beside it", _OF_ANOTHER)
    return text


def store_named_by(path: Path) -> str | None:
    """Return the identity of the store that a file goes with; None if it is no companion."""
    with path.open("rb") as file:
        begins = _BEGINNING.match(file.read(_LONGEST_BEGINNING))
    return None if begins is None else begins[1].decode()


def remove_stale(store: Path, identity: str) -> None:
    """Remove what does not go with the store that is there now, or is of an earlier version."""
    for path in (times_of(store), captures_of(store), *verdicts_beside(store)):
        if path.is_file() and store_named_by(path) not in {"", identity}:
            path.unlink()


def recorded_times(store: Store) -> Path | None:
    """Return the times left beside a store; those taken before there was one are nobody's."""
    path = times_of(store.path)
    if store.metadata.get("format") != "recording" or not path.is_file():
        return None
    if store_named_by(path) == "":
        return None
    check_companion(path, store.identity)
    return path


def _digest(store: bytes, rest: bytes) -> str:
    return hashlib.sha256(store + b"\n" + rest).hexdigest()
