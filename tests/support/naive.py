"""Slow, plain answers that the fast code is compared with. Nothing here is shared with it.

A *program* is a list of operations in program order; an operation maps each of its blocks to the
set of bytes that the block reads and the set that it writes. An *edge* is (source block, target
block, kind).
"""

import itertools
import re
from collections import Counter, defaultdict

KINDS = ("RAW", "WAR", "WAW", "REUSE")


# Dependences


def dependences(program, frees=()):
    """Take the definition at its word: for each byte and operation, look back for the last writer.

    RAW and WAW: a block that reads (writes) the byte waits for all blocks of the last operation
    that wrote it. WAR: one that writes it waits for all that read it in that operation or since.
    Frees are pairs of the operation after it and the bytes: a dependence past one is REUSE.
    """
    operation_of = {block: k for k, operation in enumerate(program) for block in operation}

    def past_free(source, k, byte):
        return any(operation_of[source] < after <= k and byte in freed for after, freed in frees)

    def blocks(operation, how, byte):
        return {block for block, touched in operation.items() if byte in touched[how]}

    read, write = 0, 1
    edges = set()
    for k, operation in enumerate(program):
        for byte in set().union(*(reads | writes for reads, writes in operation.values())):
            last = max((j for j in range(k) if blocks(program[j], write, byte)), default=None)
            writers = set() if last is None else blocks(program[last], write, byte)
            readers = set().union(*(blocks(program[j], read, byte) for j in range(last or 0, k)))
            for how, kind, sources in (
                (read, "RAW", writers),
                (write, "WAW", writers),
                (write, "WAR", readers),
            ):
                for target in blocks(operation, how, byte):
                    edges |= {
                        (source, target, "REUSE" if past_free(source, k, byte) else kind)
                        for source in sources
                    }
    return edges


def shared_bytes(operation):
    """Count the bytes that a block writes and another block of the operation touches."""
    found = set()
    for block, (_, writes) in operation.items():
        for other, (other_reads, other_writes) in operation.items():
            if other != block:
                found |= writes & (other_reads | other_writes)
    return len(found)


def rounded(program, granularity):
    """Round every access out to whole sectors or lines."""

    def out(touched):
        return {byte - byte % granularity + i for byte in touched for i in range(granularity)}

    return [
        {block: (out(reads), out(writes)) for block, (reads, writes) in operation.items()}
        for operation in program
    ]


def inside(operation):
    """Say what the blocks of an operation do with each other's bytes: 1 synchronise, 2 exchange.

    Blocks have four sets of bytes: read plainly, written, read in order with others, by LDGSTS.
    """
    flags = 0
    for byte in set().union(*(sets[1] for sets in operation.values())):
        plain, writers, sync, ldgsts = (
            {block for block, sets in operation.items() if byte in sets[way]} for way in range(4)
        )
        if any(writers - {reader} for reader in sync):
            flags |= 1
            # An atomic writes what it reads; so these are ordered loads.
            if len(sync) > len(writers) or (len(sync) == len(writers) and sync != writers):
                flags |= 2
        if any(writers - {reader} for reader in plain | ldgsts):
            flags |= 2
    return flags


def byte_ranges(touched):
    """Turn a set of bytes into the longest half-open ranges."""
    ranges = []
    for byte in sorted(touched):
        if ranges and ranges[-1][1] == byte:
            ranges[-1][1] = byte + 1
        else:
            ranges.append([byte, byte + 1])
    return [tuple(pair) for pair in ranges]


def join_ranges(ranges):
    """Join (row, kind, start, end) that overlap or touch, byte by byte.

    What stands in kind 0 of a row is left out of kinds 2 and 3, what in kind 2 out of kind 3.
    """
    touched = defaultdict(set)
    for row, kind, start, end in ranges:
        touched[row, kind].update(range(start, end))
    for row in {row for row, _ in touched}:
        plain, sync, ldgsts = (touched[row, kind] for kind in (0, 2, 3))
        ldgsts -= plain | sync
        sync -= plain
    return [
        (row, kind, start, end)
        for row, kind in sorted(touched)
        for start, end in byte_ranges(touched[row, kind])
    ]


