"""Tiles that kernels store by TMA: found among the parameters, inferred from what blocks load."""

import struct
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from depgraph.dependence.sweep import choose_boundaries
from depgraph.extraction.pipeline import analyse, extract
from depgraph.graph.dependences import Basis
from depgraph.parsers import open_trace
from depgraph.parsers.recording.archive import MAPS, SECTORS, TILES
from depgraph.parsers.recording.packing import pack
from depgraph.parsers.recording.stored_tiles import Loads, infer_tiles
from depgraph.parsers.recording.tensor_maps import decode, maps_in
from depgraph.parsers.recording.trace import _joined, _Loaded, _of_loads

A, B, C = 1 << 20, 2 << 20, 3 << 20
HALF = 6  # code of a type of two bytes


def map_words(address, sizes, box):
    """Return the words of the map of a packed tensor of two-byte elements."""
    strides, stride = [], 2
    for size in sizes[:-1]:
        stride *= size
        strides.append(stride // 16)
    sizes, box, strides = (
        [*values, *[0] * (5 - len(values))]
        for values in ([n - 1 for n in sizes], [n - 1 for n in box], strides)
    )
    rank = 5 - next((i for i, n in enumerate(reversed(sizes)) if n), 4)
    return [
        address,
        HALF << 7 | (rank - 1) << 4 | strides[0] << 32,
        strides[1] | strides[2] << 32,
        strides[3],
        sizes[0] | sizes[1] << 32,
        sizes[2] | sizes[3] << 32,
        sizes[4] | box[0] << 56,
        box[1] | box[2] << 8 | box[3] << 16 | box[4] << 24,
    ]


def tensor(address, sizes, box):
    return decode(map_words(address, sizes, box))


def loads(tensor, *rows):
    """Return loads: rows are (block, first element)."""
    block = np.array([block for block, _ in rows], np.int64)
    at = np.array([at for _, at in rows], np.int32)
    every = np.arange(len(rows))
    return Loads(tensor, every, at, block, every, block)


def stored_by(found):
    """Return the bytes that each block stores."""
    result = {}
    for block, start, end in zip(*(column.tolist() for column in found), strict=True):
        result.setdefault(block, set()).update(range(start, end))
    return result


def tile_of(tensor, low, high):
    """Return the bytes of a box of elements of a matrix."""
    return {
        tensor.address + y * tensor.strides[1] + 2 * x + i
        for y in range(low[1], high[1])
        for x in range(low[0], high[0])
        for i in (0, 1)
    }


def product(rows, columns, tile, tiles_of_blocks, depth=(0, 32)):
    """Return the output of a matrix product, and the loads of its blocks."""
    left = tensor(A, (64, rows), (32, tile[1]))
    right = tensor(B, (64, columns), (32, tile[0]))
    steps = [(block, k, x, y) for block, tiles in tiles_of_blocks for x, y in tiles for k in depth]
    return tensor(C, (columns, rows), (16, 16)), [
        loads(left, *((block, (k, y)) for block, k, _, y in steps)),
        loads(right, *((block, (k, x)) for block, k, x, _ in steps)),
    ]


@given(
    st.integers(1, 4), st.integers(1, 4), st.sampled_from([16, 32]), st.sampled_from([16, 48]),
    st.integers(0, 13), st.integers(1, 4), st.randoms(use_true_random=False),
)  # fmt: skip
def test_blocks_of_a_product_store_where_their_operands_meet(
    n_x, n_y, width, height, less, n_blocks, random
):
    columns, rows = width * n_x - less // 8 * 8, height * n_y - less
    tiles = [(width * x, height * y) for x in range(n_x) for y in range(n_y)]
    random.shuffle(tiles)
    blocks = [(b, own) for b in range(n_blocks) if (own := tiles[b::n_blocks])]
    output, operands = product(rows, columns, (width, height), blocks)
    found = infer_tiles(output, operands)
    if len(tiles) == 1:
        assert found is None  # nothing to infer: the kernel's only tile is all of it
        return
    expected = {
        b: set().union(*(
            tile_of(output, at, (min(at[0] + width, columns), min(at[1] + height, rows)))
            for at in own
        ))
        for b, own in blocks
    }  # fmt: skip
    assert found is not None
    if columns != rows and 64 not in (columns, rows):
        assert stored_by(found) == expected
    for b, inside in expected.items():
        assert inside <= stored_by(found)[b]


def test_a_square_product_may_be_transposed():
    blocks = [(2 * y + x, [(16 * x, 16 * y)]) for x in (0, 1) for y in (0, 1)]
    found = stored_by(infer_tiles(*product(32, 32, (16, 16), blocks)))
    output = tensor(C, (32, 32), (16, 16))
    mine, other = tile_of(output, (16, 0), (32, 16)), tile_of(output, (0, 16), (16, 32))
    assert found[0] == tile_of(output, (0, 0), (16, 16))
    assert found[1] == found[2] == mine | other


def test_what_several_blocks_add_up_is_not_inferred():
    halves = [(0, [(0, 0)]), (1, [(0, 0)])]
    output, operands = product(48, 32, (32, 48), halves)
    assert infer_tiles(output, operands) is None


def test_a_tile_that_is_never_loaded_is_not_inferred():
    output, operands = product(32, 48, (16, 32), [(0, [(0, 0)]), (1, [(16, 0)])])
    assert infer_tiles(output, operands) is None


def test_attention_stores_where_it_loads_its_query():
    query, key = tensor(A, (16, 96, 2), (16, 32, 1)), tensor(B, (16, 80, 2), (16, 40, 1))
    output = tensor(C, (16, 96, 2), (16, 32, 1))
    blocks = [(3 * head + i, (0, 32 * i, head)) for head in range(2) for i in range(3)]
    keys = [(b, (0, 40 * i, at[2])) for b, at in blocks for i in (0, 1)]
    found = stored_by(infer_tiles(output, [loads(query, *blocks), loads(key, *keys)]))
    for block, (_, row, head) in blocks:
        first = C + 2 * 16 * (96 * head + row)
        assert found[block] == set(range(first, first + 2 * 16 * 32))


def test_a_block_may_go_on_to_another_tile_with_each_load():
    query, output = (tensor(at, (16, 128, 2), (16, 32, 1)) for at in (A, C))
    tiles = [(i % 3, (0, 32 * (i // 2), i % 2)) for i in range(8)]
    found = stored_by(infer_tiles(output, [loads(query, *tiles)]))
    assert sorted(map(len, found.values())) == [2 * 1024, 3 * 1024, 3 * 1024]
    for block, (_, row, head) in tiles:
        assert C + 2 * 16 * (128 * head + row) in found[block]


def test_a_tensor_of_wider_elements_may_be_added_to():
    output, operands = product(48, 32, (16, 48), [(0, [(0, 0)]), (1, [(16, 0)])])
    assert infer_tiles(output, operands) is not None
    assert infer_tiles(replace(output, element=4, strides=(4, 128)), operands) is None


def test_a_tile_may_be_loaded_as_two():
    wide, narrow = tensor(B, (96, 96), (32, 32)), tensor(B, (96, 96), (32, 16))
    left, output = tensor(A, (96, 64), (32, 32)), tensor(C, (96, 64), (16, 16))
    blocks = [(2 * y + x, 48 * x, 32 * y) for x in (0, 1) for y in (0, 1)]
    found = infer_tiles(
        output,
        [
            loads(left, *((b, (k, y)) for b, _, y in blocks for k in (0, 32, 64))),
            loads(wide, *((b, (k, x)) for b, x, _ in blocks for k in (0, 32, 64))),
            loads(narrow, *((b, (k, x + 32)) for b, x, _ in blocks for k in (0, 32, 64))),
        ],
    )
    assert stored_by(found) == {b: tile_of(output, (x, y), (x + 48, y + 32)) for b, x, y in blocks}


def test_maps_are_found_among_parameters():
    words = map_words(C, (32, 48), (16, 16))
    content = struct.pack("<5Q8Q3Q", *range(5), *words, 1, 2, 3)
    assert maps_in(content) == [(40, decode(words))]
    assert maps_in(content[:100]) == []


LAUNCH = {
    "event": "kernel", "mangled": "_Z1kv", "block": [32, 1, 1], "cluster": [0, 0, 0],
    "registers": 8, "static_shared": 0, "dynamic_shared": 0, "stream": 0, "context": 0,
    "device": 0, "graph": 0, "state": "recorded", "lost": 0,
}  # fmt: skip
ROWS, COLUMNS, TILE = 96, 32, (16, 32)
BLOCKS = [(2 * y + x, [(16 * x, 32 * y)]) for x in range(2) for y in range(3)]


def recording(tmp_path, *more, blocks=BLOCKS, words_of=map_words):
    """Write a product whose output one block of a second kernel reads at its very end."""
    _, operands = product(ROWS, COLUMNS, TILE, blocks)
    maps = [
        (i + 1, 640 + 128 * i, words_of(address, sizes, box) + [0] * 8, 1, 1)
        for i, (address, sizes, box) in enumerate(
            [(A, (64, ROWS), (32, 32)), (B, (64, COLUMNS), (32, 16))]
        )
    ]
    tiles = [
        (640 + 128 * i, int(b), 1, (*at.tolist(), 0, 0, 0), 0, 0, 0)
        for i, each in enumerate(operands)
        for b, at in zip(each.issuer, each.at, strict=True)
    ]
    last = C + 2 * ROWS * COLUMNS - 1
    tables = {
        "sectors": np.array([(last // 32, 0, 2, 1 << 31, 0, 0, 1)], SECTORS),
        "tiles": np.array(tiles, TILES),
        "maps": np.array(maps, MAPS),
    }
    places, raw = {}, b""
    for name, rows in tables.items():
        places |= {f"{name}_at": len(raw), name: len(rows)}
        raw += rows.tobytes()
    events = [
        {**LAUNCH, "number": 1, "grid_id": 1, "name": "product", "grid": [6, 1, 1], **places},
        {**LAUNCH, "number": 2, "grid_id": 2, "name": "reader", "grid": [1, 1, 1], **places},
        *more,
    ]
    path = tmp_path / "it.recording"
    pack(path, {"process": 1}, events, np.frombuffer(raw, np.uint8))
    return path


def params(*maps, words_of=map_words):
    """Return an event of the parameters of the product: its operands' maps and others."""
    known = [
        words_of(A, (64, ROWS), (32, 32)), words_of(B, (64, COLUMNS), (32, 16)), *maps,
    ]  # fmt: skip
    content = b"".join(struct.pack("<8Q", *words) + bytes(64) for words in known)
    return {"event": "params", "number": 1, "at": 640, "bytes": content.hex()}


OUTPUT = map_words(C, (COLUMNS, ROWS), (16, 16))


def possible_edges(graph):
    return {
        (s, t, Basis(graph.basis[j]).name)
        for j in range(len(graph.join_kind))
        for s in graph.blocks_of(graph.source_lists, j).tolist()
        for t in graph.blocks_of(graph.target_lists, j).tolist()
    }


def test_a_reader_possibly_waits_for_the_block_that_stores_its_tile(tmp_path, program):
    path = recording(tmp_path, params(OUTPUT))
    found = analyse(open_trace(path))
    assert possible_edges(found.graph) == {(5, 6, "TILES")}
    assert [k.reach for k in found.kernels] == ["tiles", None]
    (pair,) = extract(open_trace(path), tmp_path / "out").pairs
    assert (pair.raw, pair.possible) == (0, 1)
    said = " ".join(program("bound", tmp_path / "out", "--sms", "4").out.split())
    assert "which block stores which tile is inferred" in said
    said = " ".join(program("extract", path, "-o", tmp_path / "again", "--details").out.split())
    assert "kernel 0: inferred, block by block: tiles stored by TMA" in said


def batched(*matrix):
    """Return the words of a matrix that all products of a batch share: dimensions of stride 0."""
    words = map_words(*matrix)
    words[1] |= 3 << 4  # four dimensions, of which the third has one element
    words[5] |= (2**31 - 2) << 32
    return words


def test_a_batch_of_products_that_share_their_operands_is_one(tmp_path):
    given = params(batched(C, (COLUMNS, ROWS), (16, 16)), words_of=batched)
    found = analyse(open_trace(recording(tmp_path, given, words_of=batched)))
    assert possible_edges(found.graph) == {(5, 6, "TILES")}


def test_where_no_rule_holds_every_block_possibly_stores_anywhere_in_the_output(tmp_path):
    twice = [(b, tiles) for b, (_, tiles) in enumerate([BLOCKS[0], *BLOCKS[:5]])]
    found = analyse(open_trace(recording(tmp_path, params(OUTPUT), blocks=twice)))
    assert possible_edges(found.graph) == {(b, 6, "RANGE") for b in range(6)}
    elsewhere = map_words(4 << 20, (COLUMNS, ROWS), (16, 16))
    found = analyse(open_trace(recording(tmp_path, params(elsewhere))))
    assert possible_edges(found.graph) == set()


def allocation(end):
    return {"event": "alloc", "address": A, "bytes": end - A, "flags": 0, "stream": 0}


@pytest.mark.parametrize(
    "more",
    [
        [],
        [params()],
        [params(OUTPUT), allocation(C)],
        [params(OUTPUT) | {"number": 3}],
        [params(OUTPUT) | {"at": 768}],
    ],
    ids=[
        "not recorded", "not among them", "in no allocation", "of another launch",
        "loads by a map elsewhere",
    ],
)  # fmt: skip
def test_without_a_map_of_its_output_a_kernel_is_opaque(tmp_path, more):
    found = analyse(open_trace(recording(tmp_path, *more)))
    assert [k.is_opaque for k in found.kernels] == [True, False]
    assert {basis for *_, basis in possible_edges(found.graph)} == {"OPAQUE"}


def test_an_output_in_an_allocation_is_one(tmp_path):
    path = recording(tmp_path, params(OUTPUT), allocation(4 << 20) | {"order": 0})
    assert analyse(open_trace(path)).kernels[0].is_opaque  # it was not there yet
    path = recording(tmp_path, params(OUTPUT), allocation(4 << 20) | {"order": -1})
    assert possible_edges(analyse(open_trace(path)).graph) == {(5, 6, "TILES")}


def test_shards_of_the_address_space_find_the_same(tmp_path, monkeypatch):
    path = recording(tmp_path, params(OUTPUT))
    whole = analyse(open_trace(path))
    chosen = []

    def boundaries(*arguments):
        chosen.append(choose_boundaries(*arguments))
        return chosen[-1]

    monkeypatch.setattr("depgraph.dependence.sweep._BYTES_PER_RANGE", 1 << 50)
    monkeypatch.setattr("depgraph.dependence.sweep.choose_boundaries", boundaries)
    cut = analyse(open_trace(path))
    assert ((chosen[0] > C) & (chosen[0] < C + 2 * ROWS * COLUMNS)).any()
    assert possible_edges(cut.graph) == {(5, 6, "TILES")}
    assert cut.pairs == whole.pairs


def test_possible_stores_survive_an_interruption_and_a_what_if(tmp_path, program):
    path = recording(tmp_path, params(OUTPUT))
    for _ in range(2):
        with analyse(open_trace(path), resume=tmp_path / "kept") as found:
            assert possible_edges(found.graph) == {(5, 6, "TILES")}
    extract(open_trace(path), tmp_path / "out")
    changed = program(
        "show", "pairs", tmp_path / "out", "--what-if", f"buffer={A:#x}:{B:#x} drop=war"
    )
    assert "possible" in changed.out


@given(st.data())
def test_what_blocks_load_is_every_element_of_their_boxes(data):
    others = data.draw(st.integers(0, 2))
    sizes = [8 * data.draw(st.integers(1, 4))]
    sizes += [data.draw(st.integers(2, 6)) for _ in range(others)]
    box = [8 * data.draw(st.integers(1, 2)), *(data.draw(st.integers(1, 3)) for _ in range(others))]
    first = st.tuples(*(st.integers(-1, 4).map(lambda n, b=b: n * b) for b in box))
    rows = data.draw(st.lists(st.tuples(st.integers(0, 2), first), min_size=1, max_size=12))
    loaded = tensor(A, sizes, box)
    blocks, reads = reads_of(loads(loaded, *rows))
    found = {block: set() for block, _ in rows}
    columns = (blocks[reads.block], reads.start, reads.end)
    for block, start, end in zip(*(column.tolist() for column in columns), strict=True):
        found[block].update(range(start, end))
    expected = {block: set() for block, _ in rows}
    for block, at in rows:
        for offset in np.ndindex(*box):
            element = np.array(at) + offset
            if (element >= 0).all() and (element < sizes).all():
                place = A + int(element @ np.array(loaded.strides))
                expected[block] |= {place, place + 1}
    assert found == expected


def reads_of(load, at_once=1 << 20):
    """Return the blocks that load tiles, and what they read."""
    loaded = _Loaded([load], [])
    blocks = np.unique(load.receiver)
    return blocks, _joined(_of_loads(loaded, blocks, at_once), len(blocks), 0, None)


@pytest.mark.parametrize("at_once", [1, 70, 1 << 20])
def test_tiles_one_below_another_are_not_taken_for_neighbours(at_once):
    loaded = tensor(A, [64, 512], [64, 64])
    _, reads = reads_of(loads(loaded, *((0, (0, 64 * i)) for i in range(8))), at_once)
    assert (reads.start.tolist(), reads.end.tolist()) == ([A], [A + 2 * 64 * 512])
