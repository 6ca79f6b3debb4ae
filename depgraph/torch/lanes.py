"""Streams that functions are captured on, and the memory that goes with them."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from depgraph.torch.driver import Driver
from depgraph.torch.operator_log import OperatorLog

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
_idle: "dict[int, list[Lanes]]" = {}


# A workspace belongs to a stream for good, even if the stream is destroyed and another one gets
# its number. So streams are never destroyed: a function that is no longer used hands them on. The
# workspaces lie in a pool that nobody else allocates from: whoever lets PyTorch give all
# workspaces back does not let others write there.
class Lanes:
    """Streams of one function at a time, each with the workspaces that libraries keep for it."""

    def __init__(self, device: Any, driver: Driver) -> None:
        self._device = device
        self._driver = driver
        self._streams: list[Any] = []
        self._anchors: list[Any] = []
        self._opened = 0, 0  # for forward and for backward passes
        # the private pool that the workspaces lie in
        self.workspaces = torch.cuda.graph_pool_handle()

    def stream(self, lane: int) -> Any:
        """Return the stream of a lane."""
        while lane >= len(self._streams):
            handle = int(self._driver.call("cuStreamCreate", _NON_BLOCKING))
            self._streams.append(torch.cuda.ExternalStream(handle, device=self._device))
        return self._streams[lane]

    def open(self, width: int, *, backward: bool) -> None:
        """Let libraries allocate workspaces for the first lanes: for each a product is captured."""
        forward_done, backward_done = self._opened
        first = min(forward_done, backward_done) if backward else forward_done
        if first >= width:
            return
        self._opened = max(width, forward_done), width if backward else backward_done
        _product(self._device, backward=backward)  # a library is not loaded while it is captured
        torch.cuda.synchronize(self._device)
        self._anchors.append(torch.cuda.CUDAGraph())
        anchor = self._anchors[-1]
        with torch.cuda.graph(anchor, pool=self.workspaces, stream=self.stream(0)):
            for lane in range(first, width):
                with OperatorLog(self._device, around=partial(self._on_lane, lane)):
                    _product(self._device, backward=backward)

    @property
    def width(self) -> int:
        """How many lanes are open."""
        return self._opened[0]

    def workspace_bytes(self) -> int:
        """Return what the workspaces take."""
        return sum(
            block["size"]
            for segment in torch.cuda.memory_snapshot()
            for block in segment["blocks"]
            if tuple(segment["segment_pool_id"]) == tuple(self.workspaces)
            and block["state"] == "active_allocated"
        )

    def _on_lane(self, lane: int, _: int) -> AbstractContextManager[None]:
        return self.on(lane)

    @contextmanager
    def on(self, lane: int) -> Iterator[None]:
        """Let what is launched meanwhile run on a lane, in its turn."""
        here = torch.cuda.current_stream(self._device)
        there = self.stream(lane)
        if there == here:
            yield
            return
        there.wait_stream(here)
        with torch.cuda.stream(there):
            yield
        here.wait_stream(there)

    @classmethod
    def acquire(cls, device: Any, driver: Driver) -> "Lanes":
        """Return lanes that no other function uses."""
        idle = _idle.get(device.index)
        return idle.pop() if idle else cls(device, driver)

    def release(self) -> None:
        """Let another function have them."""
        _idle.setdefault(self._device.index, []).append(self)


def _product(device: Any, *, backward: bool) -> None:
    """Take a product, for which a library needs its workspace."""
    with torch.inference_mode(mode=False), torch.enable_grad():
        square = torch.ones(16, 16, device=device, requires_grad=backward)
        product = torch.addmm(square[0], square, square)
        if backward:
            product.sum().backward()
