"""The plain data that readers of times hand to the core."""

from pathlib import Path

import numpy as np
import pytest

from depgraph.errors import ProfileError
from depgraph.timing.profile import UNKNOWN, KernelProfile


@pytest.fixture
def profile():
    return KernelProfile(
        source=Path("some.sqlite"),
        format="nsys-sqlite",
        unit="ns",
        name=("a", "b", "c", "d"),
        duration=np.array([1.0, 2.0, 3.0, 4.0]),
        grid=np.array([[1, 1, 1], [2, 1, 1], [3, 1, 1], [4, 1, 1]], np.int32),
        device=np.array([0, 1, 0, 1]),
        process=np.array([7, 7, 8, UNKNOWN]),
        stream=np.array([13, 13, 14, 14]),
    )


def test_it_lists_what_is_there(profile):
    assert len(profile) == 4
    assert profile.devices == (0, 1)
    assert profile.processes == (7, 8)
    assert profile.streams == (13, 14)
    assert profile.contexts == ()


def test_only_keeps_the_kernels_of_one_place(profile):
    there = profile.only(device=0, process=8)
    assert there.name == ("c",)
    assert there.duration.tolist() == [3.0]
    assert there.grid.tolist() == [[3, 1, 1]]
    assert there.source == profile.source


def test_take_picks_in_order(profile):
    assert profile.take(np.array([3, 0])).name == ("d", "a")
    assert profile.take(np.array([False, True, False, True])).name == ("b", "d")


def test_only_says_what_is_there_instead(profile):
    with pytest.raises(ProfileError, match=r"some.sqlite: has no kernel of device 5; has 0, 1"):
        profile.only(device=5)
    with pytest.raises(ProfileError, match="has no kernel of device 1, process 8 at once"):
        profile.only(device=1, process=8)


def test_only_refuses_what_the_file_does_not_tell(profile):
    with pytest.raises(ProfileError, match="does not say on which context a kernel ran"):
        profile.only(context=1)
