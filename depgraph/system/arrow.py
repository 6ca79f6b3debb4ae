"""Arrow arrays from NumPy arrays and lists, and back, without pandas.

``pyarrow.array`` and ``read_table`` import pandas where it is installed, which takes longer than
all the rest of a small run.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from depgraph.errors import ModelError

# Bytes of a Parquet file: of a smaller one threads take more than they save.
_WORTH_THREADS = 1 << 20


def from_numpy(
    values: NDArray[Any], type_: pa.DataType | None = None, *, nan_is_null: bool = False
) -> pa.Array:
    """Return an Arrow array of numbers or booleans that shares the memory of a NumPy array."""
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
    return pa.DictionaryArray.from_arrays(
        from_numpy(codes.astype(np.int8)), from_list(names, pa.string())
    )


def from_lists(offsets: NDArray[np.int64], values: NDArray[Any]) -> pa.ListArray:
    """Return lists given as offsets and values, no more in all than an Arrow list can count."""
    if len(values) > np.iinfo(np.int32).max:
        message = f"the graph has {len(values)} members of sets, too many for a store"
        raise ModelError(message)
    return pa.ListArray.from_arrays(from_numpy(offsets.astype(np.int32)), from_numpy(values))


def read_parquet(content: bytes) -> pa.Table:
    """Read a whole Parquet file, given as what stands in it."""
    with pq.ParquetFile(pa.BufferReader(content)) as file:
        return file.read(use_threads=len(content) >= _WORTH_THREADS)


def to_numpy(column: pa.ChunkedArray | pa.Array, null: float | None = None) -> NDArray[Any]:
    """Return a column of numbers or booleans as a NumPy array, null as NaN or 0 if not given."""
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    dtype = np.dtype(column.type.to_pandas_dtype())
    if null is None:
        null = np.nan if dtype.kind == "f" else 0
    pieces = [np.empty(0, dtype)]
    for chunk in chunks:
        validity, data = chunk.buffers()
        span = slice(chunk.offset, chunk.offset + len(chunk))
        if data is None:
            piece = np.empty(0, dtype)
        elif pa.types.is_boolean(column.type):
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
