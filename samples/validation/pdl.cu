// Chains of 20 dependent kernels, plain and programmatic, with the times of their blocks.
// `./pdl` measures the chains of h200-pdl, `./pdl unseen` others.
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>
#define OK(x) do { auto e_ = (x); if (e_) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1);} } while (0)
struct Seen { unsigned long long begin, passed, end; unsigned sm, pad; };
struct Setting { int kind, threads, shared, per, other; long long amount; };  // every second kernel has `other` blocks an SM, if any
struct Mode { int number; double before, trigger; };  // shares of the work before the wait, and the trigger; -1: none
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
    if (Kind == 4) {
        float y[6];
#pragma unroll
        for (int i = 0; i < 6; i++) y[i] = x + i;
        for (long long r = 0; r < amount; r++) {
#pragma unroll
            for (int i = 0; i < 24; i++) y[i % 6] = fmaf(y[i % 6], 1.0001f, 0.5f);
        }
#pragma unroll
        for (int i = 0; i < 6; i++) x += y[i];
    }
    if (Kind == 5) { unsigned long long b = now(); while ((long long)(now() - b) < amount) {} }
    if (Kind == 6) {
        extern __shared__ float tile[];
        for (long long r = 0; r < amount; r++) {
            tile[threadIdx.x] = x;
            __syncthreads();
#pragma unroll
            for (int i = 0; i < 8; i++) x = fmaf(tile[(threadIdx.x + 33 * i) % blockDim.x], 0.5f, x);
            __syncthreads();
        }
    }
}
template <int Kind> __global__ void link(long long before, long long until, long long after, int trigger, float *data, size_t words, Seen *seen) {
    unsigned long long begin = seen ? now() : 0, passed = 0;
    float x = threadIdx.x;
    if (trigger == 1) asm volatile("griddepcontrol.launch_dependents;");
    if (before) part<Kind>(before, data, words, x);
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (seen) passed = now();
    if (until) part<Kind>(until, data, words, x);
    if (trigger == 2) asm volatile("griddepcontrol.launch_dependents;");
    part<Kind>(after, data, words, x);
    if (x == 12345.678f) data[0] = x;
    if (seen && threadIdx.x == 0) {
        unsigned sm; asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
        seen[blockIdx.x] = {begin, passed, now(), sm, 0};
    }
}
using Kernel = void (*)(long long, long long, long long, int, float *, size_t, Seen *);
Kernel kernels[] = {link<0>, link<1>, link<2>, link<3>, link<4>, link<5>, link<6>};
// Work of about 6 us, of a block that is alone.
const long long usual[] = {6 * 1980, 320, 30, 10, 110, 6000, 60};
const int n = 20;

std::vector<Setting> settings(bool unseen) {
    std::vector<Setting> found;
    if (!unseen) {
        for (int kind = 0; kind < 4; kind++) for (int threads : {128, 256}) for (int shared : {0, 12}) for (int per : {1, 2, 4, 6, 8, 10, 12, 16}) {
            if (per * threads > 2048 || (shared && (threads == 256 || per == 1 || per == 6 || per == 10 || kind == 1))) continue;
            found.push_back({kind, threads, shared, per, 0, usual[kind]});
        }
        return found;
    }
    for (int kind = 0; kind < 7; kind++) {
        int i = kind;
        auto add = [&](int threads, int shared, int per, int other) {
            const double lengths[] = {0.5, 1, 2.5};
            found.push_back({kind, threads, shared, per, other, (long long)(usual[kind] * lengths[i++ % 3])});
        };
        for (int per : {3, 5, 7, 9, 14, 20, 32}) add(64, 0, per, 0);
        for (int per : {3, 5, 7, 8, 9, 11, 14, 16, 20, 33}) add(128, 0, per, 0);
        for (int per : {1, 3, 5, 7, 8, 12, 19}) add(256, 0, per, 0);
        for (int per : {1, 2, 3, 4, 6}) add(512, 0, per, 0);
        for (int per : {1, 2, 3}) add(1024, 0, per, 0);
        for (int per : {2, 4, 7, 9, 14}) add(128, 24, per, 0);
        for (int per : {1, 2, 3, 4}) add(256, 100, per, 0);
        add(128, 0, 8, 1); add(128, 0, 1, 8); add(256, 0, 4, 8); add(128, 0, 16, 4); add(256, 0, 2, 1); add(128, 24, 9, 3);
    }
    return found;
}

