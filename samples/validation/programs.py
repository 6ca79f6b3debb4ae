"""Programs whose concurrency is measured: what they launch, and which launch waits for which.

A program is a list of operations; each names its kernel (``gemm32:512x512x512``) and the earlier
operations it needs. Operations own what they write, so that the edges given are the only ones.
"""

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

FLOAT, HALF = torch.float32, torch.bfloat16


@dataclass
class Operation:
    """One call into the library.

    ``call()`` launches it on the current stream, ``output`` is what it wrote last, ``read`` and
    ``written`` are bytes by construction.
    """

    call: Callable[[], object]
    output: Tensor
    read: int
    written: int


@dataclass(frozen=True)
class Program:
    """What is launched, in order, and for each the earlier ones that it needs."""

    name: str
    kind: str
    kernels: tuple[str, ...]
    needs: tuple[tuple[int, ...], ...]

    @property
    def half(self) -> int:
        """0: constants are fitted on it. 1: errors are reported on it. By name, so it stays."""
        return zlib.crc32(self.name.encode()) & 1


def size(*tensors: Tensor) -> int:
    """Bytes."""
    return sum(t.numel() * t.element_size() for t in tensors)


def fresh(*shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
    """Make random data on the GPU."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


class Inputs:
    """The outputs of what an operation needs, each to be read once, wherever its size fits."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self.left = list(tensors)

    def take(self, *shape: int, dtype: torch.dtype = FLOAT) -> Tensor:
        """Give one of that size, or fresh data."""
        count = torch.Size(shape).numel()
        for i, tensor in enumerate(self.left):
            if tensor.numel() == count and tensor.dtype == dtype and tensor.is_contiguous():
                return self.left.pop(i).view(shape)
        return fresh(*shape, dtype=dtype)


def into(
    function: Callable[..., object],
    *arguments: object,
    shape: tuple[int, ...],
    dtype: torch.dtype = FLOAT,
) -> Operation:
    """Make an operation that writes a tensor of its own."""
    out = torch.empty(shape, device="cuda", dtype=dtype)
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    return Operation(lambda: function(*arguments, out=out), out, size(*tensors), size(out))


def returning(function: Callable[[], Tensor], *tensors: Tensor) -> Operation:
    """Make an operation whose output is new each time."""
    operation = Operation(function, function(), size(*tensors), 0)
    operation.written = size(operation.output)

    def call() -> None:
        operation.output = function()

    operation.call = call
    return operation


def gemm(x: Inputs, m: int, n: int, k: int, dtype: torch.dtype = FLOAT) -> Operation:
    """Multiply M x K by K x N."""
    a, b = x.take(m, k, dtype=dtype), fresh(k, n, dtype=dtype)
    return into(torch.mm, a, b, shape=(m, n), dtype=dtype)


def linear(x: Inputs, rows: int, k: int, n: int) -> Operation:
    """Multiply and add a bias, as ``nn.Linear`` does."""
    a, w, b = x.take(rows, k), fresh(n, k), fresh(n)
    return into(torch.addmm, b, a, w.t(), shape=(rows, n))


def transpose(x: Inputs, rows: int, columns: int) -> Operation:
    """Copy, turned."""
    a, out = x.take(rows, columns), torch.empty(columns, rows, device="cuda")
    return Operation(lambda: out.copy_(a.t()), out, size(a), size(out))


def gather(_: Inputs, rows: int, width: int) -> Operation:
    """Read rows of a table in random order."""
    table, index = fresh(rows, width), torch.randperm(rows, device="cuda")
    return into(torch.index_select, table, 0, index, shape=(rows, width))


def stack(x: Inputs, *shape: int) -> Operation:
    """Put tensors together."""
    parts = [x.take(*shape[1:]) for _ in range(shape[0])]
    out = torch.empty(shape, device="cuda")
    return Operation(lambda: torch.stack(parts, out=out), out, size(out), size(out))


def norm(x: Inputs, rows: int, width: int) -> Operation:
    """Normalise each row."""
    a, weight, bias = x.take(rows, width), fresh(width), fresh(width)
    return returning(lambda: functional.layer_norm(a, (width,), weight, bias), a)


def convolution(batch: int, channels: int, side: int, dtype: torch.dtype) -> Operation:
    """Convolve 3 x 3; bf16 with channels last."""
    x = fresh(batch, channels, side, side, dtype=dtype)
    w = fresh(channels, channels, 3, 3, dtype=dtype)
    if dtype == HALF:
        x = x.to(memory_format=torch.channels_last)
        w = w.to(memory_format=torch.channels_last)
    return returning(lambda: functional.conv2d(x, w, padding=1), x, w)


def attention(_: Inputs, *shape: int) -> Operation:
    """Attend, by FlashAttention in bf16."""
    q, k, v = (fresh(*shape, dtype=HALF) for _ in range(3))

    def attend() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v)

    return returning(attend, q, k, v)


