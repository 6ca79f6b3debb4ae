// Chains of 20 dependent kernels, plain and programmatic, with the times of their blocks.
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>
#define OK(x) do { auto e_ = (x); if (e_) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1);} } while (0)
struct Seen { unsigned long long begin, passed, end; unsigned sm, pad; };
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
template <int Kind> __device__ void part(long long amount, float *data, size_t words, float &x) {
    if (Kind == 0) { long long b = clock64(); while (clock64() - b < amount) {} }
    if (Kind == 1) for (long long r = 0; r < amount; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) x = fmaf(x, 1.0001f, 0.5f);
    }
    size_t me = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (Kind == 2) for (long long r = 0; r < amount; r++) {
        x += __ldcg(data + (me + r * 8192) % words);
#pragma unroll
        for (int i = 0; i < 24; i++) x = fmaf(x, 1.0001f, 0.5f);
    }
    if (Kind == 3) for (long long r = 0; r < amount; r++) {
        float4 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = __ldcg((const float4 *)(data + ((me + (r * 4 + i) * gridDim.x * blockDim.x) * 4) % words));
#pragma unroll
        for (int i = 0; i < 4; i++) x += v[i].x + v[i].y + v[i].z + v[i].w;
    }
}
template <int Kind> __global__ void link(long long before, long long after, bool trigger, float *data, size_t words, Seen *seen) {
    unsigned long long begin = seen ? now() : 0, passed = 0;
    float x = threadIdx.x;
    if (trigger) asm volatile("griddepcontrol.launch_dependents;");
    if (before) part<Kind>(before, data, words, x);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (seen) passed = now();
    part<Kind>(after, data, words, x);
    if (x == 12345.678f) data[0] = x;
    if (seen && threadIdx.x == 0) {
        unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
        seen[blockIdx.x] = {begin, passed, now(), sm, 0};
    }
}
using Kernel = void (*)(long long, long long, bool, float *, size_t, Seen *);
Kernel kernels[] = {link<0>, link<1>, link<2>, link<3>};
const long long amounts[] = {0, 320, 30, 10};
int main() {
    cudaStream_t s; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    cudaEvent_t e[2]; OK(cudaEventCreate(&e[0])); OK(cudaEventCreate(&e[1]));
    size_t words = 1 << 21; float *data; OK(cudaMalloc(&data, words * 4)); OK(cudaMemset(data, 0, words * 4));
    cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0)); int sms = p.multiProcessorCount;
    const int n = 20; Seen *seen; OK(cudaMalloc(&seen, sizeof(Seen) * n * sms * 16));
    std::vector<Seen> host(n * sms * 16);
    printf("{\"what\":\"machine\",\"gpu\":\"%s\",\"sms\":%d}\n", p.name, sms);
    link<0><<<sms, 128, 0, s>>>(0, 400000000ll, false, data, words, nullptr); OK(cudaDeviceSynchronize());
    for (int kind = 0; kind < 4; kind++) for (int threads : {128, 256}) for (int shared : {0, 12}) for (int per : {1, 2, 4, 6, 8, 10, 12, 16}) {
        if (per * threads > 2048 || (shared && (threads == 256 || per == 1 || per == 6 || per == 10 || kind == 1))) continue;
        int blocks = per * sms;
        for (int mode = 0; mode < 5; mode++) {
            bool half = mode > 2, trigger = mode == 2 || mode == 4;
            long long amount = kind ? amounts[kind] : 6ll * 1980, before = half ? amount / 2 : 0, after = half ? amount / 2 : amount;
            auto issue = [&](bool look) {
                for (int i = 0; i < n; i++) {
                    cudaLaunchConfig_t c = {}; c.gridDim = blocks; c.blockDim = threads; c.dynamicSmemBytes = shared * 1024; c.stream = s;
                    cudaLaunchAttribute a = {}; a.id = cudaLaunchAttributeProgrammaticStreamSerialization; a.val.programmaticStreamSerializationAllowed = 1;
                    c.attrs = &a; c.numAttrs = mode > 0;
                    OK(cudaLaunchKernelEx(&c, kernels[kind], before, after, trigger, data, words, look ? seen + (size_t)i * blocks : (Seen *)nullptr));
                }
            };
            for (int captured : {0, 1}) {
                cudaGraph_t g; cudaGraphExec_t x;
                if (captured) { OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); issue(false); OK(cudaStreamEndCapture(s, &g)); OK(cudaGraphInstantiate(&x, g, 0)); }
                std::vector<float> times;
                for (int r = 0; r < 9; r++) {
                    link<0><<<1, 32, 0, s>>>(0, 300ll * 1980, false, data, words, nullptr);
                    OK(cudaEventRecord(e[0], s));
                    if (captured) for (int b = 0; b < 4; b++) OK(cudaGraphLaunch(x, s)); else issue(false);
                    OK(cudaEventRecord(e[1], s)); OK(cudaEventSynchronize(e[1]));
                    float ms; OK(cudaEventElapsedTime(&ms, e[0], e[1])); times.push_back(ms * 1e3 / (captured ? 4 : 1));
                }
                std::sort(times.begin(), times.end());
                if (captured) { OK(cudaGraphExecDestroy(x)); OK(cudaGraphDestroy(g)); }
                printf("{\"what\":\"pdl\",\"kind\":%d,\"threads\":%d,\"shared\":%d,\"per\":%d,\"blocks\":%d,\"mode\":%d,\"graph\":%d,\"nodes\":%d,\"us\":%.2f}\n", kind, threads, shared, per, blocks, mode, captured, n, times[4]);
            }
            for (int r = 0; r < 2; r++) {
                link<0><<<1, 32, 0, s>>>(0, 300ll * 1980, false, data, words, nullptr);
                OK(cudaEventRecord(e[0], s)); issue(true); OK(cudaEventRecord(e[1], s));
            }
            OK(cudaDeviceSynchronize());
            float ms; OK(cudaEventElapsedTime(&ms, e[0], e[1]));
            OK(cudaMemcpy(host.data(), seen, sizeof(Seen) * n * blocks, cudaMemcpyDeviceToHost));
            unsigned long long zero = ~0ull;
            for (int i = 0; i < blocks; i++) zero = std::min(zero, host[i].begin);
            printf("{\"what\":\"blocks\",\"kind\":%d,\"threads\":%d,\"shared\":%d,\"per\":%d,\"mode\":%d,\"us\":%.2f,\"kernels\":[", kind, threads, shared, per, mode, ms * 1e3);
            for (int k : {0, 1, 8, 9, 10, 11}) {
                std::vector<double> col[4]; std::vector<int> at(sms, 0); double first = 1e30;
                for (int i = 0; i < blocks; i++) {
                    Seen &b = host[(size_t)k * blocks + i];
                    col[0].push_back((b.begin - zero) / 1e3); col[1].push_back((b.passed - zero) / 1e3); col[2].push_back((b.end - zero) / 1e3); col[3].push_back((b.end - b.passed) / 1e3);
                    first = std::min(first, col[0].back());
                }
                for (int i = 0; i < blocks; i++) at[host[(size_t)k * blocks + i].sm] += col[0][i] < first + 1;
                printf("%s{\"k\":%d", k ? "," : "", k);
                const char *names[] = {"begin", "passed", "end", "after"};
                for (int q = 0; q < 4; q++) {
                    std::sort(col[q].begin(), col[q].end());
                    printf(",\"%s\":[", names[q]);
                    for (int d = 0; d <= 10; d++) printf("%s%.2f", d ? "," : "", col[q][std::min<size_t>(col[q].size() - 1, col[q].size() * d / 10)]);
                    printf("]");
                }
                std::sort(at.begin(), at.end());
                printf(",\"at_once\":[%d,%d,%d]}", at[0], at[sms / 2], at[sms - 1]);
            }
            printf("]}\n");
        }
        fflush(stdout);
    }
    return 0;
}
