"""Cases in which a store, or what `--resume` keeps of one, is damaged or mixed with another."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from faults import damage
from faults.damaged_inputs import SMALL
from faults.ending import MEMORY, REFUSED, SAME, files, no_litter
from faults.ground import ANSWERS, PROFILE, edges_in
from faults.program import SILENT, Finding, run

SELDOM = {"report": 0.02, "mechanisms": 0.1, "compare": 0.2}

# Stores


def store(rng, ground):
    """Damage a file of a store; ask the store."""
    name = rng.choice([*SMALL, *SMALL, "real"])
    shutil.copytree(ground.stores[name], "store")
    path = rng.choice(sorted(path for path in Path("store").iterdir() if path.is_file()))
    about = f"{name}, {path.name}, {damage_file(path, rng)}"
    return compare_answers(rng, ground, about, [name])


def damage_file(path, rng):
    data = path.read_bytes()
    choice = rng.random()
    if choice < 0.05:
        path.unlink()
        return "deleted"
    if choice < 0.1:
        path.write_bytes(b"")
        return "emptied"
    if choice < 0.15:
        other = rng.choice(sorted(path.parent.iterdir()))
        path.write_bytes(other.read_bytes())
        return f"replaced by {other.name}"
    if choice < 0.3 and path.suffix == ".parquet":
        return change_value(path, rng)
    data, done = damage.damaged(data, rng, [data], damage.PACKED[:3] + (damage.flip_bits,) * 3)
    path.write_bytes(data)
    return done


def change_value(path, rng):
    """Write a table again with one number changed, as a valid Parquet file."""
    table = pq.read_table(path)
    columns = [
        at for at, field in enumerate(table.schema)
        if pa.types.is_integer(field.type) or pa.types.is_list(field.type)
    ]  # fmt: skip
    if not columns or not len(table):
        return "written again"
    at = rng.choice(columns)
    values = table.column(at).to_pylist()
    row = rng.randrange(len(values))
    value = rng.choice([-1, 0, 1, 2, 5, 14, 15, 1000, 2**31 - 1, -(2**31), 2**62])
    if isinstance(values[row], list):
        if values[row]:
            values[row][rng.randrange(len(values[row]))] = value
    else:
        values[row] = value
    try:
        array = pa.array(values, table.schema.field(at).type)
    except (pa.ArrowException, OverflowError, TypeError):
        return "written again"
    pq.write_table(table.set_column(at, table.schema.field(at), array), path)
    return f"{table.schema.field(at).name}[{row}] = {value}"


def mixture(rng, ground):
    """Take some files of one store and some of another, as a copy that was broken off does."""
    names = rng.sample(["chain", "other", "positions", "lines"], 2)
    shutil.copytree(ground.stores[names[0]], "store")
    others = sorted(path for path in ground.stores[names[1]].iterdir() if path.is_file())
    taken = rng.sample(others, rng.randint(1, len(others) - 1))
    for path in taken:
        shutil.copy(path, "store")
    about = f"{names[0]}, with {', '.join(path.name for path in taken)} of {names[1]}"
    return compare_answers(rng, ground, about, names)


def compare_answers(rng, ground, about, names):
    """Ask a damaged store; all answers must be those of one whole store, or refusals."""
    questions = some_questions(rng, 4)
    Path("store").rename("damaged")  # whole ones are asked by its name
    whole = {question: [ground.answer(name, question) for name in names] for question in questions}
    Path("damaged").rename("store")
    before = files() | {"base", PROFILE}
    refused = 0
    possible = set(names)
    for question in questions:
        outcome, answer = ground.ask("store", question)
        no_litter(before, outcome)
        refused += outcome.code > 0
        if outcome.code or outcome.said:
            continue
        answers = zip(names, whole[question], strict=True)
        possible &= {name for name, its_answer in answers if its_answer == (0, answer)}
        if not possible:
            raise Finding(SILENT, f"{about}: another answer to {question!r}")
    return REFUSED if refused else SAME, about


def checkpoint(rng, ground):
    """Damage what `--resume` kept of an interrupted run, and go on with it."""
    given, partial, expected = ground.checkpoint
    shutil.copytree(partial, "out.partial", copy_function=shutil.copy2)
    kept = sorted(path for path in Path("out.partial").iterdir())
    path = rng.choice(kept)
    choice = rng.random()
    if choice < 0.3:
        alike = [other for other in kept if other.suffix == path.suffix]
        other = rng.choice(alike)
        path.write_bytes(other.read_bytes())
        done = "that of another part"
    elif choice < 0.4:
        path.unlink()
        done = "deleted"
    else:
        mutations = [damage.json_value, damage.hostile_number] if path.suffix == ".json" else []
        data, done = damage.damaged(
            path.read_bytes() or b"\n", rng, [b"x" * 9], [*damage.PACKED, *mutations]
        )
        path.write_bytes(data)
    about = f"{path.suffix or path.name}, {done}"
    before = files()
    outcome = run("extract", given, "--resume", "-o", "out", *MEMORY)
    no_litter(before, outcome, ["out"])
    if outcome.code:
        return REFUSED, about
    found = edges_in("out")
    if found != expected:
        raise Finding(SILENT, f"{about}: {len(found)} edges, not {len(expected)}")
    return SAME, about


def some_questions(rng, most):
    weights = [SELDOM.get(question, 1) for question in ANSWERS]
    return rng.choices(list(ANSWERS), weights, k=rng.randint(1, most))
