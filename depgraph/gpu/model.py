"""GPU models: what their files may say, packaged ones by name or architecture, files of users."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from depgraph.errors import ModelError
from depgraph.system.described import (
    Field,
    ModelFile,
    fields_of,
    items,
    real,
    record,
    short_text,
    toml_text,
    whole,
)
from depgraph.system.text import (
    FASTEST_MEMORY,
    LARGEST_PARAMETER,
    MOST_SMS,
    SLOWEST_MEMORY,
    in_short,
    show_percent,
)

_LARGEST = 1000  # measured or predicted a thousand times too long
_Share = Annotated[float, real(0, _LARGEST, f"a share, from 0 to {_LARGEST}")]


EARLY = frozenset({"PDL", "programmatic ports"})
"""Families whose blocks start before what they wait for has ended: fitted in part, as what passes
between two kernels was read off the programs that are counted (docs/validation.md)."""


class MeasuredErrors(NamedTuple):
    """How far predictions were off for programs of a family that no constant was fitted to."""

    family: Annotated[str, short_text]
    gpu: Annotated[str, short_text]  # that ran them, as CUDA names it
    programs: Annotated[int, whole(1, LARGEST_PARAMETER)]
    mean: _Share  # relative error of the predicted time
    nine_of_ten: _Share  # of nine programs in ten at most
    worst: _Share
    direction: _Share  # of the programs told right to be faster or slower than serial
    # low, high: at least nine measured times in ten are from `low` to `high` times the predicted
    low: _Share
    high: _Share

    @property
    def in_short(self) -> str:
        """The family, its mean error, and that of nine in ten at most."""
        part = " (fitted in part)" if self.family in EARLY else ""
        return f"{self.family} {show_percent(self.mean)}, {show_percent(self.nine_of_ten)}{part}"

    def to_toml(self) -> str:
        """Return the table ``[[errors]]`` of a GPU's file."""
        lines = ["[[errors]]"]
        for name, value in self._asdict().items():
            shown = toml_text(value) if isinstance(value, str) else f"{round(value, 4):g}"
            lines.append(f"{name} = {shown}")
        return "\n".join(lines) + "\n"


def with_errors(file: str, errors: Iterable[MeasuredErrors]) -> str:
    """Return the text of a GPU's file with these errors, which replace those that it has."""
    rest = re.sub(r"\n*^\[\[errors\]\]\n(?:[^\[\n].*\n)*", "\n", file, flags=re.MULTILINE)
    return "\n".join([f"{rest.rstrip()}\n", *(each.to_toml() for each in errors)])


_MOST_ITEMS = 1000
Text = Annotated[str, short_text]
Texts = Annotated[tuple[str, ...], items(short_text, "a list of texts", most=_MOST_ITEMS)]
_LARGEST_SIZE = 1 << 50  # bytes


class Source(NamedTuple):
    """Where numbers of a GPU model come from."""

    title: Text  # of the document
    numbers: Texts  # fields of `Gpu` that it gives
    url: Text = ""


_count = whole(1, LARGEST_PARAMETER)
_rate = real(SLOWEST_MEMORY, FASTEST_MEMORY)


def _share(value: object) -> float:
    share: float = _rate(value)
    if share >= 1:
        raise ValueError("a number below 1")
    return share


def _size(value: object) -> int:
    if isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,15}) ?([KMG])iB", value)):
        value = int(match[1]) << {"K": 10, "M": 20, "G": 30}[match[2]]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _LARGEST_SIZE:
        raise ValueError('a number of bytes, or "N KiB" or "N MiB"')
    return value


def read_sources(value: object) -> tuple[Source, ...]:
    """Take tables that say where numbers come from."""
    try:
        return tuple(Source(**each) for each in items(record(*fields_of(Source)), "")(value))
    except (TypeError, ValueError):
        found = "tables with title, numbers (names of keys) and perhaps url"
        raise ValueError(found) from None


def _errors(value: object) -> tuple[MeasuredErrors, ...]:
    if not isinstance(value, list) or len(value) > _MOST_ITEMS:
        raise ValueError("tables [[errors]], one a family of programs (calibrate anew)")
    return tuple(map(_errors_of_family, value))