int main(int count, char **arguments) {
    bool unseen = count > 1 && !strcmp(arguments[1], "unseen");
    cudaStream_t s; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    cudaEvent_t e[2]; OK(cudaEventCreate(&e[0])); OK(cudaEventCreate(&e[1]));
    size_t words = 1 << 21; float *data; OK(cudaMalloc(&data, words * 4)); OK(cudaMemset(data, 0, words * 4));
    cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0)); int sms = p.multiProcessorCount;
    const int most = 33; Seen *seen; OK(cudaMalloc(&seen, sizeof(Seen) * n * sms * most));
    std::vector<Seen> host(n * sms * most);
    printf("{\"what\":\"machine\",\"gpu\":\"%s\",\"sms\":%d,\"registers\":[", p.name, sms);
    for (int kind = 0; kind < 7; kind++) {
        cudaFuncAttributes a; OK(cudaFuncGetAttributes(&a, (const void *)kernels[kind]));
        OK(cudaFuncSetAttribute((const void *)kernels[kind], cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10));
        printf("%s%d", kind ? "," : "", a.numRegs);
    }
    printf("]}\n");
    link<0><<<sms, 128, 0, s>>>(0, 0, 400000000ll, 0, data, words, nullptr); OK(cudaDeviceSynchronize());
    std::vector<Mode> modes = {{0, 0, -1}, {1, 0, -1}, {2, 0, 0}, {3, 0.5, -1}, {4, 0.5, 0}};
    if (unseen) for (Mode m : {Mode{5, 0, 0.5}, Mode{6, 0.25, 0}, Mode{7, 0.25, 0.5}, Mode{8, 0.25, -1}, Mode{9, 0.75, 0}}) modes.push_back(m);
    for (auto set : settings(unseen)) for (auto mode : modes) {
        auto per = [&](int i) { return i % 2 && set.other ? set.other : set.per; };
        long long before = set.amount * mode.before;
        long long until = mode.trigger > 0 ? set.amount * (mode.trigger - mode.before) : 0, after = set.amount - before - until;
        int trigger = mode.trigger < 0 ? 0 : mode.trigger > 0 ? 2 : 1;
        size_t shared = set.kind == 6 ? std::max<size_t>(set.shared << 10, set.threads * 4) : set.shared << 10, stride = (size_t)most * sms;
        auto issue = [&](bool look) {
            for (int i = 0; i < n; i++) {
                cudaLaunchConfig_t c = {}; c.gridDim = per(i) * sms; c.blockDim = set.threads; c.dynamicSmemBytes = shared; c.stream = s;
                cudaLaunchAttribute a = {}; a.id = cudaLaunchAttributeProgrammaticStreamSerialization; a.val.programmaticStreamSerializationAllowed = 1;
                c.attrs = &a; c.numAttrs = mode.number > 0;
                OK(cudaLaunchKernelEx(&c, kernels[set.kind], before, until, after, trigger, data, words, look ? seen + i * stride : (Seen *)nullptr));
            }
        };
        char what[200];
        snprintf(what, sizeof what, "\"kind\":%d,\"threads\":%d,\"shared\":%d,\"per\":%d,\"other\":%d,\"amount\":%lld,\"mode\":%d,\"before\":%g,\"trigger\":%g", set.kind, set.threads, set.shared, set.per, set.other, set.amount, mode.number, mode.before, mode.trigger);
        for (int captured : {0, 1}) {
            cudaGraph_t g; cudaGraphExec_t x;
            if (captured) { OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); issue(false); OK(cudaStreamEndCapture(s, &g)); OK(cudaGraphInstantiate(&x, g, 0)); }
            std::vector<float> times;
            for (int r = 0; r < 9; r++) {
                link<0><<<1, 32, 0, s>>>(0, 0, 300ll * 1980, 0, data, words, nullptr);
                OK(cudaEventRecord(e[0], s));
                if (captured) for (int b = 0; b < 4; b++) OK(cudaGraphLaunch(x, s)); else issue(false);
                OK(cudaEventRecord(e[1], s)); OK(cudaEventSynchronize(e[1]));
                float ms; OK(cudaEventElapsedTime(&ms, e[0], e[1])); times.push_back(ms * 1e3 / (captured ? 4 : 1));
            }
            std::sort(times.begin(), times.end());
            if (captured) { OK(cudaGraphExecDestroy(x)); OK(cudaGraphDestroy(g)); }
            printf("{\"what\":\"pdl\",%s,\"blocks\":%d,\"graph\":%d,\"nodes\":%d,\"us\":%.2f}\n", what, set.per * sms, captured, n, times[4]);
        }
        for (int r = 0; r < 2; r++) {
            link<0><<<1, 32, 0, s>>>(0, 0, 300ll * 1980, 0, data, words, nullptr);
            OK(cudaEventRecord(e[0], s)); issue(true); OK(cudaEventRecord(e[1], s));
        }
        OK(cudaDeviceSynchronize());
        float ms; OK(cudaEventElapsedTime(&ms, e[0], e[1]));
        OK(cudaMemcpy(host.data(), seen, sizeof(Seen) * n * stride, cudaMemcpyDeviceToHost));
        unsigned long long zero = ~0ull;
        for (int i = 0; i < per(0) * sms; i++) zero = std::min(zero, host[i].begin);
        printf("{\"what\":\"blocks\",%s,\"us\":%.2f,\"kernels\":[", what, ms * 1e3);
        for (int k : {0, 1, 8, 9, 10, 11}) {
            std::vector<double> col[5]; std::map<unsigned, std::vector<std::pair<double, int>>> at; std::vector<int> beside;
            for (int i = 0; i < per(k) * sms; i++) {
                Seen &b = host[k * stride + i];
                double begin = double(b.begin - zero) / 1e3, passed = double(b.passed - zero) / 1e3, end = double(b.end - zero) / 1e3;
                double found[] = {begin, passed, end, end - begin, end - passed};
                for (int q = 0; q < 5; q++) col[q].push_back(found[q]);
                at[b.sm].push_back({begin, 1}); at[b.sm].push_back({end, -1});
            }
            for (auto &[sm, changes] : at) {
                std::sort(changes.begin(), changes.end());
                int running = 0, largest = 0;
                for (auto &change : changes) largest = std::max(largest, running += change.second);
                beside.push_back(largest);
            }
            printf("%s{\"k\":%d", k ? "," : "", k);
            const char *names[] = {"begin", "passed", "end", "long", "after"};
            for (int q = 0; q < 5; q++) {
                std::sort(col[q].begin(), col[q].end());
                printf(",\"%s\":[", names[q]);
                for (int d = 0; d <= 10; d++) printf("%s%.2f", d ? "," : "", col[q][std::min<size_t>(col[q].size() - 1, col[q].size() * d / 10)]);
                printf("]");
            }
            std::sort(beside.begin(), beside.end());
            printf(",\"beside\":[%d,%d,%d]}", beside[0], beside[beside.size() / 2], beside.back());
        }
        printf("]}\n");
        fflush(stdout);
    }
    return 0;
}
