// How a GPU starts, places and shares out small kernels: nvcc -O3 -std=c++17 -arch=native
// hardware.cu -o hardware && ./hardware > OUT.jsonl
//
// One JSON object a line; "what" names the experiment, README.md the other columns. Times are
// microseconds, medians of many.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include <mma.h>
#include <cuda_bf16.h>

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error = (call);                                                       \
        if (error != cudaSuccess) {                                                       \
            fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

struct Seen {
    long long begin, end;
    unsigned long long at, until;
    unsigned sm;
};

__device__ unsigned long long global_time() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Which: several functions of one body, since a preferred carve-out belongs to a function.
template <int Which>
__global__ void spin(long long cycles, Seen *seen) {
    long long begin = clock64();
    unsigned long long at = seen ? global_time() : 0;
    while (clock64() - begin < cycles) {
    }
    if (seen && threadIdx.x == 0) {
        unsigned sm;
        asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
        seen[blockIdx.x] = {begin, clock64(), at, global_time(), sm};
    }
}

__global__ void early(long long before, long long after, bool trigger) {
    if (trigger) asm volatile("griddepcontrol.launch_dependents;");
    long long begin = clock64();
    while (clock64() - begin < before) {
    }
    asm volatile("griddepcontrol.wait;" ::: "memory");
    begin = clock64();
    while (clock64() - begin < after) {
    }
}

// Work of one kind, the same for each block: 0 one dependent FMA chain a thread, 1 eight of them,
// 2 shared memory, 3 reads of L2, 4 reads of DRAM, 5 tensor cores.
template <int Kind>
__global__ void work(int rounds, float *data, size_t words) {
    extern __shared__ float own[];
    float x[8];
    for (int i = 0; i < 8; i++) x[i] = threadIdx.x + i;
    size_t threads = (size_t)gridDim.x * blockDim.x;
    size_t me = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (Kind == 0)
        for (int r = 0; r < rounds * 8; r++) x[0] = fmaf(x[0], 1.0001f, 0.5f);
    if (Kind == 1)
        for (int r = 0; r < rounds * 4; r++)
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] = fmaf(x[i], 1.0001f, 0.5f);
    if (Kind == 2)
        for (int r = 0; r < rounds; r++) {
#pragma unroll
            for (int i = 0; i < 8; i++) x[i] += ((volatile float *)own)[(threadIdx.x + i * 32 + r) & 1023];
        }
    if (Kind == 3 || Kind == 4)
        for (int r = 0; r < rounds; r++) {
            size_t base = Kind == 3 ? (me * 4 + (size_t)r * 4 * 8 * 8192) % (words - 32 * 8192)
                                    : (me + (size_t)r * 8 * threads) * 4 % (words - 32 * threads);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float4 v = __ldcg((const float4 *)(data + base + (Kind == 3 ? (size_t)i * 4096 : (size_t)i * threads * 4)));
                x[i] += v.x + v.y + v.z + v.w;
            }
        }
    if (Kind == 5) {
        using namespace nvcuda;
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> a;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::col_major> b;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> c[4];
        wmma::fill_fragment(a, __float2bfloat16(threadIdx.x));
        wmma::fill_fragment(b, __float2bfloat16(1.0f));
        for (int i = 0; i < 4; i++) wmma::fill_fragment(c[i], 0.0f);
        for (int r = 0; r < rounds; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) wmma::mma_sync(c[i], a, b, c[i]);
        for (int i = 0; i < 4; i++) x[i] += c[i].x[0];
    }
    float sum = 0;
    for (int i = 0; i < 8; i++) sum += x[i];
    if (sum == 12345.678f) data[me % words] = sum;
}

cudaStream_t streams[65];
cudaEvent_t marks[130];
int sms, largest;
double mhz;

double elapsed(cudaEvent_t a, cudaEvent_t b) {
    float ms;
    CHECK(cudaEventElapsedTime(&ms, a, b));
    return ms * 1e3;
}

