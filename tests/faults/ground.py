"""Undamaged stores and their answers, made once by each process that runs cases."""

import contextlib
import csv
import functools
import hashlib
import shutil
from pathlib import Path

from faults import inputs
from faults.profiles import profiles
from faults.program import must, run
from small_captures import captured, memory, operator

from depgraph.apply.captured import write_captures
from depgraph.apply.kernel_code import KernelCode
from depgraph.apply.verdicts import Verdict, Verdicts
from depgraph.extraction.pipeline import analyse
from depgraph.parsers import open_trace
from depgraph.recorder.times import as_trace
from depgraph.samples import RECORDING, sample_path
from depgraph.store.companions import captures_of, times_of, verdicts_of, write_companion
from depgraph.store.store import Store

PROFILE = "profile.json"
ANSWERS = {
    "bound": ("bound", "{}", "--sms", "2,8", "--format", "json"),
    "RAW": ("bound", "{}", "--sms", "2", "--deps", "raw", "--format", "json"),
    "mechanisms": ("bound", "{}", "--sms", "2", "--mechanism", "all", "--format", "json"),
    "renamed": (
        "bound", "{}", "--sms", "4", "--format", "json",
        "--what-if", "buffer=0x7f6500000000:0x7f6500003000 drop=war,waw",
    ),
    "timed": ("bound", "{}", "--sms", "4", "--timing", PROFILE, "--format", "json"),
    "timing": ("timing", PROFILE, "{}", "--format", "json"),
    "pairs": ("show", "{}", "pairs", "--format", "json"),
    "kernels": ("show", "{}", "kernels", "--format", "json"),
    "path": ("show", "{}", "path", "--format", "json"),
    "block": ("show", "{}", "block", "1:0", "--format", "json"),
    "compare": ("compare", "base", "{}", "--sms", "4", "--format", "json"),
    "edges": ("export", "{}", "--what", "edges", "-o", "made.csv"),
    "blocks": ("export", "{}", "--what", "blocks", "-o", "made.csv"),
    "graph": ("export", "{}", "--what", "graph", "-o", "made.json"),
    "schedule": ("export", "{}", "--what", "schedule", "--sms", "4", "-o", "made.csv"),
    "timeline": (
        "export", "{}", "--what", "schedule", "--schedule", "serial", "--sms", "4",
        "-o", "made.json",
    ),
    "report": ("report", "{}", "--sms", "4", "-o", "page"),
}  # fmt: skip
"""The questions that are asked of a store; `{}` stands for its folder."""


OF_RECORDED = (
    ("bound", "store", "--sms", "8", "--format", "json"),
    ("bound", "store", "--sms", "8", "--launch", "measured", "--format", "json"),
    ("show", "kernels", "store", "--format", "json"),
    ("show", "path", "store", "--format", "json"),
    ("show", "buffers", "store", "--format", "json"),
    ("show", "pairs", "store", "--cusync", "--sms", "8", "--format", "json"),
    ("compare", "store", "store", "--sms", "8", "--format", "json"),
    ("report", "store", "--sms", "8", "--format", "json"),
    ("timing", "store.times.json", "store", "--format", "json"),
    ("overlap", "store.times.json", "--format", "json"),
)
"""Those that are asked of the store of a recording."""


