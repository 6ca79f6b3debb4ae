"""The traces that are measured: the packaged sample, and real ones where they are at hand."""

from __future__ import annotations

import argparse
import lzma
import re
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from figures import section
from measure import ROOT

from depgraph.samples import sample_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from figures import Figure

SAMPLE = "gru_train"
_TOY_LINES = 300
_ACCESS = re.compile(rb" grid_launch_id ([01]) - CTA .* - (?:LDG|STG)\.")


@dataclass(frozen=True, slots=True)
class Options:
    """What every program here can be told."""

    work: Path  # folder for intermediate files
    repeat: int  # counted rounds of each measurement
    cores: list[int]  # numbers of processors to measure with
    quick: bool  # only the packaged sample, to see that the program works
    data: Path  # folder with ``nvbit/NAME.log.xz`` and ``accelsim/NAME``; need not exist
    logs: Path | None  # folder with ``NAME.log``, unpacked before


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that all programs share."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="traces")
    result.add_argument("--logs", type=Path, help="folder with NAME.log, unpacked before")
    result.add_argument("--work", type=Path, help="folder for intermediate files (10 GB and more)")
    result.add_argument("--repeat", type=int, default=5, help="counted rounds (default 5)")
    result.add_argument("--cores", type=int, nargs="+", default=[4, 2], help="default 4 2")
    result.add_argument("--quick", action="store_true", help="only see that the program works")
    return result


@contextmanager
def options(arguments: argparse.Namespace) -> Iterator[Options]:
    """Yield the options, with a folder to work in that is deleted afterwards."""
    with tempfile.TemporaryDirectory(prefix="depgraph-bench.", dir=arguments.work) as folder:
        yield Options(
            Path(folder),
            1 if arguments.quick else arguments.repeat,
            arguments.cores[:1] if arguments.quick else arguments.cores,
            arguments.quick,
            arguments.data,
            arguments.logs,
        )


def packed_log(chosen: Options, name: str) -> Path | None:
    """Return the ``.log.xz`` of a program; None where it is not at hand."""
    path = sample_path() if name == SAMPLE else chosen.data / "nvbit" / f"{name}.log.xz"
    return path if path.is_file() else None


def plain_log(chosen: Options, name: str) -> Path | None:
    """Return the unpacked log of a program, unpacking it if need be; None without one."""
    if chosen.logs is not None and (chosen.logs / f"{name}.log").is_file():
        return chosen.logs / f"{name}.log"
    packed = packed_log(chosen, name)
    if packed is None:
        return None
    path = chosen.work / f"{name}.log"
    if not path.exists():
        with lzma.open(packed) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    return path


def toy_log(chosen: Options) -> Path:
    """Return a log with two launches and some accesses of the packaged sample: start-up alone."""
    path = chosen.work / "toy.log"
    if path.exists():
        return path
    left = {b"0": _TOY_LINES, b"1": _TOY_LINES}
    with lzma.open(sample_path()) as source, path.open("wb") as target:
        for line in source:
            if b" - LAUNCH - " in line:
                if b" - grid launch id 0 " in line or b" - grid launch id 1 " in line:
                    target.write(line)
            elif (access := _ACCESS.search(line)) and left[access[1]]:
                left[access[1]] -= 1
                target.write(line)
            if not any(left.values()):
                break
    return path


def accelsim_trace(chosen: Options, name: str, n_bytes: int) -> Path | None:
    """Return a folder with the kernels of an Accel-Sim trace, repeated to at least a size."""
    folders = ROOT / "samples" / "accelsim" / name, chosen.data / "accelsim" / name
    source = next((folder for folder in folders if folder.is_dir()), None)
    if source is None:
        return None
    files = sorted(source.glob("kernel-*.traceg.xz"), key=_kernel_number)
    texts = [lzma.decompress(file.read_bytes()) for file in files]
    folder = chosen.work / f"accelsim-{name}"
    folder.mkdir()
    names: list[str] = []
    written = 0
    while written < n_bytes:
        for text in texts:
            number = len(names) + 1
            names.append(f"kernel-{number}.traceg")
            kernel_id = b"-kernel id = %d" % number
            renamed = re.sub(rb"^-kernel id = \d+", kernel_id, text, count=1, flags=re.MULTILINE)
            written += (folder / names[-1]).write_bytes(renamed)
    (folder / "kernelslist.g").write_text("\n".join(names) + "\n")
    return folder


def _kernel_number(file: Path) -> int:
    return int(file.name.split("-")[1].split(".")[0])


def main(
    description: str | None,
    title: str,
    measure: Callable[[Options], Sequence[Figure]],
    arguments: Sequence[str] | None = None,
) -> None:
    """Measure with the options of the command line, and print the figures."""
    with options(parser(description).parse_args(arguments)) as chosen:
        print(section(title, measure(chosen)))
