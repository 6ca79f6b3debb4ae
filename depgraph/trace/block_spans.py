"""When each block of a launch ran, and on which SM, as it was measured."""

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_BLOCKS = 1 << 20  # of a launch: more would be a text too long for who reads profiles
_NS, _SM = np.dtype("<u4"), np.dtype("<u2")
_MOST_NS = 1 << 32


@dataclass(frozen=True, slots=True, eq=False)
class BlockSpans:
    """When the n blocks of a launch ran, by their number within it."""

    begin: NDArray[np.int64]  # ns from the first of them on
    duration: NDArray[np.int64]  # ns, measuring included
    sm: NDArray[np.int64]
    clock_ns: int  # the step of the clock by which begins on different SMs compare
    patch_ns: int  # what measuring adds to a block

    @property
    def alone(self) -> NDArray[np.int64]:
        """Durations without what measuring adds; 1 ns at least."""
        return np.maximum(self.duration - self.patch_ns, 1)

    @property
    def resident(self) -> int:
        """The most blocks that one SM held at a time."""
        time = np.concatenate([self.begin, self.begin + self.duration])
        change = np.repeat([1, -1], len(self.begin))
        sm = np.tile(self.sm, 2)
        # One that ends goes before one that begins.
        order = np.lexsort((change, time, sm))
        held = np.cumsum(change[order])  # 0 behind the last of each SM
        return int(held.max(initial=0))

    def packed(self) -> dict[str, Any] | None:
        """Return it as JSON has it; None where it is too much to be kept."""
        most = int(max(self.begin.max(), self.duration.max()))
        if len(self.begin) > MOST_BLOCKS or most > np.iinfo(_NS).max:
            return None
        return {
            "clock_ns": self.clock_ns,
            "patch_ns": self.patch_ns,
            "begin": _as_text(self.begin, _NS),
            "duration": _as_text(self.duration, _NS),
            "sm": _as_text(self.sm, _SM),
        }


def _as_text(values: NDArray[np.int64], kind: np.dtype[Any]) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def unpacked(value: object, n_blocks: int) -> BlockSpans | None:
    """Return what `BlockSpans.packed` made for so many blocks; None for anything else."""
    if not isinstance(value, dict) or not 0 < n_blocks <= MOST_BLOCKS:
        return None
    try:
        begin, duration, sm = (
            np.frombuffer(base64.b64decode(value[name], validate=True), kind).astype(np.int64)
            for name, kind in (("begin", _NS), ("duration", _NS), ("sm", _SM))
        )
    except (KeyError, TypeError, ValueError):  # binascii.Error is one of the last
        return None
    clock, patch = value.get("clock_ns"), value.get("patch_ns")
    if type(clock) is not int or type(patch) is not int:
        return None
    is_possible = 1 <= clock <= _MOST_NS and 0 <= patch <= _MOST_NS
    is_whole = is_possible and len(begin) == len(duration) == len(sm) == n_blocks
    return BlockSpans(begin, duration, sm, clock, patch) if is_whole else None
