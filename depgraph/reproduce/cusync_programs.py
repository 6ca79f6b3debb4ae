"""cuSync: two matrix products of an MLP, two convolutions of ResNet, as published and as here."""

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np

from depgraph.analysis.measured_programs import errors_of
from depgraph.extraction.workload import WorkloadDependence, WorkloadKernel, workload_extraction
from depgraph.gpu.model import MeasuredErrors, load_gpu
from depgraph.mechanisms import Quantity
from depgraph.mechanisms.base import ChangedCosts
from depgraph.reproduce.figures import Figure, Inputs, Published
from depgraph.reproduce.programs import Tiled, geometric_mean, makespan, scenario_of, tiled
from depgraph.system.arrays import grouped
from depgraph.timing.program_times import parse_launch

# Columns of the two matrix products of an MLP on one of eight GPUs, as microsoft/cusync runs them
# (src/ml-bench/transformer/eval_mlp.py): GPT-3 has a hidden size of 12288, LLaMA of 8192.
_MLP_COLUMNS = {"gpt3": (6144, 12288), "llama": (5632, 8192)}
# Those columns times these are the weights, of two bytes each.
_MLP_DEPTH = {"gpt3": (12288, 6144), "llama": (8192, 2816)}
# Height and width of the images of ResNet's layers by number of channels (eval_resnet.py).
_IMAGE = {64: 56, 128: 28, 256: 14, 512: 7}
# A step of LLaMA's second product needs two tiles of the first, half a row apart.
_TILES = {"gpt3": "cusync-tile", "llama": "cusync-strided(2)"}
# What a launch takes between two kernels, in the times of both, and hidden by cuSync: section 5.
_INVOCATION_US = 6.0
_RULE_ALONE: ChangedCosts = {
    policy: {"sync": Quantity(0, "share")} for policy in ("cusync-row", "cusync-tile")
}
_MLPS = {"llama_mlp_2048": ("cusync-row",), "llama_mlp_1024": ("cusync-row", "cusync-strided(2)")}


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a table of the authors, in microseconds."""

    gpu: str
    program: str
    size: str
    policy: str
    serial: float
    measured: float
    predicted: float


def reproduce(published: Published) -> Iterator[Figure]:
    """Predict all lines of both tables, the first figure, and the largest matrix products."""
    inputs = published.inputs
    groups = grouped([*mlp(inputs), *conv2d(inputs)], attrgetter("gpu", "program", "policy"))
    published.notes += [_errors(name, cases) for name, cases in groups.items()]
    free = _errors_of(list(conv2d(inputs, invocation=0.0))).direction
    published.notes.append(
        f"were launches free, ResNet's convolutions would be told faster or slower right in "
        f"{free:.0%}: most have no wave less than before, and gain a launch alone"
    )
    scenario = scenario_of(inputs.workload("cusync_toy"), "V100", 4)
    for policy in ("serial", "cusync-row", "cusync-tile"):
        yield published.figure(f"toy {policy}", makespan(scenario, policy, _RULE_ALONE))
    # LLaMA's MLP on a V100 from the times of its blocks, which fill the GPU.
    for name, policies in _MLPS.items():
        scenario = scenario_of(inputs.workload(name), "V100")
        for policy in ("serial", *policies):
            yield published.figure(f"{name} {policy}", makespan(scenario, policy))
    yield from _groups(published, groups)


def _groups(
    published: Published, groups: Mapping[tuple[str, str, str], list[Case]]
) -> Iterator[Figure]:
    for (gpu, program, policy), cases in groups.items():
        if policy == "stream-k":
            continue
        ours = geometric_mean(case.serial / case.predicted for case in cases)
        paper = geometric_mean(case.serial / case.measured for case in cases)
        yield published.figure(
            f"{program} {policy}", ours, paper, gpu=gpu, policy=policy, n=len(cases)
        )


def _errors(name: tuple[str, ...], cases: Sequence[Case]) -> str:
    """Say in one line how far the times of single programs are off."""
    errors = _errors_of(cases)
    return (
        f"{name[1]}, {name[0]}, {name[2]}: times of {len(cases)} programs off by {errors.mean:.1%} "
        f"in the mean, {errors.worst:.1%} at most; faster or slower right in {errors.direction:.0%}"
    )


def _errors_of(cases: Sequence[Case]) -> MeasuredErrors:
    times = np.array([(case.predicted, case.measured, case.serial) for case in cases])
    return errors_of("", "", *times.T)


def mlp(inputs: Inputs) -> Iterator[Case]:
    """Predict two matrix products of an MLP: rows, tiles, Stream-K."""
    for line in _lines(inputs, "cusync_mlp.csv"):
        if line["policy"] == "baseline":
            continue
        gpu, model, tokens = line["gpu"], line["model"], int(line["tokens"])
        products = [
            tiled(
                gpu, tokens, _MLP_COLUMNS[model][i], line[f"tile_{i + 1}"],
                int(line[f"stages_{i + 1}"]), int(line[f"split_{i + 1}"]),
            )
            for i in (0, 1)
        ]  # fmt: skip
        times = [float(line[f"kernel_{i}_us"]) for i in (1, 2)]
        dependence = _rows_that_meet(*products)
        policy = f"cusync-{line['policy']}"
        if line["policy"] == "stream-k":
            policy = "stream-k"
        elif line["policy"] == "tile":
            policy = _TILES[model]
        if line["policy"] == "tile" and dependence.pattern == "row":
            even = model == "llama" and products[0].columns % 2 == 0
            dependence = WorkloadDependence(0, 1, "strided" if even else "tile")
        weights = 2 * int(np.dot(_MLP_COLUMNS[model], _MLP_DEPTH[model]))
        yield Case(
            gpu, "MLP", f"{model}, {tokens} tokens", policy, float(line["serial_us"]),
            float(line["measured_us"]), _time(products, times, dependence, gpu, policy, weights),
        )  # fmt: skip


def conv2d(inputs: Inputs, invocation: float = _INVOCATION_US) -> Iterator[Case]:
    """Predict two equal 3 x 3 convolutions of ResNet as implicit matrix products."""
    for line in _lines(inputs, "cusync_conv2d.csv"):
        if line["policy"] == "baseline":
            continue
        gpu, batch, channels = line["gpu"], int(line["batch"]), int(line["channels"])
        side, serial = _IMAGE[channels], float(line["serial_us"])
        product = tiled(gpu, batch * side * side, channels, line["tile"], 2, int(line["split"]))
        policy = "cusync-row" if line["policy"] == "row" else "cusync-conv2d(3,3)"
        # A pixel needs those around it: one row of the image, and a pixel, before and after.
        dependence = _rows_that_meet(product, product, reach=side + 1)
        yield Case(
            gpu, "ResNet", f"batch {batch}, {channels} channels", policy, serial,
            float(line["measured_us"]),
            _time([product] * 2, [serial / 2] * 2, dependence, gpu, policy, invocation=invocation),
        )  # fmt: skip


def _lines(inputs: Inputs, name: str) -> Iterator[dict[str, str]]:
    with inputs.path(f"papers/{name}").open(encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def _time(
    products: Sequence[Tiled],
    times: Sequence[float],
    dependence: WorkloadDependence,
    gpu: str,
    policy: str,
    bytes_read: int = 0,
    invocation: float = _INVOCATION_US,
) -> float:
    """Return the microseconds of two products, each with its launch in its own time."""
    sms = load_gpu(gpu).sms
    kernels: list[WorkloadKernel] = [
        product.kernel(f"product_{i}", max(time - invocation, 0.0), sms)
        for i, (product, time) in enumerate(zip(products, times, strict=True))
    ]
    extraction = workload_extraction(kernels, [dependence], unit="us", metadata={})
    if dependence.pattern == "edges":  # which says nothing of when a block is needed
        graph = replace(extraction.graph, first_use=None, last_use=None)
        extraction = replace(extraction, graph=graph)
    launch = parse_launch(f"0,{invocation},0")
    return makespan(scenario_of(extraction, gpu, launch=launch, bytes_read=bytes_read), policy)


def _rows_that_meet(first: Tiled, second: Tiled, *, reach: int = 0) -> WorkloadDependence:
    """Let each tile of the second wait for the tiles of the first that hold rows it needs."""
    if first.height == second.height and not reach:
        return WorkloadDependence(0, 1, "row")
    edges = [
        (before * first.columns + i, after * second.columns + j)
        for after in range(second.rows)
        for before in range(first.rows)
        if before * first.height < (after + 1) * second.height + reach
        and (before + 1) * first.height > after * second.height - reach
        for i in range(first.columns)
        for j in range(second.columns)
    ]
    return WorkloadDependence(0, 1, "edges", edges=edges)
