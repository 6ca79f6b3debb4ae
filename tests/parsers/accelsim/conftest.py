"""A small Accel-Sim trace."""

import pytest
from kernel_folders import kernel, load, store


@pytest.fixture
def folder(tmp_path):
    """Return a trace of three kernels, each of which reads what the one before wrote."""
    for number, lines in enumerate(
        [(store(0),), (load(0), store(64)), (load(64), store(128))], start=1
    ):
        (tmp_path / f"kernel-{number}.traceg").write_text(kernel(number, *lines))
    (tmp_path / "kernelslist.g").write_text("kernel-1.traceg\nkernel-2.traceg\nkernel-3.traceg\n")
    return tmp_path
