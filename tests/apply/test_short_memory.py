"""Where the GPU's memory is short, one line says so."""

from __future__ import annotations

import pytest

import depgraph.torch.parallel
from depgraph.errors import ApplyError
from depgraph.torch.parallel import out_of_memory_explained


class OutOfMemoryError(RuntimeError):
    """What PyTorch raises, by its name."""


SAID = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"


@pytest.mark.parametrize(
    ("said", "line"),
    [
        (SAID, "out of GPU memory: tried to allocate 2.00 GiB; lower max_extra_memory"),
        ("none left", "out of GPU memory; lower max_extra_memory"),
    ],
)
def test_a_lack_of_memory_is_one_line_wherever_it_comes_up(monkeypatch, said, line):
    def fail(*_):
        raise OutOfMemoryError(said)

    monkeypatch.setattr(depgraph.torch.parallel, "_parallelize", fail)
    with pytest.raises(ApplyError) as raised:
        depgraph.torch.parallelize(len, ())
    assert str(raised.value) == line


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match="a kernel failed"), out_of_memory_explained():
        raise RuntimeError("a kernel failed")