def cut_ranges(ranges, boundaries):
    """Give each shard of the address space the parts of (block, kind, start, end) inside it."""
    bounds = [0, *boundaries, 1 << 64]
    return [
        [
            (block, kind, max(start, low), min(end, high))
            for block, kind, start, end in ranges
            if max(start, low) < min(end, high)
        ]
        for low, high in itertools.pairwise(bounds)
    ]


def cut_at_multiples(ranges, size):
    """Cut (block, kind, start, end) wherever an address is a multiple of `size`."""
    return [
        (block, kind, max(start, low), min(end, low + size))
        for block, kind, start, end in ranges
        for low in range(start // size * size, end, size)
    ]


# Lists


def gather_lists(lists, chosen):
    return [lists[i] for i in chosen]


def invert_lists(lists, n_values):
    return [
        [number for number, values in enumerate(lists) for found in values if found == value]
        for value in range(n_values)
    ]


def intern_lists(lists, labels):
    """Give equal lists with equal labels one number, in order of appearance."""
    seen = []
    numbers = []
    for values, label in zip(lists, labels, strict=True):
        if (values, label) not in seen:
            seen.append((values, label))
        numbers.append(seen.index((values, label)))
    return numbers


def mix64(value, salt):
    """Return the next number of splitmix64 (Steele et al., OOPSLA 2014) as depgraph seeds it."""
    mask = (1 << 64) - 1
    value = (value + salt) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ value >> 30) * 0x94D049BB133111EB & mask
    value = (value ^ value >> 27) * 0x9E3779B97F4A7C15 & mask
    return value ^ value >> 31


# Graphs


def expand(graph):
    """Return the edges of a factored graph: every target set waits for every source set.

    Each edge and kind is mapped to the lowest `Basis` of its joins: 0 and 1 are certain.
    """

    def members(number):
        return graph.set_blocks[graph.set_offsets[number] : graph.set_offsets[number + 1]].tolist()

    bases = [0] * len(graph.join_kind) if graph.join_basis is None else graph.join_basis.tolist()
    edges = {}
    for join, kind in enumerate(graph.join_kind.tolist()):
        for s in graph.sources[graph.source_offsets[join] : graph.source_offsets[join + 1]]:
            for t in graph.targets[graph.target_offsets[join] : graph.target_offsets[join + 1]]:
                for edge in {(a, b, KINDS[kind]) for a in members(s) for b in members(t)}:
                    edges[edge] = min(edges.get(edge, bases[join]), bases[join])
    return edges


def opaque_pairs(opaque, reads, writes, space):
    """Return every dependence that an opaque operation makes possible, none left out."""
    return {
        (j, k, kind)
        for j, k in itertools.combinations(range(len(opaque)), 2)
        if (opaque[j] or opaque[k]) and (space is None or space[j] == space[k])
        for kind, before, after in (
            ("RAW", writes, reads),
            ("WAR", reads, writes),
            ("WAW", writes, writes),
        )
        if (opaque[j] or before[j]) and (opaque[k] or after[k])
    }


def reachable(edges, n_blocks):
    """Return every (earlier, later) block with a path between them."""
    after = {block: set() for block in range(n_blocks)}
    following = defaultdict(set)
    for source, target, _ in edges:
        following[source].add(target)
    for block in reversed(range(n_blocks)):
        for target in following[block]:
            after[block] |= {target} | after[target]
    return {(block, later) for block in after for later in after[block]}


def earliest_finish(edges, durations):
    """Return when each block ends with unlimited SMs; edges lead to higher block numbers."""
    finish = []
    for block, duration in enumerate(durations):
        waits = [finish[source] for source, target, _ in edges if target == block]
        finish.append(max(waits, default=0.0) + duration)
    return finish


def longest_tail(edges, durations):
    """Return the longest path from the start of each block to the end of the program."""
    tail = {}
    for block in reversed(range(len(durations))):
        after = [tail[target] for source, target, _ in edges if source == block]
        tail[block] = max(after, default=0.0) + durations[block]
    return [tail[block] for block in range(len(durations))]


