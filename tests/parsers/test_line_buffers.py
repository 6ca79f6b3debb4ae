"""A stream cut into buffers of whole lines."""

import io
import pickle

from hypothesis import given
from hypothesis import strategies as st

from depgraph.parsers.scanning.inputs import whole_lines


def text_of(buffer):
    return buffer.text[: buffer.size].tobytes()


def test_a_buffer_ends_with_a_line_and_the_next_begins_with_the_rest():
    buffers = whole_lines(io.BytesIO(b"one\ntwo\nthree\nfour"), 10)
    assert [text_of(buffer) for buffer in buffers] == [b"one\ntwo\n", b"three\nfour"]


@given(
    st.lists(st.text("ab", max_size=7), max_size=30),
    st.integers(1, 20),
    st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_memory_that_is_used_again_loses_no_text(lines, part_bytes, releases):
    text = "\n".join(lines).encode()
    kept, found = [], []
    for i, buffer in enumerate(whole_lines(io.BytesIO(text), part_bytes)):
        found.append(text_of(buffer))
        if releases[i % len(releases)]:
            buffer.release()
        else:
            kept.append((buffer, text_of(buffer)))
    assert b"".join(found) == text
    assert all(text_of(buffer) == before for buffer, before in kept)


def test_released_memory_is_used_again_and_only_once():
    stream = whole_lines(io.BytesIO(b"one\ntwo\nsix\nten\n"), 4)
    first = next(stream)
    memory = first.text.ctypes.data
    first.release()
    first.release()
    second, third = next(stream), next(stream)
    assert second.text.ctypes.data == memory
    assert third.text.ctypes.data != memory
    assert (text_of(second), text_of(third)) == (b"two\n", b"six\n")


def test_a_buffer_takes_its_text_to_another_process_and_nothing_else():
    buffer = next(whole_lines(io.BytesIO(b"one\ntwo\n" * 100), 1000))
    there = pickle.dumps(buffer)
    assert text_of(pickle.loads(there)) == text_of(buffer)  # noqa: S301
    assert len(there) < 2000
