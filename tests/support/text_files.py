"""Fixtures that write a small file."""

import pytest


def writes(name):
    """Return a fixture: a function that writes pieces of text, or bytes, and returns the path."""

    @pytest.fixture
    def write(tmp_path):
        def to_file(*pieces):
            path = tmp_path / name
            path.write_bytes(b"".join(p if isinstance(p, bytes) else p.encode() for p in pieces))
            return path

        return to_file

    return write