def pair_counts(edges, sources, targets):
    """Count the edges from some blocks to others: a dictionary in the words of the pairs table."""
    within = {e: basis for e, basis in edges.items() if e[0] in sources and e[1] in targets}
    certain = {edge for edge, basis in within.items() if basis < 2}
    possible = {(s, t) for s, t, _ in within} - {(s, t) for s, t, _ in certain}
    chosen = certain or set(within)
    distinct = {(s, t) for s, t, _ in chosen}
    kinds = Counter(kind for _, _, kind in certain)
    sources_of = Counter(t for _, t in distinct)
    targets_of = Counter(s for s, _ in distinct)
    return {
        "raw": kinds["RAW"],
        "war": kinds["WAR"],
        "waw": kinds["WAW"],
        "edges": len({(s, t) for s, t, _ in certain}),
        "ldgsts": sum(basis == 1 for basis in within.values()),
        "possible": len(possible),
        "waiting": len(sources_of),
        "awaited": len(targets_of),
        "most_sources": max(sources_of.values(), default=0),
        "most_targets": max(targets_of.values(), default=0),
        "pattern": pattern(distinct, len(sources), len(targets)),
    }


def pattern(distinct, n_sources, n_targets):
    """Name the shape of the edges between two kernels."""
    sources_of = defaultdict(set)
    targets_of = defaultdict(set)
    for source, target in distinct:
        sources_of[target].add(source)
        targets_of[source].add(target)
    one_source = all(len(found) == 1 for found in sources_of.values())
    one_target = all(len(found) == 1 for found in targets_of.values())
    if one_source and one_target:
        return "one-to-one"
    if one_source:
        return "one-to-n"
    if one_target:
        return "n-to-one"
    if len(distinct) == n_sources * n_targets:
        return "all-to-all"
    groups = list(sources_of.values())
    if all(a == b or not a & b for a in groups for b in groups):
        return "grouped"
    return "overlapped"


# NVBit logs

MARK = b"MEMTRACE: CTX 0x"
LAUNCH = re.compile(
    rb"MEMTRACE: CTX 0x(?P<context>[0-9a-f]{16}) - LAUNCH - Kernel pc 0x[0-9a-f]+"
    rb" - Kernel name (?P<name>.*) - grid launch id (?P<id>\d+)"
    rb" - grid size (?P<grid>\d+,\d+,\d+) - block size (?P<block>\d+,\d+,\d+)"
    rb" - nregs (?P<registers>-?\d+) - shmem (?P<shared>-?\d+) - cuda stream id (?P<stream>-?\d+)"
)
ACCESS = re.compile(
    rb"MEMTRACE: CTX 0x(?P<context>[0-9a-f]{16}) -(?: SM_id \d+ -)? grid_launch_id (?P<id>\d+)"
    rb" - CTA (?P<block>\d+,\d+,\d+) - warp \d+ - (?P<opcode>[A-Z0-9_.x]+) - (?P<lanes>.*)",
    re.DOTALL,
)
LANES = re.compile(rb"(?:0x[0-9a-f]{16}(?:[ \r]|$)){0,32}")
VERBOSE = re.compile(rb"MEMTRACE: CTX 0x[0-9a-f]+, Inspecting CUfunction ")

# What some opcodes do to global memory, and the bytes a lane touches.
OPCODES = {
    "LDG.E": ("read", 4),
    "LDG.E.CONSTANT": ("read", 4),
    "LDG.E.64": ("read", 8),
    "LDG.E.128.CONSTANT": ("read", 16),
    "LDG.E.U8": ("read", 1),
    "LDG.E.S16": ("read", 2),
    "LD.E": ("read", 4),
    "LDGSTS.E.LTC128B": ("copy", 4),
    "LDGSTS.E.BYPASS.LTC128B.128": ("copy", 16),
    "STG.E": ("write", 4),
    "STG.E.64": ("write", 8),
    "STG.E.U16": ("write", 2),
    "ST.E": ("write", 4),
    "LDG.E.STRONG.GPU": ("read", 4),
    "ATOMG.E.ADD.STRONG.GPU": ("update", 4),
    "ATOMG.E.CAS.64.STRONG.GPU": ("update", 8),
    "ATOM.E.ADD.F16x2.RN.STRONG.GPU": ("update", 4),
    "RED.E.ADD.F32.FTZ.RN.STRONG.GPU": ("update", 4),
    "REDG.E.ADD.F64.RN.STRONG.GPU": ("update", 8),
    "LDS": ("none", 4),
    "LDS.128": ("none", 16),
    "STS": ("none", 4),
    "LDSM.16.MT88.4": ("none", 16),
    "ATOMS.ADD": ("none", 4),
    "LDL.64": ("none", 8),
    "STL": ("none", 4),
    "CCTL.E.PF2": ("none", 4),
}
SHARED_WINDOW = 1 << 20
ADDRESS_END = 1 << 57
LONGEST_LINE = 1 << 20


