"""Aligning launches: the longest common subsequence, and pairing level by level."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from naive_matching import lengths_of_prefixes, longest_length

from depgraph.timing.align import align
from depgraph.timing.align_jit import _add_lengths, longest_common_subsequence


def partners(a, b, n_tokens=8):
    with np.errstate(over="ignore"):
        found = longest_common_subsequence(np.array(a, np.int64), np.array(b, np.int64), n_tokens)
    return found.tolist()


def assert_common_subsequence(a, b, found):
    pairs = [(i, j) for i, j in enumerate(found) if j >= 0]
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(one < two for (_, one), (_, two) in pairwise(pairs))


def test_what_only_one_side_has_is_left_out():
    assert partners([0, 1, 2, 3], [0, 5, 1, 3]) == [0, 2, -1, 3]


def test_nothing_in_common():
    assert partners([0, 1], [2, 3]) == [-1, -1]
    assert partners([], [2, 3]) == []
    assert partners([2, 3], []) == [-1, -1]


few_tokens = st.lists(st.integers(0, 3), max_size=40)
# Longer than a machine word, so that carries cross words.
long_rows = st.lists(st.integers(0, 7), min_size=60, max_size=200)


@given(few_tokens | long_rows, few_tokens | long_rows)
def test_the_common_subsequence_is_as_long_as_the_textbook_finds(a, b):
    found = partners(a, b)
    assert_common_subsequence(a, b, found)
    assert sum(j >= 0 for j in found) == longest_length(a, b)


@given(few_tokens, few_tokens | long_rows)
def test_the_last_row_of_the_table_agrees_with_the_textbook(a, b):
    lengths = np.zeros(len(b) + 1, np.int64)
    list_of = np.full(8, -1, np.int64)
    with np.errstate(over="ignore"):
        _add_lengths(np.array(a, np.int64), np.array(b, np.int64), list_of, lengths)
    assert lengths.tolist() == lengths_of_prefixes(a, b)
    assert (list_of == -1).all()


@given(long_rows, st.sets(st.integers(0, 199)))
def test_a_sequence_with_gaps_is_found_whole(a, left_out):
    kept = [token for i, token in enumerate(a) if i not in left_out]
    assert sum(j >= 0 for j in partners(kept, a)) == len(kept)


@pytest.mark.jit_only
def test_long_random_sequences():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 300, (2, 5000))
    found = partners(a, b, 300)
    assert_common_subsequence(a, b, found)
    assert sum(j >= 0 for j in found) == sum(j >= 0 for j in partners(b, a, 300))


def test_a_lenient_level_pairs_what_lies_between_strict_pairs():
    strict = (["a1", "b1", "c1"], ["a1", "b2", "c1"])
    lenient = (["a", "b", "c"], ["a", "b", "c"])
    partner, level = align([strict, lenient])
    assert partner.tolist() == [0, 1, 2]
    assert level.tolist() == [0, 1, 0]


def test_a_lenient_level_never_crosses_a_strict_pair():
    # "b" stands before the strict pair on one side, behind it on the other.
    partner, level = align([(["b1", "c1"], ["c1", "b2"]), (["b", "c"], ["c", "b"])])
    assert partner.tolist() == [-1, 0]
    assert level.tolist() == [-1, 0]


def test_an_unknown_key_is_like_nothing():
    partner, _ = align([([None, "a"], [None, "a"])])
    assert partner.tolist() == [-1, 1]


@given(few_tokens, few_tokens)
def test_pairs_ascend_whatever_the_levels(a, b):
    partner, level = align([(a, b), ([x % 2 for x in a], [x % 2 for x in b])])
    paired = partner[partner >= 0]
    assert (np.diff(paired) > 0).all()
    assert ((level >= 0) == (partner >= 0)).all()
    for i in np.flatnonzero(level == 0):
        assert a[i] == b[partner[i]]
