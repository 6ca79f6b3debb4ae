"""Work on the machines of a cluster, through dask.distributed and a shared file system."""

import logging
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from depgraph.errors import ClusterError, DepgraphError
from depgraph.system.interrupts import closed_on_interrupt
from depgraph.system.processes import Lost
from depgraph.system.text import MOST_JOBS, read_whole_number

Item = TypeVar("Item")
Result = TypeVar("Result")

_CONNECT_SECONDS = 30
_LOCAL = "local:"


class ClusterWorkers:
    """The workers of a dask scheduler.

    Tasks of a worker that is lost are run again on another. Results come in the order of the
    items, so that a cluster gives what one machine gives, bit by bit.
    """

    remote = True

    def __init__(self, client: Any) -> None:
        self._client = client
        threads = client.nthreads().values()
        self.jobs = max(1, sum(threads))

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Generator[Result]:
        """Yield the results in the order of the items, a few tasks a thread under way at most."""
        running: deque[Any] = deque()
        try:
            for item in items:
                running.append(self._client.submit(function, item, pure=False))
                if len(running) > 3 * self.jobs:
                    yield self._result(running.popleft())
            while running:
                yield self._result(running.popleft())
        finally:
            self._client.cancel(list(running))

    def attempt(
        self, function: Callable[[Item], Result], items: Iterable[Item]
    ) -> Generator[tuple[int, Result | Lost]]:
        """Yield the number of each item and its result, or why its worker was lost."""
        from distributed import as_completed

        place = {}
        for i, item in enumerate(items):
            place[self._client.submit(function, item, pure=False)] = i
        try:
            for future in as_completed(place):  # type: ignore[no-untyped-call, unused-ignore]
                try:
                    yield place[future], self._result(future)
                except ClusterError as error:
                    yield place[future], Lost(str(error))
        finally:
            self._client.cancel(list(place))

    def _result(self, future: Any) -> Any:
        from distributed.scheduler import KilledWorker

        try:
            return future.result()
        except DepgraphError:
            raise
        except KilledWorker as error:
            message = (
                f"a task was lost with several workers in turn ({error}); they may lack memory"
            )
            raise ClusterError(message) from None


@contextmanager
def cluster_workers(address: str) -> Iterator[ClusterWorkers]:
    """Connect to a scheduler, ``tcp://host:port``, or start one here, ``local:N`` processes."""
    try:
        from distributed import Client, LocalCluster
        from distributed.comm.addressing import parse_address, parse_host_port
    except ImportError:
        message = "--scheduler needs dask.distributed: pip install 'depgraph[cluster]'"
        raise ClusterError(message) from None
    if address.startswith(_LOCAL):
        count = address.removeprefix(_LOCAL)
        workers = read_whole_number(count, 1, MOST_JOBS)
        if workers is None:
            message = f"scheduler {address!r}: give local:N with N workers, such as local:4"
            raise ClusterError(message)
        with (
            LocalCluster(  # type: ignore[no-untyped-call, unused-ignore]
                n_workers=workers,
                threads_per_worker=1,
                # Without a page, dask serves its HTTP API all the same: at a port that is free.
                dashboard_address="127.0.0.1:0",
                scheduler_kwargs={"dashboard": False},
                silence_logs=logging.ERROR,
            ) as cluster,
            closed_on_interrupt(cluster.close),
            Client(cluster) as client,  # type: ignore[no-untyped-call, unused-ignore]
        ):
            yield ClusterWorkers(client)
        return
    try:
        # Before a client is begun: what is left of one that fails may stop the next.
        parse_host_port(parse_address(address)[1])
        client = Client(  # type: ignore[no-untyped-call, unused-ignore]
            address, timeout=_CONNECT_SECONDS
        )
    # Where the machine is slow, what dask asserts of its own clean-up may not hold.
    except (OSError, TimeoutError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        message = f"scheduler {address}: cannot be reached ({reason})"
        raise ClusterError(message) from None
    with client:
        if not client.nthreads():  # type: ignore[no-untyped-call, unused-ignore]
            message = f"scheduler {address}: has no workers yet; start some first"
            raise ClusterError(message)
        yield ClusterWorkers(client)
