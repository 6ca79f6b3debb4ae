"""The one way from a store to a scenario: whose times, which GPU, what launches cost, what if."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from depgraph.errors import ModelError, StoreError
from depgraph.gpu.model import Gpu, load_gpu, load_gpu_file
from depgraph.scenario.build_scenario import build_scenario
from depgraph.store.companions import recorded_times, store_named_by, times_of
from depgraph.timing.fit import Fit, fit_profile
from depgraph.timing.profile import BlockProfile, KernelProfile, Where
from depgraph.timing.program_times import NO_LAUNCHES, LaunchChoice

if TYPE_CHECKING:
    from depgraph.scenario.contention import Contention
    from depgraph.scenario.scenario import Scenario
    from depgraph.scenario.what_if import Statement
    from depgraph.store.store import Store

    Profile = KernelProfile | BlockProfile


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked about a store: which times, which GPU, what launches cost, what to change.

    Attributes
    ----------
    kinds : collection of str, optional
        Kinds of dependence that count; default all that the store has.
    times : Path, KernelProfile, BlockProfile or Fit, optional
        Measured times: a file, or what was read of one; default those that were recorded with the
        store, else the instructions that the trace shows.
    read_profile : callable, optional
        Reads a file of times, as `depgraph.parsers.profiles.read_profile` does.
    where : Where, optional
        Which kernels of the profile count.
    allow_mismatch : bool
        Take what fits of a profile that seems to be of another program, instead of refusing it.
    measured_sms : int, optional
        SMs of the GPU that kernels were measured on; default what the profile says, else those of
        its GPU's model.
    gpu : Gpu, str or Path, optional
        Whose limits apply: a model, a name, or a TOML file; default the GPU that the profile names,
        else the one that the trace's architecture suggests.
    fixed_occupancy : int, optional
        Resident blocks per SM of every kernel, instead of the GPU's limits.
    launch : LaunchChoice
        What launches cost, as `parse_launch` returns it.
    what_ifs : sequence of Statement
        What to change of the program, as `parse_what_if` returns it.
    ignore_waits_inside : bool
        Take the blocks of kernels that wait inside for independent of one another, as bounds do.
    memory_gb_per_s : float or "gpu", optional
        Memory bandwidth, 10**9 bytes a second, or that of the GPU.
    contention : {"none", "sm", "full"}, optional
        Of predictions; default "full" where durations were measured, else "none".
    wall_us : float, optional
        How long an iteration takes without a profiler; default what the profile shows.
    """

    kinds: Collection[str] | None = None
    times: Path | Profile | Fit | None = None
    read_profile: Callable[[Path], Profile] | None = None
    where: Where | None = None
    allow_mismatch: bool = False
    measured_sms: int | None = None
    gpu: Gpu | str | Path | None = None
    fixed_occupancy: int | None = None
    launch: LaunchChoice = NO_LAUNCHES
    what_ifs: Sequence[Statement] = ()
    ignore_waits_inside: bool = False
    memory_gb_per_s: float | Literal["gpu"] | None = None
    contention: Contention | None = None
    wall_us: float | None = None


def scenario_of_store(store: Store, request: Request, tell: Callable[[str], None]) -> Scenario:
    """As `Scenario.of_store`."""
    profile = _times(store, request, tell)
    scenario = build_scenario(
        store.graph(request.kinds),
        store.kernels,
        profile=profile,
        where=request.where,
        allow_mismatch=request.allow_mismatch,
        measured_sms=request.measured_sms,
        gpu=named_gpu(request.gpu) if isinstance(request.gpu, str | Path) else request.gpu,
        fixed_occupancy=request.fixed_occupancy,
        launch=request.launch,
        contention=request.contention,
        what_ifs=request.what_ifs,
        ignore_waits_inside=request.ignore_waits_inside,
        memory_gb_per_s=request.memory_gb_per_s,
        wall_us=request.wall_us,
        footprints=store.footprints,
        allocations=store.allocations,
        granularity=int(store.metadata["options"]["granularity"]),
        metadata=store.metadata,
    )
    if scenario.fit is not None and scenario.fit.warning:
        tell(scenario.fit.warning)
    return scenario


def fitted_times(store: Store, times: Path, request: Request, tell: Callable[[str], None]) -> Fit:
    """Return how well the times in a file fit a store, also those that a scenario refuses."""
    return fit_profile(_named(store, times, request, tell), store.kernels, request.where)


def _times(store: Store, request: Request, tell: Callable[[str], None]) -> Profile | Fit | None:
    """Find the times that count, and check whose they are; None where there are none."""
    if request.times is None:
        return _recorded(store, request, tell)
    if isinstance(request.times, Fit):
        return request.times
    return _named(store, request.times, request, tell)


def _named(
    store: Store, times: Path | Profile, request: Request, tell: Callable[[str], None]
) -> Profile:
    """Return times that the user has named: of another store's they are told, not refused."""
    found = _read(times, request) if isinstance(times, Path) else times
    if (_store_of(found) or store.identity) != store.identity:
        tell(f"{found.source} holds times that were taken for another store")
    return found


def _recorded(store: Store, request: Request, tell: Callable[[str], None]) -> Profile | None:
    """Return the times beside a store, as far as they go with it."""
    path = recorded_times(store)
    if path is None:
        beside = times_of(store.path)
        if beside.is_file() and store_named_by(beside) == "":
            tell(f"{beside} is of no store: pass it with --timing to use it")
        return None
    found = _read(path, request)
    if _store_of(found) != store.identity:
        raise StoreError(path, "was replaced while it was read", "run the command again")
    return found


def _store_of(found: Profile) -> str | None:
    return found.store if isinstance(found, KernelProfile) else None


def _read(path: Path, request: Request) -> Profile:
    if request.read_profile is None:
        raise ModelError(
            f"{path}: nothing reads these times: give read_profile, such as that of "
            "depgraph.parsers.profiles"
        )
    return request.read_profile(path)


def named_gpu(name: str | Path) -> Gpu:
    """Return the packaged model of that name, or the one in the file of that name."""
    is_file = isinstance(name, Path) or name.endswith(".toml")
    return load_gpu_file(name) if is_file else load_gpu(str(name))
