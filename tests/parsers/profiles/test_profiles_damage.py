"""Files that are cut or damaged anywhere: a profile or a clear refusal, nothing else."""

import functools
import gzip
import lzma

import numpy as np
import pytest
from faults.profiles import profiles
from hypothesis import assume, given
from hypothesis import strategies as st

from depgraph.errors import ProfileError
from depgraph.parsers.profiles import read_profile
from depgraph.timing.profile import KernelProfile


@functools.cache
def examples():
    packed = {"kineto.gz": gzip.compress, "kineto.xz": lzma.compress}
    whole = profiles()
    return whole | {name: pack(whole["kineto"]) for name, pack in packed.items()}


FORMATS = list(examples())


def read(content, path):
    path.unlink(missing_ok=True)  # to write over a file may wait for the disk
    path.write_bytes(content)
    try:
        profile = read_profile(path)
    except ProfileError as error:
        message = str(error)
        assert "\n" not in message
        assert message.startswith(str(path))
        return None
    assert len(profile) > 0
    assert np.all(np.isfinite(profile.duration))
    assert np.all(profile.duration >= 0)
    if isinstance(profile, KernelProfile):
        assert len(profile.name) == len(profile)
    else:
        assert np.all(profile.block >= 0)
    return profile


def times(profile):
    starts = [None] * len(profile) if profile.start is None else profile.start.tolist()
    return set(zip(profile.duration.tolist(), starts, strict=True))


@pytest.mark.parametrize("format_name", FORMATS)
def test_the_whole_file_is_read(tmp_path, format_name):
    assert read(examples()[format_name], tmp_path / "whole") is not None


@pytest.mark.parametrize("cuts", [100, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_cut_anywhere_gives_no_time_that_the_whole_does_not_give(
    tmp_path, format_name, cuts
):
    content = examples()[format_name]
    path = tmp_path / "cut"
    whole = times(read(content, path))
    for length in range(0, len(content), len(content) // cuts + 1):
        profile = read(content[:length], path)
        if profile is None or "no line end" in "".join(profile.notes):
            continue
        found = times(profile)
        if format_name != "kineto":
            assert found <= whole, length
        else:  # the time of the origin stands at the end of the file
            assert {duration for duration, _ in found} <= {duration for duration, _ in whole}


@pytest.mark.parametrize("format_name", FORMATS)
@given(data=st.data())
def test_damaged_bytes(tmp_path_factory, format_name, data):
    content = bytearray(examples()[format_name])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    read(bytes(content), tmp_path_factory.getbasetemp() / "damaged")


@pytest.mark.parametrize("format_name", ["nsys-csv", "nvprof", "ncu", "ncu-details", "simlog"])
@given(data=st.data())
def test_lines_lost_doubled_and_swapped(tmp_path_factory, format_name, data):
    lines = examples()[format_name].splitlines(keepends=True)
    shuffled = data.draw(st.lists(st.sampled_from(lines), max_size=2 * len(lines)))
    read(b"".join(shuffled), tmp_path_factory.getbasetemp() / "shuffled")


@given(content=st.binary(max_size=300))
def test_any_bytes(tmp_path_factory, content):
    assume(not content.startswith(b"PK"))
    read(content, tmp_path_factory.getbasetemp() / "noise")


NUMBERS = ["1e999999999", "-0", "1e-999999999", "9" * 5000, "0x10", "1_000", "\u0661", "null", "{}"]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("format_name", ["kineto", "nsys-csv", "ncu", "kernels-csv", "simlog"])
def test_strange_numbers(tmp_path, format_name, number):
    content = examples()[format_name].decode()
    for digits in ("0.26", "260", "1000", "11.5"):
        if digits in content:
            read(content.replace(digits, number).encode(), tmp_path / "strange")
