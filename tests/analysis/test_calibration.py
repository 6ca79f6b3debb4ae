"""Fitting constants to measurements: what made the times is found again."""

from dataclasses import replace

import pytest
from measured import (
    SMS,
    measurements_of_machine,
    programs_of_classes,
    short_programs,
    small_programs,
)

from depgraph.analysis import calibration
from depgraph.analysis.calibration import calibrate, model_of, to_toml, with_constants
from depgraph.analysis.measured_programs import (
    chain_time,
    errors_of,
    graph_time,
    predict_graph,
    streams_time,
)
from depgraph.errors import ModelError
from depgraph.gpu.model import CONSTANTS, load_gpu, load_gpu_file
from depgraph.parsers.measurements import read_measurements
from depgraph.samples import sample_path

H100 = load_gpu("H100 SXM")
PART = replace(H100, sms=SMS)
CLASSES = (
    "contention_gemm32", "contention_convolution", "contention_attention", "contention_norm",
    "contention_rows",
)  # fmt: skip
LAUNCHES = (
    "graph_path_us", "graph_path_share", "graph_root_us", "graph_leaf_us",
    "stream_kernel_us", "stream_turn_us", "stream_event_us",
)  # fmt: skip
PACKAGED = "validation/measured/h100.json.xz"


def of_family(family, errors):
    return next(each for each in errors if each.family == family)


def measured_by(gpu, programs):
    """Let programs take as long as they would on a GPU with these constants."""
    scenarios = [program.scenario(gpu, "full") for program in programs]
    return [
        replace(p, parallel=graph_time(s), serial=chain_time(s), streams_ahead=streams_time(s))
        for p, s in zip(programs, scenarios, strict=True)
    ]


@pytest.fixture(scope="module")
def found():
    """Return what is fitted to programs on a GPU of which the contention is not known yet."""
    programs = measured_by(with_constants(PART, {"contention": 1.0}), small_programs())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "_FACTORS", calibration._FACTORS[:2])
        return calibrate(measurements_of_machine(programs), PART)


@pytest.mark.slow
@pytest.mark.jit_only
def test_the_constants_that_made_the_times_are_found_again(found):
    assert found.gpu.contention == pytest.approx(1.0, rel=0.3)
    assert found.gpu.graph_root_us == pytest.approx(PART.graph_root_us, rel=0.25)
    fans, before = of_family("fans", found.errors), of_family("fans", found.before)
    assert fans.mean < 0.03 < before.mean
    assert of_family("fans", found.fitted).mean < 0.03


@pytest.mark.slow
@pytest.mark.jit_only
@pytest.mark.parametrize(
    ("gpu", "rounds", "programs", "constants"),
    [
        (PART, 2, short_programs(), {n: 2 * getattr(PART, n) for n in LAUNCHES}),
        (
            H100,
            3,
            programs_of_classes(),
            dict(zip(CLASSES, (1.0, 1.5, 0.25, 0.2, 0.6), strict=True)),
        ),
    ],
)
def test_each_constant_that_made_the_times_is_found_again(
    monkeypatch, gpu, rounds, programs, constants
):
    monkeypatch.setattr(calibration, "_FACTORS", calibration._FACTORS[:rounds])
    times = measured_by(with_constants(gpu, constants), programs)
    found = calibrate(measurements_of_machine(times, sms=gpu.sms), gpu)
    assert not set(constants) & set(found.taken_over)
    assert {n: getattr(found.gpu, n) for n in constants} == {
        n: pytest.approx(constants[n], rel=0.3) for n in constants
    }


@pytest.mark.slow
@pytest.mark.jit_only
def test_constants_that_nothing_tells_of_stay():
    chain = [p for p in small_programs() if p.kind == "chain"]
    programs = [replace(p, half=i % 2) for i, p in enumerate(chain * 8)]
    found = calibrate(measurements_of_machine(measured_by(PART, programs)), PART)
    assert {n: getattr(found.gpu, n) for n in CONSTANTS} == {n: getattr(PART, n) for n in CONSTANTS}


@pytest.mark.slow
@pytest.mark.jit_only
@pytest.mark.timeout(1800)  # seven minutes of CPU time
def test_the_packaged_measurements_give_the_constants_and_errors_of_the_h100():
    """With another contention to begin with; of the path a share of each kernel's time decides."""
    found = read_measurements(sample_path(PACKAGED))
    fitted = calibrate(found, with_constants(model_of(found), {"contention": 1.0}))
    for name in ("contention", "block_spread", "kernel_lead_us", "graph_root_us"):
        assert getattr(fitted.gpu, name) == pytest.approx(getattr(H100, name), rel=0.6), name
    assert of_family("fans", fitted.fitted).mean < 0.08
    assert of_family("fans", fitted.errors).mean < 0.11
    assert of_family("chains", fitted.errors).programs == 104


