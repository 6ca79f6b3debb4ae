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
// A row: the kernel, and of the blocks of SM 0 their number, when they started and ended (cycles), and their warps.
void run(const char *what, int threads, int blocks, int sums, int uneven, int shared_kib) {
    auto kernel = sums == 8 ? work<8> : work<1>; int warps = threads / 32, n = blocks * warps, shared = shared_kib << 10;
    Warp *log; float *out; OK(cudaMalloc(&log, sizeof(Warp) * n)); OK(cudaMalloc(&out, 4));
    OK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 200 << 10));
    OK(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100));
    for (int again = 0; again < 2; again++) kernel<<<blocks, threads, shared>>>(log, 400, uneven, out);
    std::vector<Warp> all(n); OK(cudaMemcpy(all.data(), log, sizeof(Warp) * n, cudaMemcpyDeviceToHost)); OK(cudaFree(log)); OK(cudaFree(out));
    long long from = -1; for (auto &w : all) if (w.sm == 0 && (from < 0 || w.start < from)) from = w.start;
    printf("{\"what\": \"%s\", \"threads\": %d, \"blocks\": %d, \"sums\": %d, \"shared_kib\": %d, \"on_sm_0\": [", what, threads, blocks, sums, shared_kib);
    const char *comma = "";
    for (int b = 0; b < blocks; b++) {
        Warp *w = &all[b * warps]; if (w->sm != 0) continue;
        long long start = w->start, end = w->end; for (int j = 1; j < warps; j++) { start = std::min(start, w[j].start); end = std::max(end, w[j].end); }
        printf("%s[%d, %lld, %lld, [", comma, b, start - from, end - from); comma = ", ";
        for (int j = 0; j < warps; j++) printf("%s%u", j ? ", " : "", w[j].number);
        printf("]]");
    }
    printf("]}\n");
}
int main() {
    cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0)); int sms = p.multiProcessorCount, driver; OK(cudaDriverGetVersion(&driver));
    printf("{\"what\": \"machine\", \"gpu\": \"%s\", \"sms\": %d, \"driver\": %d}\n", p.name, sms, driver);
    for (int sums : {8, 1}) for (int threads : {32, 64, 96, 128, 160, 192, 256}) {
        for (int each = 1; each <= 12 && each * threads <= 2048; each++) run("one wave", threads, each * sms, sums, 0, 0);
        for (int kib : {70, 40, 25, 15}) run("six waves", threads, 227 / (kib + 1) * sms * 6, sums, 1, kib);
    }
}
