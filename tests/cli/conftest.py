"""A small log for commands."""

import pytest
from program_runs import LOG


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "some.log"
    path.write_bytes(LOG)
    return path
