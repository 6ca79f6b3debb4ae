"""Cases in which what a user gives is damaged: a trace, a profile, a file or an option."""

from pathlib import Path

import numpy as np
from faults import damage, inputs, readings
from faults.ending import ANSWERED, MEMORY, REFUSED, SAID, SAME, files, no_litter
from faults.ground import edges_in
from faults.profiles import profiles
from faults.program import SILENT, Finding, run

from depgraph.parsers.profiles import read_profile
from depgraph.store.store import Store

SMALL = ("chain", "other", "positions", "lines", "copies", "described")

# Traces


def trace(rng, ground):
    """Damage a trace of any format and packing; extract it, check it, ask its store."""
    name = rng.choice([*sorted(ground.traces), *sorted(readings.TRACES) * 2])
    others = list(ground.traces.values())
    for file, text in inputs.kernel_files(name).items():
        Path(file).write_bytes(text)
    packing = rng.choice(["plain"] * 3 + list(inputs.PACKERS))
    data = ground.traces[name]
    if packing == "plain" or rng.random() < 0.5:
        mutations = damage.TEXT if rng.random() < 0.6 else damage.NUMBERS + damage.LINES
        data, done = damage.damaged(data, rng, others, mutations)
        packed = inputs.PACKERS[packing](data)
    else:
        packed = inputs.PACKERS[packing](data)
        packed, done = damage.damaged(packed, rng, others, damage.PACKED)
        done = f"packed {done}"
    about = f"{name}, {packing}, {done}"
    path = Path(inputs.file_name(name))
    path.write_bytes(packed)
    given = Path() if name == "chain kernel" and rng.random() < 0.5 else path
    before = files()
    words = ["-o", "out", "-j", rng.choice([1, 2]), *MEMORY]
    words += ["--allow-damaged"] * (rng.random() < 0.4)
    words += ["--granularity", "32"] * (rng.random() < 0.1)
    words += ["--resume"] * (rng.random() < 0.1)
    words += ["--kernels", "1:3"] * (rng.random() < 0.05)
    words += ["--positions"] * (name.startswith("nvbit") and rng.random() < 0.1)
    outcome = run("extract", given, *words)
    is_kept = "--resume" in words and outcome.code
    no_litter(before | ({"out.partial"} if is_kept else set()), outcome, ["out"])
    if rng.random() < 0.3:
        before = files()
        no_litter(before, run("check", given, "--format", rng.choice(["table", "json"])))
    if outcome.code:
        return REFUSED, about
    asked, _ = ground.ask(
        "out",
        rng.choice(["bound", "pairs", "path", "blocks", "graph", "schedule", "renamed", "timing"]),
    )
    metadata = Store("out").metadata
    is_told = metadata["warnings"] or metadata["skipped"].keys() - ground.left_out(name).keys()
    if outcome.said or asked.said or is_told:
        return SAID, about
    is_part = name == "chain kernel" and given == path
    if {"--granularity", "--kernels"} & set(words) or is_part:
        return ANSWERED, about
    return compare_with_reading(name, metadata["format"], path, about)


def compare_with_reading(name, found_format, path, about):
    """Compare the edges with those of a slow reading, where there is one."""
    try:
        data = inputs.unpacked(path.read_bytes())
    except Exception as error:  # noqa: BLE001 - of any of the four
        raise Finding(SILENT, f"{about}: read whole, but {error}") from None
    its_format, read = readings.TRACES.get(name, (None, None))
    if found_format != its_format:
        return ANSWERED, about
    try:
        expected = read(data, Path())
    except readings.UnreadableError:
        return ANSWERED, about
    except Exception as error:  # noqa: BLE001 - a line that makes no sense to it
        raise Finding(SILENT, f"{about}: read whole, but {error!r}"[:500]) from None
    found = edges_in("out")
    if found != expected:
        lost, more = sorted(expected - found)[:3], sorted(found - expected)[:3]
        text = f"{about}: {len(found)} edges, not {len(expected)}: without {lost}, with {more}"
        raise Finding(SILENT, text)
    return SAME, about


# Profiles


