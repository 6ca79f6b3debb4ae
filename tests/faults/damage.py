"""Ways to damage an input: its bytes, its lines, its numbers, and what its structure means.

A mutation takes the bytes of an input, a source of random numbers and other inputs of its kind,
and returns other bytes.
"""

import json
import re
import sqlite3
import tempfile
from pathlib import Path

LARGEST = 1 << 20
HOSTILE = [
    b"0", b"1", b"-1", b"255", b"65536", b"1000000000", b"2147483647", b"2147483648",
    b"4294967296", b"144115188075855872", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551615", b"18446744073709551616", b"1" + b"0" * 30, b"7" * 400, b"7" * 5000,
    b"1e308", b"1e999999999", b"1e-400", b"-0", b"0.1", b"nan", b"NaN", b"inf", b"-Infinity",
    b"0x10", b"1_000", b"+5", b"\xd9\xa1", b"", b" ", b"null", b"true", b"[]", b"{}", b'"x"',
]  # fmt: skip
WHOLE = [number for number in HOSTILE if re.fullmatch(rb"-?\d{1,40}", number)]
STRANGE = [
    b"\0", b"\r", b"\t", b"\x1b[2J", b"\xff\xfe", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"\xf0\x9f",
    b"=1+1", b"%s%n", b"../../etc/passwd", b'"', b",", b"\n\n", b"#", b"A" * 300, b"A" * 70_000,
]  # fmt: skip
ADDRESSES = [
    0, 1, 1 << 20, (1 << 57) - 1, 1 << 57, 1 << 63, (1 << 64) - 1, (1 << 64) - 8, 1 << 64, 1 << 80,
]  # fmt: skip


def cut(data, rng, _others):
    return data[: rng.randrange(len(data) + 1)]


def flip_bits(data, rng, _others):
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def overwrite(data, rng, _others):
    at, size = rng.randrange(len(data)), rng.choice([1, 4, 40, 400])
    return (
        data[:at] + rng.choice([rng.randbytes(size), bytes(size), b"\n" * size]) + data[at + size :]
    )


def remove(data, rng, _others):
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice([1, 2, 10, 200]) :]


def insert(data, rng, _others):
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(STRANGE) + data[at:]


