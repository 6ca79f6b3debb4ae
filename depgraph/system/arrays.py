"""Arrays of footprints and of the block graph: dtype, shape and unit of each; lists as two arrays.

An *operation* is a kernel, a copy or a memset, in program order; *global* numbers of blocks count
through all of them. Then come objects from columns and back, and put together by a key.

At the end: Arrow arrays from arrays and lists, and back, without ``pyarrow.array``, which imports
pandas where it is installed: that takes longer than all the rest of a small run. Commands without a
store do without Arrow, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from depgraph.errors import ModelError

Value = TypeVar("Value", bound=np.generic)
_Thing = TypeVar("_Thing")
_Key = TypeVar("_Key", bound=Hashable)

if TYPE_CHECKING:
    import pyarrow as pa
    from _typeshed import DataclassInstance

    _Row = TypeVar("_Row", bound=DataclassInstance)

PerOperation = NDArray[np.int64]
"""int64[n_operations]: a number for each operation."""
KernelNumbers = NDArray[np.int32]
"""int32[n_operations]: the kernel that each operation is, ``-1 - i`` for copy or memset i."""
FirstBlocks = NDArray[np.int64]
"""int64[n_operations + 1]: global number of the first block of each operation."""
AddressSpaces = NDArray[np.int32]
"""int32[n_operations]: number of the address space of each operation."""
Operations = NDArray[np.int32]
"""int32[n]: operations, by their place in program order."""

PerBlock = NDArray[np.int64]
"""int64[n_blocks]: a number for each block, by its global number."""
OperationOfBlock = NDArray[np.int32]
"""int32[n_blocks]: which operation each block belongs to."""
BlockTimes = NDArray[np.float64]
"""float64[n_blocks]: a time of each block, in the unit of the graph."""
Blocks = NDArray[np.int32]
"""int32[n]: global block numbers."""

Offsets = NDArray[np.int64]
"""int64[n + 1]: where each of n lists begins among their values, and where the last one ends."""
Lists = tuple[Offsets, NDArray[np.int32]]
"""Lists of numbers one after another: offsets and values."""
SetNumbers = NDArray[np.int32]
"""int32[n]: numbers of sets of a graph."""
Sets = tuple[Operations, Offsets, Blocks]
"""Sets of blocks of an operation each: the operations, and the blocks as lists."""
Edges = tuple[Blocks, Blocks, NDArray[np.uint8]]
"""Of each edge the block waited for, the block that waits, and the kind or code."""
Mask = NDArray[np.bool_]
"""bool[n]"""

Addresses = NDArray[np.uint64]
"""uint64[n]: addresses of GPU memory, in bytes."""
AccessKinds = NDArray[np.uint8]
"""uint8[n]: `READ`, `WRITE`, `SYNC_READ` or `LDGSTS_READ` of `depgraph.trace.records`."""

Text = NDArray[np.uint8]
"""uint8[n]: a buffer of text, behind which a scanner may read `PADDING` bytes."""
Words = NDArray[np.uint64]
"""uint64[n - 7]: the same buffer as overlapping words, see `overlapping_words`."""


def lists_of(lists: Iterable[ArrayLike]) -> Lists:
    """Put lists into two arrays: int64[n + 1] and int32[...]."""
    arrays = [np.asarray(values, np.int32) for values in lists]
    return list_offsets([len(a) for a in arrays]), np.concatenate([np.empty(0, np.int32), *arrays])


def distinct(values: NDArray[Value]) -> NDArray[Value]:
    """Return each value once, ascending."""
    # `numpy.unique` uses a hash table since NumPy 2.3, which takes 20 times as long on 5 million
    # numbers most of which differ.
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    kept: NDArray[Value] = ordered[is_first]
    return kept


def distinct_rows(
    rows: NDArray[np.integer[Any]],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each row stands first, rows ascending, and which of them each row is."""
    # `numpy.unique` compares rows as a whole, which takes ten times as long.
    order = np.lexsort(rows.T[::-1])
    ordered = rows[order]
    is_first = np.ones(len(rows), np.bool_)
    is_first[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(is_first) - 1
    return order[is_first], number


def list_offsets(sizes: ArrayLike) -> NDArray[np.int64]:
    """Return where lists of some sizes begin, and where the last one ends: int64[n + 1]."""
    sizes = np.asarray(sizes, np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def gather_lists(
    offsets: Offsets, values: NDArray[Value], chosen: NDArray[np.integer[Any]]
) -> tuple[NDArray[np.int64], NDArray[Value]]:
    """Return the chosen lists, in the order in which they are chosen."""
    begins = offsets[chosen]
    sizes = offsets[1:][chosen] - begins
    gathered = list_offsets(sizes)
    places = np.arange(gathered[-1])
    places += np.repeat(begins - gathered[:-1], sizes)
    return gathered, values[places]


def concatenate_lists(pieces: Sequence[Lists]) -> Lists:
    """Put lists behind other lists."""
    sizes = [np.diff(offsets) for offsets, _ in pieces]
    return list_offsets(np.concatenate(sizes)), np.concatenate([values for _, values in pieces])


def list_of_each(offsets: Offsets) -> NDArray[np.int32]:
    """Return in which list each value stands: int32[...]."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))


def rows_of(kind: type[_Row], columns: Mapping[str, Iterable[Any]]) -> list[_Row]:
    """Return objects with the defaults of fields that have no column; the first field has one."""
    return list(map(kind, *(columns.get(f.name, repeat(f.default)) for f in fields(kind))))


def columns_of(rows: Sequence[Any], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return an attribute of all objects under each name."""
    return {name: list(map(attrgetter(name), rows)) for name in names}


def grouped(things: Iterable[_Thing], key: Callable[[_Thing], _Key]) -> dict[_Key, list[_Thing]]:
    """Return the things of each key; keys and things keep the order in which they come.

    >>> grouped(["raw", "war", "edge"], len)
    {3: ['raw', 'war'], 4: ['edge']}
    """
    groups: dict[_Key, list[_Thing]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups


def from_numpy(
    values: NDArray[Any], type_: pa.DataType | None = None, *, nan_is_null: bool = False
) -> pa.Array:
    """Return an Arrow array of numbers or booleans that shares the memory of a NumPy array."""
    import pyarrow as pa

    type_ = type_ or pa.from_numpy_dtype(values.dtype)
    validity = None
    if nan_is_null and np.isnan(values).any():
        validity = pa.py_buffer(np.packbits(~np.isnan(values), bitorder="little"))
    if pa.types.is_boolean(type_):
        data = np.packbits(values, bitorder="little")
    else:
        data = np.ascontiguousarray(values, type_.to_pandas_dtype())
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(data)])


def from_list(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of integers, floats, booleans or strings, None for null."""
    import pyarrow as pa

    n_null = values.count(None)
    if n_null == len(values):
        return pa.nulls(n_null, type_)
    validity = None
    if n_null:
        present = np.array([value is not None for value in values], np.bool_)
        validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    if pa.types.is_string(type_):
        texts = [b"" if value is None else value.encode() for value in values]
        offsets = np.append(0, np.cumsum([len(text) for text in texts])).astype(np.int32)
        buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
        return pa.Array.from_buffers(type_, len(values), buffers)
    plain = np.array([value or 0 for value in values], type_.to_pandas_dtype())
    if pa.types.is_boolean(type_):
        plain = np.packbits(plain, bitorder="little")
    return pa.Array.from_buffers(type_, len(values), [validity, pa.py_buffer(plain)])


def from_codes(codes: NDArray[Any], names: Sequence[str]) -> pa.DictionaryArray:
    """Return codes 0, 1, ... as an Arrow dictionary of their names."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(
        from_numpy(codes.astype(np.int8)), from_list(names, pa.string())
    )


def from_lists(offsets: NDArray[np.int64], values: NDArray[Any]) -> pa.ListArray:
    """Return lists given as offsets and values, no more in all than an Arrow list can count."""
    import pyarrow as pa

    if len(values) > np.iinfo(np.int32).max:
        message = f"the graph has {len(values)} members of sets, too many for a store"
        raise ModelError(message)
    return pa.ListArray.from_arrays(from_numpy(offsets.astype(np.int32)), from_numpy(values))


def to_numpy(column: pa.ChunkedArray | pa.Array, null: float | None = None) -> NDArray[Any]:
    """Return a column of numbers or booleans as a NumPy array, null as NaN or 0 if not given."""
    chunks = getattr(column, "chunks", [column])
    dtype = np.dtype(column.type.to_pandas_dtype())
    if null is None:
        null = np.nan if dtype.kind == "f" else 0
    pieces = [np.empty(0, dtype)]
    for chunk in chunks:
        validity, data = chunk.buffers()
        span = slice(chunk.offset, chunk.offset + len(chunk))
        if data is None:
            piece = np.empty(0, dtype)
        elif dtype == np.bool_:
            bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little")
            piece = bits[span].astype(np.bool_)
        else:
            piece = np.frombuffer(data, dtype)[span]
        if chunk.null_count:
            bits = np.unpackbits(np.frombuffer(validity, np.uint8), bitorder="little")
            piece = np.where(bits[span], piece, dtype.type(null))
        pieces.append(piece)
    return pieces[-1] if len(chunks) == 1 else np.concatenate(pieces)


def to_list(column: pa.ChunkedArray) -> list[Any]:
    """Return a column as Python objects; of one type, and none of them null, in less time."""
    import pyarrow as pa

    if column.null_count == len(column):
        return [None] * len(column)
    is_plain = not column.null_count and pa.types.is_primitive(column.type)
    values: list[Any] = to_numpy(column).tolist() if is_plain else column.to_pylist()
    return values


def to_codes(column: pa.ChunkedArray, names: Sequence[str]) -> NDArray[np.uint8]:
    """Turn a dictionary column into codes in the order of `names`, all there are."""
    pieces = [np.empty(0, np.uint8)]
    for chunk in column.chunks:
        order = np.array([names.index(n) for n in chunk.dictionary.to_pylist()], np.uint8)
        pieces.append(order[to_numpy(chunk.indices)])
    return np.concatenate(pieces)


def to_lists(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Turn a column of lists into offsets and values."""
    offsets = [np.zeros(1, np.int64)]
    values = [np.empty(0, column.type.value_type.to_pandas_dtype())]
    total = 0
    for chunk in column.chunks:
        starts = to_numpy(chunk.offsets).astype(np.int64)
        offsets.append(starts[1:] - starts[0] + total)
        size = int(starts[-1] - starts[0])
        # As `flatten` gives them, which loads all functions of Arrow before.
        values.append(to_numpy(chunk.values.slice(int(starts[0]), size)))
        total += size
    return np.concatenate(offsets), np.concatenate(values)
