"""The files beside a store: which store they go with, and that nothing in them has changed.

A companion is a JSON object that begins with three lines of its own::

    {
    "depgraph": "times",             what it is
    "store": "5f0c...",              the id of the store, "" for none
    "digest": "9d2e...",             SHA-256 of the two lines above and of all that follows this one
    ...
"""

from __future__ import annotations

import hashlib
import json
import re
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from depgraph.errors import StoreError
from depgraph.system.output import stable_path
from depgraph.system.strict_json import read_json

if TYPE_CHECKING:
    from depgraph.store.store import Store

TIMES, CAPTURES = "times", "captures"
_BEGINNING = re.compile(
    rb'(\{\n"depgraph": "([a-z0-9-]+)",\n"store": "([0-9a-f]*)",\n)"digest": "([0-9a-f]{64})",\n'
)
# One changed byte leaves one of them, and so does writing the JSON anew.
_MARK = re.compile(rb'"(?:depgraph|digest)"\s*:\s*"')
_LONGEST_BEGINNING = 250
_OWN_KEYS = ("depgraph", "store", "digest")
_HINT = "remove it, or record the program again"
_OF_ANOTHER = "pass it with --timing if it is of the same program, else remove it"


def checked(call: int) -> str:
    """Return what the companion is that holds what a check found of a call."""
    return f"checked-{call}"


def times_of(store: Path) -> Path:
    """Return where the times are that a recorded program took, beside its store."""
    return _beside(store, TIMES)


def captures_of(store: Path) -> Path:
    """Return where the captured graphs of a recorded program are, beside its store."""
    return _beside(store, CAPTURES)


def verdicts_of(store: Path, call: int) -> Path:
    """Return where it stands what a check found of a call, beside the store."""
    return _beside(store, checked(call))


def verdict_files_of(store: Path) -> list[Path]:
    """Return where what checks found of calls stands beside a store."""
    store = stable_path(store)
    return sorted(store.parent.glob(f"{escape(store.name)}.checked-[0-9]*.json"))


def _beside(store: Path, what: str) -> Path:
    store = stable_path(store)
    return store.with_name(f"{store.name}.{what}.json")


class Companion(NamedTuple):
    """A file beside a store, as it was written."""

    path: Path
    what: str
    store: str  # identity of the store that it goes with, "" for none
    text: bytes  # all of it

    def refuse_others(self, what: str, store: str | None) -> None:
        """Refuse it unless it is that, and goes with a store of that identity if one is given."""
        if self.what != what:
            raise StoreError(self.path, f"holds {self.what}, not {what}", _HINT)
        if store not in {None, self.store}:
            found = "goes with another store, not with the one beside it"
            raise StoreError(self.path, found, _OF_ANOTHER if what == TIMES else _HINT)


def open_companion(path: Path) -> Companion | None:
    """Read a companion whole, and only here; refuse it if changed, None if it is none."""
    # What was read is used: the file itself may be another one a moment later.
    try:
        with path.open("rb") as file:
            head = file.read(_LONGEST_BEGINNING)
            if not _MARK.search(head):
                return None
            text = head + file.read()
    except OSError as error:
        raise StoreError(path, error.strerror or "cannot be read", _HINT) from None
    begins = _BEGINNING.match(text)
    if begins is None or _digest(begins[1], text[begins.end() :]).encode() != begins[4]:
        raise StoreError(path, "has changed since it was written", _HINT)
    return Companion(path, begins[2].decode(), begins[3].decode(), text)


def _expected(path: Path, what: str, store: str | None) -> Companion:
    companion = open_companion(path)
    if companion is None:
        raise StoreError(path, "was not written by this depgraph, or is damaged", _HINT)
    companion.refuse_others(what, store)
    return companion


def write_companion(
    path: Path, content: dict[str, Any], *, store: str = "", what: str = TIMES
) -> None:
    """Write at least one member beside ``store``, an identity, "" if there is none yet."""
    rest = json.dumps(content, indent=0).removeprefix("{\n").encode()
    begins = f'{{\n"depgraph": "{what}",\n"store": "{store}",\n'.encode()
    path.write_bytes(begins + f'"digest": "{_digest(begins, rest)}",\n'.encode() + rest)


def read_companion(path: Path, store: str | None = None, *, what: str = TIMES) -> dict[str, Any]:
    """Return the content of what goes with a store, of that identity if one is given."""
    try:
        content: dict[str, Any] = read_json(_expected(path, what, store).text)
    except ValueError as error:
        raise StoreError(path, f"is damaged ({error})", _HINT) from None
    return {key: value for key, value in content.items() if key not in _OWN_KEYS}


def store_named_by(path: Path) -> str | None:
    """Return the identity of the store that a file goes with; None if it is no whole companion."""
    try:
        companion = open_companion(path)
    except StoreError:
        return None
    return None if companion is None else companion.store


def remove_stale(store: Path, identity: str) -> None:
    """Remove what does not go with the store that is there now, or is of an earlier version."""
    for path in (times_of(store), captures_of(store), *verdict_files_of(store)):
        if path.is_file() and store_named_by(path) not in {"", identity}:
            path.unlink()


def recorded_times(store: Store) -> Path | None:
    """Return the times left beside a store; those taken before there was one are nobody's."""
    path = times_of(store.path)
    if store.metadata.get("format") != "recording" or not path.is_file():
        return None
    companion = _expected(path, TIMES, None)
    if not companion.store:
        return None
    companion.refuse_others(TIMES, store.identity)
    return path


def check_companions(store: Store) -> None:
    """Refuse whatever lies beside a store and has changed, or goes with another store."""
    recorded_times(store)
    known = {captures_of(store.path): CAPTURES}
    for path in verdict_files_of(store.path):
        known[path] = path.name.split(".")[-2]
    for path, what in known.items():
        if path.is_file():
            _expected(path, what, store.identity)


def _digest(begins: bytes, rest: bytes) -> str:
    return hashlib.sha256(begins + rest).hexdigest()