def add(x: Inputs, *n: int) -> Operation:
    """Add two tensors."""
    return into(torch.add, x.take(*n), x.take(*n), shape=n)


MAKERS: dict[str, Callable[..., Operation]] = {
    "gemm32": gemm,
    "gemm16": lambda x, m, n, k: gemm(x, m, n, k, HALF),
    "linear": linear,
    "add": add,
    "tiny": add,
    "relu": lambda x, *n: into(torch.clamp_min, x.take(*n), 0.0, shape=n),
    "gelu": lambda x, *n: into(torch.ops.aten.gelu.out, x.take(*n), shape=n),
    "lgamma": lambda x, *n: into(torch.lgamma, x.take(*n), shape=n),
    "sum": lambda x, *n: into(torch.sum, x.take(*n), -1, shape=n[:1]),
    "mean": lambda x, *n: into(torch.mean, x.take(*n), 0, shape=n[1:]),
    "cumsum": lambda x, *n: into(torch.cumsum, x.take(*n), -1, shape=n),
    "softmax": lambda x, *n: into(torch.ops.aten._softmax.out, x.take(*n), -1, False, shape=n),  # noqa: FBT003
    "transpose": transpose,
    "gather": gather,
    "stack": stack,
    "norm": norm,
    "conv32": lambda _, batch, channels, side: convolution(batch, channels, side, FLOAT),
    "conv16": lambda _, batch, channels, side: convolution(batch, channels, side, HALF),
    "attention": attention,
}


def build(kernel: str, inputs: list[Tensor]) -> Operation:
    """Make one operation; it reads the outputs of those it needs wherever their size fits."""
    name, _, text = kernel.partition(":")
    return MAKERS[name](Inputs(inputs), *(int(x) for x in text.split("x")))


FANS = {
    "gemm32:128x128x512": (4, 8, 16, 24),
    "gemm32:256x256x1024": (2, 4, 8, 24),
    "gemm32:512x512x512": (2, 8, 16),
    "gemm32:512x1024x1024": (2, 4, 8),
    "gemm32:1024x1024x1024": (2, 4, 8),
    "gemm32:2048x2048x512": (2, 4),
    "gemm16:256x256x4096": (2, 8, 16),
    "gemm16:512x512x2048": (4, 8, 24),
    "gemm16:1024x1024x2048": (2, 4, 8),
    "gemm16:2048x2048x1024": (2, 8),
    "gemm16:4096x4096x1024": (2, 4),
    "add:65536": (8, 24),
    "add:1048576": (2, 4, 8, 16),
    "add:4194304": (2, 4, 8),
    "add:33554432": (2, 4),
    "gelu:262144": (4, 16),
    "gelu:2097152": (4, 8),
    "gelu:16777216": (2, 4),
    "lgamma:524288": (4, 8),
    "lgamma:4194304": (2, 4),
    "sum:128x8192": (4, 16),
    "sum:1024x4096": (2, 8),
    "sum:8192x4096": (2, 4),
    "softmax:128x1024": (8, 24),
    "softmax:1024x4096": (2, 4, 8),
    "softmax:16384x2048": (2, 4),
    "norm:512x1024": (8,),
    "norm:4096x1024": (2, 4),
    "conv32:8x64x56": (2, 4, 8),
    "conv32:1x128x28": (4, 16),
    "conv16:16x128x28": (2, 4, 8),
    "attention:1x8x512x64": (4, 16),
    "attention:2x16x1024x64": (2, 4, 8),
    "attention:1x16x2048x128": (2, 4),
    "transpose:1024x1024": (4, 8),
    "transpose:8192x4096": (2,),
    "gather:16384x512": (2, 4),
    "cumsum:256x8192": (4, 8),
    "tiny:256": (2, 4, 8, 16, 24, 32),
}
MIXED = [k for k in FANS if k not in ("tiny:256", "add:33554432", "transpose:8192x4096")]


