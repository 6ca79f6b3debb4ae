"""Nsight Compute CSV: raw and details pages, units rows, and numbers of any locale."""

import pytest
from text_files import writes

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.parsers.profiles.source import NumberFormat
from depgraph.trace.names import base_name

IDENTITY = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC"'
)
RAW = IDENTITY + (
    ',"dram__bytes_read.sum","gpu__time_duration.sum","launch__registers_per_thread",'
    '"launch__shared_mem_per_block_static","launch__shared_mem_per_block_dynamic"\n'
)


def units(time="us"):
    return (
        '"","","","","","","","","","","","Mbyte","{}","register/thread","byte/block",{}\n'.format(
            time, '"Kbyte/block"'
        )
    )


def raw(number, duration="73.120000", name="q8", read="4.840288", dynamic="33.792000"):
    return (
        f'"{number}","54852","bench","127.0.0.1","{name}","1","13","(128, 1, 1)","(1, 20, 1)",'
        f'"0","7.5","{read}","{duration}","238","1024","{dynamic}"\n'
    )


DETAILS = IDENTITY + ',"Section Name","Metric Name","Metric Unit","Metric Value"\n'


def metric(number, name, unit, value):
    return (
        f'"{number}","1","p","h","k{number}","1","7","(32,32,1)","(64,64,1)","0","12.0","s",'
        f'"{name}","{unit}","{value}"\n'
    )


page = writes("page.csv")


def test_raw_page(page):
    profile = read_profile(page("==PROF== Connected\n" + RAW + units() + raw(0) + raw(1, "90.5")))
    assert profile.format == "ncu"
    assert profile.name == ("q8", "q8")
    assert profile.duration.tolist() == [73120.0, 90500.0]
    assert profile.start is None
    assert profile.grid.tolist() == [[1, 20, 1]] * 2
    assert profile.block.tolist() == [[128, 1, 1]] * 2
    assert profile.registers.tolist() == [238, 238]
    assert profile.static_shared_bytes.tolist() == [1024, 1024]
    assert profile.dynamic_shared_bytes.tolist() == [33792, 33792]
    assert profile.shared_bytes.tolist() == [34816, 34816]
    assert (profile.processes, profile.contexts, profile.streams) == ((54852,), (1,), (13,))
    assert "one at a time" in profile.notes[-1]


def test_alu_utilization_is_the_counter_that_is_there(page):
    alu, throughput = "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active", "%"
    text = DETAILS + "".join(
        metric(k, "Duration", "us", "5") + metric(k, "Compute (SM) Throughput", throughput, used)
        for k, used in ((0, "12.34"), (1, "100.02"))
    )
    profile = read_profile(page(text + metric(2, "Duration", "us", "5")))
    assert profile.alu_counter == "Compute (SM) Throughput"
    assert profile.alu_utilization.tolist() == [1234, 10_000, -1]
    # A count of the pipeline itself goes before the throughput of whatever is busiest.
    profile = read_profile(page(text + metric(0, alu, "%", "7")))
    assert profile.alu_counter == alu
    assert profile.alu_utilization.tolist() == [700, -1]
    assert read_profile(page(RAW + units() + raw(0))).alu_utilization is None


@pytest.mark.parametrize(
    ("unit", "expected"),
    [("ns", 73.12), ("nsecond", 73.12), ("usecond", 73120), ("ms", 73.12e6), ("second", 73.12e9)],
)
def test_units_row(page, unit, expected):
    profile = read_profile(page(RAW + units(unit) + raw(0)))
    assert profile.duration.tolist() == pytest.approx([expected])


def test_without_a_units_row_a_duration_means_nothing(page):
    with pytest.raises(ProfileError, match="durations in '', which is not a unit of time"):
        read_profile(page(RAW + raw(0)))


@pytest.mark.parametrize(
    ("duration", "read", "expected"),
    [
        ("1,860,000", "0.21", 1860000),
        ("27.595.520", "65,77", 27595520),
        ("1.860,5", "65,77", 1860.5),
        ("1\u202f860,5", "65,77", 1860.5),
        ("1'860.5", "65.77", 1860.5),
        ("1,860", "65.77", 1860),
        ("1,860", "65,77", 1.86),
        ("0,860", "12", 0.86),
    ],
)
def test_numbers_of_a_locale(page, duration, read, expected):
    profile = read_profile(page(RAW + units("us") + raw(0, duration, read=read, dynamic="0")))
    assert profile.duration.tolist() == pytest.approx([expected * 1000])
    assert len(profile.notes) == 1


def test_a_number_that_could_be_read_either_way_is_marked(page):
    profile = read_profile(page(RAW + units("us") + raw(0, "1,860", read="2", dynamic="0")))
    assert profile.duration.tolist() == [1860000.0]
    assert "decimal mark is not certain: '.' assumed" in profile.notes[0]