def split_records(line):
    """Split a physical line before each `MEMTRACE: CTX 0x`; the first piece is foreign."""
    first, *rest = line.split(MARK)
    return first, [MARK + piece for piece in rest]


def lane_addresses(tail):
    """Return the whole addresses at the start of what follows the opcode."""
    return [int(word, 16) for word in LANES.match(tail)[0].split()]


def dimensions(text):
    return tuple(int(number) for number in text.split(b","))


class Log:
    """An NVBit log, read line by line with regular expressions.

    `launches` holds what each launch line says and, under "touched", its blocks with the bytes
    that they read and write. `accesses` and `instructions` count by (launch, block), `counts`
    lines and records by what they are.
    """

    def __init__(self, text):
        self.launches = []
        self.accesses = Counter()
        self.instructions = Counter()
        self.opcodes = Counter()
        self.counts = Counter()
        self._newest = {}
        lines = text.split(b"\n")
        for line in lines if lines[-1] else lines[:-1]:
            self.counts["lines"] += 1
            if len(line) > LONGEST_LINE:
                self.counts["overlong"] += 1
                continue
            _, records = split_records(line)
            self.counts["foreign"] += not records
            for record in records:
                self._read(record)

    def _read(self, record):
        if found := LAUNCH.match(record):
            self._newest[found["context"], found["id"]] = len(self.launches)
            self.launches.append(
                {
                    "name": found["name"].decode("utf-8", "replace"),
                    "grid": dimensions(found["grid"]),
                    "block": dimensions(found["block"]),
                    "registers": int(found["registers"]) or None,
                    "shared_bytes": int(found["shared"]),
                    "stream": int(found["stream"]),
                    "context": int(found["context"], 16),
                    "trace_id": int(found["id"]),
                    "touched": {},
                }
            )
        elif found := ACCESS.match(record):
            self._read_access(found)
        else:
            is_verbose = bool(VERBOSE.match(record))
            self.counts["verbose" if is_verbose else "malformed"] += 1
            self.counts["access"] += not is_verbose

    def _read_access(self, found):
        opcode = found["opcode"].decode()
        effect, width = OPCODES[opcode]
        self.counts["access"] += 1
        number = self._newest[found["context"], found["id"]]
        x, y, z = dimensions(found["block"])
        gx, gy, _ = self.launches[number]["grid"]
        block = x + gx * (y + gy * z)
        touched = self.launches[number]["touched"]
        reads, writes, sync, by_ldgsts = touched.setdefault(block, (set(), set(), set(), set()))
        lanes = lane_addresses(found["lanes"])
        if effect != "none" and self._is_left_out(lanes):
            return
        self.opcodes[opcode] += 1
        if effect == "copy" and max(lanes, default=0) < SHARED_WINDOW:
            self.counts["shared side"] += 1
            return
        self.instructions[number, block] += 1
        if effect == "none":
            return
        self.accesses[number, block] += 1
        bytes_ = {b for lane in lanes if lane for b in range(lane, lane + width)}
        if effect == "copy":
            by_ldgsts |= bytes_
        elif effect == "update" or (effect == "read" and ".STRONG." in opcode):
            sync |= bytes_
        elif effect == "read":
            reads |= bytes_
        if effect in {"write", "update"}:
            writes |= bytes_

    def _is_left_out(self, lanes):
        kind = "empty" if not lanes else "out of range" if max(lanes) >= ADDRESS_END else None
        self.counts[kind] += 1
        return kind is not None

    def program(self):
        """Return the launches as a program, its blocks numbered through over all of them."""
        program = []
        first = 0
        for launch in self.launches:
            program.append(
                {
                    first + block: (reads | sync | by_ldgsts, writes)
                    for block, (reads, writes, sync, by_ldgsts) in launch["touched"].items()
                }
            )
            gx, gy, gz = launch["grid"]
            first += gx * gy * gz
        return program