OTHER = (
    "gemm32:384x768x512", "gemm32:640x640x2048", "gemm32:1536x1536x256", "gemm32:200x300x400",
    "gemm16:768x768x3072", "gemm16:1536x1024x1024", "gemm16:3072x1024x512", "gemm16:320x640x1280",
    "add:2097152", "add:500000", "gelu:1048576", "gelu:8388608", "lgamma:1048576",
    "sum:512x2048", "sum:4096x1024", "softmax:256x2048", "softmax:2048x2048", "norm:2048x512",
    "conv32:4x32x56", "conv32:2x256x14", "conv16:8x64x56", "attention:1x4x1024x64",
    "attention:4x8x256x128", "transpose:2048x1024", "gather:4096x256", "cumsum:128x4096",
    "linear:32x512x512", "relu:300000",
)  # fmt: skip


def fan(kernels: list[str], name: str, kind: str) -> Program:
    """Put independent kernels side by side."""
    return Program(name, kind, tuple(kernels), ((),) * len(kernels))


class Draft:
    """A program as it is written down, operation by operation."""

    def __init__(self) -> None:
        self.kernels: list[str] = []
        self.needs: list[tuple[int, ...]] = []

    def put(self, kernel: str, *before: int) -> int:
        """Add an operation and those it needs; return its number."""
        self.kernels.append(kernel)
        self.needs.append(before)
        return len(self.kernels) - 1

    def program(self, name: str, kind: str) -> Program:
        """Return what was written down."""
        return Program(name, kind, tuple(self.kernels), tuple(self.needs))


def branches(count: int, chain: list[str], name: str) -> Program:
    """Put equal chains side by side."""
    draft = Draft()
    for _ in range(count):
        last: tuple[int, ...] = ()
        for kernel in chain:
            last = (draft.put(kernel, *last),)
    return draft.program(name, "chains")


def diamond(first: str, middle: list[str], last: str, times: int, name: str) -> Program:
    """Fork and join, several times over."""
    draft = Draft()
    before: tuple[int, ...] = ()
    for _ in range(times):
        root = draft.put(first, *before)
        before = (draft.put(last, *[draft.put(kernel, root) for kernel in middle]),)
    return draft.program(name, "diamond")


def mixture_of_experts(items: int, width: int, depth: int) -> Program:
    """Each item goes through two of six experts a layer; 12, 64, 3 gives 254 kernels."""
    draft = Draft()
    linear, relu = f"linear:8x{width}x{width}", f"relu:8x{width}"
    state: list[tuple[int, ...]] = [()] * items
    for _ in range(depth):
        for i in range(items):
            ends = [
                draft.put(linear, draft.put(relu, draft.put(linear, *state[i]))) for _ in range(2)
            ]
            state[i] = (draft.put(f"add:8x{width}", *ends),)
    last = draft.put(f"stack:{items}x8x{width}", *(s[0] for s in state))
    draft.put(f"mean:{items}x8x{width}", last)
    return draft.program(f"moe-{items}x{width}x{depth}", "moe")


def random_graph(seed: int, count: int, choice: tuple[str, ...] | None = None) -> Program:
    """Draw kernels, and for each up to two of the six before it that it needs."""
    pick = random.Random(seed)
    kernels = [pick.choice(choice or MIXED) for _ in range(count)]
    needs = []
    for i in range(count):
        before = range(max(0, i - 6), i)
        number = 0 if i < 3 else pick.choice((0, 1, 1, 1, 2))
        needs.append(tuple(sorted(pick.sample(before, min(number, len(before))))))
    return Program(f"graph-{seed}-{count}", "graph", tuple(kernels), tuple(needs))


def transformer(width: int, tokens: int, name: str) -> Program:
    """One block with separate query, key and value projections, two layers of it."""
    gemm = f"gemm32:{tokens}x{width}x{width}"
    up, down = f"gemm32:{tokens}x{4 * width}x{width}", f"gemm32:{tokens}x{width}x{4 * width}"
    norm, plus = f"norm:{tokens}x{width}", f"add:{tokens}x{width}"
    draft = Draft()
    put = draft.put
    at: tuple[int, ...] = ()
    for _ in range(2):
        n1 = put(norm, *at)
        q, k, v = (put(gemm, n1) for _ in range(3))
        s = put(f"gemm32:{tokens}x{tokens}x{width}", q, k)
        a = put(f"gemm32:{tokens}x{width}x{tokens}", put(f"softmax:{tokens}x{tokens}", s), v)
        r = put(plus, put(gemm, a), *at)
        f = put(up, put(norm, r))
        at = (put(plus, put(down, put(f"gelu:{tokens}x{4 * width}", f)), r),)
    return draft.program(name, "graph")


