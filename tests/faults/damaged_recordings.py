"""Cases in which a recording, or what lies beside the store of one, is damaged."""

import hashlib
import io
import json
import shutil
import traceback
import warnings
import zipfile
from pathlib import Path

from faults import damage
from faults.ending import ANSWERED, MEMORY, REFUSED, SAID, SAME, files, no_litter
from faults.ground import OF_RECORDED, edges_in
from faults.program import SILENT, TRACEBACK, UNCLEAR, Finding, run
from faults.while_running import meanwhile

import depgraph
from depgraph.apply.captured import read_captures
from depgraph.apply.verdicts import Verdicts
from depgraph.errors import DepgraphError
from depgraph.parsers.recording.archive import MARK, TABLES
from depgraph.samples import RECORDING, sample_path
from depgraph.store.companions import (
    CAPTURES,
    TIMES,
    captures_of,
    checked,
    read_companion,
    times_of,
    verdicts_of,
    write_companion,
)
from depgraph.store.store import Store

BYTES = (damage.flip_bits,) * 4 + damage.PACKED[:3]
STRANGE = [None, True, -1, 2**32 - 1, 2**64, 1e308, "", "\ud800", [], {}, [[]], "7" * 300]


def recording(rng, ground):
    """Damage a recording, its bytes or what they mean; extract it."""
    whole = Path(sample_path(RECORDING)).read_bytes()
    ways = [change_bytes, change_bytes, change_members, exchange_members, change_event, change_said]
    way = rng.choice(ways)
    data, done = way(whole, rng)
    Path("it.recording").write_bytes(data)
    before = files()
    outcome = run("extract", "it.recording", "-o", "out", *MEMORY)
    no_litter(before, outcome, ["out"])
    if outcome.code:
        return REFUSED, done
    if way in {change_event, change_said}:  # a recording of another program
        return ANSWERED, done
    if outcome.said:
        return SAID, done
    found = edges_in("out")
    if found != ground.edges_of_recording:
        raise Finding(SILENT, f"{done}: {len(found)} edges, not as many, or not the same")
    return SAME, done


def change_bytes(data, rng):
    """Change bytes anywhere, or in the directory of the archive."""
    at = rng.choice([0, data.index(b"PK\x01\x02")])
    changed, done = damage.damaged(data[at:], rng, [data[at:]], BYTES)
    return data[:at] + changed, f"from byte {at}: {done}"


def change_members(data, rng):
    """Leave a member out, put it in twice, or exchange two."""
    members = members_of(data)
    one, other = rng.sample(sorted(members), 2)
    how = rng.choice(["left out", "twice", "exchanged", "empty"])
    if how == "left out":
        del members[one]
    elif how == "exchanged":
        members[one], members[other] = members[other], members[one]
    elif how == "empty":
        members[one] = b""
    twice = [(one, members[one])] if how == "twice" else []
    return packed([*members.items(), *twice]), f"{one} {how}"


def exchange_members(data, rng):
    """Take some members of another whole recording, which differs in names and accesses."""
    members, other = members_of(data), members_of(data)
    for name in other:
        if name.startswith("sectors/"):
            other[name] = other[name][:-32]
    other["events.jsonl"] = other["events.jsonl"].replace(b'"name": "', b'"name": "x')
    other["about.json"] = other["about.json"].replace(b'"process": ', b'"process": 1')
    other = seal(other)
    taken = rng.sample(sorted(members), rng.randint(1, len(members) - 1))
    taken = [name for name in taken if other[name] != members[name]] or ["manifest.json"]
    members |= {name: other[name] for name in taken}
    return packed(members.items()), f"with {', '.join(taken)} of another"


def change_said(data, rng):
    """Change a value of what a recording says of itself; its manifest is right, or is changed."""
    members = members_of(data)
    name = rng.choice(["about.json", "about.json", "manifest.json"])
    members[name] = damage.json_value(members[name], rng, [])
    if name == "about.json":
        members = seal(members)
    return packed(members.items()), f"{name}: {members[name][:100]!r}"


def seal(members):
    """Return members with the manifest that goes with them."""
    known = json.loads(members["manifest.json"])["members"]
    for name, member in known.items():
        content = members[name]
        member |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        if table := TABLES.get(name.partition("/")[0]):
            member["rows"] = len(content) // table.itemsize
    return members | {"manifest.json": json.dumps({"members": known}).encode()}


def change_event(data, rng):
    """Change a value of an event, in a recording that is otherwise right."""
    members = members_of(data)
    events = [json.loads(line) for line in members["events.jsonl"].splitlines()]
    event = rng.choice(events)
    key, value = rng.choice(sorted(event)), rng.choice(STRANGE)
    event[key] = value
    members["events.jsonl"] = "\n".join(map(json.dumps, events)).encode()
    return packed(seal(members).items()), f"{event.get('event')}: {key} = {value!r}"