@pytest.mark.parametrize("duration", ["55,776", "55.776"])
def test_nanoseconds_have_no_fraction(page, duration):
    profile = read_profile(page(DETAILS + metric(0, "gpu__time_duration.sum", "ns", duration)))
    assert profile.duration.tolist() == [55776.0]
    assert len(profile.notes) == 1


def test_details_page(page):
    text = (
        DETAILS
        + metric(0, "Duration", "us", "10.25")
        + metric(0, "Registers Per Thread", "register/thread", "40")
        + metric(0, "Static Shared Memory Per Block", "Kbyte/block", "33.79")
        + metric(0, "# SMs", "SM", "108")
        + "the program says hello\n"
        + metric(1, "gpu__time_duration.sum", "ns", "10,196,000")
        + metric(1, "Duration", "ms", "10.20")
        + metric(2, "SM Busy", "%", "12.5")
    )
    profile = read_profile(page(text))
    assert profile.name == ("k0", "k1")
    assert profile.duration.tolist() == [10250.0, 10196000.0]
    assert profile.registers.tolist() == [40, -1]
    assert profile.static_shared_bytes is None, "33.79 Kbyte may be any of ten sizes"
    assert profile.measured_sms.tolist() == [108, -1]
    assert profile.skipped == {"kernels without a duration": 1}


def test_rules_between_the_metrics(page):
    """Rows as ncu 2025.3 prints them on an H100."""
    header = IDENTITY + (
        ',"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type",'
        '"Rule Description","Estimated Speedup Type","Estimated Speedup"\n'
    )
    kernel = (
        '"1","483","a","127.0.0.1","_ZN1n33_GLOBAL__N__ee7f18dc_4_a_cu_plain5scaleILi256EfEEvPT0_",'
        '"1","7","(32, 4, 1)","(2, 3, 1)","0","9.0",'
    )
    text = (
        header
        + kernel
        + '"GPU Speed Of Light Throughput","Duration","us","2.59",\n'
        + kernel
        + '"SpeedOfLight","","","","SOLBottleneck","OPT","This kernel grid is too small to '
        "fill the available resources, resulting in only 0.0 full waves. Look at Launch "
        'Statistics for more details.","",""\n'
        + kernel
        + '"Launch Statistics","Driver Shared Memory Per Block","Kbyte/block","1.02",\n'
        + kernel
        + '"Launch Statistics","Static Shared Memory Per Block","byte/block","0",\n'
        + kernel
        + '"Launch Statistics","Dynamic Shared Memory Per Block","Kbyte/block","33.79",\n'
        + kernel
        + '"Launch Statistics","# SMs","SM","132",\n'
        + kernel
        + '"LaunchStats","","","","LaunchConfiguration","OPT","The grid for this launch '
        'is configured to execute only 6 blocks.","global","95.45"\n'
    )
    profile = read_profile(page(text))
    assert profile.duration.tolist() == [2590.0]
    assert profile.grid.tolist() == [[2, 3, 1]]
    assert profile.static_shared_bytes.tolist() == [0]
    assert profile.dynamic_shared_bytes is None
    assert profile.measured_sms.tolist() == [132]
    assert profile.skipped == {}
    assert base_name(profile.name[0]) == "scale"


def test_older_pages_have_fewer_columns(page):
    header = (
        '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context",'
        '"Stream","Section Name","Metric Name","Metric Unit","Metric Value"\n'
    )
    row = '"0","4711","python3","h","k","2026-08-19 09:14:03","1","7","","{}","{}","{}"\n'
    metrics = [("gpu__time_duration.sum", "usecond", "41.28")] + [
        (f"launch__grid_dim_{axis}", "", size) for axis, size in zip("xyz", "421", strict=True)
    ]
    profile = read_profile(page(header + "".join(row.format(*values) for values in metrics)))
    assert profile.duration.tolist() == [41280.0]
    assert profile.grid.tolist() == [[4, 2, 1]]
    assert profile.block is None


def test_not_available(page):
    profile = read_profile(page(RAW + units() + raw(0, "n/a") + raw(1) + raw(2, "")))
    assert len(profile) == 1
    assert profile.skipped == {"kernels without a duration": 2}


def test_no_durations(page):
    with pytest.raises(ProfileError, match=r"no kernel with a time .*--metrics gpu__time_duration"):
        read_profile(page(DETAILS + metric(0, "SM Busy", "%", "12.5")))


def test_damaged_rows_are_counted(page):
    profile = read_profile(page(RAW + units() + raw(0) + raw(1)[:40] + "\n" + raw(2)[:-1]))
    assert len(profile) == 1
    assert profile.skipped == {"rows of another width": 1, "unfinished last lines": 1}


def test_number_format_learns_from_what_is_certain():
    numbers = NumberFormat()
    for text in ("12", "1.860", "1.860.000", "65,7"):
        numbers.learn(text)
    assert numbers.mark == ","
    assert not numbers.uncertain
    assert numbers.decimal("1.860") == 1860
    assert numbers.decimal("18.60") is None
    assert numbers.decimal("n/a") is None
    numbers.learn("65.7")
    assert numbers.uncertain