// Microseconds an issue, many back to back, issued while a long kernel holds the stream.
double primed(const std::function<void()> &issue, int batch, double ahead, int repeats = 11) {
    std::vector<double> times;
    for (int r = 0; r < repeats; r++) {
        if (ahead > 0) spin<9><<<1, 32, 0, streams[0]>>>((long long)(ahead * mhz), nullptr);
        CHECK(cudaEventRecord(marks[0], streams[0]));
        for (int i = 0; i < batch; i++) issue();
        CHECK(cudaEventRecord(marks[1], streams[0]));
        CHECK(cudaEventSynchronize(marks[1]));
        times.push_back(elapsed(marks[0], marks[1]) / batch);
    }
    return median(times);
}

// ---- carve-out ----
struct Side {
    int kib10, blocks, threads, preferred;
};
Seen *seen_a, *seen_b;
std::vector<Seen> host_a(4096), host_b(4096);

template <int Which>
void launch_side(const Side &s, long long cycles, Seen *seen, cudaStream_t stream) {
    CHECK(cudaFuncSetAttribute(spin<Which>, cudaFuncAttributePreferredSharedMemoryCarveout, s.preferred));
    spin<Which><<<s.blocks, s.threads, s.kib10 * 1024 / 10, stream>>>(cycles, seen);
    CHECK(cudaGetLastError());
}

void carve(const char *what, Side a, Side b, int reset) {
    const double us = 20;
    double best_time = 0, share = 0, sms_a = 0, sms_b = 0;
    int most_a = 0, most_b = 0, most = 0;
    std::vector<double> times, shares;
    for (int r = 0; r < 3; r++) {
        Side first = reset ? Side{2270, sms, 128, 100} : Side{0, sms, 128, 0};
        launch_side<2>(first, (long long)(2 * mhz), nullptr, streams[0]);
        CHECK(cudaStreamSynchronize(streams[0]));
        launch_side<0>(a, (long long)(us * mhz), seen_a, streams[1]);
        launch_side<1>(b, (long long)(us * mhz), seen_b, streams[2]);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(host_a.data(), seen_a, a.blocks * sizeof(Seen), cudaMemcpyDeviceToHost));
        CHECK(cudaMemcpy(host_b.data(), seen_b, b.blocks * sizeof(Seen), cudaMemcpyDeviceToHost));
        unsigned long long begin = ~0ull, end = 0;
        std::vector<std::vector<Seen>> on_a(256), on_b(256);
        for (int i = 0; i < a.blocks; i++) {
            on_a[host_a[i].sm].push_back(host_a[i]);
            begin = std::min(begin, host_a[i].at);
            end = std::max(end, host_a[i].until);
        }
        for (int i = 0; i < b.blocks; i++) {
            on_b[host_b[i].sm].push_back(host_b[i]);
            begin = std::min(begin, host_b[i].at);
            end = std::max(end, host_b[i].until);
        }
        int together = 0, used_a = 0, used_b = 0;
        most_a = most_b = most = 0;
        for (int s = 0; s < 256; s++) {
            used_a += !on_a[s].empty();
            used_b += !on_b[s].empty();
            for (auto &x : on_b[s]) {
                int beside = 0;
                for (auto &y : on_a[s]) beside += x.begin < y.end && y.begin < x.end;
                together += beside > 0;
                int with = beside;
                for (auto &y : on_b[s]) with += x.begin < y.end && y.begin <= x.begin;
                most = std::max(most, with);
            }
            for (auto *on : {&on_a, &on_b})
                for (auto &x : (*on)[s]) {
                    int beside = 0;
                    for (auto &y : (*on)[s]) beside += y.begin <= x.begin && x.begin < y.end;
                    int &m = on == &on_a ? most_a : most_b;
                    m = std::max(m, beside);
                }
        }
        sms_a = used_a;
        sms_b = used_b;
        times.push_back((end - begin) * 1e-3);
        shares.push_back((double)together / b.blocks);
    }
    best_time = median(times);
    share = median(shares);
    printf("{\"what\":\"%s\",\"a\":[%d,%d,%d,%d],\"b\":[%d,%d,%d,%d],\"reset\":%d,\"us\":%.1f,"
           "\"share\":%.3f,\"sms\":[%d,%d],\"most\":[%d,%d,%d]}\n",
           what, a.kib10, a.blocks, a.threads, a.preferred, b.kib10, b.blocks, b.threads, b.preferred,
           reset, best_time, share, (int)sms_a, (int)sms_b, most_a, most_b, most);
}