def unseen_programs() -> list[Program]:
    """Programs of other sizes, made after the model's form and constants were fixed."""
    pick = random.Random(2025)
    found = [
        fan([k] * n, f"new-fan{n}-{k}", "fan")
        for k in OTHER
        for n in (pick.choice((2, 3, 4)), pick.choice((6, 8, 12)))
    ]
    for i in range(24):
        a, b = pick.sample(OTHER, 2)
        found.append(fan([a, b], f"new-pair{i}-{a}-{b}", "pair"))
    for i in range(16):
        kernels = [pick.choice(OTHER) for _ in range(pick.choice((3, 5, 7, 10)))]
        found.append(fan(kernels, f"new-mixed{len(kernels)}-{i}", "mixed"))
    for i in range(12):
        chain = [pick.choice(OTHER) for _ in range(pick.choice((2, 3, 4)))]
        found.append(branches(pick.choice((2, 3, 5, 8)), chain, f"new-chains-{i}"))
    found += [random_graph(100 + i, n, OTHER) for i, n in enumerate((8, 8, 12, 12, 16, 16, 20, 24))]
    return [
        *found,
        mixture_of_experts(10, 128, 3),
        mixture_of_experts(16, 64, 2),
        transformer(512, 192, "new-gpt-512"),
        transformer(384, 64, "new-gpt-384"),
    ]


LATER = (
    "gemm32:192x512x768", "gemm32:320x320x1536", "gemm32:768x640x384", "gemm32:1280x896x256",
    "gemm32:96x256x512", "gemm16:512x640x1024", "gemm16:896x896x2048", "gemm16:1280x1536x640",
    "gemm16:2560x1280x768", "gemm16:192x384x3072", "add:300000", "add:1500000", "add:6000000",
    "gelu:700000", "gelu:3000000", "lgamma:350000", "sum:384x3072", "sum:2048x1536",
    "softmax:192x1536", "softmax:1536x1024", "norm:768x768", "norm:3072x512", "conv32:2x96x28",
    "conv32:4x48x40", "conv16:8x128x28", "conv16:4x96x40", "attention:1x6x768x64",
    "attention:2x8x384x128", "attention:4x12x256x64", "transpose:1536x1024", "gather:8192x384",
    "cumsum:192x3072", "linear:48x384x768", "linear:96x640x320", "relu:1200000",
)  # fmt: skip


def later_programs() -> list[Program]:
    """Programs of yet other sizes, made after errors of the two sets before were looked at."""
    pick = random.Random(11)
    found = []
    for i in range(72):
        chain = [pick.choice(LATER) for _ in range(pick.choice((2, 2, 3, 4, 6)))]
        found.append(branches(pick.choice((2, 3, 4, 6, 8, 12, 16)), chain, f"later-chains-{i}"))
    for i in range(56):
        a, b = pick.sample(LATER, 2)
        found.append(fan([a, b], f"later-pair{i}-{a}-{b}", "pair"))
    for i, kernel in enumerate(LATER):
        found.append(fan([kernel] * pick.choice((2, 3, 4, 6, 10)), f"later-fan{i}-{kernel}", "fan"))
    for i in range(32):
        kernels = [pick.choice(LATER) for _ in range(pick.choice((3, 4, 6, 8, 12)))]
        found.append(fan(kernels, f"later-mixed{len(kernels)}-{i}", "mixed"))
    found += [random_graph(300 + i, 6 + i, LATER) for i in range(20)]
    found += [
        mixture_of_experts(6, 96, 3),
        mixture_of_experts(14, 80, 2),
        transformer(640, 160, "later-gpt-640"),
        transformer(320, 96, "later-gpt-320"),
    ]
    pick.shuffle(found)
    return found


