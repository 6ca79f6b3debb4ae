"""A function that runs as CUDA graphs which are made when they are first wanted."""

import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from depgraph.apply.applied import Applied
from depgraph.errors import ApplyError
from depgraph.torch.arguments import firsts_of, kind_of
from depgraph.torch.guards import WarnOnce
from depgraph.torch.operator_log import is_listened_to
from depgraph.torch.parallelized import Parallelized, StandIn, is_capturing
from depgraph.torch.values import is_simple

_WHOLE = torch.Tensor, bool, int, float, str, type(None)


class OnDemand(StandIn):
    """A function that runs as a CUDA graph of its own for each kind of arguments.

    The first call with arguments of other shapes, strides, types or values that are no tensors, in
    another mode of gradients, autocast or training, makes a graph. Where none can be made, or
    there are enough, the function itself runs, with one warning.

    Attributes
    ----------
    report : Applied or None
        What came of the graph that was made last.
    reports : list of Applied
        What came of each graph, in the order in which they were made.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        # nothing while another thread makes a graph of something else
        make: Callable[[tuple[Any, ...], dict[str, Any]], Parallelized | None],
        most: int,  # graphs
    ) -> None:
        super().__init__(function)
        self._make = make
        self._most = most
        self._warned = WarnOnce(name)
        self._made: dict[Hashable, Callable[..., Any]] = {}
        self._lock = threading.RLock()
        self._is_making = False

    @property
    def report(self) -> Applied | None:
        """What came of the graph that was made last."""
        return next(reversed(self.reports), None)

    @property
    def reports(self) -> list[Applied]:
        """What came of each graph."""
        made = (each for each in self._made.values() if isinstance(each, Parallelized))
        return [each.report for each in made if each.report is not None]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        """Run the graph for such arguments, or the function itself."""
        kind = _modes(), getattr(self._function, "training", None), _kind_of_all(args, keywords)
        found = self._made.get(kind)
        if found is None or self._is_making:  # what runs to make a graph is undone
            found = self._made_for(kind, args, keywords)
        return found(*args, **keywords)

    def _made_for(
        self, kind: Hashable, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Callable[..., Any]:
        """Return what runs with arguments of a kind that was not met before."""
        if is_listened_to() or (torch.cuda.is_available() and is_capturing()):
            return self._function  # by what makes a graph of something that calls this
        with self._lock:
            if kind in self._made:  # by another thread meanwhile
                return self._made[kind]
            if self._is_making:  # it calls itself
                return self._function
            if len(self._made) >= self._most:
                met = f"it was called with {self._most} kinds of arguments before"
                self._warned.say(f"{met}: a larger most_graphs= makes more graphs")
                return self._function
            self._is_making = True
            try:
                if (made := self._make(args, keywords)) is None:
                    return self._function
                self._made[kind] = made
            except ApplyError as error:
                self._made[kind] = self._function
                self._warned.say(str(error))
            finally:
                self._is_making = False
            return self._made[kind]


def _modes() -> tuple[Any, ...]:
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *autocast


def _kind_of_all(args: tuple[Any, ...], keywords: dict[str, Any]) -> Hashable:
    """Return what tells arguments from those of another kind, as they can be told apart."""
    own = (*args, *keywords.values())
    if all(isinstance(each, _WHOLE) for each in own):  # nothing in them needs to be looked at
        return tuple(keywords), *firsts_of(own), *map(_kind_of_leaf, own)
    leaves, tree = pytree.tree_flatten((args, keywords))
    return tree, *firsts_of(leaves), *map(_kind_of_leaf, leaves)


def _kind_of_leaf(leaf: Any) -> Hashable:
    if isinstance(leaf, torch.Tensor):
        return kind_of(leaf)
    return (type(leaf), repr(leaf)) if is_simple(leaf) else id(leaf)