void carve_all() {
    CHECK(cudaMalloc(&seen_a, 4096 * sizeof(Seen)));
    CHECK(cudaMalloc(&seen_b, 4096 * sizeof(Seen)));
    for (auto f : {spin<0>, spin<1>, spin<2>})
        CHECK(cudaFuncSetAttribute(f, cudaFuncAttributeMaxDynamicSharedMemorySize, largest));
    std::vector<int> sizes = {0, 10, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150, 160, 200, 240, 280,
                              320, 400, 480, 560, 640, 750, 990, 1130, 1310, 1630, 1950, 2270};
    for (int k : {1, 2, 4, 8})
        for (int reset : {0, 1})
            for (int a : sizes)
                for (int b : sizes) {
                    if (k > 2 && (a > 1000 || b > 1000)) continue;
                    carve("carve-size", {a, sms * k, 128, -1}, {b, sms * k, 128, -1}, reset);
                }
    for (int reset : {0, 1})
        for (int a : {0, 40, 80, 160, 320, 480, 990})
            for (int b : {0, 40, 80, 160, 320, 480, 990})
                for (int pa : {-1, 0, 25, 50, 75, 100})
                    for (int pb : {-1, 0, 25, 50, 75, 100})
                        carve("carve-preferred", {a, sms * 2, 128, pa}, {b, sms * 2, 128, pb}, reset);
    for (int reset : {0, 1})
        for (int a : {0, 40, 80, 160, 320, 480})
            for (int b : {0, 40, 80, 160, 320, 480})
                for (int ta : {64, 128, 256, 512, 1024})
                    for (int tb : {64, 128, 256, 512, 1024})
                        carve("carve-threads", {a, sms, ta, -1}, {b, sms, tb, -1}, reset);
    for (int reset : {0, 1})
        for (int a : {0, 40, 160, 480, 990})
            for (int b : {0, 40, 160, 480, 990})
                for (int na : {32, 66, 100, 132, 200})
                    for (int nb : {32, 66, 100, 132, 200})
                        carve("carve-part", {a, na, 128, -1}, {b, nb, 128, -1}, reset);
}

// ---- launches ----
struct Shape {
    int blocks, threads;
    double us;
};

cudaGraphExec_t make(int nodes, const std::function<std::vector<int>(int)> &needs, Shape shape, cudaGraph_t *out = nullptr) {
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    std::vector<cudaGraphNode_t> made(nodes);
    long long cycles = (long long)(shape.us * mhz);
    Seen *none = nullptr;
    void *arguments[] = {&cycles, &none};
    for (int i = 0; i < nodes; i++) {
        std::vector<cudaGraphNode_t> before;
        for (int j : needs(i)) before.push_back(made[j]);
        cudaKernelNodeParams p = {};
        p.func = (void *)spin<9>;
        p.gridDim = dim3(shape.blocks);
        p.blockDim = dim3(shape.threads);
        p.kernelParams = arguments;
        CHECK(cudaGraphAddKernelNode(&made[i], graph, before.data(), before.size(), &p));
    }
    cudaGraphExec_t instance;
    CHECK(cudaGraphInstantiate(&instance, graph, 0));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaGraphUpload(instance, streams[0]));
    return instance;
}