FRESH = (
    "gemm32:64x512x512", "gemm32:160x480x640", "gemm32:448x448x448", "gemm32:896x640x320",
    "gemm32:1024x512x512", "gemm16:384x512x768", "gemm16:640x768x512", "gemm16:1024x1024x512",
    "gemm16:1792x1024x768", "gemm16:256x256x2048", "add:200000", "add:900000", "add:3000000",
    "gelu:500000", "gelu:2000000", "lgamma:600000", "sum:256x2048", "sum:1536x1024",
    "softmax:320x1024", "softmax:1024x1536", "norm:640x1024", "norm:2048x768", "conv32:2x64x28",
    "conv32:4x64x14", "conv32:4x128x28", "conv16:4x64x56", "conv16:8x96x28", "attention:1x8x384x64",
    "attention:2x6x512x64", "transpose:1024x768", "gather:6144x256", "cumsum:96x4096",
    "linear:40x512x512", "linear:64x768x256", "relu:800000",
)  # fmt: skip


NEWEST = (
    "gemm32:96x512x768", "gemm32:240x720x512", "gemm32:576x576x384", "gemm32:768x1024x256",
    "gemm32:1280x640x512", "gemm16:512x384x640", "gemm16:896x512x1024", "gemm16:1280x1024x384",
    "gemm16:1536x1536x512", "gemm16:320x320x1792", "add:250000", "add:700000", "add:2500000",
    "gelu:400000", "gelu:1600000", "lgamma:450000", "sum:320x1792", "sum:1280x1280",
    "softmax:256x1280", "softmax:896x2048", "norm:768x1280", "norm:1792x640", "conv32:3x64x28",
    "conv32:2x128x14", "conv32:2x96x40", "conv16:2x128x40", "conv16:8x64x40",
    "attention:2x8x320x64", "attention:1x12x640x64", "transpose:768x1280", "gather:5120x320",
    "cumsum:128x3072", "linear:56x640x512", "linear:80x512x384", "relu:1000000",
)  # fmt: skip


def fresh_programs() -> list[Program]:
    """Programs of sizes that no constant was ever fitted to; then fans of each of their kernels."""
    others = [
        mixture_of_experts(5, 112, 2),
        mixture_of_experts(9, 64, 3),
        transformer(448, 128, "fresh-gpt-448"),
    ]
    return _of_kernels(FRESH, random.Random(77), "fresh", 500, others)


def newest_programs() -> list[Program]:
    """Programs of yet other sizes, as those of `fresh_programs`."""
    others = [
        mixture_of_experts(7, 104, 2),
        mixture_of_experts(10, 72, 2),
        transformer(576, 144, "newest-gpt-576"),
    ]
    return _of_kernels(NEWEST, random.Random(4242), "newest", 900, others)


def _of_kernels(
    kernels: tuple[str, ...], pick: random.Random, name: str, first: int, others: list[Program]
) -> list[Program]:
    """Mix kernels in every way; random graphs have a seed of their own, from the first on."""
    found = []
    for i in range(48):
        chain = [pick.choice(kernels) for _ in range(pick.choice((2, 2, 3, 4)))]
        found.append(branches(pick.choice((2, 3, 4, 6, 8, 12)), chain, f"{name}-chains-{i}"))
    for i in range(40):
        a, b = pick.sample(kernels, 2)
        found.append(fan([a, b], f"{name}-pair{i}-{a}-{b}", "pair"))
    for i in range(24):
        some = [pick.choice(kernels) for _ in range(pick.choice((3, 4, 6, 8, 12)))]
        found.append(fan(some, f"{name}-mixed{len(some)}-{i}", "mixed"))
    found += [random_graph(first + i, 6 + i, kernels) for i in range(16)]
    found += others
    pick.shuffle(found)
    return [*found, *(fan([k] * n, f"sat{n}-{k}", "fan") for k in kernels for n in (2, 6))]