def test_too_few_programs_are_refused():
    found = measurements_of_machine(small_programs()[:3])
    with pytest.raises(ModelError, match=r"3 programs were measured, \d to fit .* at least 8"):
        calibrate(found, PART)


@pytest.mark.parametrize(
    ("machine", "name", "sms"),
    [
        ({"gpu": "NVIDIA H100 80GB HBM3", "sms": 132}, "H100 SXM", 132),
        ({"gpu": "NVIDIA H100 80GB HBM3", "sms": 60}, "H100 SXM", 60),  # a part of it
        ({"gpu": "NVIDIA New", "architecture": 80, "sms": 90}, "NVIDIA New", 90),
    ],
)
def test_limits_are_those_of_the_gpu_or_of_its_architecture(machine, name, sms):
    found = model_of(measurements_of_machine([], **machine))
    assert (found.name, found.sms) == (name, sms)
    assert found.architecture == machine.get("architecture", 90)


def test_a_gpu_of_which_nothing_is_known_needs_a_name():
    found = measurements_of_machine([], gpu="NVIDIA New")
    with pytest.raises(ModelError, match=r"there is no model of NVIDIA New, .* with --gpu"):
        model_of(found)
    assert model_of(found, load_gpu("A100")).architecture == 80


def assert_read_again(path, fitted):
    path.write_text(to_toml(fitted), encoding="utf-8")
    gpu = load_gpu_file(path)
    found = fitted.measurements
    assert gpu.goes_by(found.gpu)
    assert (gpu.sms, gpu.architecture) == (found.sms, found.architecture or 90)
    assert {n: getattr(gpu, n) for n in CONSTANTS} == {n: getattr(fitted.gpu, n) for n in CONSTANTS}
    families = [(e.family, e.programs, e.gpu) for e in fitted.errors]
    assert [(e.family, e.programs, e.gpu) for e in gpu.errors] == families


@pytest.mark.slow
@pytest.mark.jit_only
def test_what_is_written_is_read_again(tmp_path, found):
    assert_read_again(tmp_path / "mine.toml", found)


@pytest.mark.jit_only
def test_what_is_written_of_a_gpu_without_a_model_is_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(calibration, "_FACTORS", ())  # whatever its constants are
    machine = {"gpu": 'NVIDIA "New"', "architecture": 80, "sms": 90}
    measured = measurements_of_machine(measured_by(PART, small_programs()), **machine)
    assert_read_again(tmp_path / "mine.toml", calibrate(measured, model_of(measured)))


def test_errors_are_summed_up():
    # +10 %, -20 %, +50 %: slower than serial; the first gains nothing worth telling.
    errors = errors_of("fans", "GPU", [11, 4, 12], [10, 5, 8], [10, 10, 10])
    assert (errors.programs, errors.worst) == (3, pytest.approx(0.5))
    assert errors.mean == pytest.approx((0.1 + 0.2 + 0.5) / 3)
    assert errors.direction == pytest.approx(2 / 3)
    assert (errors.low, errors.high) == (pytest.approx(8 / 12), pytest.approx(5 / 4))


def test_a_range_reaches_from_the_prediction_to_all_that_was_measured():
    errors = errors_of("fans", "GPU", [10] * 4, [11, 12, 13, 14], [10] * 4)
    assert (errors.low, errors.high) == (1, 1.4)


MACHINES = ("h100", "h100-unseen", "h200")
ALL = [pytest.param(name, 1, marks=pytest.mark.slow) for name in MACHINES]


@pytest.mark.jit_only
@pytest.mark.parametrize(("name", "step"), [("h100-unseen", 6), *ALL])
def test_nine_in_ten_programs_that_nothing_was_fitted_to_fall_into_the_printed_range(name, step):
    """Of an H200, by what an H100 and its other half told."""
    found = read_measurements(sample_path(f"validation/measured/{name}.json.xz"))
    gpu = load_gpu(found.gpu)
    if name == "h200":
        gpu = replace(gpu, errors=H100.errors)
    unfitted = [program for program in found.programs if program.half == 1]
    predictions = [
        predict_graph(program, gpu, as_chain=as_chain)
        for program in unfitted[::step]
        for as_chain in (False, True)
    ]
    inside = [p.found.low_us <= p.measured <= p.found.high_us for p in predictions]
    in_parallel = [within for p, within in zip(predictions, inside, strict=True)
                   if p.family != "chains"]  # fmt: skip
    assert sum(inside) >= 0.9 * len(inside)
    assert sum(in_parallel) >= 0.9 * len(in_parallel)
    assert not any(p.time < p.bound * (1 - 1e-9) for p in predictions)
