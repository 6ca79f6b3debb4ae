"""Nsight Systems: the CSV of every version, and SQLite exports with less or more than usual."""

import sqlite3
from contextlib import closing

import pytest
from profiles_made import database_of
from text_files import writes

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile

HEADER = (
    "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),"
    "DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name\n"
)
COPY = "100,50,1,,,,,,,,,,4.194,191063.130,Pinned,Device,GPU (0),1,,13,[CUDA memcpy HtoD]\n"
MEMSET = "150,5,2,,,,,,,,,,0.1,1.0,Device,,GPU (0),1,,13,[CUDA memset]\n"


def row(start=200, duration=40672, correlation=3, name="k", stream=13, device="NVIDIA Thor (0)"):
    return (
        f"{start},{duration},{correlation},4096,2,1,256,1,1,16,0.001,0.000,,,,,{device},1,,"
        f"{stream},{name}\n"
    )


report = writes("report.txt")


def test_kernels_are_the_rows_with_a_grid(report):
    quoted = '"k<int, float>(""a"", const T1 *)"'
    profile = read_profile(report(HEADER + COPY + row(name=quoted) + MEMSET))
    assert profile.format == "nsys-csv"
    assert profile.name == ('k<int, float>("a", const T1 *)',)
    assert profile.duration.tolist() == [40672.0]
    assert profile.start.tolist() == [200]
    assert profile.grid.tolist() == [[4096, 2, 1]]
    assert profile.block.tolist() == [[256, 1, 1]]
    assert profile.registers.tolist() == [16]
    assert profile.device_names == {0: "NVIDIA Thor"}
    assert (profile.devices, profile.contexts, profile.streams) == ((0,), (1,), (13,))
    assert profile.process is None
    assert profile.skipped == {}


def test_memsets_and_copies_are_kept_apart(report):
    late = COPY.replace("100,50,1", "900,oops,1").replace("HtoD", "DtoH")
    other = COPY.replace("[CUDA memcpy HtoD]", "[Unified Memory CPU page faults]")
    profile = read_profile(report(HEADER + MEMSET + COPY + row() + late + other))
    assert len(profile) == 1
    memory = profile.memory
    assert memory.name == ("[CUDA memcpy HtoD]", "[CUDA memset]")
    assert (memory.start.tolist(), memory.duration.tolist()) == ([100, 150], [50, 5])
    assert (memory.devices, memory.contexts, memory.streams) == ((0,), (1,), (13,))
    assert profile.skipped == {"memsets and copies without a usable duration": 1}


def test_a_report_without_any_has_none(report):
    assert read_profile(report(HEADER + row())).memory is None


def test_launch_order_is_by_correlation(report):
    rows = row(300, correlation=8, name="b", stream=14) + row(400, correlation=5, name="a")
    assert read_profile(report(HEADER + rows)).name == ("a", "b")


def test_shared_memory_in_megabytes_is_too_coarse(report):
    profile = read_profile(report(HEADER + row()))
    assert profile.shared_bytes is None
    assert profile.notes == ("shared memory is rounded in units of MB: not used",)


def test_shared_memory_in_bytes_is_read(report):
    text = (
        (HEADER + row()).replace("(MB),Bytes", "(B),Bytes").replace("StcSMem (MB)", "StcSMem (B)")
    )
    profile = read_profile(report(text.replace("0.001,0.000", "4224,1024")))
    assert profile.static_shared_bytes.tolist() == [4224]
    assert profile.dynamic_shared_bytes.tolist() == [1024]
    assert profile.shared_bytes.tolist() == [5248]


@pytest.mark.parametrize(
    ("unit", "duration", "expected"),
    [
        ("us", "21.952", 21952.0),
        ("ms", "0.021952", 21952.0),
        ("s", "0.000021952", 21952.0),
        ("nsec", "7", 7.0),
    ],
)
def test_any_unit_of_time(report, unit, duration, expected):
    text = HEADER.replace("(ns)", f"({unit})") + row(duration=duration)
    assert read_profile(report(text)).duration.tolist() == pytest.approx([expected])


def test_an_unknown_unit_is_refused(report):
    with pytest.raises(
        ProfileError, match=r"report.txt:1: 'weeks' is not a unit of time for Start"
    ):
        read_profile(report(HEADER.replace("(ns)", "(weeks)") + row()))


def test_older_headers(report):
    old = HEADER.replace(" (", "(").replace("GreenCtx,", "").replace("MB/s", "MBps")
    profile = read_profile(report(old + row().replace("1,,13", "1,13")))
    assert profile.duration.tolist() == [40672.0]
    assert profile.streams == (13,)


