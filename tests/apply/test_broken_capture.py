"""The line of a program that broke a capture is named, without a GPU."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from depgraph.apply.broken_capture import what_helps, why_not_captured


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
        said, hint = why_not_captured(error), what_helps(error)
    line = read_on_the_host.__code__.co_firstlineno + 2
    assert said == (
        f"cannot be captured: {__file__}:{line}: raise ValueError(message): "
        "operation not permitted when stream is capturing"
    )
    assert hint == ""


def test_what_helps_where_a_scaler_asks_for_infinities():
    torch = pytest.importorskip("torch")
    weight = torch.nn.Parameter(torch.ones(2))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight])
    scaler.scale(weight.sum()).backward()

    def refuse(_):
        message = "operation not permitted when stream is capturing"
        raise ValueError(message)

    scaler._maybe_opt_step.__func__.__globals__["sum"] = refuse
    try:
        with failing_capture():
            scaler.step(optimizer)
    except RuntimeError as error:
        said, hint = why_not_captured(error), what_helps(error)
    finally:
        del scaler._maybe_opt_step.__func__.__globals__["sum"]
    assert said.endswith(": operation not permitted when stream is capturing")
    assert hint.startswith("give the optimizer fused=True")
