"""How leaves are nested in arguments and results.

PyTorch's pytrees take a microsecond a leaf, and more for each container; Python's own containers
are gone through here in a tenth of that.
"""

from collections.abc import Iterator, Sequence
from operator import is_
from typing import Any, NamedTuple

from torch.utils import _pytree as pytree

from depgraph.torch.values import is_the_same


class _Container(NamedTuple):
    kind: Any
    keys: list[Any]  # of a dictionary
    n: int
    # None in the place of a leaf; () if there is nothing else
    inner: "tuple[_Container | None, ...]"


class Nesting:
    """The way in which leaves are nested in a value."""

    def __init__(self, value: Any) -> None:
        self.leaves: list[Any]
        self.leaves, self._tree = pytree.tree_flatten(value)
        self._is_leaf = len(self.leaves) == 1 and self.leaves[0] is value
        try:
            self._outer = _container_of(value)
        except TypeError:
            self._outer = None

    def leaves_of(self, value: Any) -> list[Any] | None:
        """Return the leaves of a value that is nested in the same way; None of another."""
        if self._outer is None:
            leaves, tree = pytree.tree_flatten(value)
            return list(leaves) if tree == self._tree else None
        found: list[Any] = []
        return found if _take(value, self._outer, found) else None

    def filled(self, leaves: Sequence[Any]) -> Any:
        """Return what other leaves are that are nested in the same way."""
        if self._is_leaf:
            return leaves[0]
        if self._outer is None:
            return pytree.tree_unflatten(list(leaves), self._tree)
        return _filled(self._outer, iter(leaves))


def _container_of(value: Any) -> _Container | None:
    """Return how a value is nested, None for a leaf; raise TypeError for pytrees of others."""
    if type(value) is dict:
        inner = tuple(map(_container_of, value.values()))
    elif type(value) in {list, tuple}:
        inner = tuple(map(_container_of, value))
    else:
        leaves = pytree.tree_leaves(value)
        if len(leaves) == 1 and leaves[0] is value:
            return None
        raise TypeError
    keys = [*value] if type(value) is dict else []
    return _Container(type(value), keys, len(value), inner if any(inner) else ())


def _take(value: Any, container: _Container, found: list[Any]) -> bool:
    """Add the leaves of a value, and tell whether it is nested so."""
    kind, keys, n, inner = container
    if type(value) is not kind or len(value) != n:
        return False
    if keys:
        if not all(map(is_, value, keys)) and not all(map(is_the_same, value, keys)):
            return False
        value = value.values()
    if not inner:
        found += value
        return True
    for each, its in zip(value, inner, strict=True):
        if its is None:
            found.append(each)
        elif not _take(each, its, found):
            return False
    return True


def _filled(container: _Container, leaves: Iterator[Any]) -> Any:
    inner = container.inner or (None,) * container.n
    values = [next(leaves) if its is None else _filled(its, leaves) for its in inner]
    if container.kind is dict:
        return dict(zip(container.keys, values, strict=True))
    return values if container.kind is list else tuple(values)
