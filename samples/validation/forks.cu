// In which order, and how far apart, the branches of a CUDA graph start that wait for one node; replays one after another.
#include <cuda_runtime.h>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>
#define OK(x) do { auto e_ = (x); if (e_) { fprintf(stderr, "%s: %s\n", #x, cudaGetErrorString(e_)); exit(1);} } while (0)
// `at` has a begin and an end for each of `n` nodes of each replay; the last node, of one block, counts these.
__global__ void spin(long long cycles, unsigned long long *at, int n, int node, int *replay) {
    unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    unsigned long long *own = at ? at + 2 * ((size_t)*replay * n + node) : nullptr;
    if (own && threadIdx.x == 0) atomicMin(own, t);
    long long b = clock64(); while (clock64() - b < cycles) {}
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    if (own && threadIdx.x == 0) { atomicMax(own + 1, t); if (node == n - 1) { __threadfence(); atomicAdd(replay, 1); } }
}
const int MEMSET = 0, COPY = -1;  // in place of a number of blocks
struct Node { int blocks; double us; std::vector<int> after; };
void run(const char *name, const std::vector<Node> &nodes, int how, bool sync) {
    const int replays = 40; size_t n = nodes.size();
    static int *replay = nullptr; static char *memory = nullptr; const size_t each = 4096, half = 1 << 20;
    if (!replay) { OK(cudaMalloc(&replay, 4)); OK(cudaMalloc(&memory, 2 * half)); }
    unsigned long long *at; OK(cudaMalloc(&at, 16 * n * replays));
    std::vector<unsigned long long> t(2 * n * replays);
    for (size_t i = 0; i < n * replays; i++) { t[2 * i] = ~0ull; t[2 * i + 1] = 0; }
    OK(cudaMemcpy(at, t.data(), 16 * n * replays, cudaMemcpyHostToDevice)); OK(cudaMemset(replay, 0, 4));
    cudaStream_t s; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    std::vector<cudaStream_t> streams(n); for (auto &x : streams) OK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
    std::vector<cudaEvent_t> done(n); for (auto &x : done) OK(cudaEventCreateWithFlags(&x, cudaEventDisableTiming));
    cudaGraph_t g; cudaGraphExec_t exec; int nn = n;
    auto cycles = [&](size_t i) { return (long long)(nodes[i].us * 1755); };
    if (how == 0) {  // nodes added one by one
        OK(cudaGraphCreate(&g, 0)); std::vector<cudaGraphNode_t> made(n);
        for (size_t i = 0; i < n; i++) {
            std::vector<cudaGraphNode_t> deps; for (int a : nodes[i].after) deps.push_back(made[a]);
            char *own = memory + each * i;
            if (nodes[i].blocks == MEMSET) {
                cudaMemsetParams m = {}; m.dst = own; m.elementSize = 1; m.width = each; m.height = 1;
                OK(cudaGraphAddMemsetNode(&made[i], g, deps.data(), deps.size(), &m));
            } else if (nodes[i].blocks == COPY) {
                OK(cudaGraphAddMemcpyNode1D(&made[i], g, deps.data(), deps.size(), own, own + half, each, cudaMemcpyDeviceToDevice));
            } else {
                long long c = cycles(i); int ii = i; void *args[] = {&c, &at, &nn, &ii, &replay};
                cudaKernelNodeParams k = {}; k.func = (void *)spin; k.gridDim = dim3(nodes[i].blocks); k.blockDim = dim3(128); k.kernelParams = args;
                OK(cudaGraphAddKernelNode(&made[i], g, deps.data(), deps.size(), &k));
            }
        }
    } else {  // captured from a stream a node, with events
        OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)); cudaEvent_t begin; OK(cudaEventCreateWithFlags(&begin, cudaEventDisableTiming)); OK(cudaEventRecord(begin, s));
        for (size_t i = 0; i < n; i++) {
            char *own = memory + each * i;
            if (nodes[i].after.empty()) OK(cudaStreamWaitEvent(streams[i], begin));
            for (int a : nodes[i].after) OK(cudaStreamWaitEvent(streams[i], done[a]));
            if (nodes[i].blocks == MEMSET) OK(cudaMemsetAsync(own, 0, each, streams[i]));
            else if (nodes[i].blocks == COPY) OK(cudaMemcpyAsync(own, own + half, each, cudaMemcpyDeviceToDevice, streams[i]));
            else spin<<<nodes[i].blocks, 128, 0, streams[i]>>>(cycles(i), at, nn, i, replay);
            OK(cudaEventRecord(done[i], streams[i]));
        }
        for (size_t i = 0; i < n; i++) OK(cudaStreamWaitEvent(s, done[i]));
        OK(cudaStreamEndCapture(s, &g)); cudaEventDestroy(begin);
    }
    OK(cudaGraphInstantiate(&exec, g, 0)); OK(cudaGraphUpload(exec, s)); OK(cudaGraphDestroy(g));
    OK(cudaDeviceSynchronize());
    spin<<<1, 32, 0, s>>>(1755ll * 2000, nullptr, 0, 0, replay);
    for (int r = 0; r < replays; r++) { OK(cudaGraphLaunch(exec, s)); if (sync) OK(cudaStreamSynchronize(s)); }
    OK(cudaDeviceSynchronize());
    OK(cudaMemcpy(t.data(), at, 16 * n * replays, cudaMemcpyDeviceToHost));
    std::map<std::string, int> orders; std::vector<std::vector<double>> starts(n), ends(n);
    std::vector<int> kernels; for (size_t i = 0; i < n; i++) if (nodes[i].blocks > 0) kernels.push_back(i); else starts[i] = ends[i] = {0};
    for (int r = 5; r < replays; r++) {
        unsigned long long first = ~0ull; for (int i : kernels) first = std::min(first, t[2 * (r * n + i)]);
        std::vector<int> by = kernels;
        std::stable_sort(by.begin(), by.end(), [&](int a, int b) { return t[2 * (r * n + a)] < t[2 * (r * n + b)]; });
        std::string text; for (int i : by) text += (text.empty() ? "" : " ") + std::to_string(i);
        orders[text]++;
        for (int i : kernels) { starts[i].push_back((t[2 * (r * n + i)] - first) / 1e3); ends[i].push_back((t[2 * (r * n + i) + 1] - first) / 1e3); }
    }
    auto med = [](std::vector<double> x) { std::sort(x.begin(), x.end()); return x[x.size() / 2]; };
    auto most = std::max_element(orders.begin(), orders.end(), [](auto &a, auto &b) { return a.second < b.second; });
    printf("{\"what\":\"%s\",\"captured\":%d,\"sync\":%d,\"orders\":%zu,\"most\":%d,\"order\":\"%s\",\"nodes\":[", name, how, (int)sync, orders.size(), most->second, most->first.c_str());
    for (size_t i = 0; i < n; i++) { printf("%s[%d,%g,[", i ? "," : "", nodes[i].blocks, nodes[i].us); for (size_t a = 0; a < nodes[i].after.size(); a++) printf("%s%d", a ? "," : "", nodes[i].after[a]); printf("]]"); }
    printf("],\"start\":["); for (size_t i = 0; i < n; i++) printf("%s%.2f", i ? "," : "", med(starts[i]));
    printf("],\"end\":["); for (size_t i = 0; i < n; i++) printf("%s%.2f", i ? "," : "", med(ends[i]));
    printf("]}\n"); fflush(stdout);
    cudaGraphExecDestroy(exec);
    for (auto x : streams) cudaStreamDestroy(x);
    for (auto x : done) cudaEventDestroy(x);
    cudaFree(at); cudaStreamDestroy(s);
}
int main() {
    cudaDeviceProp p; OK(cudaGetDeviceProperties(&p, 0)); printf("{\"what\":\"machine\",\"gpu\":\"%s\"}\n", p.name);
    srand(7);
    for (int sync : {0, 1}) for (int how : {0, 1}) {
        for (int width : {2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32}) for (double us : {2., 30.}) for (int blocks : {1, 132}) for (int chain : {1, 2}) {
            // a root, `width` branches of `chain` nodes, a leaf that waits for all
            std::vector<Node> nodes{{1, 3, {}}}; std::vector<int> ends;
            for (int w = 0; w < width; w++) for (int l = 0; l < chain; l++) { nodes.push_back({blocks, us, {l ? (int)nodes.size() - 1 : 0}}); if (l == chain - 1) ends.push_back(nodes.size() - 1); }
            nodes.push_back({1, 3, ends});
            run("fork", nodes, how, sync);
        }
        for (int i = 0; i < 20; i++) {  // forks within branches
            std::vector<Node> nodes{{1, 3, {}}}; int width = 2 + rand() % 3;
            std::vector<int> heads, ends;
            for (int w = 0; w < width; w++) { nodes.push_back({1 << (rand() % 8), 4. + rand() % 10, {0}}); heads.push_back(nodes.size() - 1); }
            for (int h : heads) { int inner = 1 + rand() % 4; for (int k = 0; k < inner; k++) { nodes.push_back({1 << (rand() % 8), 4. + rand() % 10, {h}}); ends.push_back(nodes.size() - 1); } }
            nodes.push_back({1, 3, ends});
            run("nested", nodes, how, sync);
        }
        for (int kernels : {3, 4, 5, 6, 7}) for (int others : {1, 2, 4}) for (int what : {MEMSET, COPY}) {  // beside memsets or copies
            std::vector<Node> nodes{{1, 3, {}}}; std::vector<int> ends;
            for (int w = 0; w < kernels + others; w++) { nodes.push_back({w < kernels ? 4 : what, w < kernels ? 6. : 0., {0}}); ends.push_back(w + 1); }
            nodes.push_back({1, 3, ends});
            run(what == MEMSET ? "memsets" : "copies", nodes, how, sync);
        }
        for (int i = 0; i < 50; i++) {  // random graphs with one root and one leaf
            int n = 6 + rand() % (i < 30 ? 10 : 24); std::vector<Node> nodes{{1, 3, {}}}; std::vector<int> open;
            for (int k = 1; k <= n; k++) { std::vector<int> a{rand() % k}; if (rand() % 2) { int b = rand() % k; if (b != a[0]) a.push_back(b); } nodes.push_back({1 << (rand() % 8), 4. + rand() % 10, a}); }
            std::vector<bool> has(n + 1); for (auto &x : nodes) for (int a : x.after) has[a] = true;
            for (int k = 0; k <= n; k++) if (!has[k]) open.push_back(k);
            nodes.push_back({1, 3, open});
            run("random", nodes, how, sync);
        }
    }
}
