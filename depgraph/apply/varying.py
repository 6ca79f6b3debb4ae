"""What a captured graph leaves otherwise from run to run, and what a tolerance can stand for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from depgraph.apply.byte_ranges import joined, meets, ranges_of, within, without

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from depgraph.apply.byte_ranges import Ranges
    from depgraph.apply.plan import Plan


@dataclass(frozen=True, slots=True)
class Varying:
    """Bytes that are not the same after every run of a captured graph.

    Attributes
    ----------
    ranges : Ranges
        All of them.
    excused : Ranges
        Bytes that need not be the same in another graph: returned tensors, which a tolerance is
        for, and what is lost after a run.
    unchecked : Ranges
        Bytes that outlive a run and that no tolerance is for: with any, no other graph can be
        trusted.
    """

    ranges: Ranges
    excused: Ranges
    unchecked: Ranges


def find_varying(plan: Plan, varying: Ranges, returned: Iterable[tuple[int, int]]) -> Varying:
    """Say which of the bytes that vary need not be compared.

    Parameters
    ----------
    plan : Plan
    varying : Ranges
        By address when recorded.
    returned : iterable of (int, int)
        The bytes of each returned tensor that a tolerance is for.
    """
    own, kept = (
        ranges_of((each.start, each.start + each.size) for each in regions if each.is_own)
        for regions in (plan.recorded.regions, plan.recorded.kept)
    )
    scratch = without(own, kept)
    tensors = np.array([*returned], dtype=np.int64).reshape(-1, 2)
    tensors = joined(tensors[meets(tensors, varying)])
    # Another run may vary in other bytes, but of the same kernels.
    touched = plan.touched
    written = np.stack([touched.start, touched.end], axis=1).astype(np.int64)
    nodes = np.unique(touched.node[touched.is_write & meets(written, within(varying, scratch))])
    lost = within(joined(written[touched.is_write & np.isin(touched.node, nodes)]), scratch)
    return Varying(
        ranges=varying,
        excused=joined(np.concatenate([tensors, lost])),
        unchecked=without(without(varying, scratch), tensors),
    )


def dense_range(
    address: int, shape: Sequence[int], strides: Sequence[int], item: int
) -> tuple[int, int] | None:
    """Return the bytes of a tensor, None if it has none or others lie between them.

    Parameters
    ----------
    strides : sequence of int
        In elements.
    item : int
        Bytes of an element.
    """
    n = int(np.prod(shape, dtype=np.int64))
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (address, address + n * item) if n and last + 1 == n else None
