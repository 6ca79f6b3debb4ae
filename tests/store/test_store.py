"""The store: what is written is read again, and nothing is left half-written."""

import errno
import hashlib
import json
import shutil
from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from programs import BASE, access_line, edges_of, launch_line, log_records
from stores import make_oldest, make_version, rewrite

from depgraph.errors import ModelError, OutputError, OutputExistsError, StoreError
from depgraph.extraction.pipeline import analyse
from depgraph.graph.block_graph import BlockGraph
from depgraph.graph.program import Copy
from depgraph.parsers import open_trace
from depgraph.store.schema import OLDEST_VERSION, SCHEMA_VERSION, STORED_TABLES, TABLES
from depgraph.store.store import Store, write_store
from depgraph.store.tables import Checksums


@pytest.fixture
def extraction(tmp_path):
    log = tmp_path / "some.log"
    log.write_bytes(
        launch_line(0) + access_line(0, 1, "STG.E", [BASE])
        + launch_line(1, stream=7) + access_line(1, 2, "LDG.E", [BASE])
    )  # fmt: skip
    return analyse(open_trace(log))


@pytest.fixture
def store(extraction, tmp_path):
    return write_store(extraction, tmp_path / "out")


def same(one, other):
    names = getattr(one, "_fields", None) or [field.name for field in fields(one)]
    for name in names:
        first, second = getattr(one, name), getattr(other, name)
        if isinstance(first, np.ndarray):
            assert np.array_equal(first, second), name
            assert first.dtype == second.dtype, name
        elif name == "resources":
            same(first, second)
        elif name == "counted":
            assert one.pairs() == other.pairs()
        else:
            assert first == second, name


@given(log_records())
def test_what_is_written_is_read_again(tmp_path_factory, records):
    folder = tmp_path_factory.mktemp("drawn")
    (folder / "some.log").write_bytes(b"".join(records))
    written = analyse(open_trace(folder / "some.log"), jobs=1, allow_empty=True)
    read = write_store(written, folder / "out")
    same(written.graph, read.graph())
    same(written.footprints, read.footprints())
    same(written.counts, read.counts)
    assert read.kernels == written.kernels
    assert read.copies == written.copies
    assert read.pairs == written.pairs
    assert {name: read.metadata[name] for name in written.metadata} == written.metadata
    shutil.rmtree(folder)


def test_the_packaged_trace_is_read_again(sample_store):
    assert isinstance(sample_store.graph(), BlockGraph)
    assert sample_store.graph().kinds == {"RAW", "WAR", "WAW"}
    for kind, edges in (("raw", 713), ("war", 217), ("waw", 69)):
        assert sum(getattr(pair, kind) for pair in sample_store.pairs) == edges


def test_metadata_tells_versions_and_provenance(store, tmp_path):
    assert store.metadata["schema_version"] == SCHEMA_VERSION
    assert store.metadata["tool_version"]
    assert store.metadata["sources"][0]["path"] == str(tmp_path / "some.log")
    for table in STORED_TABLES:
        stored = pq.read_schema(store.path / f"{table}.parquet").metadata[b"depgraph"]
        assert json.loads(stored) == store.metadata


def test_every_file_holds_the_id_of_the_store(store, extraction, tmp_path):
    def identities(folder):
        files = [pq.read_metadata(folder / f"{table}.parquet") for table in STORED_TABLES]
        return {file.metadata[b"depgraph_store"].decode() for file in files}

    (identity,) = identities(store.path)
    assert identity == Checksums.read(store.path).identity
    again = write_store(extraction, tmp_path / "again")
    assert identities(again.path) == {identity}
    other = replace(extraction, copies=[Copy(0, 2, 16, BASE, 4, None, "memset")])
    assert identities(write_store(other, tmp_path / "other").path) != {identity}
    other = replace(extraction, metadata={**extraction.metadata, "lines": 3})
    assert identities(write_store(other, tmp_path / "third").path) != {identity}


def test_others_can_check_the_files(store):
    for line in (store.path / "SHA256SUMS").read_text().splitlines()[1:-1]:  # as sha256sum reads it
        digest, name = line.split("  ")
        assert hashlib.sha256((store.path / name).read_bytes()).hexdigest() == digest
    for table in STORED_TABLES:
        file = store.path / f"{table}.parquet"
        assert pq.read_table(file, page_checksum_verification=True).num_rows >= 0


def test_a_dependence_across_streams_is_marked(store):
    assert store.to_pandas("pairs")["cross_stream"].tolist() == [True]


def test_kernels_of_one_stream_depend_inside_it(sample_store):
    assert not sample_store.to_pandas("pairs")["cross_stream"].any()


def test_coordinates_are_those_of_the_grid(tmp_path):
    log = tmp_path / "some.log"
    log.write_bytes(launch_line(0, (2, 3, 2)) + access_line(0, (1, 2, 1), "LDG.E", [BASE]))
    blocks = write_store(analyse(open_trace(log)), tmp_path / "out").to_pandas("blocks")
    assert blocks["x"].tolist() == [0, 1] * 6
    assert blocks["y"].tolist() == [0, 0, 1, 1, 2, 2] * 2
    assert blocks["z"].tolist() == [0] * 6 + [1] * 6
    (active,) = blocks.loc[blocks["accesses"] == 1].to_dict("records")
    assert (active["x"], active["y"], active["z"], active["index"]) == (1, 2, 1, 11)


def test_kinds_that_were_not_extracted_cannot_be_asked_for(tmp_path):
    log = tmp_path / "some.log"
    log.write_bytes(launch_line(0) + access_line(0, 1, "STG.E", [BASE]))
    store = write_store(analyse(open_trace(log), kinds={"RAW"}), tmp_path / "out")
    assert store.graph({"RAW"}).kinds == {"RAW"}
    for kinds in ({"WAR"}, {"RAW", "WAW"}):
        with pytest.raises(ModelError, match=r"the store holds only RAW dependences"):
            store.graph(kinds)


