"""Things put together by what they have in common."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Thing = TypeVar("_Thing")
_Key = TypeVar("_Key", bound=Hashable)


def grouped(things: Iterable[_Thing], key: Callable[[_Thing], _Key]) -> dict[_Key, list[_Thing]]:
    """Return the things of each key; keys and things keep the order in which they come.

    >>> grouped(["raw", "war", "edge"], len)
    {3: ['raw', 'war'], 4: ['edge']}
    """
    groups: dict[_Key, list[_Thing]] = {}
    for thing in things:
        groups.setdefault(key(thing), []).append(thing)
    return groups