def repeat_piece(data, rng, _others):
    """Write a piece of a line again and again: a line of up to a megabyte, of what is known."""
    at = rng.randrange(len(data))
    piece = data[at : at + rng.choice([1, 17, 60, 400])].replace(b"\n", b" ")
    times = min(rng.choice([2, 33, 1000, 100_000]), LARGEST // len(piece))
    return data[:at] + piece * times + data[at:]


def splice(data, rng, others):
    other = rng.choice(others)
    at, start = rng.randrange(len(data)), rng.randrange(len(other))
    piece = other[start : start + rng.choice([5, 50, 500])]
    return data[:at] + piece + data[at + rng.choice([0, len(piece)]) :]


def concatenate(data, rng, others):
    other = rng.choice([data, rng.choice(others)])
    return data + other if rng.random() < 0.5 else other + data


def shuffle_lines(data, rng, _others):
    lines = data.splitlines(keepends=True)
    for _ in range(rng.choice([1, 3, 20])):
        a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
        lines[a], lines[b] = lines[b], lines[a]
    return b"".join(lines)


def repeat_lines(data, rng, _others):
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    return b"".join([*lines[:at], *lines[at : at + 3] * rng.choice([2, 50]), *lines[at:]])


def drop_lines(data, rng, _others):
    lines = data.splitlines(keepends=True)
    at = rng.randrange(len(lines))
    return b"".join(lines[:at] + lines[at + rng.choice([1, 1, 2, 10]) :])


def join_lines(data, rng, _others):
    at = data.find(b"\n", rng.randrange(len(data)))
    return data if at < 0 else data[:at] + rng.choice([b"", b" ", b"\r", b"\0"]) + data[at + 1 :]


def hostile_number(data, rng, _others):
    """Replace one number, most often in a launch line or a header."""
    found = list(re.finditer(rb"-?\b\d+(?:\.\d+)?\b", data))
    launches = [
        m
        for m in found
        if re.search(rb"grid|block|insts|kernel|Memcpy", data[max(m.start() - 40, 0) : m.start()])
    ]
    if not found:
        return data
    match = rng.choice(launches if launches and rng.random() < 0.7 else found)
    number = rng.choice(WHOLE if rng.random() < 0.6 else HOSTILE)
    return data[: match.start()] + number + data[match.end() :]


def hostile_address(data, rng, _others):
    found = list(re.finditer(rb"0x[0-9a-f]+", data))
    if not found:
        return data
    match = rng.choice(found)
    form = rng.choice([b"0x%x", b"0x%016x"])
    return data[: match.start()] + form % rng.choice(ADDRESSES) + data[match.end() :]


def other_digit(data, rng, _others):
    """Write another digit, most often inside an address: what is damaged stays well-formed."""
    found = list(re.finditer(rb"(?<=[ 0-9a-fx])[0-9a-f](?=[0-9a-f ,])", data))
    if not found:
        return data
    at = rng.choice(found).start()
    return data[:at] + rng.choice(b"0123456789abcdef").to_bytes() + data[at + 1 :]


BYTES = (cut, flip_bits, overwrite, remove, insert, repeat_piece, splice, concatenate)
LINES = (shuffle_lines, repeat_lines, drop_lines, join_lines)
NUMBERS = (hostile_number, hostile_number, hostile_address, other_digit)
TEXT = (*BYTES, *LINES, *NUMBERS)
PACKED = (cut, flip_bits, overwrite, remove, concatenate)


def damaged(data, rng, others, mutations=TEXT):
    """Damage an input once or a few times; return it, never empty, and what was done to it."""
    names = []
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        mutation = rng.choice(mutations)
        names.append(mutation.__name__)
        data = mutation(data, rng, others)[: 64 * LARGEST] or b"\n"
    return data, "+".join(names)


# JSON


def json_value(data, rng, _others):
    """Replace, take away or double one value of a JSON document."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return flip_bits(data, rng, [])
    places = []

    def walk(value):
        for key in value if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    if isinstance(document, dict | list):
        walk(document)
    if not places:
        return data
    holder, key = rng.choice(places)
    choice = rng.random()
    if choice < 0.15:
        del holder[key]
    elif choice < 0.3 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif choice < 0.9:
        holder[key] = "@@"
        return json.dumps(document).replace('"@@"', hostile_json(rng)).encode()
    else:
        other, other_key = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[other_key]))
    return json.dumps(document).encode()


def hostile_json(rng):
    return rng.choice(
        [
            "null", "true", "[]", "{}", '""', '"12"', "-1", "0", "1e308", "-1e308", "1e400", "NaN",
            "Infinity", "0.1", "9223372036854775808", "7" * 400, "7" * 5000, '"\\ud800"',
            '"\\u0000\\u001b[2J\\u202e"', '"' + "x" * 70_000 + '"', "[" * 100_000 + "]" * 100_000,
            '{"a":' * 5000 + "1" + "}" * 5000, "[1,2,3,4,5,6,7]", '{"id": 0, "numSms": 1e30}',
            '"' + "x" * (17 << 20) + '"',
        ]
    )  # fmt: skip


# TOML

_TOML_VALUE = re.compile(rb"(?m)(?<== ).*$")


def toml_value(data, rng, _others):
    """Replace what stands behind one of the equals signs."""
    found = list(_TOML_VALUE.finditer(data))
    if not found:
        return data
    match = rng.choice(found)
    value = rng.choice(
        [
            "-1", "0", "1", "16777216", "16777217", "[4096, 4096]", "[2147483647, 2147483647]",
            "9223372036854775807", "9223372036854775808", "7" * 400, "7" * 5000, "1e308", "-1e308",
            "1e400", "inf", "-inf", "nan", "true", "[]", "{}", "{a = 1}", '""', '"x"', '"\\u0000"',
            "1979-05-27T07:32:00Z", "[" * 5000 + "]" * 5000, "{a=" * 2000 + "1" + "}" * 2000,
            "[1, 'two']", "[1.5]", "[[0, 0], [0, 9223372036854775807]]", "[[-1, 0]]", "[[0, 0]]",
            '"consumer"', '"producer"', '"tile"', '"all"', "0x7fffffffffffffff", "1_000_000",
            '"999999999999 GiB"', '"-1 KiB"', '"1e308 MiB"', '"' + "x" * 70_000 + '"',
        ]
    ).encode()  # fmt: skip
    return data[: match.start()] + value + data[match.end() :]


def toml_table(data, rng, _others):
    """Repeat a table, once or often, or give one a key of another."""
    tables = [table for table in re.split(rb"(?m)^(?=\[\[)", data) if table]
    table = rng.choice(tables)
    times = rng.choice([1, 1, 40, 3000])
    lines = data.splitlines(keepends=True)
    return rng.choice(
        [
            data + table * min(times, LARGEST // len(table) + 1),
            data + rng.choice(lines),
            data + b"[" + b".".join([b"a"] * 3000) + b"]\nx = 1\n",
            data + b"[[kernel]]\ngrid = [16777216]\nduration = 1e308\n" * times,
        ]
    )


TOML = (toml_value, toml_value, toml_value, toml_table, *BYTES, *LINES)


# SQLite


def sqlite_content(data, rng, _others):
    """Change a cell, a column or a table of a database that stays a database."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "db"
        path.write_bytes(data)
        connection = sqlite3.connect(path)
        try:
            with connection:
                _change_database(connection, rng)
        except (sqlite3.Error, UnicodeError, OverflowError):
            return flip_bits(data, rng, [])
        finally:
            connection.close()
        return path.read_bytes()


def _change_database(connection, rng):
    found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    table = rng.choice(found)[0]
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
    column = rng.choice(columns)
    value = rng.choice(
        [
            "NULL", "-1", "0", "9223372036854775807", "-9223372036854775808", "1e308", "9e999",
            "0.5", "'x'", "''", "x'00ff00ff'", "cast(x'fffe' AS TEXT)", "'7' || zeroblob(70000)",
            "zeroblob(1000000)", "'12'",
        ]
    )  # fmt: skip
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT "
    named = ", ".join(f"i AS {name}" for name in columns)
    where = rng.choice(["", f"WHERE rowid = {rng.randrange(1, 9)}"])
    statements = rng.choice(
        [
            [f"UPDATE {table} SET {column} = {value} {where}"],
            [f"UPDATE {table} SET {column} = {value} {where}"],
            [f"UPDATE {table} SET {column} = {value} {where}"],
            [f"DELETE FROM {table} {where}"],
            [f"ALTER TABLE {table} RENAME COLUMN {column} TO other"],
            [f"ALTER TABLE {table} RENAME TO other"],
            [f"INSERT INTO {table} SELECT * FROM {table}"],
            [f"ALTER TABLE {table} RENAME TO o", f"CREATE VIEW {table} AS SELECT * FROM o"],
            [f"DROP TABLE {table}", f"CREATE VIEW {table} AS {endless}{named} FROM n"],
            [f"DROP TABLE {table}", f"CREATE VIEW {table} AS SELECT * FROM {table}"],
        ]
    )
    for statement in statements:
        connection.execute(statement)
