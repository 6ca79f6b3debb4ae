"""Slow, plain twins of the compiled code that aligns launches."""


def longest_length(a, b):
    """Return the length of a longest common subsequence, by the textbook's table."""
    row = [0] * (len(b) + 1)
    for x in a:
        above = row[:]
        for j, y in enumerate(b):
            row[j + 1] = above[j] + 1 if x == y else max(row[j], above[j + 1])
    return row[-1]


def lengths_of_prefixes(a, b):
    """Return the length of a longest common subsequence of `a` and each prefix of `b`."""
    return [longest_length(a, b[:j]) for j in range(len(b) + 1)]