class Ground:
    """What cases start from: whole stores, and what they answer.

    Parameters
    ----------
    folder : Path
        Where all of it lies; every path that enters an answer is relative to the current folder.
    """

    def __init__(self, folder):
        self.folder = folder
        self.small_disk = folder / "disk" if (folder / "disk").is_mount() else None
        self.traces = inputs.traces()
        self.profiles = profiles()
        self.workloads = inputs.workloads()
        self.gpu_models = inputs.gpu_models()

    @functools.cached_property
    def stores(self):
        """The folders of whole stores by name; the first four differ in their accesses alone."""
        folder = self.folder / "stores"
        folder.mkdir()
        chain, other = folder / "chain.log", folder / "other.log"
        chain.write_bytes(inputs.chain_log())
        other.write_bytes(inputs.chain_log(shift=2))
        accelsim = self.folder / "accelsim"
        accelsim.mkdir()
        for name, text in inputs.kernel_files("chain list").items():
            (accelsim / name).write_bytes(text)
        (folder / "toy.toml").write_bytes(inputs.WORKLOAD)
        self.sources = {"chain": chain, "copies": accelsim, "real": inputs.sample_path()}
        words = {
            "chain": (chain,),
            "other": (other,),
            "positions": (chain, "--positions"),
            "lines": (chain, "--granularity", "128"),
            "copies": (accelsim,),
            "described": (folder / "toy.toml",),
            "real": (inputs.sample_path(),),
        }
        for name, some in words.items():
            must("extract", *some, "-o", folder / name)
        return {name: folder / name for name in words}

    @functools.cached_property
    def recorded(self):
        """The store of a recording, with its times and captured graphs beside it."""
        folder = self.folder / "recorded"
        folder.mkdir()
        return make_recorded(folder)

    @functools.cached_property
    def edges_of_recording(self):
        """The edges of that store."""
        return edges_in(self.recorded)

    @functools.cached_property
    def answers_of_recorded(self):
        """What it answers, asked by the same names as a damaged one."""
        shutil.copytree(self.recorded, "whole/store")
        shutil.copy(times_of(self.recorded), "whole")
        with contextlib.chdir("whole"):
            found = {question: must(*question).out for question in OF_RECORDED}
        shutil.rmtree("whole")
        return found

    @functools.cached_property
    def checkpoint(self):
        """An Accel-Sim trace, the folder that `--resume` keeps of it, and its edges."""
        folder = self.folder / "checkpoint"
        trace = folder / "trace"
        trace.mkdir(parents=True)
        for name, text in inputs.kernel_files("chain list").items():
            (trace / name).write_bytes(text)
        partial = folder / "out.partial"
        analyse(open_trace(trace), jobs=1, resume=partial)
        assert len(list(partial.glob("*.part"))) > 1
        must("extract", trace, "-o", folder / "out")
        return trace, partial, edges_in(folder / "out")

    @functools.cache  # noqa: B019 - a process has one ground
    def answer(self, store, question):
        """Return how a whole store answers, asked by the same names as a damaged one."""
        shutil.copytree(self.stores[store], "store")
        outcome, answer = self.ask("store", question)
        shutil.rmtree("store")
        return outcome.code, answer

    @functools.cache  # noqa: B019 - as above
    def left_out(self, name):
        """Return what is left out of a whole trace, by reason."""
        folder = self.folder / f"whole {name}"
        folder.mkdir()
        path = folder / inputs.file_name(name)
        for file, text in {**inputs.kernel_files(name), path.name: self.traces[name]}.items():
            (folder / file).write_bytes(text)
        return analyse(open_trace(path), jobs=1).metadata["skipped"]

    def ask(self, store, question):
        """Ask a store; return how that ended, and what was answered."""
        Path(PROFILE).write_bytes(self.profiles["kineto"])
        if question == "compare":
            shutil.copytree(self.stores["chain"], "base", dirs_exist_ok=True)
        outcome = run(*(word.format(store) for word in ANSWERS[question]))
        return outcome, outcome.out + written()


def make_recorded(folder):
    """Make the store of a recording with times and captured graphs beside it."""
    must("extract", sample_path(RECORDING), "-o", folder / "store")
    store = Store(folder / "store")
    events = [
        {
            "ph": "X", "cat": "kernel", "name": k.name, "ts": 10.0 * k.kernel, "dur": 5.0,
            "args": {"device": 0, "stream": 7, "grid": k.grid, "block": k.block},
        }
        for k in store.kernels
    ]  # fmt: skip
    write_companion(times_of(store.path), as_trace(events, ["H100"]), store=store.identity)
    call = operator("mm", [memory(0)], [memory(1)])
    write_captures(captures_of(store.path), [captured(call)], store=store.identity)
    codes = {"k": KernelCode("it loads addresses", frozenset({8, -1}), reads_variables=True)}
    found = Verdicts(weights=[1.0], graphs=[Verdict("free", "abc", 3.0)], codes=codes)
    found.write(verdicts_of(store.path, 0), store=store.identity)
    return store.path


def written():
    """Return what a command wrote, and remove it; the order of lines of a table means nothing."""
    text = ""
    for name in ("made.csv", "made.json"):
        path = Path(name)
        if path.exists():
            text += "\n".join(sorted(path.read_text(encoding="utf-8").splitlines()))
            path.unlink()
    page = Path("page")
    if page.exists():
        for path in sorted(page.rglob("*.*")):
            text += f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        shutil.rmtree(page)
    return text


def edges_in(store):
    """Return the edges of a store, in the words of an export."""
    must("export", store, "--what", "edges", "-o", "edges.csv")
    with Path("edges.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    Path("edges.csv").unlink()
    columns = ("src_kernel", "src_block", "dst_kernel", "dst_block")
    return {(*(int(row[column]) for column in columns), row["kind"]) for row in rows}