void graph_row(const char *what, int width, int length, int nodes,
               const std::function<std::vector<int>(int)> &needs, Shape shape) {
    cudaGraphExec_t graph = make(nodes, needs, shape);
    auto issue = [&] { CHECK(cudaGraphLaunch(graph, streams[0])); };
    issue();
    CHECK(cudaDeviceSynchronize());
    std::vector<double> host, alone;
    for (int r = 0; r < 7; r++) {
        auto begin = Clock::now();
        issue();
        host.push_back(since(begin));
        CHECK(cudaDeviceSynchronize());
        alone.push_back(since(begin));
    }
    int batch = std::max(2, std::min(10, (int)(3000 / median(alone))));
    double back = primed(issue, batch, 200 + 1.2 * batch * median(host), 7), free = primed(issue, 2 * batch, 0, 7);
    printf("{\"what\":\"%s\",\"width\":%d,\"length\":%d,\"nodes\":%d,\"blocks\":%d,\"threads\":%d,"
           "\"work\":%.1f,\"us\":%.2f,\"unprimed\":%.2f,\"host\":%.2f,\"with_sync\":%.2f}\n",
           what, width, length, nodes, shape.blocks, shape.threads, shape.us, back, free, median(host), median(alone));
    CHECK(cudaGraphExecDestroy(graph));
}

void launches() {
    std::vector<Shape> shapes = {{1, 32, 0}, {8, 128, 0}, {132, 128, 0}, {1056, 128, 0}, {1, 32, 2}, {1, 32, 5}, {1, 32, 20}, {132, 128, 5}};
    for (Shape s : shapes) {
        for (int total : {64, 256})
            for (int width : {1, 2, 4, 8, 16, 24, 32, 64}) {
                int length = total / width, nodes = length * width;
                graph_row("branches", width, length, nodes, [=](int i) { return i < width ? std::vector<int>{} : std::vector<int>{i - width}; }, s);
            }
        for (int width : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64})
            graph_row("roots", width, 1, width, [](int) { return std::vector<int>{}; }, s);
        for (int width : {1, 2, 4, 8, 16, 24, 32, 64})
            for (int times : {1, 4}) {
                int nodes = times * (width + 1) + 1;
                graph_row("fork-join", width, times, nodes, [=](int i) {
                    std::vector<int> before;
                    int round = i / (width + 1), part = i % (width + 1);
                    if (part) before.push_back(round * (width + 1));
                    else if (round) for (int j = 0; j < width; j++) before.push_back((round - 1) * (width + 1) + 1 + j);
                    return before;
                }, s);
            }
        for (int n : {1, 2, 4, 8, 16, 32, 128})
            graph_row("chain", 1, n, n, [](int i) { return i ? std::vector<int>{i - 1} : std::vector<int>{}; }, s);
        // roots and leaves of a graph: r roots, a node that needs all, l leaves (0: none)
        for (int roots : {1, 2, 4, 8, 16, 24, 32})
            for (int leaves : {0, 1, 2, 4, 8, 16, 24, 32})
                graph_row("ends", roots, leaves, roots + 1 + leaves, [=](int i) {
                    std::vector<int> before;
                    if (i == roots) for (int j = 0; j < roots; j++) before.push_back(j);
                    if (i > roots) before.push_back(roots);
                    return before;
                }, s);
        // one root, chains of its children, and one leaf or none
        for (int width : {1, 2, 4, 8, 16, 24, 32})
            for (int joined : {0, 1})
                graph_row(joined ? "rooted-joined" : "rooted", width, 8, width * 8 + 1 + joined, [=](int i) {
                    std::vector<int> before;
                    if (i == width * 8 + 1) for (int j = 0; j < width; j++) before.push_back(i - 1 - j);
                    else if (i) before.push_back(i <= width ? 0 : i - width);
                    return before;
                }, s);
        // layers where each node needs two of the layer before, as in a mixture of experts
        for (int width : {4, 12, 24})
            graph_row("layers", width, 8, width * 8, [=](int i) {
                if (i < width) return std::vector<int>{};
                int j = i % width, base = (i / width - 1) * width;
                return std::vector<int>{base + j, base + (j + 1) % width};
            }, s);
    }
    for (Shape s : shapes) {
        long long cycles = (long long)(s.us * mhz);
        std::vector<double> host;
        for (int width : {1, 2, 4, 8, 16, 24, 32, 64}) {
            int length = 192 / width;
            auto issue = [&] {
                CHECK(cudaEventRecord(marks[2], streams[0]));
                for (int w = 1; w < width; w++) CHECK(cudaStreamWaitEvent(streams[w], marks[2]));
                for (int l = 0; l < length; l++)
                    for (int w = 0; w < width; w++) spin<9><<<s.blocks, s.threads, 0, streams[w]>>>(cycles, nullptr);
                for (int w = 1; w < width; w++) {
                    CHECK(cudaEventRecord(marks[2 + w], streams[w]));
                    CHECK(cudaStreamWaitEvent(streams[0], marks[2 + w]));
                }
            };
            double back = primed(issue, 1, 1500, 9), free = primed(issue, 1, 0, 9);
            host.clear();
            for (int r = 0; r < 5; r++) {
                auto begin = Clock::now();
                issue();
                host.push_back(since(begin));
                CHECK(cudaDeviceSynchronize());
            }
            printf("{\"what\":\"streams\",\"width\":%d,\"length\":%d,\"nodes\":%d,\"blocks\":%d,\"threads\":%d,"
                   "\"work\":%.1f,\"us\":%.2f,\"unprimed\":%.2f,\"host\":%.2f}\n",
                   width, length, width * length, s.blocks, s.threads, s.us, back, free, median(host));
        }
        // one kernel after another, each in the other of two streams, joined by events
        auto cross = [&] {
            for (int l = 0; l < 40; l++) {
                cudaStream_t from = streams[l % 2], to = streams[(l + 1) % 2];
                spin<9><<<s.blocks, s.threads, 0, from>>>(cycles, nullptr);
                CHECK(cudaEventRecord(marks[3 + l % 2], from));
                CHECK(cudaStreamWaitEvent(to, marks[3 + l % 2]));
            }
        };
        printf("{\"what\":\"cross\",\"nodes\":40,\"blocks\":%d,\"threads\":%d,\"work\":%.1f,\"us\":%.2f,\"unprimed\":%.2f}\n",
               s.blocks, s.threads, s.us, primed(cross, 1, 600, 9), primed(cross, 1, 0, 9));
    }
}

