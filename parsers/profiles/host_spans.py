"""What the host was doing when it launched kernels: operators, modules, lines, ranges."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from depgraph.timing.profile import NOWHERE, UNKNOWN, Site, Step

MOST_SPANS = 1 << 23
MOST_STEPS = 1 << 16
_LATEST = 1 << 62  # two such times can be added
MOST_CHARACTERS = 1 << 28
OP, MODULE, LINE, RANGE, BACKWARD = range(5)
Call = tuple[int, int]  # process and correlation id
_FORWARD = -2  # in place of a process: it is an operator of the forward pass, not a launch
_MODULE = "nn.Module: "
# How frameworks and people name the steps of a loop: "ProfilerStep#3", "step 12", "iteration_7".
_A_STEP = re.compile(
    r"(?:.*[^a-z])?(?:profilerstep|step|iter|iteration|batch)[ _#:=-]*\d+\Z", re.IGNORECASE
)
_LINE = re.compile(r".+\.py\(\d+\): .+")
_OF_LIBRARY = re.compile(r"torch/|<|.*(?:site|dist)-packages/")
# What torch.autograd.profiler.emit_nvtx writes: "aten::mm, op_id = 12", and more.
_OP_OF_NVTX = re.compile(r"(?P<op>[^,]+), (?:seq|op_id|sizes) = .*", re.DOTALL)


class _Span(NamedTuple):
    start: int
    end: int
    kind: int
    name: str


class Names:
    """One string for all that has a name, one that can be printed."""

    def __init__(self) -> None:
        self.characters = 0
        self._kept: dict[str, str] = {}

    def kept(self, name: str) -> str:
        """Return the string that is kept for a name."""
        found = self._kept.get(name)
        if found is None:
            self.characters += len(name)
            found = name if name.isascii() else name.encode("utf-8", "replace").decode("utf-8")
            self._kept[name] = found
        return found


class HostSpans:
    """Collects what threads of the host were at, and which launches they called for."""

    def __init__(self) -> None:
        self.left_out = 0  # spans that were too many to keep
        self._n_spans = 0
        self._names = Names()
        self._spans: dict[object, list[_Span]] = defaultdict(list)
        self._calls: dict[object, list[tuple[int, Call]]] = defaultdict(list)
        self._op_of_id: dict[int, str] = {}
        self._steps: list[Step] = []

    def add_call(self, call: Call, start: int, thread: object) -> None:
        """Note a call that launched kernels."""
        self._calls[thread].append((start, call))

    def add_op(
        self, name: str, start: int, end: int, thread: object, number: int | None = None
    ) -> None:
        """Note an operator; kernels may name it by its number."""
        self._add(OP, name, start, end, thread)
        if number is not None and len(self._op_of_id) < MOST_SPANS:
            self._op_of_id[number] = self._names.kept(name)

    def add_pass(
        self, sequence: int, start: int, end: int, thread: object, *, is_forward: bool
    ) -> None:
        """Note an operator with a backward pass, or that, by PyTorch's sequence number."""
        if is_forward:
            self._calls[thread].append((start, (_FORWARD, sequence)))
        else:
            self._add(BACKWARD, str(sequence), start, end, thread)

    def add_python(self, name: str, start: int, end: int, thread: object) -> None:
        """Note a call of a Python function, if it is a module or of the program itself."""
        if name.startswith(_MODULE):
            self._add(MODULE, name.removeprefix(_MODULE), start, end, thread)
        elif _LINE.fullmatch(name) and not _OF_LIBRARY.match(name):
            self._add(LINE, name, start, end, thread)

    def add_range(
        self, name: str, start: int, end: int, thread: object, process: int = UNKNOWN
    ) -> None:
        """Note an annotation or an NVTX range; those that PyTorch makes of operators are such."""
        is_timed = -_LATEST < start <= end < _LATEST
        if is_timed and len(self._steps) < MOST_STEPS and _A_STEP.match(name):
            self._steps.append(Step(self._names.kept(name), start, end, process))
        if found := _OP_OF_NVTX.fullmatch(name):
            self._add(OP, found["op"], start, end, thread)
        elif not name.startswith("ProfilerStep#"):
            self._add(RANGE, name, start, end, thread)

    def marked_steps(self, origin: int) -> tuple[Step, ...]:
        """Return the steps by their starts, `origin` added to all times."""
        moved = (s._replace(start=s.start + origin, end=s.end + origin) for s in self._steps)
        return tuple(sorted(moved, key=lambda step: (step.start, step.end)))

    def _add(self, kind: int, name: str, start: int, end: int, thread: object) -> None:
        if self._n_spans >= MOST_SPANS or self._names.characters > MOST_CHARACTERS:
            self.left_out += 1
            return
        self._n_spans += 1
        self._spans[thread].append(_Span(start, end, kind, self._names.kept(name)))

    def sites(
        self, calls: Iterable[Call], number: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], tuple[Site, ...]]:
        """Return an index of each kernel's site, by call or operator, and sites; -1 unknown."""
        of_call = self._sites_of_calls() if self._n_spans else {}
        codes = {NOWHERE: 0}
        site = np.zeros(len(number), np.int64)
        for row, (call, of_number) in enumerate(zip(calls, number.tolist(), strict=True)):
            found = of_call.get(call, NOWHERE)
            op = found.op or self._op_of_id.get(of_number, "")
            named = found if op == found.op else found._replace(op=op)
            site[row] = codes.setdefault(named, len(codes))
        return (site, tuple(codes)) if len(codes) > 1 else (np.full(len(site), UNKNOWN), ())

    def _sites_of_calls(self) -> dict[Call, Site]:
        """Return the site of each launch call: the spans of its thread that it lies within."""
        found: dict[Call, Site] = {}
        backward: dict[Call, int] = {}
        known: dict[tuple[tuple[int, str], ...], Site] = {}
        for thread, calls in self._calls.items():
            spans = sorted(self._spans.get(thread, ()), key=lambda s: (s.start, -s.end))
            around: list[_Span] = []
            at = 0
            for start, key in sorted(calls):
                while at < len(spans) and spans[at].start <= start:
                    around = [s for s in around if s.end >= spans[at].start]
                    around.append(spans[at])
                    at += 1
                around = [s for s in around if s.end >= start]
                stack = tuple((s.kind, s.name) for s in around)
                if stack not in known:
                    known[stack] = _site_of(stack)
                found.setdefault(key, known[stack])
                if sequences := [int(s.name) for s in around if s.kind == BACKWARD]:
                    backward[key] = sequences[-1]
        for key, sequence in backward.items():  # they have what only the forward pass shows
            site, forward = found[key], found.get((_FORWARD, sequence), NOWHERE)
            module, line = site.module or forward.module, site.line or forward.line
            found[key] = site._replace(module=module, line=line)
        return found


def _site_of(stack: tuple[tuple[int, str], ...]) -> Site:
    names: dict[int, list[str]] = defaultdict(list)
    for kind, name in stack:
        # PyTorch records some annotations twice.
        if names[kind][-1:] != [name]:
            names[kind].append(name)
    return Site(
        op="".join(names[OP][-1:]),
        module="/".join(names[MODULE]),
        line="".join(names[LINE][-1:]),
        range="/".join(names[RANGE]),
    )