# A store that is not one


def test_no_store(tmp_path):
    with pytest.raises(StoreError, match="none: no such store; make one with: depgraph extract"):
        Store(tmp_path / "none")


def test_a_folder_that_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="is not a depgraph store; make one with"):
        Store(tmp_path)


def test_what_an_older_store_lacks_is_filled_in(store):
    known = {table: store.table(table).to_pylist() for table in STORED_TABLES}
    make_oldest(store.path)
    old = Store(store.path)
    for table in STORED_TABLES:
        added = {c.name: c.default for c in TABLES[table] if c.since > OLDEST_VERSION}
        assert old.table(table).to_pylist() == [row | added for row in known[table]]
    assert old.graph().pairs() == Store(store.path).pairs


@pytest.mark.parametrize("version", [1, 99])
def test_a_store_of_another_schema_version(store, version):
    make_version(store.path, version)
    with pytest.raises(
        StoreError,
        match=f"has schema version {version}, this depgraph reads version {SCHEMA_VERSION}; "
        "extract the trace again with --force",
    ):
        Store(store.path)


def test_parquet_files_of_another_tool(store):
    pq.write_table(pa.table({"kernel": [1]}), store.path / "kernels.parquet")
    (store.path / "SHA256SUMS").unlink()
    with pytest.raises(StoreError, match="holds Parquet files that depgraph did not write"):
        Store(store.path)


def test_a_store_without_one_of_its_files(store):
    for file in sorted(store.path.iterdir()):
        content = file.read_bytes()
        file.unlink()
        with pytest.raises(StoreError, match=rf"lacks {file.name}; copy the store again, or extr"):
            Store(store.path)
        file.write_bytes(content)
    assert Store(store.path).metadata == store.metadata


@pytest.mark.parametrize("table", STORED_TABLES)
def test_a_damaged_file(store, table):
    (store.path / f"{table}.parquet").write_bytes(b"PAR1" + b"\0" * 50)
    with pytest.raises(StoreError, match=rf"{table}\.parquet: is damaged") as error:
        Store(store.path).table(table)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.drop_columns(["raw"]),
        lambda table: table.rename_columns({"raw": "read_after_write"}),
        lambda table: table.set_column(2, "raw", table["raw"].cast(pa.float64())),
    ],
)
def test_a_file_with_other_columns(store, change):
    rewrite(store.path, "pairs", change)
    with pytest.raises(StoreError, match=r"pairs\.parquet: has columns that the schema does not"):
        Store(store.path).table("pairs")


def test_a_table_that_no_store_has(store):
    with pytest.raises(StoreError, match="has no table 'edges'; it has kernels, blocks"):
        store.table("edges")


# Writing


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_an_existing_store_needs_force(extraction, store, tmp_path):
    with pytest.raises(OutputExistsError, match="out: already exists; pass --force"):
        write_store(extraction, store.path)
    assert write_store(extraction, store.path, force=True).metadata == store.metadata
    assert names(tmp_path) == ["out", "some.log"]


def test_force_replaces_a_store_of_any_version(extraction, store):
    make_version(store.path, 1)
    write_store(extraction, store.path, force=True)
    assert Store(store.path).metadata == store.metadata


def test_force_replaces_nothing_that_is_not_ours(extraction, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(OutputError, match="exists and was not written by depgraph"):
        write_store(extraction, precious, force=True)
    with pytest.raises(OutputError, match="exists and was not written by depgraph"):
        write_store(extraction, precious / "thesis.tex", force=True)
    assert (precious / "thesis.tex").read_text() == "years of work"


def test_a_link_to_a_store_is_not_followed(extraction, store, tmp_path):
    (tmp_path / "link").symlink_to(store.path)
    with pytest.raises(OutputError, match="link: is a link; remove it or name what it points to"):
        write_store(extraction, tmp_path / "link", force=True)
    assert edges_of(Store(store.path).graph()) == [(1, 6, "RAW")]


@pytest.mark.parametrize(
    ("failure", "raised", "message"),
    [
        (OSError(errno.ENOSPC, "No space left"), OutputError, "no space is left on the disk"),
        (OSError(errno.EACCES, "Permission denied"), OutputError, "Permission denied"),
        (KeyboardInterrupt("by the user"), KeyboardInterrupt, "by the user"),
    ],
)
@pytest.mark.parametrize("force", [False, True])
def test_a_failure_leaves_all_as_it_was(
    extraction, tmp_path, monkeypatch, failure, raised, message, force
):
    if force:
        write_store(extraction, tmp_path / "out")
    before = names(tmp_path)
    write, written = pq.ParquetWriter.write_table, []

    def full_after_two_tables(self, table):
        if len(written) == 2:
            raise failure
        written.append(table)
        write(self, table)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full_after_two_tables)
    with pytest.raises(raised, match=message):
        write_store(extraction, tmp_path / "out", force=force)
    assert names(tmp_path) == before
    if force:
        assert edges_of(Store(tmp_path / "out").graph()) == [(1, 6, "RAW")]


def test_a_folder_that_does_not_exist_is_not_made(extraction, tmp_path):
    with pytest.raises(OutputError, match=r"there is no folder .*none; make it first"):
        write_store(extraction, tmp_path / "none" / "out")


def test_a_new_store_has_the_permissions_of_the_user(extraction, tmp_path):
    (tmp_path / "plain").mkdir()
    store = write_store(extraction, tmp_path / "out")
    assert store.path.stat().st_mode == (tmp_path / "plain").stat().st_mode