def test_what_stands_around_the_table_is_passed_over(report):
    before = (
        "NOTICE: Existing SQLite export found: r.sqlite\n"
        "Processing [r.sqlite] with [cuda_gpu_trace.py]... \n\n"
        " ** CUDA GPU Trace (cuda_gpu_trace):\n\n"
    )
    after = (
        "\nProcessing [r.sqlite] with [cuda_gpu_kern_sum.py]... \n\n"
        "Time (%),Total Time (ns),Instances,Avg (ns),Name\n100.0,40672,1,40672.0,k\n"
    )
    profile = read_profile(report(before + HEADER + row() + after))
    assert len(profile) == 1
    assert profile.skipped == {}
    assert len(read_profile(report(after + before + HEADER + row()))) == 1


def test_windows_line_ends_and_utf_16(report):
    text = "Processing...\r\n" + (HEADER + row()).replace("\n", "\r\n")
    assert len(read_profile(report(text))) == 1
    assert len(read_profile(report(b"\xff\xfe" + text.encode("utf-16-le")))) == 1


def test_tabs(report):
    assert len(read_profile(report((HEADER + row()).replace(",", "\t")))) == 1


def test_two_devices(report):
    rows = row(device="A (0)", name="a") + row(device="B, the other (1)".join('""'), name="b")
    profile = read_profile(report(HEADER + rows))
    assert profile.devices == (0, 1)
    assert profile.device_names == {0: "A", 1: "B, the other"}
    assert profile.only(device=1).name == ("b",)


def test_rows_that_cannot_be_used_are_counted(report):
    text = HEADER + row() + "1,2,3\n" + row(duration="") + row(name="a,b") + row()
    profile = read_profile(report(text))
    assert len(profile) == 2
    assert profile.skipped == {"rows of another width": 2, "kernels without a duration": 1}
    assert "line 3 has 3 columns" in profile.notes[0]


def test_a_last_line_without_an_end_is_not_trusted(report):
    profile = read_profile(report(HEADER + row() + row()[:-3]))
    assert len(profile) == 1
    assert profile.skipped == {"unfinished last lines": 1}


def test_two_tables_in_one_file_are_refused(report):
    with pytest.raises(ProfileError, match=r"report.txt:4: a second table of GPU operations"):
        read_profile(report(HEADER + row() + "\n" + HEADER + row()))


def test_no_kernels(report):
    with pytest.raises(ProfileError, match="no kernel with a time; write it with: nsys stats"):
        read_profile(report(HEADER + COPY))


COLUMNS = {
    "start": 1000,
    "end": 3500,
    "deviceId": 0,
    "contextId": 1,
    "streamId": 7,
    "correlationId": 12,
    "globalPid": 111 << 24,
    "demangledName": 1,
    "shortName": 2,
    "registersPerThread": 32,
    "gridX": 50,
    "gridY": 4,
    "gridZ": 1,
    "blockX": 256,
    "blockY": 1,
    "blockZ": 1,
    "staticSharedMemory": 16,
    "dynamicSharedMemory": 1024,
}


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "export.sqlite"

    def write(*kernels, table="CUPTI_ACTIVITY_KIND_KERNEL", strings=("StringIds", "id"), sql=()):
        texts = [(1, "void k<float>(T1)"), (2, "k")]
        names = [{f"{strings[1]} INTEGER": number, "value TEXT": text} for number, text in texts]
        path.write_bytes(database_of({table: kernels, strings[0]: names}))
        with closing(sqlite3.connect(path)) as connection, connection:
            for statement in sql:
                connection.execute(statement)
        return path

    return write


def test_a_row_of_the_kernel_table(database):
    path = database(COLUMNS)
    before = path.stat()
    profile = read_profile(path)
    assert profile.format == "nsys-sqlite"
    assert profile.name == ("void k<float>(T1)",)
    assert profile.duration.tolist() == [2500.0]
    assert profile.start.tolist() == [1000]
    assert profile.grid.tolist() == [[50, 4, 1]]
    assert profile.block.tolist() == [[256, 1, 1]]
    assert profile.static_shared_bytes.tolist() == [16]
    assert profile.dynamic_shared_bytes.tolist() == [1024]
    assert profile.shared_bytes.tolist() == [1040]
    assert profile.processes == (111,)
    assert (path.stat().st_mtime_ns, [p.name for p in path.parent.iterdir()]) == (
        before.st_mtime_ns,
        ["export.sqlite"],
    )


