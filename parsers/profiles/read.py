"""Read a file of times; what reads other formats is imported where JSON is not what there is."""

from pathlib import Path

from depgraph.errors import ProfileError, TraceError
from depgraph.parsers.profiles.chakra import is_chakra
from depgraph.parsers.profiles.source import Head, read_head
from depgraph.timing.profile import BlockProfile, KernelProfile


def read_profile(path: Path) -> KernelProfile | BlockProfile:
    """Read the times of kernels, or of thread blocks, from a file of any known format.

    Parameters
    ----------
    path : Path
        A PyTorch profiler trace, an nsys ``cuda_gpu_trace`` CSV or SQLite export, CSV of ncu,
        nvprof or rocprofv3, a Chakra execution trace, a GPGPU-Sim or Accel-Sim log (text formats
        plain, gz, xz, zst or bz2), or a table of one's own, CSV or Parquet.
        ``docs/timing-formats.md`` describes them.

    Raises
    ------
    ProfileError
        If the file cannot be read, is damaged, or has no time of single kernels; the message
        says what was found, on which line, and what to do.
    """
    if path.is_dir():
        raise ProfileError(path, "is a folder", "name the file of times in it")
    try:
        return _read(path)
    except TraceError as error:
        raise ProfileError(error.path, error.found, error.hint, line=error.line) from None


def read_kernel_profile(path: Path) -> KernelProfile:
    """Read the times of kernels; a file of the times of blocks is refused."""
    profile = read_profile(path)
    if isinstance(profile, BlockProfile):
        raise ProfileError(path, "has times of blocks, not a timeline of kernels")
    return profile


def is_profile(path: Path) -> bool:
    """Tell whether a file is a profile, even one that cannot be used, and not anything else."""
    if not path.is_file() or path.suffix == ".toml":
        return False
    from depgraph.parsers.profiles.formats import ANY_HINT, sniff

    try:
        sniff(read_head(path))
    except ProfileError as error:
        return error.hint != ANY_HINT
    except TraceError:
        return False
    return True


def _read(path: Path) -> KernelProfile | BlockProfile:
    head = read_head(path)
    if _is_json(head):
        from depgraph.parsers.profiles.kineto import read_kineto

        return read_kineto(path)
    from depgraph.parsers.profiles.formats import reader_of

    return reader_of(head)(path)


def _is_json(head: Head) -> bool:
    """Tell JSON from all else, unless it is of an odd encoding."""
    begins = head.raw.lstrip()[:1] in (b"{", b"[")
    return begins and b"\0" not in head.raw and not is_chakra(head.raw)
