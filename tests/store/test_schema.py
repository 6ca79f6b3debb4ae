"""One module names every column: data classes and files agree with it."""

from dataclasses import fields

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depgraph.graph.dependences import PairSummary
from depgraph.graph.program import Copy, Kernel
from depgraph.store.schema import STORED_TABLES, TABLES, arrow_schema


def columns(table):
    return [column.name for column in TABLES[table]]


@pytest.mark.parametrize(
    ("table", "kind", "derived"),
    [
        ("kernels", Kernel, []),
        ("copies", Copy, []),
        ("pairs", PairSummary, ["cross_stream"]),
    ],
)
def test_a_data_class_has_the_columns_of_its_table(table, kind, derived):
    assert [field.name for field in fields(kind)] + derived == columns(table)


@pytest.mark.parametrize("kind", [Kernel, Copy, PairSummary])
def test_what_may_be_none_may_be_null(kind):
    table = {Kernel: "kernels", Copy: "copies", PairSummary: "pairs"}[kind]
    nullable = {column.name for column in TABLES[table] if column.nullable}
    assert {field.name for field in fields(kind) if "None" in str(field.type)} == nullable


@pytest.mark.parametrize("table", TABLES)
def test_every_column_has_a_type_and_a_meaning(table):
    assert len(set(columns(table))) == len(columns(table))
    for column, field in zip(TABLES[table], arrow_schema(table), strict=True):
        assert column.meaning
        assert isinstance(field.type, pa.DataType)


@pytest.mark.parametrize("table", STORED_TABLES)
def test_every_stored_column_carries_unit_and_meaning(table, sample_store):
    stored = pq.read_schema(sample_store.path / f"{table}.parquet")
    assert stored.names == columns(table)
    for column in TABLES[table]:
        field = stored.field(column.name)
        assert field.nullable == column.nullable, column.name
        assert field.metadata[b"unit"].decode() == column.unit
        assert field.metadata[b"meaning"].decode() == column.meaning


def test_a_store_holds_the_stored_tables_and_their_checksums(sample_store):
    files = {path.name for path in sample_store.path.iterdir()}
    assert files == {"SHA256SUMS", *(f"{table}.parquet" for table in STORED_TABLES)}
