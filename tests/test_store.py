"""The store: what is written is read again, and nothing is left half-written."""

import errno
import json
import os
import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from programs import BASE, access_line, edges_of, launch_line, log_records

from depgraph import output
from depgraph.errors import ModelError, OutputError, OutputExistsError, StoreError
from depgraph.graph import BlockGraph
from depgraph.parsers import open_trace
from depgraph.pipeline import analyse
from depgraph.schema import SCHEMA_VERSION, STORED_TABLES
from depgraph.store import Store, is_store, write_store


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
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if isinstance(first, np.ndarray):
            assert np.array_equal(first, second), field.name
            assert first.dtype == second.dtype, field.name
        elif field.name == "resources":
            same(first, second)
        else:
            assert first == second, field.name


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
        with pytest.raises(ModelError, match=r"the store holds RAW dependences alone"):
            store.graph(kinds)


# A store that is not one


def test_no_store(tmp_path):
    with pytest.raises(StoreError, match="none: no such store; make one with: depgraph extract"):
        Store(tmp_path / "none")


def test_a_folder_that_is_no_store(tmp_path):
    with pytest.raises(StoreError, match="is not a depgraph store; make one with"):
        Store(tmp_path)


def of_another_version(store):
    file = store.path / "kernels.parquet"
    metadata = {**store.metadata, "schema_version": 99}
    table = pq.read_table(file).replace_schema_metadata({"depgraph": json.dumps(metadata)})
    pq.write_table(table, file)


def test_a_store_of_another_schema_version(store):
    of_another_version(store)
    with pytest.raises(
        StoreError,
        match=f"has schema version 99, this depgraph reads version {SCHEMA_VERSION}; extract the",
    ):
        Store(store.path)


def test_parquet_files_of_another_tool(store):
    pq.write_table(pa.table({"kernel": [1]}), store.path / "kernels.parquet")
    with pytest.raises(StoreError, match="holds Parquet files that depgraph did not write"):
        Store(store.path)


def test_a_store_without_one_of_its_files(store):
    (store.path / "sets.parquet").unlink()
    with pytest.raises(StoreError, match=r"lacks sets\.parquet; extract the trace again"):
        Store(store.path)


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
    file = store.path / "pairs.parquet"
    pq.write_table(change(pq.read_table(file)), file)
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
    of_another_version(store)
    (store.path / "extra.parquet").write_text("what that version had")
    write_store(extraction, store.path, force=True)
    assert Store(store.path).metadata == store.metadata
    assert "extra.parquet" not in names(store.path)


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
    with pytest.raises(OutputError, match="exists and was not written by depgraph"):
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
    real = pq.write_table

    def full_after_two_tables(table, file, **options):
        if len(names(file.parent)) == 2:
            raise failure
        real(table, file, **options)

    monkeypatch.setattr(pq, "write_table", full_after_two_tables)
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


def test_a_folder_that_cannot_be_made_is_refused_before_any_work(tmp_path):
    for path, what in (
        (tmp_path / "no" / "store", "there is no folder"),
        (tmp_path / os.fsdecode(b"st\xff"), "is no name in UTF-8"),
    ):
        with pytest.raises(OutputError, match=what):
            output.refuse_existing(path, force=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    with pytest.raises(OutputError, match="was not written by depgraph"):
        output.refuse_existing(tmp_path / "mine", force=True, is_ours=is_store)
    output.refuse_existing(tmp_path / "mine", force=True)


def test_the_old_folder_stays_where_the_new_one_cannot_take_its_place(tmp_path, monkeypatch):
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "kept").touch()
    rename = Path.rename

    def interrupted(self, target):
        if self.name == "new":
            raise KeyboardInterrupt
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    (tmp_path / "new").mkdir()
    with pytest.raises(KeyboardInterrupt):
        output._replace(tmp_path / "old", tmp_path / "new")
    assert names(tmp_path) == ["new", "old"]
    assert names(tmp_path / "old") == ["kept"]


# One file


def test_a_new_file_appears_when_it_is_whole(tmp_path):
    with output.new_file(tmp_path / "some.csv") as temporary:
        temporary.write_text("a,b\n")
        assert not (tmp_path / "some.csv").exists()
    assert names(tmp_path) == ["some.csv"]
    assert (tmp_path / "some.csv").read_text() == "a,b\n"


def test_a_file_that_could_not_be_finished_is_not_there(tmp_path):
    (tmp_path / "some.csv").write_text("old")

    def fill_the_disk():
        with output.new_file(tmp_path / "some.csv", force=True) as temporary:
            temporary.write_text("new")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OutputError, match=r"some\.csv: no space is left on the disk"):
        fill_the_disk()
    assert names(tmp_path) == ["some.csv"]
    assert (tmp_path / "some.csv").read_text() == "old"


def test_a_file_is_replaced_with_force_alone(tmp_path):
    (tmp_path / "some.csv").write_text("old")
    with pytest.raises(OutputExistsError), output.new_file(tmp_path / "some.csv"):
        pass
    with output.new_file(tmp_path / "some.csv", force=True) as temporary:
        temporary.write_text("new")
    assert (tmp_path / "some.csv").read_text() == "new"


def test_what_is_no_file_is_not_replaced(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, what in (("folder", "is a folder"), ("pipe", "is no plain file")):
        with (
            pytest.raises(OutputError, match=f"{name}: {what}; give a file name"),
            output.new_file(tmp_path / name, force=True),
        ):
            pass
    assert names(tmp_path) == ["folder", "pipe"]
    assert (tmp_path / "pipe").is_fifo()