def profile(rng, ground):
    """Damage a profile of any format; match it with a trace, and bound with its times."""
    name = rng.choice(sorted(ground.profiles))
    data = ground.profiles[name]
    others = list(ground.profiles.values())
    own = {"kineto": damage.json_value, "nsys-sqlite": damage.sqlite_content}.get(name)
    mutations = [*damage.TEXT, *([own] * len(damage.TEXT) if own else [])]
    binary = name in {"nsys-sqlite", "blocks-parquet", "chakra"}
    mutations = [own] * bool(own) + list(damage.BYTES) if binary else mutations
    data, done = damage.damaged(data, rng, others, mutations)
    packing = "plain" if binary or rng.random() < 0.8 else rng.choice(list(inputs.PACKERS))
    about = f"{name}, {packing}, {done}"
    path = Path("profile")
    path.write_bytes(inputs.PACKERS[packing](data))
    store = ground.stores["chain"]
    before = files()
    ends = [
        run("timing", path, store, "--format", rng.choice(["table", "json"])),
        run("bound", store, "--timing", path, "--sms", "4", "--format", "json"),
    ]
    if rng.random() < 0.1:
        ends.append(run("export", store, "--what", "schedule", "--sms", "2", "--timing", path,
                        "-o", "made.csv"))  # fmt: skip
        Path("made.csv").unlink(missing_ok=True)
    no_litter(before, ends[0])
    if ends[0].code or ends[1].code:
        return REFUSED, about
    if packing != "plain" or name not in readings.PROFILES:
        return ANSWERED, about
    return compare_times(name, path, about, ends)


def compare_times(name, path, about, ends):
    """Compare the times with those of a slow reading, where there is one."""
    read = read_profile(path)
    if any(end.said for end in ends) or getattr(read, "skipped", None):
        return SAID, about
    if read.format != name:
        return ANSWERED, about
    Path("whole").write_bytes(profiles()[name])
    if set(read.notes) - set(read_profile(Path("whole")).notes):
        return SAID, about
    try:
        expected = readings.PROFILES[name](path)
    except readings.UnreadableError:
        return ANSWERED, about
    except Exception as error:  # noqa: BLE001 - of csv, json, sqlite3, or a number that is none
        raise Finding(SILENT, f"{about}: read whole, but {error!r}"[:500]) from None
    found = read.duration * (1000 if name == "blocks-csv" else 1)
    if len(found) != len(expected) or not np.allclose(sorted(found), sorted(expected), rtol=1e-9):
        raise Finding(SILENT, f"{about}: times {found.tolist()[:20]}, not {expected[:20]}")
    return SAME, about


# What users write


def workload(rng, ground):
    """Damage the description of a program; extract it and bound it."""
    name = rng.choice(sorted(ground.workloads))
    others = list(ground.workloads.values())
    data, done = damage.damaged(ground.workloads[name], rng, others, damage.TOML)
    Path("some.toml").write_bytes(data)
    before = files()
    outcome = run("extract", "some.toml", "-o", "out")
    no_litter(before, outcome, ["out"])
    about = f"{name}, {done}"
    if outcome.code:
        return REFUSED, about
    ground.ask("out", rng.choice(["bound", "mechanisms", "pairs", "path", "blocks", "schedule"]))
    return ANSWERED, about


def gpu(rng, ground):
    """Damage a GPU model; bound with it."""
    name = rng.choice(sorted(ground.gpu_models))
    others = list(ground.gpu_models.values())
    data, done = damage.damaged(ground.gpu_models[name], rng, others, damage.TOML)
    Path("gpu.toml").write_bytes(data)
    store = ground.stores[rng.choice(SMALL)]
    words = ["--gpu-file", "gpu.toml", "--sms", rng.choice(["2", "1:4", "inf"])]
    outcome = run("bound", store, *words, "--format", "json")
    return REFUSED if outcome.code else ANSWERED, f"{name}, {done}"


OPTIONS = {
    "--what-if": [
        "kernel=3 duration*=0.5", "kernel=1:3 duration/=2", "kernel=layer* duration*=2", "gap=0",
        "buffer=0x7f6500001000:0x7f6500002000 drop=war,waw", "buffer=0x7f6500001000+512 drop=war",
        "merge=3,4", "gap*=2",
    ],
    "--sms": ["8", "1,2,4", "2:8", "2:8:2", "inf"],
    "--launch-gap": ["1.5", "measured"],
    "--occupancy": ["2"],
    "--memory-bandwidth": ["100", "gpu"],
    "--gpu": ["H100", "NVIDIA A100-SXM4-40GB"],
    "--mechanism": ["serial,wireframe", "all", "acs-sw"],
    "--cost": ["acs-sw.launch=8us", "acs-sw.launch=2%"],
    "--deps": ["raw", "all"],
    "--measured-sms": ["80"],
}  # fmt: skip


def option(rng, ground):
    """Damage the values of options of `bound`."""
    values = [value.encode() for texts in OPTIONS.values() for value in texts]
    words, done = [], []
    for name in {"--sms", *rng.sample(sorted(OPTIONS), rng.randint(1, 3))}:
        value = rng.choice(OPTIONS[name])
        if rng.random() < 0.7:
            data, how = damage.damaged(value.encode(), rng, values, damage.TEXT)
            value = data[:200].decode("utf-8", "surrogateescape").replace("\0", "")
            done.append(f"{name} {how}")
        words += [name, value]
    store = ground.stores[rng.choice(SMALL)]
    outcome = run("bound", store, "--format", "json", *words)
    return REFUSED if outcome.code else ANSWERED, ", ".join(done)
