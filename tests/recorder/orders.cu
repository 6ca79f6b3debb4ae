// Programs with and without each kind of order between two kernels that touch the same bytes. Each has
// its own buffer; the host waits for the device between two programs. Prints: number, name, what is to be
// said (1 a race), address of the buffer. Two are said otherwise than they are, as documented: an
// asynchronous copy to pageable memory does keep the host waiting, and an event that a graph records
// before its end does not stand for all of it.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#define OK(...) do { const cudaError_t e_ = (__VA_ARGS__); if (e_ != cudaSuccess) { \
    printf("! %s line %d: %s\n", now.c_str(), __LINE__, cudaGetErrorString(e_)); } } while (0)

std::string now;

__global__ void put(int* to, int value) { to[threadIdx.x] = value; }
__global__ void get(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void add(int* to) { atomicAdd(to, 1); }
__global__ void nothing() {}
__global__ void put_early(int* to, int value) {
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
    to[threadIdx.x] = value;
}
__global__ void get_late(const int* from, int* to) {
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
    to[threadIdx.x] = from[threadIdx.x];
}
#if CUDART_VERSION >= 12040
__global__ void let(cudaGraphConditionalHandle handle) { cudaGraphSetConditional(handle, 1); }
#endif

struct Buffers { int *shared, *own, *other; };
Buffers b;
cudaStream_t A, B, C, D;
cudaStream_t L = cudaStreamLegacy, P = cudaStreamPerThread;
cudaEvent_t e, f;
int* pinned;
int pageable[1024];

void w(cudaStream_t s) { put<<<1, 32, 0, s>>>(b.shared, 1); OK(cudaGetLastError()); }
void r(cudaStream_t s) { get<<<1, 32, 0, s>>>(b.shared, b.own); OK(cudaGetLastError()); }
void rec(cudaEvent_t v, cudaStream_t s) { OK(cudaEventRecord(v, s)); }
void await(cudaStream_t s, cudaEvent_t v) { OK(cudaStreamWaitEvent(s, v, 0)); }

cudaKernelNodeParams kernel(void* function, void** arguments) {
    cudaKernelNodeParams p{};
    p.func = function; p.gridDim = dim3(1); p.blockDim = dim3(32); p.kernelParams = arguments;
    return p;
}
int one = 1;
cudaGraphNode_t put_node(cudaGraph_t g, std::vector<cudaGraphNode_t> before, int** to) {
    void* a[] = {to, &one};
    auto p = kernel((void*)put, a);
    cudaGraphNode_t n{};
    OK(cudaGraphAddKernelNode(&n, g, before.data(), before.size(), &p));
    return n;
}
cudaGraphNode_t get_node(cudaGraph_t g, std::vector<cudaGraphNode_t> before, int** to) {
    void* a[] = {&b.shared, to};
    auto p = kernel((void*)get, a);
    cudaGraphNode_t n{};
    OK(cudaGraphAddKernelNode(&n, g, before.data(), before.size(), &p));
    return n;
}
cudaGraphNode_t w(cudaGraph_t g, std::vector<cudaGraphNode_t> before = {}) { return put_node(g, before, &b.shared); }
cudaGraphNode_t r(cudaGraph_t g, std::vector<cudaGraphNode_t> before = {}) { return get_node(g, before, &b.own); }
cudaGraphNode_t empty(cudaGraph_t g, std::vector<cudaGraphNode_t> before) {
    cudaGraphNode_t n{}; OK(cudaGraphAddEmptyNode(&n, g, before.data(), before.size())); return n;
}
cudaGraphNode_t set(cudaGraph_t g, std::vector<cudaGraphNode_t> before, int* at) {
    cudaMemsetParams p{}; p.dst = at; p.elementSize = 4; p.width = 32; p.height = 1;
    cudaGraphNode_t n{}; OK(cudaGraphAddMemsetNode(&n, g, before.data(), before.size(), &p)); return n;
}
cudaGraphNode_t copy(cudaGraph_t g, std::vector<cudaGraphNode_t> before, int* to, const int* from) {
    cudaGraphNode_t n{};
    OK(cudaGraphAddMemcpyNode1D(&n, g, before.data(), before.size(), to, from, 128, cudaMemcpyDeviceToDevice));
    return n;
}
cudaGraph_t graph() { cudaGraph_t g; OK(cudaGraphCreate(&g, 0)); return g; }
cudaGraphExec_t made(cudaGraph_t g) { cudaGraphExec_t x{}; OK(cudaGraphInstantiate(&x, g, 0)); return x; }
void run(cudaGraph_t g, cudaStream_t s = nullptr) { OK(cudaGraphLaunch(made(g), s ? s : A)); }
cudaGraph_t captured(const std::function<void()>& what) {
    cudaGraph_t g{};
    OK(cudaStreamBeginCapture(A, cudaStreamCaptureModeThreadLocal));
    what();
    OK(cudaStreamEndCapture(A, &g));
    return g;
}
void fork() { rec(e, A); await(B, e); }
void join() { rec(f, B); await(A, f); }
void CUDART_CB host(void*) {}
void launch_early(cudaStream_t s, void* function, void** arguments) {
    cudaLaunchConfig_t c{}; c.gridDim = dim3(1); c.blockDim = dim3(32); c.stream = s;
    cudaLaunchAttribute a{}; a.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    a.val.programmaticStreamSerializationAllowed = 1; c.attrs = &a; c.numAttrs = 1;
    OK(cudaLaunchKernelExC(&c, function, arguments));
}

struct Case { const char* name; int race; std::function<void()> run; };

std::vector<Case> cases() {
    return {
    {"one stream", 0, [] { w(A); r(A); }},
    {"two streams", 1, [] { w(A); r(B); }},
    {"event", 0, [] { w(A); rec(e, A); await(B, e); r(B); }},
    {"event too early", 1, [] { rec(e, A); w(A); await(B, e); r(B); }},
    {"event recorded anew", 1, [] { w(A); rec(e, A); rec(e, B); await(B, e); r(B); }},
    {"wait too late", 1, [] { w(A); rec(e, A); r(B); await(B, e); }},
    {"third stream", 0, [] { w(A); rec(e, A); await(D, e); rec(f, D); await(B, f); r(B); }},
    {"host waits for event", 0, [] { w(A); rec(e, A); OK(cudaEventSynchronize(e)); r(B); }},
    {"host asks event", 0, [] { w(A); rec(e, A); while (cudaEventQuery(e) != cudaSuccess) {} r(B); }},
    {"host asks stream", 0, [] { w(A); while (cudaStreamQuery(A) != cudaSuccess) {} r(B); }},
    {"host waits for stream", 0, [] { w(A); OK(cudaStreamSynchronize(A)); r(B); }},
    {"host waits for other stream", 1, [] { w(A); OK(cudaStreamSynchronize(C)); r(B); }},
    {"host waits for device", 0, [] { w(A); OK(cudaDeviceSynchronize()); r(B); }},
    {"legacy after blocking", 0, [] { w(C); r(L); }},
    {"blocking after legacy", 0, [] { w(L); r(C); }},
    {"legacy after non-blocking", 1, [] { w(A); r(L); }},
    {"non-blocking after legacy", 1, [] { w(L); r(A); }},
    {"null stream after blocking", 0, [] { w(C); r((cudaStream_t)0); }},
    {"two blocking", 1, [] { w(C); r(D); }},
    {"legacy kernel between blocking", 0, [] { w(C); nothing<<<1, 1, 0, L>>>(); r(D); }},
    {"legacy memset between blocking", 0, [] { w(C); OK(cudaMemsetAsync(b.other, 0, 4, L)); r(D); }},
    {"legacy record between blocking", 0, [] { w(C); rec(e, L); r(D); }},
    {"legacy wait between blocking", 0, [] { rec(e, A); w(C); await(L, e); r(D); }},
    {"legacy waits for event, blocking follows", 0, [] { w(A); rec(e, A); await(L, e); r(D); }},
    {"record in legacy, wait in non-blocking", 0, [] { w(C); rec(e, L); await(A, e); r(A); }},
    {"record in blocking after legacy", 0, [] { w(L); rec(e, C); await(A, e); r(A); }},
    {"host waits for legacy", 0, [] { w(C); OK(cudaStreamSynchronize(L)); r(A); }},
    {"host waits for blocking after legacy", 1, [] { w(L); OK(cudaStreamSynchronize(C)); r(A); }},
    {"per-thread after legacy", 0, [] { w(L); r(P); }},
    {"legacy after per-thread", 0, [] { w(P); r(L); }},
    {"per-thread and blocking", 1, [] { w(P); r(C); }},
    {"per-thread twice", 0, [] { w(P); r(P); }},
    {"per-thread of two threads", 1, [] { w(P); std::thread([] { r(P); }).join(); }},
    {"per-thread event", 0, [] { w(P); rec(e, P); await(A, e); r(A); }},
    {"host waits for per-thread", 0, [] { w(P); OK(cudaStreamSynchronize(P)); r(A); }},
    {"new blocking stream after legacy", 0, [] { w(L); cudaStream_t s; OK(cudaStreamCreate(&s)); r(s); }},
    {"synchronous copy to host", 0, [] { w(C); OK(cudaMemcpy(pageable, b.other, 128, cudaMemcpyDeviceToHost)); r(A); }},
    {"asynchronous copy to pinned", 1, [] { w(A); OK(cudaMemcpyAsync(pinned, b.other, 128, cudaMemcpyDeviceToHost, A)); r(B); }},
    {"asynchronous copy to pageable", 1, [] { w(A); OK(cudaMemcpyAsync(pageable, b.other, 128, cudaMemcpyDeviceToHost, A)); r(B); }},
    {"synchronous copy on device", 1, [] { w(C); OK(cudaMemcpy(b.own, b.other, 128, cudaMemcpyDeviceToDevice)); get<<<1, 32, 0, A>>>(b.shared, b.own + 64); }},
    {"host function", 1, [] { w(A); OK(cudaLaunchHostFunc(A, host, nullptr)); r(B); }},
    {"host function between blocking", 0, [] { w(C); OK(cudaLaunchHostFunc(L, host, nullptr)); r(D); }},
    {"atomics", 0, [] { add<<<1, 32, 0, A>>>(b.shared); add<<<1, 32, 0, B>>>(b.shared); }},
    {"memset of other stream", 1, [] { OK(cudaMemsetAsync(b.shared, 0, 128, A)); r(B); }},
    {"copy of other stream", 1, [] { OK(cudaMemcpyAsync(b.shared, b.other, 128, cudaMemcpyDeviceToDevice, A)); r(B); }},
    {"event of a stream that is gone", 0, [] {
        cudaStream_t s; OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
        w(s); rec(e, s); OK(cudaStreamDestroy(s)); await(B, e); r(B); }},
    {"event made anew", 1, [] {
        cudaEvent_t v; OK(cudaEventCreate(&v)); rec(v, A); OK(cudaEventDestroy(v));
        OK(cudaEventCreate(&v)); w(A); await(B, v); r(B); OK(cudaEventDestroy(v)); }},
    {"programmatic launch that waits", 0, [] {
        void *x[] = {&b.shared, &one}, *y[] = {&b.shared, &b.own};
        launch_early(A, (void*)put_early, x); launch_early(A, (void*)get_late, y); }},
    // graphs
    {"graph: edge", 0, [] { auto g = graph(); auto n = w(g); r(g, {n}); run(g); }},
    {"graph: no edge", 1, [] { auto g = graph(); w(g); r(g); run(g); }},
    {"graph: past an empty node", 0, [] { auto g = graph(); r(g, {empty(g, {w(g)})}); run(g); }},
    {"graph: past a memset", 0, [] { auto g = graph(); r(g, {set(g, {w(g)}, b.other)}); run(g); }},
    {"graph: past a copy", 0, [] { auto g = graph(); r(g, {copy(g, {w(g)}, b.other, b.other + 64)}); run(g); }},
    {"graph: memset and kernel without edge", 1, [] { auto g = graph(); set(g, {}, b.shared); r(g); run(g); }},
    {"graph: copy and kernel without edge", 1, [] { auto g = graph(); copy(g, {}, b.shared, b.other); r(g); run(g); }},
    {"graph: copy and kernel with edge", 0, [] { auto g = graph(); r(g, {copy(g, {}, b.shared, b.other)}); run(g); }},
    {"graph: past a host node", 0, [] {
        auto g = graph(); auto n = w(g); cudaHostNodeParams p{host, nullptr}; cudaGraphNode_t h;
        OK(cudaGraphAddHostNode(&h, g, &n, 1, &p)); r(g, {h}); run(g); }},
    {"graph: child before", 0, [] {
        auto g = graph(), c = graph(); w(c); cudaGraphNode_t n;
        OK(cudaGraphAddChildGraphNode(&n, g, nullptr, 0, c)); r(g, {n}); run(g); }},
    {"graph: child after", 0, [] {
        auto g = graph(), c = graph(); r(c); auto first = w(g); cudaGraphNode_t n;
        OK(cudaGraphAddChildGraphNode(&n, g, &first, 1, c)); run(g); }},
    {"graph: child beside", 1, [] {
        auto g = graph(), c = graph(); w(c); cudaGraphNode_t n;
        OK(cudaGraphAddChildGraphNode(&n, g, nullptr, 0, c)); r(g); run(g); }},
    {"graph: inside a child of a child", 1, [] {
        auto g = graph(), c = graph(), d = graph(); w(d); r(d); cudaGraphNode_t n, m;
        OK(cudaGraphAddChildGraphNode(&n, c, nullptr, 0, d)); OK(cudaGraphAddChildGraphNode(&m, g, nullptr, 0, c)); run(g); }},
    {"graph: two children in turn", 0, [] {
        auto g = graph(), c = graph(), d = graph(); w(c); r(d); cudaGraphNode_t n, m;
        OK(cudaGraphAddChildGraphNode(&n, g, nullptr, 0, c)); OK(cudaGraphAddChildGraphNode(&m, g, &n, 1, d)); run(g); }},
    {"graph: captured in turn", 0, [] { run(captured([] { w(A); r(A); })); }},
    {"graph: captured beside", 1, [] { run(captured([] { fork(); w(A); r(B); join(); })); }},
    {"graph: captured with events", 0, [] { run(captured([] { w(A); fork(); r(B); join(); })); }},
    {"graph: then its stream", 0, [] { auto g = graph(); w(g); run(g, A); r(A); }},
    {"graph: then another stream", 1, [] { auto g = graph(); w(g); run(g, A); r(B); }},
    {"graph: then an event", 0, [] { auto g = graph(); w(g); run(g, A); rec(e, A); await(B, e); r(B); }},
    {"graph: twice in two streams", 0, [] {
        auto g = graph(); w(g); auto x = made(g); OK(cudaGraphLaunch(x, A)); OK(cudaGraphLaunch(x, B)); }},
    {"graph: instantiated twice, in two streams", 1, [] {
        auto g = graph(); w(g); OK(cudaGraphLaunch(made(g), A)); OK(cudaGraphLaunch(made(g), B)); }},
    {"graph: turn orders what follows", 0, [] {
        auto g = graph(); set(g, {}, b.other); auto x = made(g);
        w(A); OK(cudaGraphLaunch(x, A)); OK(cudaGraphLaunch(x, B)); r(B); }},
    {"graph: in the legacy stream after blocking", 0, [] { auto g = graph(); r(g); w(C); run(g, L); }},
    {"graph: in the legacy stream after non-blocking", 1, [] { auto g = graph(); r(g); w(A); run(g, L); }},
    {"graph: in the per-thread stream", 0, [] { auto g = graph(); w(g); run(g, P); r(P); }},
    {"graph: updated, ordered", 0, [] {
        auto g = graph(); auto n = put_node(g, {}, &b.other); get_node(g, {n}, &b.own); auto x = made(g);
        OK(cudaGraphLaunch(x, A));
        auto h = graph(); r(h, {w(h)}); cudaGraphExecUpdateResultInfo info{};
        OK(cudaGraphExecUpdate(x, h, &info)); OK(cudaGraphLaunch(x, A)); OK(cudaGraphDestroy(g)); OK(cudaGraphDestroy(h)); }},
    {"graph: updated, unordered", 1, [] {
        auto g = graph(); put_node(g, {}, &b.other); int* p = b.own + 64; get_node(g, {}, &p); auto x = made(g);
        auto h = graph(); w(h); r(h); cudaGraphExecUpdateResultInfo info{};
        OK(cudaGraphExecUpdate(x, h, &info)); OK(cudaGraphDestroy(g)); OK(cudaGraphDestroy(h)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: parameters set", 0, [] {
        auto g = graph(); auto n = put_node(g, {}, &b.other); auto m = r(g, {n}); (void)m; auto x = made(g);
        void* a[] = {&b.shared, &one}; auto p = kernel((void*)put, a);
        OK(cudaGraphExecKernelNodeSetParams(x, n, &p)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: node disabled", 0, [] {
        auto g = graph(); auto n = w(g); int* p = b.other; auto m = put_node(g, {n}, &p); r(g, {m}); auto x = made(g);
        OK(cudaGraphNodeSetEnabled(x, m, 0)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed before its launch", 0, [] {
        auto g = graph(); r(g, {w(g)}); auto x = made(g); OK(cudaGraphDestroy(g));
        auto h = graph(); put_node(h, {}, &b.other); put_node(h, {}, &b.other); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, no edge", 1, [] {
        auto g = graph(); w(g); r(g); auto x = made(g); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, past an empty node", 0, [] {
        auto g = graph(); r(g, {empty(g, {w(g)})}); auto x = made(g); OK(cudaGraphDestroy(g));
        OK(cudaGraphLaunch(x, A)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, past a disabled node", 0, [] {
        auto g = graph(); auto n = w(g); int* p = b.other; auto m = put_node(g, {n}, &p); r(g, {m}); auto x = made(g);
        OK(cudaGraphNodeSetEnabled(x, m, 0)); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed between launches", 0, [] {
        auto g = graph(); r(g, {w(g)}); auto x = made(g); OK(cudaGraphLaunch(x, A)); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, memset and copy without edges", 1, [] {
        auto g = graph(); set(g, {}, b.shared); copy(g, {}, b.own, b.shared); auto x = made(g); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, captured beside", 1, [] { auto g = captured([] { fork(); w(A); r(B); join(); }); auto x = made(g); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, captured with events", 0, [] { auto g = captured([] { w(A); fork(); r(B); join(); }); auto x = made(g); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: destroyed, programmatic edge", 0, [] {
        void *x[] = {&b.shared, &one}, *y[] = {&b.shared, &b.own};
        auto g = captured([&] { launch_early(A, (void*)put_early, x); launch_early(A, (void*)get_late, y); });
        auto e2 = made(g); OK(cudaGraphDestroy(g)); OK(cudaGraphLaunch(e2, A)); }},
    {"graph: cloned", 0, [] { auto g = graph(); r(g, {w(g)}); cudaGraph_t h; OK(cudaGraphClone(&h, g)); run(h); }},
    {"graph: launched thrice", 0, [] { auto g = graph(); r(g, {w(g)}); auto x = made(g); for (int i = 0; i < 3; ++i) OK(cudaGraphLaunch(x, A)); }},
    {"graph: uploaded", 0, [] { auto g = graph(); r(g, {w(g)}); auto x = made(g); OK(cudaGraphUpload(x, A)); OK(cudaGraphLaunch(x, A)); }},
    {"graph: made earlier node last", 0, [] {
        auto g = graph(); auto second = r(g); auto first = w(g);
#if CUDART_VERSION >= 13000
        OK(cudaGraphAddDependencies(g, &first, &second, nullptr, 1));
#else
        OK(cudaGraphAddDependencies(g, &first, &second, 1));
#endif
        run(g); }},
    {"graph: event record node", 0, [] {
        auto g = graph(); auto n = w(g); cudaGraphNode_t v; OK(cudaGraphAddEventRecordNode(&v, g, &n, 1, e));
        rec(e, A); run(g); await(B, e); r(B); }},
    {"graph: event record node, not behind", 0, [] {
        auto g = graph(); auto n = put_node(g, {}, &b.other); w(g, {}); cudaGraphNode_t v; OK(cudaGraphAddEventRecordNode(&v, g, &n, 1, e));
        run(g); await(B, e); r(B); }},
    {"graph: event wait node", 0, [] {
        auto g = graph(); cudaGraphNode_t v; OK(cudaGraphAddEventWaitNode(&v, g, nullptr, 0, e)); r(g, {v});
        w(B); rec(e, B); run(g); }},
    {"graph: programmatic edge", 0, [] {
        void *x[] = {&b.shared, &one}, *y[] = {&b.shared, &b.own};
        run(captured([&] { launch_early(A, (void*)put_early, x); launch_early(A, (void*)get_late, y); })); }},
    {"graph: memory nodes", 0, [] {
        auto g = graph(); auto n = w(g); cudaMemAllocNodeParams p{}; p.poolProps.allocType = cudaMemAllocationTypePinned;
        p.poolProps.location.type = cudaMemLocationTypeDevice; p.bytesize = 4096; cudaGraphNode_t m, k;
        OK(cudaGraphAddMemAllocNode(&m, g, &n, 1, &p)); auto s = set(g, {m}, (int*)p.dptr);
        OK(cudaGraphAddMemFreeNode(&k, g, &s, 1, p.dptr)); r(g, {k}); run(g); }},
#if CUDART_VERSION >= 12040
    {"graph: conditional", 0, [] {
        auto g = graph(); cudaGraphConditionalHandle h; OK(cudaGraphConditionalHandleCreate(&h, g, 1, cudaGraphCondAssignDefault));
        auto first = put_node(g, {}, &b.other);
        cudaGraphNodeParams p{}; p.type = cudaGraphNodeTypeConditional; p.conditional.handle = h;
        p.conditional.type = cudaGraphCondTypeIf; p.conditional.size = 1;
        cudaGraphNode_t n;
#if CUDART_VERSION >= 13000
        OK(cudaGraphAddNode(&n, g, &first, nullptr, 1, &p));
#else
        OK(cudaGraphAddNode(&n, g, &first, 1, &p));
#endif
        w(p.conditional.phGraph_out[0]); r(g, {n}); run(g); }},
#endif
    };
}

int main(int n, char** words) {
    OK(cudaSetDevice(0));
    for (auto s : {&A, &B}) OK(cudaStreamCreateWithFlags(s, cudaStreamNonBlocking));
    for (auto s : {&C, &D}) OK(cudaStreamCreate(s));
    OK(cudaEventCreate(&e)); OK(cudaEventCreateWithFlags(&f, cudaEventDisableTiming));
    OK(cudaMallocHost(&pinned, 4096));
    int number = 0;
    for (const Case& each : cases()) {
        ++number;
        if (n > 1 && each.name != std::string(words[1])) continue;
        now = each.name;
        for (auto p : {&b.shared, &b.own, &b.other}) OK(cudaMalloc(p, 4096));
        OK(cudaDeviceSynchronize());
        each.run();
        OK(cudaDeviceSynchronize());
        printf("%d\t%s\t%d\t%llu\n", number, each.name, each.race, (unsigned long long)b.shared);
        fflush(stdout);
    }
    return 0;
}
