"""Writing parts of a store for other tools, streamed where they may be large."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.dependences import KIND_NAMES, labelled_edges
from depgraph.scenario.scenario import Scenario
from depgraph.schedule.policy import Children, Schedule
from depgraph.store.schema import arrow_schema
from depgraph.system.arrays import from_codes, from_numpy
from depgraph.system.output import new_file
from depgraph.system.text import clean_text, csv_cell

_JSON_ROWS = 1 << 16


@contextmanager
def _table_writer(path: Path, form: str, schema: pa.Schema) -> Iterator[Callable[[pa.Table], None]]:
    """Yield a function that appends a table to a Parquet, CSV or JSON-lines file."""
    if form == "parquet":
        with pq.ParquetWriter(path, schema, compression="zstd", compression_level=1) as writer:
            yield writer.write_table
    elif form == "csv":
        plain = pa.schema(
            [pa.field(f.name, _plain_type(f.type), nullable=f.nullable) for f in schema]
        )
        options = pa.csv.WriteOptions(quoting_style="needed")
        with pa.csv.CSVWriter(path, plain, write_options=options) as writer:
            yield lambda table: writer.write_table(_with_safe_text(table.cast(plain)))
    else:
        with path.open("w", encoding="utf-8") as file:

            def write_lines(table: pa.Table) -> None:
                for batch in table.to_batches(_JSON_ROWS):
                    # In ASCII: names from a trace may hold characters that steer a terminal.
                    file.writelines(json.dumps(row) + "\n" for row in batch.to_pylist())

            yield write_lines


def _with_safe_text(table: pa.Table) -> pa.Table:
    """Return a table whose texts no spreadsheet takes for formulas."""
    for at, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            encoded = table.column(at).combine_chunks().dictionary_encode()
            safe = [csv_cell(text) for text in encoded.dictionary.to_pylist()]
            column = pa.DictionaryArray.from_arrays(encoded.indices, pa.array(safe, field.type))
            table = table.set_column(at, field, column.cast(field.type))
    return table


def _plain_type(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def write_table(table: pa.Table, path: Path, form: str, *, force: bool = False) -> None:
    """Write an Arrow table as Parquet, CSV or JSON, one object per line."""
    with (
        new_file(path, force=force) as temporary,
        _table_writer(temporary, form, table.schema) as write,
    ):
        write(table)


def write_edges(graph: BlockGraph, path: Path, form: str, *, force: bool = False) -> int:
    """Write the expanded edges in no order, a batch at a time; return how many."""
    schema = arrow_schema("edges")
    kernel, index = graph.block_names()
    total = 0
    with new_file(path, force=force) as temporary, _table_writer(temporary, form, schema) as write:
        for source, target, kind, certain, ldgsts in labelled_edges(graph.arrays):
            kinds = from_codes(kind, KIND_NAMES).cast(schema.field("kind").type)
            columns = [kernel[source], index[source], kernel[target], index[target]]
            labels = [from_numpy(certain), from_numpy(ldgsts)]
            arrays = [*map(from_numpy, columns), kinds, *labels]
            write(pa.Table.from_arrays(arrays, schema=schema))
            total += len(kind)
    return total


def write_schedule(
    schedule: Schedule, graph: BlockGraph, unit: str, path: Path, form: str, *, force: bool = False
) -> None:
    """Write a row for each block, and behind them for each block of a child that ran."""
    kernel, index = graph.block_names()
    time = pa.field("", pa.float64(), metadata={"unit": unit})
    schema = pa.schema(
        [
            pa.field("kernel", pa.int64()),
            pa.field("block", pa.int64()),
            pa.field("sm", pa.int32()),
            time.with_name("start"),
            time.with_name("end"),
        ]
    )

    def rows(kernel: NDArray[Any], block: NDArray[Any], plan: Schedule | Children) -> pa.Table:
        columns = (kernel, block, plan.sm, plan.start, plan.end)
        return pa.Table.from_arrays([*map(from_numpy, columns)], schema=schema)

    table = rows(kernel, index, schedule)
    if schedule.children is not None and graph.launches is not None:
        found = schedule.children
        children = rows(kernel[graph.launches.block[found.launch]], found.block, found)
        launch = pa.concat_arrays([pa.nulls(len(table), pa.int64()), pa.array(found.launch)])
        table = pa.concat_tables([table, children]).append_column("launch", launch)
    write_table(table, path, form, force=force)


def write_kernel_graph(scenario: Scenario, path: Path, form: str, *, force: bool = False) -> None:
    """Write the graph of kernels, with names, durations and places in the code."""
    import networkx as nx

    result = scenario.to_networkx(level="kernel")
    for _, attributes in result.nodes(data=True):
        for name, value in attributes.items():
            attributes[name] = clean_text(value) if isinstance(value, str) else value
    with new_file(path, force=force) as temporary:
        if form == "graphml":
            nx.write_graphml(result, temporary)
        elif form == "json":
            content: Any = nx.node_link_data(result, edges="edges")
            temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        else:
            temporary.write_text(_dot(result), encoding="utf-8")


def _dot(graph: Any) -> str:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    lines = ["digraph kernels {", "  node [shape=box];"]
    for node, data in graph.nodes(data=True):
        label = f"{node} {data['name']}"
        lines.append(f"  {quoted(str(node))} [label={quoted(label)}];")
    for source, target, data in graph.edges(data=True):
        label = f"{data['pattern']} ({data['edges']})"
        lines.append(f"  {quoted(str(source))} -> {quoted(str(target))} [label={quoted(label)}];")
    return "\n".join([*lines, "}"]) + "\n"