def test_memsets_and_copies_have_tables_of_their_own(database):
    places = "deviceId, contextId, streamId, globalPid"
    profile = read_profile(
        database(
            COLUMNS,
            sql=[
                f"CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start, end, copyKind, {places})",
                "CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start, end)",
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (500, 508, 1, 0, 1, 7, 1862270976)",
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (600, 608, 8, 0, 1, 7, 1862270976)",
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (700, 708, 99, 0, 1, 7, 1862270976)",
                "INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (900, 930), (950, 'x')",
            ],
        )
    )
    assert profile.memory.name == ("memcpy HtoD", "memcpy DtoD", "memcpy", "memset")
    assert profile.memory.start.tolist() == [500, 600, 700, 900]
    assert profile.memory.duration.tolist() == [8, 8, 8, 30]
    assert profile.memory.processes == (111,)
    assert profile.only(process=111).memory.name == ("memcpy HtoD", "memcpy DtoD", "memcpy")
    assert profile.skipped == {"memsets and copies without a usable duration": 1}


def test_columns_may_be_missing(database):
    profile = read_profile(database({"start": 5, "end": 7, "shortName": 2}))
    assert profile.name == ("k",)
    assert profile.duration.tolist() == [2.0]
    assert profile.grid is None
    assert profile.device is None
    assert profile.correlation is None


def test_a_table_without_names(database):
    assert read_profile(database({"start": 5, "end": 7})).name == ("",)


def test_two_processes_keep_their_own_launch_order(database):
    def kernel(start, correlation, pid):
        times = {"start": start, "end": start + 1, "correlationId": correlation}
        return COLUMNS | times | {"globalPid": pid << 24}

    profile = read_profile(
        database(kernel(30, 2, 8), kernel(20, 900, 7), kernel(10, 950, 7), kernel(40, 1, 8))
    )
    assert profile.processes == (7, 8)
    assert profile.start.tolist() == [20, 10, 40, 30]
    assert profile.only(process=8).start.tolist() == [40, 30]


def test_the_size_of_the_gpu(database):
    devices = (
        "CREATE TABLE TARGET_INFO_GPU (id, name, smCount)",
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid, numMultiprocessors)",
        "INSERT INTO TARGET_INFO_GPU VALUES (0, 'H100', 132)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 111, '', 132)",
    )
    profile = read_profile(database(COLUMNS, sql=devices))
    assert profile.measured_sms.tolist() == [132]
    assert profile.device_names == {0: "H100"}


def test_one_number_for_two_gpus_has_no_size(database):
    devices = (
        "CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId, cudaId, pid, uuid, numMultiprocessors)",
        "INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES (0, 0, 111, '', 132), (1, 0, 112, '', 108)",
    )
    assert read_profile(database(COLUMNS, sql=devices)).measured_sms is None


def test_calls_of_the_host_say_when_a_kernel_was_asked_for(database):
    thread, other = COLUMNS["globalPid"] + 5, COLUMNS["globalPid"] + (1 << 24)
    rows = [(40, 50, thread, 12), (60, 70, thread, 999), (80, 90, other, 12)]
    calls = (
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId)",
        *(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES {row}" for row in rows),  # noqa: S608
    )
    assert read_profile(database(COLUMNS, sql=calls)).issued.tolist() == [40]


GRAPHS = (
    "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start, end)",
    "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (1, 2), (3, 4)",
)


def test_graphs_recorded_as_a_whole_hide_their_kernels(database):
    profile = read_profile(database(COLUMNS, sql=GRAPHS))
    assert profile.skipped == {"CUDA graph launches recorded as a whole": 2}
    assert "--cuda-graph-trace=node" in profile.notes[0]


def test_no_kernel_table(database):
    with pytest.raises(ProfileError, match=r"no table of kernels; profile with nsys"):
        read_profile(database())


def test_no_kernel_table_but_graphs(database):
    with pytest.raises(ProfileError, match=r"no table of kernels; .*--cuda-graph-trace=node"):
        read_profile(database(sql=GRAPHS))


def test_an_empty_kernel_table(database):
    with pytest.raises(ProfileError, match="no kernel with a time"):
        read_profile(database(COLUMNS, sql=["DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL"]))


def test_values_of_the_wrong_type_are_unknown(database):
    profile = read_profile(
        database(COLUMNS | {"gridX": "many", "streamId": None, "demangledName": "plain"})
    )
    assert profile.grid is None
    assert profile.stream is None
    assert profile.name == ("plain",)


def test_a_kernel_without_an_end_is_counted(database):
    with pytest.raises(ProfileError, match="kernels without a duration: 1"):
        read_profile(database(COLUMNS | {"end": None}))


def test_the_database_of_nvprof(database):
    kernel = {k: v for k, v in COLUMNS.items() if k not in {"demangledName", "shortName"}}
    profile = read_profile(
        database(
            kernel | {"name": 1},
            table="CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
            strings=("StringTable", "_id_"),
        )
    )
    assert profile.format == "nvprof-sqlite"
    assert profile.name == ("void k<float>(T1)",)


def test_a_database_that_is_cut_off(database):
    path = database(COLUMNS)
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ProfileError, match="SQLite cannot read it"):
        read_profile(path)