def all_programs() -> list[Program]:
    """Every program, in a fixed order."""
    found = [
        fan([k] * n, f"fan{n}-{k}", "tiny" if k.startswith("tiny") else "fan")
        for k, counts in FANS.items()
        for n in counts
    ]
    pick = random.Random(14)
    pairs: set[tuple[str, str]] = set()
    while len(pairs) < 44:
        a, b = pick.sample(MIXED, 2)
        pairs.add((a, b) if a < b else (b, a))
    found += [fan([a, b], f"pair-{a}-{b}", "pair") for a, b in sorted(pairs)]
    for i in range(26):
        kernels = [pick.choice(MIXED) for _ in range(pick.choice((3, 4, 6, 8, 12, 16)))]
        found.append(fan(kernels, f"mixed{len(kernels)}-{i}", "mixed"))
    found += [
        branches(4, ["gemm32:256x1024x256", "gelu:256x1024", "gemm32:256x256x1024"], "mlp4-256"),
        branches(8, ["gemm32:128x512x256", "gelu:128x512", "gemm32:128x256x512"], "mlp8-128"),
        branches(8, ["gemm32:64x256x256", "relu:64x256"] * 3, "ensemble8-64"),
        branches(16, ["gemm32:64x256x256", "relu:64x256"] * 2, "ensemble16-64"),
        branches(2, ["gemm32:512x2048x512", "gelu:512x2048", "gemm32:512x512x2048"], "mlp2-512"),
        branches(2, ["gemm16:1024x4096x1024", "gemm16:1024x1024x4096"] * 2, "mlp2-bf16-1024"),
        branches(4, ["gemm16:512x2048x512", "gemm16:512x512x2048"] * 2, "mlp4-bf16-512"),
        branches(8, ["gemm16:256x1024x256", "gemm16:256x256x1024"] * 2, "mlp8-bf16-256"),
        branches(4, ["softmax:1024x1024", "sum:1024x1024"], "rows4"),
        branches(8, ["add:262144", "gelu:262144", "add:262144"], "pointwise8"),
        branches(4, ["add:4194304", "gelu:4194304", "add:4194304"], "pointwise4-large"),
        branches(4, ["conv32:4x64x28", "relu:4x64x28x28"], "conv4"),
        branches(2, ["norm:4096x1024", "gelu:4096x1024", "softmax:4096x1024"], "rows2-large"),
        branches(8, ["tiny:256"] * 8, "tiny8x8"),
        branches(24, ["tiny:256"] * 4, "tiny24x4"),
        branches(2, ["tiny:256"] * 16, "tiny2x16"),
        branches(6, ["cumsum:256x4096", "transpose:256x4096"], "scan6"),
    ]
    found += [
        diamond(
            "gemm32:512x512x512", ["gemm32:512x512x512"] * 2, "add:512x512", 2, "diamond2-gemm"
        ),
        diamond("norm:512x512", ["gemm32:512x512x512"] * 3, "add:512x512", 2, "diamond3-qkv"),
        diamond(
            "gelu:1048576",
            ["softmax:1024x1024", "sum:1024x1024"],
            "add:1024x1024",
            2,
            "diamond2-rows",
        ),
        diamond(
            "gemm16:1024x1024x1024",
            ["gemm16:1024x1024x1024"] * 4,
            "gelu:1024x1024",
            2,
            "diamond4-bf16",
        ),
        diamond("add:262144", ["gelu:262144"] * 8, "add:262144", 2, "diamond8-pointwise"),
        diamond("tiny:256", ["tiny:256"] * 4, "tiny:256", 6, "diamond4-tiny"),
        diamond("tiny:256", ["tiny:256"] * 16, "tiny:256", 3, "diamond16-tiny"),
        diamond(
            "relu:256x1024",
            ["gemm32:256x256x1024", "gemm32:256x1024x1024"],
            "relu:256x1024",
            3,
            "diamond2-uneven",
        ),
        diamond(
            "norm:1024x1024",
            ["attention:1x16x1024x64", "gemm16:1024x4096x1024"],
            "add:1024x1024",
            2,
            "diamond2-attention",
        ),
        diamond(
            "sum:128x8192",
            ["lgamma:524288", "gemm32:256x256x1024", "cumsum:256x8192"],
            "tiny:128",
            2,
            "diamond3-kinds",
        ),
    ]
    found += [
        random_graph(seed, count) for seed, count in enumerate((8, 12, 12, 16, 16, 20, 20, 24, 24))
    ]
    found += [
        transformer(256, 128, "gpt-256"),
        transformer(768, 256, "gpt-768"),
        transformer(1024, 1024, "gpt-1024"),
    ]
    found += [
        mixture_of_experts(12, 64, 3),
        mixture_of_experts(8, 256, 2),
        mixture_of_experts(4, 64, 4),
    ]
    names = [p.name for p in found]
    if len(set(names)) < len(names):
        raise ValueError("two programs of one name")
    return found