def _errors_of_family(value: object) -> MeasuredErrors:
    known = {field.key: field.read for field in fields_of(MeasuredErrors)}
    if not isinstance(value, dict) or set(value) != set(known):
        raise ValueError(f"tables with {', '.join(known)}")
    read: dict[str, Any] = {}
    for name, reader in known.items():
        try:
            read[name] = reader(value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return MeasuredErrors(**read)


Count = Annotated[int, _count]
Counts = Annotated[
    tuple[int, ...], items(_count, "a list of whole numbers above 0", 1, _MOST_ITEMS)
]
SmCount = Annotated[int, whole(1, MOST_SMS)]
Size = Annotated[int, _size]  # in bytes
Sizes = Annotated[tuple[int, ...], items(_size, "a list of sizes", 1, _MOST_ITEMS)]
Rate = Annotated[float, _rate]
Share = Annotated[float, _share]
Part = Annotated[float, real(0, 1, "a number from 0 to 1")]
Moment = Annotated[float, real(0, 1, "microseconds, from 0 to 1")]
Errors = Annotated[tuple[MeasuredErrors, ...], _errors]
Sources = Annotated[tuple[Source, ...], read_sources]


_MODELS = Path(__file__).parent / "models"
_ARCHITECTURES = _MODELS / "architectures.toml"
_LONGEST_NAME = 100
DEFAULT_GPU = "H100 SXM"
_BRANDS = ("nvidia", "tesla", "geforce", "quadro", "amd", "instinct")
_FIRST_AMD = 600  # numbers of NVIDIA's architectures are below, AMD's above
CONSTANTS = (
    "contention", "contention_gemm32", "contention_convolution", "contention_attention",
    "contention_norm", "contention_rows", "contention_across", "block_spread", "kernel_lead_us",
    "blocks_per_us", "cluster_start_us", "fill_us",
    "graph_node_us", "graph_path_us", "graph_path_share", "graph_fork_us", "graph_wide_us",
    "graph_root_us", "graph_second_us", "graph_leaf_us", "graph_issue_us", "graph_launch_us",
    "graph_memory_us", "stream_kernel_us", "stream_turn_us", "stream_event_us",
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
    graph_wide_us: Rate | None = None  # more, between a node and each of more than six
    graph_root_us: Rate | None = None  # for each further node that waits for none
    graph_second_us: Rate | None = None  # the same where there are two
    graph_leaf_us: Rate | None = None  # more of each, for each node that none waits for
    graph_issue_us: Rate | None = None  # of the host, for each node that waits for none
    graph_launch_us: Rate | None = None  # once
    stream_kernel_us: Rate | None = None  # to take a kernel from one of several streams
    stream_turn_us: Rate | None = None  # before the first kernels of n streams, n * n times
    stream_event_us: Rate | None = None  # after an event of another stream
    graph_memory_us: Rate | None = None  # of a memset or a copy, beyond its profiled time
    device_stall_cycles: Rate | None = None  # of a warp by a launch from the device
    device_lane_cycles: Rate | None = None  # more for each lane that launches
    device_dispatch_cycles: Rate | None = None  # of each child, one after another, before slots
    device_finish_cycles: Rate | None = None  # until its parent knows that a child has ended
    contention: Rate | None = None  # how blocks on one SM slow each other: see `SmSharing`
    contention_gemm32: Rate | None = None  # the same of products in FP32 without tensor cores
    contention_convolution: Rate | None = None  # the same of convolutions in FP32
    contention_attention: Rate | None = None  # the same of attention by tiles
    contention_norm: Rate | None = None  # the same of norms of layers
    contention_rows: Rate | None = None  # the same of what reduces, scans or norms rows otherwise
    contention_across: Part | None = None  # part of it between attention and other kernels
    block_spread: Share | None = None  # by how much blocks of a kernel on one SM differ
    kernel_lead_us: Rate | None = None  # of a kernel's measured time, what holds no SM
    blocks_per_us: Rate | None = None  # that the GPU takes back from SMs
    # After the first cluster, how long other blocks go where none can stand.
    cluster_start_us: Rate | None = None
    fill_us: Moment | None = None  # for each further block that an empty SM takes at once
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
    def graph(self) -> str:
        """What its vendor calls launches that are submitted as one."""
        return "HIP graph" if self.vendor == "AMD" else "CUDA graph"

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
    return _gpu_called(name)


@cache
def _gpu_called(name: str) -> Gpu:
    wanted = _plain(name)
    paths = _models()
    if wanted in paths:
        return _packaged(paths[wanted])
    known: dict[str, str] = {}
    # A file that has the name somewhere comes first: few need be read.
    for path in sorted(
        paths.values(), key=lambda path: wanted not in _plain(path.read_text("utf-8"))
    ):
        gpu = _packaged(path)
        if gpu.goes_by(name):
            return gpu
        known |= {_plain(label): gpu.name for label in (gpu.name, *gpu.aliases)}
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
        architectures = _architectures()
        key = f"sm_{own.get('architecture')}"
        given = {**architectures.get(key, architectures["common"])}
        given.pop("default_gpu", None)
    sources = own.get("sources", ()) + _without(given.pop("sources", ()), own)
    values = {**given, **own, "sources": sources}
    missing = [key.name for key in fields(Gpu) if key.default is MISSING and key.name not in values]
    if missing:
        raise file.error(f"{missing[0]} is missing" + _missing_hint(own), "", None)
    gpu = Gpu(**values)
    for key, fits, expected in _rules(gpu):
        if not fits:
            file.wrong("", 0, key, getattr(gpu, key), expected)
    return gpu


def calibrated_gpu(gpu: Gpu) -> Gpu:
    """Return the GPU whose constants count: the H100 where nobody measured this one."""
    return load_gpu(DEFAULT_GPU) if gpu.contention is None else gpu


def available_gpus() -> list[Gpu]:
    """All packaged models, by architecture and name."""
    return sorted(map(_packaged, _models().values()), key=lambda gpu: (gpu.architecture, gpu.name))


def gpu_for_architecture(architecture: int) -> Gpu:
    """Return the model to take for a trace that names only its SASS version, such as 90."""
    tables = _architectures()
    key = compiler_target(architecture)
    if "default_gpu" not in tables.get(key, {}):
        known = ", ".join(name for name, table in tables.items() if "default_gpu" in table)
        raise ModelError(
            f"no GPU model has architecture {key} (known: {known}); "
            "name a GPU with --gpu NAME or describe one with --gpu-file FILE"
        )
    return load_gpu(tables[key]["default_gpu"])


def _plain(name: str) -> str:
    key = "".join(filter(str.isalnum, name.casefold()))
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
        source._replace(numbers=tuple(key for key in source.numbers if key not in own))
        for source in sources
    )
    return tuple(source for source in kept if source.numbers)


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
