// Which warps of an SM the blocks of a kernel get, and how long they take: a warp's number modulo 4 is its sub-partition.
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define OK(x) do { auto e_ = (x); if (e_) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1);} } while (0)
struct Warp { unsigned sm, number; long long start, end; };
// Sums of which 8 do not wait for one another, or each for the one before; if `uneven`, blocks take up to twice as long.
template <int SUMS> __global__ void work(Warp *log, int rounds, int uneven, float *out) {
    long long start = clock64();
    float sum[SUMS]; for (int i = 0; i < SUMS; i++) sum[i] = threadIdx.x + i;
    if (uneven) rounds += rounds * (blockIdx.x * 7919 % 13) / 12;
    for (int r = 0; r < rounds; r++) {
#pragma unroll
        for (int k = 0; k < 64; k++) sum[k % SUMS] = sum[k % SUMS] * 0.999f + 0.5f;
    }
    float all = 0; for (int i = 0; i < SUMS; i++) all += sum[i];
    if (all == 12345.f) out[0] = all;
    if (threadIdx.x % 32 == 0) {
        unsigned sm, number; asm volatile("mov.u32 %0, %smid;" : "=r"(sm)); asm volatile("mov.u32 %0, %warpid;" : "=r"(number));
        log[blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32] = {sm, number, start, clock64()};
    }
}
struct Kernel { int threads, blocks, sums, rounds, uneven, shared_kib; };
// A row: the kernels, launched at once into streams, and of the blocks of SM 0 their kernel and number, when they started
// and ended (cycles), and their warps.
void run(const char *what, const std::vector<Kernel> &kernels) {
    float *out; OK(cudaMalloc(&out, 4)); std::vector<Warp *> logs; std::vector<cudaStream_t> streams;
    for (auto &k : kernels) {
        logs.emplace_back(); OK(cudaMalloc(&logs.back(), sizeof(Warp) * k.blocks * k.threads / 32));
        streams.emplace_back(); OK(cudaStreamCreateWithFlags(&streams.back(), cudaStreamNonBlocking));
    }
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < kernels.size(); i++) {
            const Kernel &k = kernels[i]; auto kernel = k.sums == 8 ? work<8> : work<1>;
            OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
            OK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
            kernel<<<k.blocks, k.threads, (size_t)k.shared_kib << 10, streams[i]>>>(logs[i], k.rounds, k.uneven, out); OK(cudaGetLastError());
        }
        OK(cudaDeviceSynchronize());
    }
    struct Block { size_t kernel; int number; long long start, end; std::vector<Warp> warps; };
    std::vector<Block> blocks; long long from = -1;
    for (size_t i = 0; i < kernels.size(); i++) {
        int warps = kernels[i].threads / 32, n = kernels[i].blocks * warps; std::vector<Warp> all(n);
        OK(cudaMemcpy(all.data(), logs[i], sizeof(Warp) * n, cudaMemcpyDeviceToHost)); OK(cudaFree(logs[i])); OK(cudaStreamDestroy(streams[i]));
        for (int b = 0; b < kernels[i].blocks; b++) {
            std::vector<Warp> own(&all[b * warps], &all[b * warps] + warps); if (own[0].sm != 0) continue;
            Block block = {i, b, own[0].start, own[0].end, own};
            for (auto &w : own) { block.start = std::min(block.start, w.start); block.end = std::max(block.end, w.end); }
            blocks.push_back(block); from = from < 0 ? block.start : std::min(from, block.start);
        }
    }
    OK(cudaFree(out)); printf("{\"what\": \"%s\", \"kernels\": [", what); const char *comma = "";
    for (auto &k : kernels) { printf("%s{\"threads\": %d, \"blocks\": %d, \"sums\": %d, \"shared_kib\": %d}", comma, k.threads, k.blocks, k.sums, k.shared_kib); comma = ", "; }
    printf("], \"on_sm_0\": ["); comma = "";
    for (auto &b : blocks) {
        printf("%s[%zu, %d, %lld, %lld, [", comma, b.kernel, b.number, b.start - from, b.end - from); comma = ", ";
        for (size_t j = 0; j < b.warps.size(); j++) printf("%s%u", j ? ", " : "", b.warps[j].number);
        printf("]]");
    }
    printf("]}\n");
}
int main() {
    cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0)); int sms = p.multiProcessorCount, driver; OK(cudaDriverGetVersion(&driver));
    printf("{\"what\": \"machine\", \"gpu\": \"%s\", \"sms\": %d, \"driver\": %d}\n", p.name, sms, driver);
    const int rounds = 400;
    for (int sums : {8, 1}) for (int threads : {32, 64, 96, 128, 160, 192, 256}) {
        for (int each = 1; each <= 12 && each * threads <= 2048; each++) run("one wave", {{threads, each * sms, sums, rounds, 0, 0}});
        for (int kib : {70, 40, 25, 15}) run("six waves", {{threads, 227 / (kib + 1) * sms * 6, sums, rounds, 1, kib}});
    }
    for (int threads : {64, 96, 128, 256}) for (int each : {1, 2, 3}) for (int others : {32, 64, 96, 128}) for (int more : {1, 2, 4})
        run("two kernels", {{threads, each * sms, 8, 20 * rounds, 0, 0}, {others, more * sms, 1, rounds, 0, 0}});
}
