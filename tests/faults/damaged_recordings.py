"""Cases in which a recording, or what lies beside the store of one, is damaged."""

import io
import json
import shutil
import warnings
import zipfile
from pathlib import Path

from faults import damage
from faults.ending import ANSWERED, MEMORY, REFUSED, SAID, SAME, files, no_litter
from faults.ground import OF_RECORDED, edges_in
from faults.program import SILENT, Finding, run

from depgraph.apply.captured import read_captures
from depgraph.errors import DepgraphError
from depgraph.parsers.recording.archive import MARK
from depgraph.samples import RECORDING, sample_path
from depgraph.store.companions import captures_of, times_of
from depgraph.store.store import Store

BYTES = (damage.flip_bits,) * 4 + damage.PACKED[:3]
STRANGE = [None, True, -1, 2**32 - 1, 2**64, 1e308, "", "\ud800", [], {}, [[]], "7" * 300]


def recording(rng, ground):
    """Damage a recording, its bytes or what they mean; extract it."""
    whole = Path(sample_path(RECORDING)).read_bytes()
    ways = [change_bytes, change_bytes, change_members, change_event]
    way = rng.choice(ways)
    data, done = way(whole, rng)
    Path("it.recording").write_bytes(data)
    before = files()
    outcome = run("extract", "it.recording", "-o", "out", *MEMORY)
    no_litter(before, outcome, ["out"])
    if outcome.code:
        return REFUSED, done
    if way is change_event:  # a recording of another program
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


def change_event(data, rng):
    """Change a value of an event, and what else there is as if it were so: an old recording."""
    members = members_of(data)
    del members["manifest.json"]
    members["about.json"] = json.dumps({"format": 2, "process": 1, "architecture": 90}).encode()
    events = [json.loads(line) for line in members["events.jsonl"].splitlines()]
    event = rng.choice(events)
    key, value = rng.choice(sorted(event)), rng.choice(STRANGE)
    event[key] = value
    members["events.jsonl"] = "\n".join(map(json.dumps, events)).encode()
    return packed(members.items()), f"{event.get('event')}: {key} = {value!r}"


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
    """Damage the times, or the captured graphs, that lie beside a store."""
    shutil.copytree(ground.recorded, "store")
    for path in ground.recorded.parent.glob("store.*.json"):
        shutil.copy(path, ".")
    path = rng.choice([times_of(Path("store")), captures_of(Path("store"))])
    data = path.read_bytes()
    changed, done = damage.damaged(data, rng, [data], (*BYTES, damage.json_value))
    path.write_bytes(changed)
    about = f"{path.name}, {done}"
    if path == captures_of(Path("store")):
        try:
            found = read_captures(path.absolute(), Store("store").identity)
        except DepgraphError as error:
            if "\n" in str(error):
                raise Finding(SILENT, f"{about}: {error}") from None
            return REFUSED, about
        if changed != data:
            raise Finding(SILENT, f"{about}: {len(found)} graphs")
        return SAME, about
    question = rng.choice(OF_RECORDED)
    outcome = run(*question)
    if outcome.code:
        return REFUSED, about
    if outcome.out != ground.answers_of_recorded[question]:
        raise Finding(SILENT, f"{about}: another answer to {question!r}")
    return SAME, about
