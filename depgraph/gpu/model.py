"""GPU models: packaged ones by name or architecture, and those of a user's file."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depgraph.errors import ModelError
from depgraph.gpu.model_file import (
    Count,
    Counts,
    Errors,
    Rate,
    Share,
    Size,
    Sizes,
    SmCount,
    Sources,
    Text,
    Texts,
    read_sources,
)
from depgraph.system.described import Field, ModelFile, fields_of, short_text
from depgraph.system.text import in_short

if TYPE_CHECKING:
    from collections.abc import Iterator

_MODELS = Path(__file__).parent / "models"
_ARCHITECTURES = _MODELS / "architectures.toml"
_LONGEST_NAME = 100
_BRANDS = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")
_FIRST_AMD = 600  # numbers of NVIDIA's architectures are below, AMD's above
CONSTANTS = (
    "contention", "contention_gemm32", "contention_convolution", "block_spread", "kernel_lead_us",
    "graph_node_us", "graph_path_us", "graph_path_share", "graph_fork_us", "graph_root_us",
    "graph_launch_us", "graph_memory_us", "stream_kernel_us", "stream_turn_us", "stream_event_us",
)  # fmt: skip
"""Predictions rest on them; they are fitted to measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, as far as predictions depend on it; None is what nobody states or measured."""

    name: Text
    aliases: Texts = ()  # other names it goes by: the CUDA device name, the form factor
    architecture: Count  # compute capability times 10, as in sm_90; of AMD the number in gfx942
    sms: SmCount  # streaming multiprocessors that a kernel can use
    warp_size: Count  # threads
    max_threads_per_block: Count
    max_threads_per_sm: Count
    max_blocks_per_sm: Count
    registers_per_sm: Count  # of 32 bits, as all of them
    max_registers_per_block: Count
    max_registers_per_thread: Count
    register_allocation_unit: Count  # a warp is given a multiple of this
    warp_allocation_granularity: Count  # sub-partitions of an SM, which share registers and warps
    shared_carveouts: Sizes  # of an SM as shared memory, ascending; the last is its capacity
    max_shared_bytes_per_block: Size  # the most a kernel can opt in to
    reserved_shared_bytes_per_block: Size  # taken by the driver on top of what a kernel asks for
    shared_allocation_unit: Count  # a block is given a multiple of so many bytes
    gpc_sms: Counts | None = None  # SMs of each cluster, in which a block cluster stands together
    memory_gb_per_s: Rate | None = None  # peak of device memory, 10**9 bytes a second
    l2_bytes: Size | None = None
    base_clock_mhz: Count | None = None  # NVIDIA publishes none for SXM modules
    boost_clock_mhz: Count | None = None
    launch_host_us: Rate | None = None  # what the host needs to issue a launch
    launch_gap_us: Rate | None = None  # before a kernel that was launched in time
    launch_sync_us: Rate | None = None  # what a synchronisation with the host adds
    graph_node_us: Rate | None = None  # of a CUDA graph, a node
    graph_path_us: Rate | None = None  # between a node and the next of its branch
    graph_path_share: Share | None = None  # that is no more than this part of the next one's time
    graph_fork_us: Rate | None = None  # between a node and one of another branch
    graph_root_us: Rate | None = None  # for each further node that waits for none
    graph_launch_us: Rate | None = None  # once
    stream_kernel_us: Rate | None = None  # to take a kernel from one of several streams
    stream_turn_us: Rate | None = None  # more for the first kernel of each, for each stream
    stream_event_us: Rate | None = None  # after an event of another stream
    graph_memory_us: Rate | None = None  # of a memset or a copy, beyond its profiled time
    device_stall_cycles: Rate | None = None  # of a warp by a launch from the device
    device_lane_cycles: Rate | None = None  # more for each lane that launches
    device_dispatch_cycles: Rate | None = None  # of each child, one after another, before slots
    device_finish_cycles: Rate | None = None  # until its parent knows that a child has ended
    contention: Rate | None = None  # how blocks on one SM slow each other: see `SmSharing`
    contention_gemm32: Rate | None = None  # the same of products in FP32 without tensor cores
    contention_convolution: Rate | None = None  # the same of convolutions in FP32
    block_spread: Share | None = None  # by how much blocks of a kernel on one SM differ
    kernel_lead_us: Rate | None = None  # of a kernel's measured time, what holds no SM
    errors: Errors = ()  # of predictions with these constants, by family of programs
    sources: Sources = field(default=(), repr=False, compare=False)

    def goes_by(self, name: str) -> bool:
        """Whether that is a name of it, as `load_gpu` compares them."""
        return _plain(name) in map(_plain, (self.name, *self.aliases))

    @property
    def vendor(self) -> str:
        """Who makes it."""
        return "AMD" if self.architecture >= _FIRST_AMD else "NVIDIA"

    @property
    def max_warps_per_sm(self) -> int:
        """Warps resident on one SM at most."""
        return self.max_threads_per_sm // self.warp_size

    @property
    def shared_bytes_per_sm(self) -> int:
        """Bytes of shared memory of one SM at most."""
        return self.shared_carveouts[-1]

    def shared_bytes_of_block(self, wanted: int) -> int:
        """Return what a block that asks for so many bytes of shared memory is given."""
        unit = self.shared_allocation_unit
        return -(-(wanted + self.reserved_shared_bytes_per_block) // unit) * unit


KEYS = fields_of(Gpu)
_BASED_ON = Field("based_on", short_text, "packaged model whose numbers count where none is given")
_DEFAULT_GPU = Field("default_gpu", short_text, "model that a trace of the architecture suggests")


def compiler_target(architecture: int) -> str:
    """Return what compilers call an architecture: ``sm_90``, ``gfx942``."""
    return f"{'gfx' if architecture >= _FIRST_AMD else 'sm_'}{architecture}"


def load_gpu(name: str) -> Gpu:
    """Return the packaged model with this name or alias.

    Parameters
    ----------
    name : str
        Upper or lower case, with or without blanks, dashes, brand names: ``"a100-80gb"``,
        ``"NVIDIA GeForce RTX 4090"``.

    Raises
    ------
    ModelError
        If there is none; the message lists what is close.
    """
    wanted = _plain(name)
    paths = _models()
    if wanted in paths:
        return _packaged(paths[wanted])
    known: dict[str, str] = {}
    for path in paths.values():
        content = ModelFile(path).content
        for label in (content["name"], *content.get("aliases", ())):
            if _plain(label) == wanted:
                return _packaged(path)
            known.setdefault(_plain(label), content["name"])
    from difflib import get_close_matches

    close = get_close_matches(wanted[:_LONGEST_NAME], known, n=8)
    names = dict.fromkeys(known[label] for label in close) or sorted(set(known.values()))
    listed = f"known: {', '.join(names)}."
    if close:
        first, *others = names
        listed = f"did you mean {first!r}?"
        if others:
            listed += f" Close, too: {', '.join(others)}."
    raise ModelError(
        f"no GPU model is called {in_short(name)!r}; {listed} Describe another in a file and pass "
        "--gpu-file FILE"
    )


def load_gpu_file(path: str | Path) -> Gpu:
    """Read a GPU model from a TOML file.

    Parameters
    ----------
    path : str or Path
        Keys are the attributes of `Gpu`. What a file leaves out is taken from the packaged model
        that it names as ``based_on``, else from its architecture.

    Raises
    ------
    ModelError
        If the file cannot be read, or a key is unknown, missing, or of no possible value.
    """
    file = ModelFile(Path(path))
    if "based_on" in file.content and "architecture" in file.content:
        raise file.error("give based_on or architecture, not both", "", None)
    own = file.given("", 0, file.content, (*KEYS, _BASED_ON))
    if "based_on" in own:
        try:
            base = load_gpu(own.pop("based_on"))
        except ModelError as error:
            raise file.error(f"based_on: {error}", "", None) from None
        given = {key.key: getattr(base, key.key) for key in KEYS}
        del given["name"], given["aliases"]
        if own.keys() & {*CONSTANTS}:
            given["errors"] = ()
    else:
        given = _architecture_numbers(own.get("architecture"))
    sources = own.get("sources", ()) + _without(given.pop("sources", ()), own)
    values = {**given, **own, "sources": sources}
    missing = [key.name for key in fields(Gpu) if key.default is MISSING and key.name not in values]
    if missing:
        raise file.error(f"{missing[0]} is missing" + _missing_hint(own), "", None)
    gpu = Gpu(**values)
    _check_consistent(file, gpu)
    return gpu


def available_gpus() -> list[Gpu]:
    """All packaged models, by architecture and name."""
    gpus = map(_packaged, _models().values())
    return sorted(gpus, key=lambda gpu: (gpu.architecture, gpu.name))


def gpu_for_architecture(architecture: int) -> Gpu:
    """Return the model to take for a trace that names only its SASS version, such as 90."""
    tables = _architectures()
    key = f"sm_{architecture}"
    if "default_gpu" not in tables.get(key, {}):
        known = ", ".join(name for name, table in tables.items() if "default_gpu" in table)
        raise ModelError(
            f"no GPU model has architecture {key} (known: {known}); "
            "name a GPU with --gpu NAME or describe one with --gpu-file FILE"
        )
    return load_gpu(tables[key]["default_gpu"])


def _plain(name: str) -> str:
    key = "".join(letter for letter in name.casefold() if letter.isalnum())
    for brand in _BRANDS:
        key = key.removeprefix(brand)
    return key


@cache
def _models() -> dict[str, Path]:
    paths = sorted(path for path in _MODELS.glob("*.toml") if path != _ARCHITECTURES)
    return {_plain(path.stem): path for path in paths}


@cache
def _packaged(path: Path) -> Gpu:
    return load_gpu_file(path)


@cache
def _architectures() -> dict[str, dict[str, Any]]:
    """Return the numbers of each architecture, complete and checked, and ``common``."""
    file = ModelFile(_ARCHITECTURES)
    sources = read_sources(file.content.pop("sources"))
    tables: dict[str, dict[str, Any]] = {}
    for key, table in file.content.items():
        base = tables.get(table.pop("based_on", "common"), {})
        inherited = {name: value for name, value in base.items() if name != "default_gpu"}
        numbers = file.given("", 0, table, (*KEYS, _DEFAULT_GPU))
        tables[key] = {**inherited, **numbers, "sources": sources}
    return tables


def _architecture_numbers(architecture: int | None) -> dict[str, Any]:
    tables = _architectures()
    table = tables.get(f"sm_{architecture}", tables["common"])
    return {key: value for key, value in table.items() if key != "default_gpu"}


def _missing_hint(own: dict[str, Any]) -> str:
    architecture = own.get("architecture")
    tables = _architectures()
    if architecture is None:
        return "; give architecture or based_on, and only what differs"
    if f"sm_{architecture}" in tables:
        return ""
    known = ", ".join(key for key in tables if key != "common")
    return f"; sm_{architecture} is not among {known}, so the file must give all its numbers"


def _without(sources: Sources, own: dict[str, Any]) -> Sources:
    kept = (
        replace(source, numbers=tuple(key for key in source.numbers if key not in own))
        for source in sources
    )
    return tuple(source for source in kept if source.numbers)


def _check_consistent(file: ModelFile, gpu: Gpu) -> None:
    for key, fits, expected in _rules(gpu):
        if not fits:
            file.wrong("", 0, key, getattr(gpu, key), expected)


def _rules(gpu: Gpu) -> Iterator[tuple[str, bool, str]]:
    """Yield keys, whether their values go with others, and what would."""
    threads, warp, parts = gpu.max_threads_per_sm, gpu.warp_size, gpu.warp_allocation_granularity
    registers, shared = gpu.registers_per_sm, gpu.shared_bytes_per_sm
    yield "max_threads_per_sm", threads % warp == 0, f"a multiple of the warp size, {warp}"
    fits = gpu.max_threads_per_block <= threads
    yield "max_threads_per_block", fits, f"at most max_threads_per_sm, {threads}"
    fits = registers % parts == 0
    yield "registers_per_sm", fits, f"a multiple of warp_allocation_granularity, {parts}"
    fits = gpu.max_registers_per_block <= registers
    yield "max_registers_per_block", fits, f"at most registers_per_sm, {registers}"
    ascend = list(gpu.shared_carveouts) == sorted(set(gpu.shared_carveouts))
    yield "shared_carveouts", ascend, "sizes in ascending order"
    fits = gpu.shared_bytes_of_block(gpu.max_shared_bytes_per_block) <= shared
    expected = f"at most {shared} with reserved_shared_bytes_per_block"
    yield "max_shared_bytes_per_block", fits, expected
