"""A cluster gives what one machine gives, also when it loses a worker."""

import os
import pickle
import re
import signal
import threading
import warnings

import pytest
from slow_trace import SlowTrace
from stores import files_of
from waiting import SECONDS, wait_until

from depgraph.errors import ClusterError, TraceError
from depgraph.extraction.pipeline import extract
from depgraph.parsers.nvbit.log import NvbitTrace
from depgraph.system.cluster import cluster_workers

distributed = pytest.importorskip("distributed", reason="depgraph[cluster] is not installed")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.jit_only,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def workers():
    from depgraph.system.cluster import cluster_workers

    with cluster_workers("local:2") as found:
        yield found


@pytest.fixture
def plain_sample(tmp_path, sample_trace):
    import lzma

    path = tmp_path / "trace.log"
    path.write_bytes(lzma.decompress(sample_trace.read_bytes()))
    return path


def test_two_processes_write_the_store_that_one_writes(tmp_path, plain_sample, workers):
    trace = NvbitTrace(plain_sample, part_bytes=4 << 20)
    extract(trace, tmp_path / "here")
    extract(trace, tmp_path / "there", workers=workers, scratch=tmp_path)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert {path.name for path in tmp_path.iterdir()} == {"trace.log", "here", "there"}


def test_two_local_clusters_run_side_by_side(workers):
    from depgraph.system.cluster import cluster_workers

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # the port of the first is taken
        with cluster_workers("local:1") as others:
            assert list(others.map(abs, [-1])) == list(workers.map(abs, [-1])) == [1]


def test_the_text_of_a_packed_log_goes_through_files(tmp_path, sample_trace, workers):
    folder = tmp_path / "scratch"
    folder.mkdir()
    sizes = []

    class Watched:
        remote, jobs = True, workers.jobs

        def map(self, function, items):
            for result in workers.map(function, items):
                sizes.append(sum(1 for _ in folder.glob(".scratch.*/task-*")))
                yield result

    trace = NvbitTrace(sample_trace, part_bytes=4 << 20)
    extract(trace, tmp_path / "here")
    extract(trace, tmp_path / "there", workers=Watched(), scratch=folder)
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")
    assert max(sizes) > 1 >= sizes[-1]  # those that were read are gone
    assert not list(folder.iterdir())


def test_a_lost_worker_does_not_change_the_result(tmp_path, plain_sample, workers):
    started = plain_sample.with_suffix(".started")
    killed = []

    def kill_one():
        wait_until(started.exists)
        (pid, *_) = workers._client.run(os.getpid).values()
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    slow = SlowTrace(plain_sample, part_bytes=4 << 20)
    extract(slow, tmp_path / "there", workers=workers, scratch=tmp_path)
    killer.join(SECONDS)
    assert killed
    extract(NvbitTrace(plain_sample, part_bytes=4 << 20), tmp_path / "here")
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_a_fault_of_the_trace_is_told_as_on_one_machine(tmp_path, workers):
    path = tmp_path / "trace.log"
    path.write_bytes(b"no trace at all\n" * 1000)
    with pytest.raises(TraceError, match=r"trace\.log: "):
        extract(NvbitTrace(path), tmp_path / "out", workers=workers, scratch=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["trace.log"]


@pytest.mark.parametrize("address", ["local:0", "local:many", "tcp://127.0.0.1:1"])
def test_a_scheduler_that_cannot_be_used_is_one_clear_error(address, monkeypatch):
    from depgraph.system import cluster

    monkeypatch.setattr(cluster, "_CONNECT_SECONDS", 1)
    with pytest.raises(ClusterError, match=re.escape(address)), cluster.cluster_workers(address):
        pass


@pytest.mark.parametrize("error", [AssertionError(), TimeoutError("late"), OSError("refused")])
def test_whatever_fails_in_dask_on_the_way_to_a_scheduler_is_one_clear_error(error, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("distributed.Client", fail)
    said = re.escape(f"tcp://x:1: cannot be reached ({str(error) or 'AssertionError'})")
    with pytest.raises(ClusterError, match=said), cluster_workers("tcp://x:1"):
        pass


def test_an_error_keeps_its_parts_on_the_way_back_from_a_worker():
    error = TraceError("trace.log", "line is cut", "trace again", line=7)
    back = pickle.loads(pickle.dumps(error))  # noqa: S301 - pickled a moment ago
    assert type(back) is TraceError
    assert str(back) == str(error) == "trace.log:7: line is cut; trace again"
    assert (back.path, back.found, back.hint, back.line) == (
        "trace.log",
        "line is cut",
        "trace again",
        7,
    )