def members_of(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(members):
    file = io.BytesIO(MARK)
    with warnings.catch_warnings(), zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
        warnings.simplefilter("ignore")
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def companion(rng, ground):
    """Damage a file beside a store, or put another there; ask all that reads it."""
    copy_recorded(ground)
    kinds = {TIMES: times_of, CAPTURES: captures_of, checked(0): first_verdicts_of}
    what = rng.choice([TIMES, TIMES, *kinds])
    path = kinds[what](Path("store"))
    whole = path.read_bytes()
    way = rng.choice(["bytes", "bytes", "forged", "another's", "replaced"])
    if way == "bytes":
        changed, done = damage.damaged(whole, rng, [whole], (*BYTES, damage.json_value))
        path.write_bytes(changed)
    elif way == "another's":
        other = rng.choice([kind(Path("store")) for name, kind in kinds.items() if name != what])
        done = f"replaced by {other.name}"
        path.write_bytes(other.read_bytes())
    else:
        content = read_companion(path, what=what)
        if way == "forged":
            found = damage.json_value(json.dumps(content).encode(), rng, [])
            done = f"forged: {found[:100]!r}"
            content = json_object(found)
        else:
            done = "replaced while it was read"
    about = f"{path.name}, {done}"
    if way == "replaced" and what == TIMES:
        return replaced_times(rng, ground, path, content, about)
    if way == "forged":
        write_companion(path, content, store=Store("store").identity, what=what)
    ended = ask_python(path, what, about)
    question = rng.choice(OF_RECORDED)
    outcome = run(*question)
    is_same = path.read_bytes() == whole or not outcome.code
    if outcome.code and what != TIMES:
        raise Finding(SILENT, f"{about}: {question!r} does not read it, but ends so: {outcome.err}")
    if is_same and way != "forged" and outcome.out != ground.answers_of_recorded[question]:
        raise Finding(SILENT, f"{about}: another answer to {question!r}")
    if way in {"bytes", "another's"} and ended != REFUSED and path.read_bytes() != whole:
        raise Finding(SILENT, f"{about}: taken")
    return (ANSWERED if way == "forged" and ended != REFUSED else ended), about


def first_verdicts_of(store):
    return verdicts_of(store, 0)


def ask_python(path, what, about):
    """Read a companion as Python's API does."""
    readers = {
        TIMES: lambda identity: depgraph.open("store") and read_companion(path, identity),
        CAPTURES: lambda identity: read_captures(path.absolute(), identity),
    }
    read = readers.get(what, lambda identity: Verdicts.read(path, identity))
    try:
        read(Store("store").identity)
    except DepgraphError as error:
        if "\n" in str(error):
            raise Finding(UNCLEAR, f"{about}: {error}") from None
        return REFUSED
    except Exception:  # noqa: BLE001 - whatever comes through, a user sees
        raise Finding(TRACEBACK, f"{about}\n{traceback.format_exc()}") from None
    return SAME


def json_object(text):
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {"traceEvents": "".join(map(chr, text[:1000]))}
    return found if isinstance(found, dict) and found else {"traceEvents": found}


def replaced_times(rng, ground, path, content, about):
    """Put other times of the same store, or of another, there while a command reads them."""
    question = rng.choice([q for q in OF_RECORDED if q[0] != "compare"])  # which reads them twice
    identity = rng.choice([Store("store").identity, "0" * 32])
    for event in content["traceEvents"]:
        event["dur"] = 11.0
    write_companion(Path("new"), content, store=identity)
    with meanwhile(rng.uniform(0, 0.03), lambda: Path("new").replace(path)):
        outcome = run(*question)
    if outcome.code:
        return REFUSED, about
    if outcome.out == ground.answers_of_recorded[question]:
        return SAME, about
    later = run(*question)
    if later.code or later.out != outcome.out:
        raise Finding(SILENT, f"{about}: neither answer to {question!r}")
    return SAME, about


def flip(rng, ground):
    """Flip one bit of a recording, or of a file beside a store; ask a command."""
    if rng.random() < 0.3:
        data = bytearray(Path(sample_path(RECORDING)).read_bytes())
        question = rng.choice([("extract", "it.recording", "-o", "out"), ("check", "it.recording")])
        path, whole = Path("it.recording"), ground.edges_of_recording
    else:
        copy_recorded(ground)
        path, question = times_of(Path("store")), rng.choice(OF_RECORDED)
        data, whole = bytearray(path.read_bytes()), ground.answers_of_recorded[question]
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    about = f"{path.name}, bit {bit}, {question[0]}"
    outcome = run(*question)
    if outcome.code:
        return REFUSED, about
    if question[0] == "check":
        return ANSWERED, about
    found = edges_in("out") if question[0] == "extract" else outcome.out
    if found != whole:
        raise Finding(SILENT, f"{about}: another answer")
    return SAME, about


def copy_recorded(ground):
    shutil.copytree(ground.recorded, "store")
    for path in ground.recorded.parent.glob("store.*.json"):
        shutil.copy(path, ".")
