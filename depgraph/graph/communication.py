"""Collectives and the links that they cross, as a described program states them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from collections.abc import Mapping

Engine = Literal["sm", "dma"]
ENGINES: tuple[str, ...] = get_args(Engine)
_KEY = "communication"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What collectives cross, and what happens to computation beside them."""

    name: str
    # 10**9 bytes a second that blocks on SMs move, and that one copy engine does.
    bandwidth: float
    # What a transfer takes besides, in the unit of the program.
    alpha: float = 0.0
    dma_bandwidth: float
    dma_alpha: float = 0.0
    engines: int = 1  # copy engines, each of which moves one transfer at a time
    # How much longer each takes while the other runs: 0.2 is a fifth.
    computation_slowed: float = 0.0
    communication_slowed: float = 0.0

    def alpha_of(self, engine: Engine) -> float:
        """Return what a transfer takes besides moving its bytes."""
        return self.alpha if engine == "sm" else self.dma_alpha

    def bandwidth_of(self, engine: Engine) -> float:
        """Return 10**9 bytes a second of blocks on SMs or of a copy engine."""
        return self.bandwidth if engine == "sm" else self.dma_bandwidth


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """A kernel that moves data between GPUs, or a part of one."""

    engine: Engine  # blocks that each keep an SM, or a copy engine that needs none
    link: str
    sms: int  # blocks, 1 by a copy engine
    time: float  # how long it takes alone, in the unit of the program

    def slower_by(self, engine: Engine, link: Link) -> float:
        """Return how many times as long it takes alone if another engine moves the bytes."""
        if engine == self.engine or self.time == 0:
            return 1.0
        moving = max(0.0, self.time - link.alpha_of(self.engine))
        ratio = link.bandwidth_of(self.engine) / link.bandwidth_of(engine)
        return (link.alpha_of(engine) + moving * ratio) / self.time


@dataclass(frozen=True, slots=True)
class Communication:
    """The links of a program, and its collectives by the name of their kernel."""

    links: Mapping[str, Link]
    collectives: Mapping[str, Collective]

    def to_metadata(self) -> dict[str, Any]:
        """Return what a store keeps of it; nothing where there is none."""
        if not self.collectives:
            return {}
        return {
            _KEY: {
                "links": [asdict(link) for link in self.links.values()],
                "collectives": {name: asdict(c) for name, c in self.collectives.items()},
            }
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Communication:
        """Read what `to_metadata` wrote; empty where a program has none."""
        kept = metadata.get(_KEY, {"links": [], "collectives": {}})
        return cls(
            {link["name"]: Link(**link) for link in kept["links"]},
            {name: Collective(**c) for name, c in kept["collectives"].items()},
        )
