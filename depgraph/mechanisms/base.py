"""What a mechanism is: a description, named costs, and rules for the schedule."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from depgraph import limits
from depgraph.errors import ModelError
from depgraph.limits import LARGEST_PARAMETER
from depgraph.text import in_short

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from depgraph.footprint import Footprints
    from depgraph.graph import BlockGraph
    from depgraph.mechanisms.costs import Charges
    from depgraph.room import Room
    from depgraph.rules import Rules


class NotApplicableError(ModelError):
    """A mechanism needs something that the program at hand does not have."""


class Availability(Enum):
    """What it takes to use a mechanism today."""

    SHIPS = "ships today"
    CODE = "needs a code change"
    HARDWARE = "needs hardware"
    LIMIT = "a limit, not a mechanism"


@dataclass(frozen=True, slots=True)
class Cost:
    """A named number of a mechanism that users may change.

    Attributes
    ----------
    name : str
    default : float
    unit : str
        "us", "ns", "cycles", "share" (0.02 is 2 %) or "count".
    meaning : str
    source : str
        Where the default comes from.
    """

    name: str
    default: float
    unit: str
    meaning: str
    source: str


@dataclass(frozen=True)
class Program:
    """All that a mechanism may look at.

    Attributes
    ----------
    graph : BlockGraph
        With the dependences that count.
    durations : float64[n_blocks]
    room : Room
        What blocks take of an SM.
    occupancy : int64[n_operations]
    sms : float
    launch_gap : float
        Time that a plain launch costs, in the unit of the durations.
    functions : tuple of str
        Name of each operation's function; empty if unknown.
    grid, block : int64[n_operations, 3]
    opaque : bool[n_operations]
        Whether the trace cannot show all that an operation touches.
    all_kinds : BlockGraph, optional
        With every kind of dependence; default `graph`.
    read_footprints : callable, optional
    """

    graph: BlockGraph
    durations: NDArray[np.float64]
    room: Room
    occupancy: NDArray[np.int64]
    sms: float
    launch_gap: float = 0.0
    functions: tuple[str, ...] = ()
    grid: NDArray[np.int64] | None = None
    block: NDArray[np.int64] | None = None
    opaque: NDArray[np.bool_] | None = None
    all_kinds: BlockGraph | None = None
    read_footprints: Callable[[], Footprints] | None = None

    @cached_property
    def is_kernel(self) -> NDArray[np.bool_]:
        """Which operations are kernels: bool[n_operations]."""
        return self.graph.kernel >= 0

    @cached_property
    def stream(self) -> NDArray[np.int64]:
        """Stream of each operation: int64[n_operations]."""
        resources = self.graph.resources
        if resources is None:
            return np.zeros(self.graph.n_operations, np.int64)
        return resources.stream

    @cached_property
    def shape(self) -> NDArray[np.int64]:
        """Grid of each operation: int64[n_operations, 3].

        Raises
        ------
        NotApplicableError
            If the grids are not known.
        """
        if self.grid is None:
            raise NotApplicableError("rows of blocks need the grids of the kernels")
        return self.grid


def dependent_operations(
    graph: BlockGraph, joins: NDArray[np.bool_] | None = None
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the pairs of operations that depend on one another.

    Parameters
    ----------
    graph : BlockGraph
    joins : bool[n_joins], optional
        The joins to look at; default all.

    Returns
    -------
    sources, targets : int32[n]
        Each pair once.
    """
    key = graph.join_target_operation.astype(np.int64) * graph.n_operations
    key += graph.join_source_operation
    key = np.unique(key if joins is None else key[joins])
    return (key % graph.n_operations).astype(np.int32), (key // graph.n_operations).astype(np.int32)


class Mechanism(ABC):
    """A way to order the blocks of dependent kernels.

    Attributes
    ----------
    name : str
        What users call it, without parameters.
    signature : str
        The name with its parameters.
    rule, cost : str
        A line each.
    availability : Availability
    source : str
    costs : tuple of Cost
    """

    name: ClassVar[str]
    signature: ClassVar[str] = ""
    rule: ClassVar[str]
    cost: ClassVar[str] = "none"
    availability: ClassVar[Availability]
    source: ClassVar[str]
    costs: ClassVar[tuple[Cost, ...]] = ()

    @property
    def label(self) -> str:
        """What a row of this mechanism, with its parameters, is called."""
        return self.name

    @classmethod
    def variants(cls) -> Sequence[Mechanism]:
        """Return what the bare name stands for: one mechanism, or a sweep of a parameter."""
        return [cls()]

    @classmethod
    def with_parameters(cls, parameters: Sequence[str]) -> Mechanism:
        """Return the mechanism for the parameters in parentheses after its name.

        Raises
        ------
        ModelError
            If it takes none or other ones.
        """
        raise ModelError(f"{cls.name} takes no parameters, not ({in_short(','.join(parameters))})")

    @abstractmethod
    def rules(self, program: Program, charges: Charges) -> Rules:
        """Return the rules of this mechanism for a program.

        Parameters
        ----------
        program : Program
        charges : Charges
            The costs, in the unit of the program's durations.

        Raises
        ------
        NotApplicableError
            If the program lacks what the mechanism needs.
        """


def whole_number(mechanism: str, text: str, least: int = 1, most: int = LARGEST_PARAMETER) -> int:
    """Read a parameter.

    Raises
    ------
    ModelError
        If it is no whole number from `least` to `most`.
    """
    value = limits.whole_number(text, least, most)
    if value is None:
        raise ModelError(
            f"{mechanism}: {in_short(text)!r} is no whole number from {least} to {most}"
        )
    return value


def whole_numbers(kind: type[Mechanism], parameters: Sequence[str], n: int) -> list[int]:
    """Read `n` parameters that are whole numbers from 1.

    Raises
    ------
    ModelError
        If there are more or fewer.
    """
    if len(parameters) != n:
        raise ModelError(f"give {kind.signature}")
    return [whole_number(kind.name, text) for text in parameters]
