"""Occupancy against NVIDIA's own calculator, cuda_occupancy.h, compiled here."""

import os
import random
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from depgraph.gpu.model import load_gpu_file
from depgraph.gpu.sm_resources import occupancy

CONFIGURATIONS = 3000
ARCHITECTURES = [61, 70, 75, 80, 86, 87, 89, 90, 100, 103, 110, 120, 121]
DEFAULT_SHARED_BYTES_PER_BLOCK = 48 * 1024  # cudaDeviceProp.sharedMemPerBlock of every GPU here
UNKNOWN_DEVICE = 2
FACTORS = {"warps": 1, "registers": 2, "shared memory": 4, "blocks": 8}

PROGRAM = r"""
#include <climits>
#include <cstdio>
#include <cuda_occupancy.h>

int main() {
  cudaOccDeviceProp device;
  device.warpSize = 32;
  if (std::scanf("%d %d %d %d %d %d %zu %zu %zu %zu", &device.computeMajor, &device.computeMinor,
                 &device.maxThreadsPerBlock, &device.maxThreadsPerMultiprocessor,
                 &device.regsPerBlock, &device.regsPerMultiprocessor, &device.sharedMemPerBlock,
                 &device.sharedMemPerMultiprocessor, &device.sharedMemPerBlockOptin,
                 &device.reservedSharedMemPerBlock) != 10)
    return 1;
  device.numSms = 1;
  int threads, registers, carveout;
  size_t shared;
  while (std::scanf("%d %d %zu %d", &threads, &registers, &shared, &carveout) == 4) {
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = INT_MAX;
    kernel.numRegs = registers;
    kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = shared;
    cudaOccDeviceState state;
    state.carveoutConfig = carveout;
    cudaOccResult result;
    int status = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads,
                                                         shared);
    if (status != CUDA_OCC_SUCCESS) {
      std::printf("%d 0 0 0 0\n", status);
      continue;
    }
    std::printf("0 %d %u %d %zu\n", result.activeBlocksPerMultiprocessor, result.limitingFactors,
                result.allocatedRegistersPerBlock, result.allocatedSharedMemPerBlock);
  }
}
"""


def header_folder():
    toolkits = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    if nvcc := shutil.which("nvcc"):
        toolkits.append(Path(nvcc).resolve().parents[1])
    toolkits.extend(sorted(Path("/usr/local").glob("cuda*"), reverse=True))
    folders = [Path(toolkit) / "include" for toolkit in toolkits if toolkit]
    folders.extend(Path(sysconfig.get_path("purelib")).glob("nvidia/cu*/include"))
    return next((folder for folder in folders if (folder / "cuda_occupancy.h").is_file()), None)


@pytest.fixture(scope="module")
def calculator(tmp_path_factory):
    """Return a function from a GPU and kernels to what the compiled header says of each."""
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("no C++ compiler found")
    include = header_folder()
    if include is None:
        pytest.skip("no cuda_occupancy.h found: neither a CUDA toolkit nor nvidia-cuda-runtime")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "main.cpp").write_text(PROGRAM, encoding="ascii")
    subprocess.run(
        [compiler, "-O1", f"-I{include}", "main.cpp", "-o", "calculator"], cwd=folder, check=True
    )

    def calculate(gpu, kernels):
        device = (
            *divmod(gpu.architecture, 10),
            gpu.max_threads_per_block,
            gpu.max_threads_per_sm,
            gpu.max_registers_per_block,
            gpu.registers_per_sm,
            DEFAULT_SHARED_BYTES_PER_BLOCK,
            gpu.shared_bytes_per_sm,
            gpu.max_shared_bytes_per_block,
            gpu.reserved_shared_bytes_per_block,
        )
        lines = "\n".join(" ".join(map(str, row)) for row in (device, *kernels))
        output = subprocess.run(
            [folder / "calculator"], input=lines, capture_output=True, text=True, check=True
        ).stdout
        return [tuple(map(int, line.split())) for line in output.splitlines()]

    return calculate


def random_kernels(gpu, seed):
    """Draw kernels, many at the edges of warps, allocation units and carve-outs."""
    draw = random.Random(seed)  # noqa: S311 (no secret)
    sizes = (0, *gpu.shared_carveouts, gpu.max_shared_bytes_per_block)
    for _ in range(CONFIGURATIONS):
        threads = draw.choice([draw.randint(1, 1100), 32 * draw.randint(1, 32)])
        registers = draw.choice([draw.randint(1, 255), 8 * draw.randint(1, 31)])
        near = draw.choice(sizes) // draw.randint(1, 8) + draw.randint(-130, 130)
        shared = max(0, draw.choice([draw.randint(0, 240 * 1024), draw.randint(0, 9000), near]))
        yield threads, registers, shared, draw.choice([-1, -1, 0, 50, 100, draw.randint(0, 100)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_agrees_with_cuda_occupancy_h(calculator, tmp_path, architecture):
    path = tmp_path / "gpu.toml"
    path.write_text(f'name = "any"\narchitecture = {architecture}\nsms = 1\n', encoding="ascii")
    gpu = load_gpu_file(path)
    kernels = list(random_kernels(gpu, architecture))
    results = calculator(gpu, kernels)
    if all(status == UNKNOWN_DEVICE for status, *_ in results):
        pytest.skip(f"this cuda_occupancy.h does not know sm_{architecture}")
    assert len(results) == CONFIGURATIONS
    launched = 0
    for kernel, (status, blocks, factors, registers_per_block, shared_per_block) in zip(
        kernels, results, strict=True
    ):
        threads, registers, shared, carveout = kernel
        ours = occupancy(
            gpu,
            threads=threads,
            registers=registers,
            shared_bytes=shared,
            carveout_percent=None if carveout < 0 else carveout,
        )
        assert status == 0, kernel
        assert ours.registers_per_block == registers_per_block, kernel
        assert ours.shared_bytes_per_block == shared_per_block, kernel
        if blocks == 0:
            assert ours.blocks_per_sm == 1, kernel
            assert "does not fit" in ours.assumed[0], kernel
        else:
            launched += 1
            assert ours.blocks_per_sm == blocks, kernel
            assert ours.assumed == (), kernel
        named = sum(FACTORS[resource] for resource in ours.limited_by)
        assert named == factors & sum(FACTORS.values()), kernel
    assert launched > CONFIGURATIONS // 4
