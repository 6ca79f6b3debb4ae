"""Small logs in files."""

import pytest


@pytest.fixture
def log_file(tmp_path):
    """Return a function that writes lines to a file and returns its path."""

    def write(*lines, name="some.log", pack=bytes):
        path = tmp_path / name
        path.write_bytes(pack(b"".join(lines)))
        return path

    return write