// ---- programmatic dependent launch ----
void dependent() {
    for (int blocks : {1, 66, 132, 264, 528, 1056, 2112})
        for (int mode = 0; mode < 5; mode++)  // 0 plain, 1 PDL no trigger, 2 early trigger, 3 and 4: half the work before the wait
            for (int captured : {0, 1}) {
                double us = 6;
                long long half = (long long)(us / 2 * mhz);
                long long before = mode == 3 || mode == 4 ? half : 0, after = mode == 3 || mode == 4 ? half : 2 * half;
                bool trigger = mode == 2 || mode == 4;
                const int n = 20;
                auto issue = [&] {
                    for (int i = 0; i < n; i++) {
                        cudaLaunchConfig_t config = {};
                        config.gridDim = dim3(blocks);
                        config.blockDim = dim3(128);
                        config.stream = streams[0];
                        cudaLaunchAttribute attribute = {};
                        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
                        attribute.val.programmaticStreamSerializationAllowed = 1;
                        config.attrs = &attribute;
                        config.numAttrs = mode ? 1 : 0;
                        CHECK(cudaLaunchKernelEx(&config, early, before, after, trigger));
                    }
                };
                double time;
                if (captured) {
                    cudaGraph_t graph;
                    cudaGraphExec_t instance;
                    CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed));
                    issue();
                    CHECK(cudaStreamEndCapture(streams[0], &graph));
                    CHECK(cudaGraphInstantiate(&instance, graph, 0));
                    time = primed([&] { CHECK(cudaGraphLaunch(instance, streams[0])); }, 5, 400);
                    CHECK(cudaGraphExecDestroy(instance));
                    CHECK(cudaGraphDestroy(graph));
                } else {
                    time = primed(issue, 1, 600);
                }
                printf("{\"what\":\"pdl\",\"blocks\":%d,\"threads\":128,\"mode\":%d,\"graph\":%d,\"work\":%.1f,\"nodes\":%d,\"us\":%.2f}\n",
                       blocks, mode, captured, us, n, time);
            }
}

// ---- how kinds of work share an SM ----
using Work = void (*)(int, float *, size_t);
Work works[] = {work<0>, work<1>, work<2>, work<3>, work<4>, work<5>};
int rounds[] = {800, 1000, 1200, 60, 24, 300};

