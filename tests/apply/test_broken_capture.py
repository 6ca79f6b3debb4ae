"""The line of a program that broke a capture is named, without a GPU."""

from __future__ import annotations

from contextlib import contextmanager

from depgraph.apply.broken_capture import why_not_captured


@contextmanager
def failing_capture():
    try:
        yield
    finally:
        message = "operation failed due to a previous error during capture. More of it"
        raise RuntimeError(message)


def test_the_line_that_was_at_fault_is_named_and_not_the_end_of_the_capture():
    def read_on_the_host():
        message = "operation not permitted when stream is capturing\nand so on"
        raise ValueError(message)

    try:
        with failing_capture():
            read_on_the_host()
    except RuntimeError as error:
        said = why_not_captured(error)
    line = read_on_the_host.__code__.co_firstlineno + 2
    assert said == (
        f"cannot be captured: {__file__}:{line}: raise ValueError(message): "
        "operation not permitted when stream is capturing"
    )
