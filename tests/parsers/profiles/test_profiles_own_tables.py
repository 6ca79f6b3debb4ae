"""Tables that users write: kernels or blocks, CSV or Parquet, any unit of time."""

import gzip
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from text_files import writes

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.timing.profile import BlockProfile, KernelProfile

table = writes("times.csv")


def test_kernels(table):
    profile = read_profile(table("kernel,duration_us,sms\n2,10,80\n0,12.5,80\n"))
    assert isinstance(profile, KernelProfile)
    assert (profile.format, profile.unit) == ("kernels-csv", "ns")
    assert profile.kernel.tolist() == [0, 2]
    assert profile.duration.tolist() == [12500.0, 10000.0]
    assert profile.measured_sms.tolist() == [80, 80]
    assert profile.notes == ("the file gives durations in us",)


@pytest.mark.parametrize(
    ("heading", "nanoseconds"),
    [
        ("duration_ns", 2.5),
        ("duration_us", 2500),
        ("duration_ms", 2.5e6),
        ("duration_s", 2.5e9),
        ("time_us", 2500),
        ("time", 2500),
        ("duration", 2500),
        ("Duration (ms)", 2.5e6),
        (" DURATION_NS ", 2.5),
    ],
)
def test_units(table, heading, nanoseconds):
    profile = read_profile(table(f"kernel,{heading}\n0,2.5\n"))
    assert profile.duration.tolist() == pytest.approx([nanoseconds])


def test_a_unit_that_is_assumed_is_said(table):
    profile = read_profile(table("kernel,duration\n0,1\n"))
    assert profile.notes == ("the file gives durations in us, assumed: the heading names no unit",)


@pytest.mark.parametrize("heading", ["cycles", "duration_cycles"])
def test_cycles_stay_cycles(table, heading):
    profile = read_profile(table(f"kernel,{heading}\n0,7000\n"))
    assert profile.unit == "cycles"
    assert profile.duration.tolist() == [7000.0]


def test_names_comments_and_blank_lines(table):
    text = '# from a run\n\nname,kernel,duration_us\n"a<1, 2>",0,5\n# second\n\nb,1.0,6\n'
    profile = read_profile(table(text))
    assert profile.name == ("a<1, 2>", "b")
    assert profile.kernel.tolist() == [0, 1]


def test_blocks(table):
    text = "kernel,block,duration_ns,start_us\n1,0,500,9\n0,1,2000,2\n0,0,3000,1\n"
    profile = read_profile(table(text))
    assert isinstance(profile, BlockProfile)
    assert (profile.format, profile.unit) == ("blocks-csv", "us")
    assert profile.kernel.tolist() == [0, 0, 1]
    assert profile.block.tolist() == [0, 1, 0]
    assert profile.duration.tolist() == pytest.approx([3.0, 2.0, 0.5])
    assert profile.start.tolist() == [1.0, 2.0, 9.0]
    assert profile.measured_sms is None


def test_blocks_in_cycles(table):
    profile = read_profile(table("kernel,block,cycles,start,sms\n0,0,7,100,80\n0,1,8,100,80\n"))
    assert profile.unit == "cycles"
    assert profile.duration.tolist() == [7.0, 8.0]
    assert profile.start.tolist() == [100.0, 100.0]
    assert profile.measured_sms == 80


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel,duration_us\n0,1\n0,2\n", r":3: the kernel has a time already"),
        ("kernel,block,duration_us\n0,1,1\n0,1,2\n", r":3: the block has a time already"),
        ("kernel,duration_us\n0,1\n1,-2\n", r":3: the duration is negative"),
        ("kernel,duration_us\n# c\n0,nan\n", r":3: the duration is not finite"),
        ("kernel,duration_us\n0,inf\n", r":2: the duration is not finite"),
        ("kernel,duration_us\n-1,2\n", r":2: the kernel is negative"),
        ("kernel,block,duration_us\n0,-1,2\n", r":2: the block is negative"),
        ("kernel,duration_us\n0,fast\n", r":2: no number: .*'fast'"),
        ("kernel,duration_us\n0.5,1\n", r":2: no number"),
        ("kernel,duration_us\n0,1,2\n", r":2: 3 columns instead of 2"),
        ("kernel,duration_us\n0\n", r":2: 1 columns instead of 2"),
        ("kernel,duration_us\n99999999999999999999,1\n", r":2: no number"),
        ("kernel,duration_us\n", r"the table has no rows"),
        ("kernel,block,duration_us,start_cycles\n0,0,1,2\n", r"durations are in us, starts in cy"),
        ("kernel,block,duration,start\n0,0,1,nan\n", r":2: the start is not finite"),
    ],
)
def test_mistakes_are_pointed_at(table, text, message):
    with pytest.raises(ProfileError, match=message):
        read_profile(table(text))


