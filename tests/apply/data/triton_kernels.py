"""Kernels as Triton and Inductor write them; triton.sass is what `nvdisasm -c` prints of them.

python tests/apply/data/triton_kernels.py FOLDER  # with Triton, no GPU needed: a cubin a kernel
"""

import sys
from pathlib import Path

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.language.extra import libdevice

WIDE = 512


@triton.jit
def normalised(x_ptr, mean_ptr, variance_ptr, out_ptr, n, wide: tl.constexpr):
    """Write columns 192 to 383 of rows of 768, with a root whose rare cases are a function."""
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    mask = at < n
    column, row = at % 192, at // 192
    x = tl.load(x_ptr + at, mask) - tl.load(mean_ptr + column, mask)
    made = x * (1 / tl.sqrt_rn(tl.load(variance_ptr + column, mask) + 0.001))
    tl.store(out_ptr + (192 + column + 768 * row), made, mask)


@triton.jit
def turned(x_ptr, out_ptr, n, wide: tl.constexpr):
    """Read the table of digits of 2 / pi that lies in the module."""
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    mask = at < n
    x = tl.load(x_ptr + at, mask)
    tl.store(out_ptr + at, libdevice.cos(x), mask)


@triton.jit
def added(index_ptr, x_ptr, out_ptr, n, wide: tl.constexpr):
    """Add to rows that an index names: here the compiler sends pointers through shared memory."""
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    mask = at < n
    row = tl.load(index_ptr + at // 64, mask)
    row = tl.where(row < 0, row + 100, row)
    x = tl.load(x_ptr + at % 64, mask)
    tl.atomic_add(out_ptr + (at % 64 + 64 * row), x, mask, sem="relaxed")


@triton.jit
def summed(x_ptr, out_ptr, n, wide: tl.constexpr):
    """Sum rows of n numbers in a loop."""
    row = tl.program_id(0)
    total = tl.zeros([wide], tl.float32)
    for first in range(0, n, wide):
        at = first + tl.arange(0, wide)
        total += tl.load(x_ptr + row * n + at, at < n, other=0.0)
    tl.store(out_ptr + row, tl.sum(total, 0))


@triton.jit
def pooled(x_ptr, out_ptr, n, wide: tl.constexpr):
    """Write every second number of 35 in a row, where the one before it exists."""
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    column, row = at % 17, at // 17
    here = 2 * column - 1
    x = tl.load(x_ptr + (35 * row + here), (here >= 0) & (at < n), other=0.0)
    tl.store(out_ptr + at, x, at < n)


@triton.jit
def checked(index_ptr, x_ptr, out_ptr, n, wide: tl.constexpr):
    """Read where an index says, which is asserted to be below 100."""
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    index = tl.load(index_ptr + at, at < n, other=0)
    tl.device_assert((index >= 0) & (index < 100), "index out of bounds")
    tl.store(out_ptr + at, tl.load(x_ptr + index, at < n), at < n)


@triton.jit
def of_rows(rows_ptr, out_ptr, n, wide: tl.constexpr):
    """Store through pointers that lie in memory."""
    at = tl.program_id(0) * wide + tl.arange(0, wide)
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    tl.store(row + at, tl.load(out_ptr + at, at < n), at < n)


F = "*fp32"
KERNELS = {
    normalised: (F, F, F, F), turned: (F, F), added: ("*i64", F, F), summed: (F, F),
    pooled: (F, F), checked: ("*i64", F, F), of_rows: ("*i64", F),
}  # fmt: skip


def main(folder):
    for kernel, pointers in KERNELS.items():
        names = kernel.arg_names
        types = dict(zip(names, [*pointers, "i32", "constexpr"], strict=True))
        whole = {(i,): [["tt.divisibility", 16]] for i in range(len(pointers))}
        source = ASTSource(kernel, types, {"wide": WIDE}, whole)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"debug": True})
        (Path(folder) / f"{kernel.__name__}.cubin").write_bytes(made.asm["cubin"])


if __name__ == "__main__":
    main(sys.argv[1])
