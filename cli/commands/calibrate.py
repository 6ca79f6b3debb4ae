"""``depgraph calibrate``: constants of predictions for the GPU of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from depgraph.cli.options import shared, values
from depgraph.errors import ModelError
from depgraph.system.text import one_line, show_percent

if TYPE_CHECKING:
    from depgraph.analysis.measured_programs import Measurements

_QUICK = 4
_DEFAULT = "my-gpu.toml"


@click.command("calibrate", cls=shared.Command)
@click.option(
    "-o", "--output", type=values.PATH, default=_DEFAULT, show_default=True,
    metavar="TOML", help="GPU model to write.",
)  # fmt: skip
@click.option("--quick", is_flag=True, help="Measure each fourth program only.")
@click.option(
    "--from", "source", type=values.PATH, metavar="FILE",
    help="Fit to what --keep wrote, here or on another machine, instead of measuring.",
)  # fmt: skip
@click.option(
    "--keep", type=values.PATH, metavar="FILE",
    help="Write what was measured, to a .json or .json.xz.",
)  # fmt: skip
@click.option(
    "--gpu", "name", metavar="NAME",
    help="GPU whose limits apply [default: by the name of the one measured].",
)  # fmt: skip
@shared.format_option
@shared.force_option
def command(
    *,
    output: Path,
    quick: bool,
    source: Path | None,
    keep: Path | None,
    name: str | None,
    force: bool,
) -> None:
    """Measure this machine's GPU and fit the constants of predictions to it.

    Runs 209 small programs of PyTorch kernels, one kernel after another and beside one another,
    for a minute or two, fits how kernels that share the GPU slow each other to one half of them,
    and finds with the other half how far predictions are off. Writes a GPU model for --gpu, whose
    errors reports then quote. Needs PyTorch and an NVIDIA GPU that nobody else uses; --from needs
    neither.
    """
    from depgraph.analysis.calibration import calibrate, model_of, to_toml
    from depgraph.parsers.measurements import read_measurements
    from depgraph.reports.tables.machine_tables import calibration_report
    from depgraph.scenario.of_store import named_gpu
    from depgraph.system.output import new_file, refuse_existing

    if source is not None and (quick or keep is not None):
        message = f"{'--quick' if quick else '--keep'} is about measuring, --from does not measure"
        raise click.UsageError(message)
    given = None if name is None else named_gpu(name)
    for path in (output, keep):
        if path is not None:
            refuse_existing(path, force=force)
    if source is None:
        found = _measured(keep, quick=quick, force=force)
    else:
        found = read_measurements(source)
    gpu = model_of(found, given)
    shared.say(f"fitting to {sum(p.half == 0 for p in found.programs)} programs: some minutes")

    def on_round(done: int, rounds: int, error: float) -> None:
        shared.say(f"round {done} of {rounds}: mean error {show_percent(error)}")

    calibration = calibrate(found, gpu, on_round)
    with new_file(output, force=force) as file:
        file.write_text(to_toml(calibration), encoding="utf-8")
    shared.print_report(calibration_report(calibration))
    shared.wrote(output)


def _measured(keep: Path | None, *, quick: bool, force: bool) -> Measurements:
    from depgraph.parsers.measurements import measurements_of
    from depgraph.samples.validation import write_measurements
    from depgraph.system.output import new_file

    measurer = _measurer()
    programs = measurer.all_programs()[:: _QUICK if quick else 1]
    shared.say(f"measuring {len(programs)} programs")
    result: dict[str, Any] = {}
    for number, (row, so_far) in enumerate(measurer.measure_all(programs, brief=True), 1):
        result = so_far
        if "error" in row:
            shared.say(one_line(f"{row['name']}: {row['error']}"))
        elif number % 20 == 0:
            shared.say(f"{number} of {len(programs)} programs")
    if keep is not None:
        with new_file(keep, force=force) as file:
            write_measurements(file, result)
        shared.wrote(keep)
    return measurements_of(result, "this machine")


def _measurer() -> Any:
    """Return what measures on this machine's GPU, `depgraph.samples.validation.measure`."""
    hint = "or fit to what was measured elsewhere: --from FILE"
    try:
        import torch
    except (ImportError, OSError) as error:
        message = f"measuring needs PyTorch ({one_line(str(error))}): pip install torch, {hint}"
        raise ModelError(message) from None
    if not torch.cuda.is_available() or torch.version.cuda is None:
        message = f"measuring needs an NVIDIA GPU; PyTorch {torch.__version__} sees none; {hint}"
        raise ModelError(message)
    from depgraph.samples.validation import measure

    return measure