def test_a_last_line_without_an_end_is_mentioned(table):
    profile = read_profile(table("kernel,duration_us\n0,1\n1,25"))
    assert profile.duration.tolist() == [1000.0, 25000.0]
    assert "no line end" in profile.notes[1]


def test_compressed_csv(tmp_path):
    path = tmp_path / "anything"
    path.write_bytes(gzip.compress(b"kernel,duration_us\n0,1\n"))
    assert len(read_profile(path)) == 1


def test_parquet_says_the_same_as_csv(tmp_path):
    frame = pd.DataFrame(
        {
            "kernel": [1, 0, 0],
            "block": np.array([0, 1, 0], np.int32),
            "duration_us": np.array([5, 2, 3], np.float32),
            "start_us": [9, 2, 1],
            "remark": ["x", None, "y"],
        }
    )
    frame.to_parquet(tmp_path / "a")
    frame.to_csv(tmp_path / "b", index=False)
    parquet, csv = read_profile(tmp_path / "a"), read_profile(tmp_path / "b")
    assert (parquet.format, csv.format) == ("blocks-parquet", "blocks-csv")
    for column in ("kernel", "block", "duration", "start"):
        assert getattr(parquet, column).tolist() == getattr(csv, column).tolist()


def test_parquet_of_kernels(tmp_path):
    frame = pd.DataFrame({"kernel": [0, 1], "duration_ms": [1.0, 2.0], "name": ["a", "b"]})
    frame.to_parquet(tmp_path / "kernels.parquet")
    profile = read_profile(tmp_path / "kernels.parquet")
    assert profile.format == "kernels-parquet"
    assert profile.name == ("a", "b")
    assert profile.duration.tolist() == [1e6, 2e6]


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"kernel": [0, 0], "duration_us": [1.0, 2.0]}, "row 1: the kernel has a time already"),
        ({"kernel": [0, 1], "duration_us": [1.0, None]}, "duration_us has missing values"),
        ({"kernel": [0.5], "duration_us": [1.0]}, "Parquet cannot be read"),
        ({"kernel": ["a"], "duration_us": [1.0]}, "Parquet cannot be read"),
        ({"kernel": [0], "length": [1.0]}, "its columns are kernel, length; write columns"),
    ],
)
def test_mistakes_in_parquet(tmp_path, frame, message):
    pd.DataFrame(frame).to_parquet(tmp_path / "times.parquet")
    with pytest.raises(ProfileError, match=message):
        read_profile(tmp_path / "times.parquet")


def test_parquet_that_is_cut_off(tmp_path):
    path = tmp_path / "times.parquet"
    pd.DataFrame({"kernel": [0], "duration_us": [1.0]}).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ProfileError, match="Parquet cannot be read"):
        read_profile(path)


def test_a_table_is_read_without_pandas(table):
    path = str(table("kernel,block,duration_us\n0,1,1\n"))
    program = (
        "import sys; from pathlib import Path; from depgraph.parsers.profiles import read_profile;"
        f"read_profile(Path({path!r})); print('pandas' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert result.stdout.strip() == b"False"


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (((0, 1), (1, 0), (0, 0), (1, 1), (1, 0)), 6),
        (((3, 3), (2, 3), (3, 3), (2, 3)), 4),  # the first that has come before
        (((0, 0), (0, 1), (1, 0)), None),
    ],
)
def test_the_first_block_with_a_second_time_is_named(table, rows, line):
    file = table("kernel,block,duration_us\n" + "".join(f"{k},{b},1\n" for k, b in rows))
    if line is None:
        assert len(read_profile(file)) == len(rows)
        return
    with pytest.raises(ProfileError, match=rf":{line}: the block has a time already"):
        read_profile(file)