void sharing() {
    size_t words = (size_t)1 << 29, few = (size_t)1 << 21;
    float *data;
    CHECK(cudaMalloc(&data, words * 4));
    CHECK(cudaMemset(data, 0, words * 4));
    auto put = [&](int kind, int blocks, int threads, cudaStream_t stream, int scale = 1) {
        works[kind]<<<blocks, threads, 4096, stream>>>(rounds[kind] * scale, data, kind == 3 ? few : words);
    };
    for (int kind = 0; kind < 6; kind++)
        for (int threads : {128, 256})
            for (int blocks : {1, 8, 33, 66, 132, 198, 264, 330, 396, 528, 660, 792, 1056, 1188, 1584, 2112}) {
                if (blocks * threads > sms * 2048) continue;
                double us = primed([&] { put(kind, blocks, threads, streams[0]); }, 5, 100, 7);
                printf("{\"what\":\"load\",\"kind\":%d,\"blocks\":%d,\"threads\":%d,\"us\":%.2f}\n", kind, blocks, threads, us);
            }
    for (int a = 0; a < 6; a++)
        for (int b = a; b < 6; b++)
            for (int ka : {66, 132, 264, 528})
                for (int kb : {66, 132, 264, 528}) {
                    auto one = [&](int kind, int k) { return primed([&] { put(kind, k, 128, streams[0]); }, 5, 100, 5); };
                    auto both = [&] {
                        CHECK(cudaEventRecord(marks[2], streams[0]));
                        CHECK(cudaStreamWaitEvent(streams[1], marks[2]));
                        put(a, ka, 128, streams[0]);
                        put(b, kb, 128, streams[1]);
                        CHECK(cudaEventRecord(marks[3], streams[1]));
                        CHECK(cudaStreamWaitEvent(streams[0], marks[3]));
                    };
                    cudaGraph_t graph;
                    cudaGraphExec_t instance;
                    CHECK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed));
                    both();
                    CHECK(cudaStreamEndCapture(streams[0], &graph));
                    CHECK(cudaGraphInstantiate(&instance, graph, 0));
                    double t = primed([&] { CHECK(cudaGraphLaunch(instance, streams[0])); }, 5, 200, 5);
                    printf("{\"what\":\"beside\",\"kinds\":[%d,%d],\"blocks\":[%d,%d],\"alone\":[%.2f,%.2f],\"us\":%.2f}\n",
                           a, b, ka, kb, one(a, ka), one(b, kb), t);
                    CHECK(cudaGraphExecDestroy(instance));
                    CHECK(cudaGraphDestroy(graph));
                }
}

int main(int count, char **arguments) {
    std::string which = count > 1 ? arguments[1] : "launches,pdl,carve,sharing";
    cudaDeviceProp p;
    CHECK(cudaGetDeviceProperties(&p, 0));
    sms = p.multiProcessorCount;
    largest = (int)p.sharedMemPerBlockOptin;
    for (auto &s : streams) CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    for (auto &m : marks) CHECK(cudaEventCreate(&m));
    mhz = 1000;
    spin<9><<<1, 32, 0, streams[0]>>>(50000000, nullptr);
    double slow = primed([] { spin<9><<<1, 32, 0, streams[0]>>>(4000000, nullptr); }, 5, 0);
    double fast = primed([] { spin<9><<<1, 32, 0, streams[0]>>>(2000000, nullptr); }, 5, 0);
    mhz = 2000000 / (slow - fast);
    int driver;
    CHECK(cudaDriverGetVersion(&driver));
    printf("{\"what\":\"machine\",\"gpu\":\"%s\",\"sms\":%d,\"l2_bytes\":%d,\"driver\":%d,\"mhz\":%.0f}\n", p.name, sms, p.l2CacheSize, driver, mhz);
    if (which.find("launches") != std::string::npos) launches();
    if (which.find("pdl") != std::string::npos) dependent();
    if (which.find("sharing") != std::string::npos) sharing();
    if (which.find("carve") != std::string::npos) carve_all();
    return 0;
}
