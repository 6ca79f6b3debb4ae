// Blocks that take known times: each notes when it began and ended, and where. The program prints what
// the blocks of each launch noted, in the order of launches, in the run for block times.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define OK(x) do { auto e = (x); if (e) { fprintf(stderr, "%s: %d\n", #x, int(e)); exit(1);} } while (0)
struct Noted { unsigned long long begin, end; unsigned sm, unused; };
__device__ unsigned long long now() { unsigned long long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); return t; }
__device__ unsigned sm() { unsigned n; asm volatile("mov.u32 %0, %%smid;" : "=r"(n)); return n; }
__device__ unsigned block() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
__device__ void wait(unsigned long long since, unsigned ns) { while (now() - since < ns) {} }

// Block b takes `ns` and (b modulo 4) times `more`.
__global__ void spin(Noted* noted, unsigned ns, unsigned more) {
    const unsigned long long begin = now();
    wait(begin, ns + more * (block() % 4));
    if (threadIdx.x == 0) noted[block()] = {begin, now(), sm(), 0};
}
// Thread t ends after t + 1 us: the threads of a warp one by one.
__global__ void leave_one_by_one(Noted* noted) {
    const unsigned long long begin = now();
    wait(begin, 1000 * (threadIdx.x + 1));
    if (threadIdx.x == 0) { noted[block()].begin = begin; noted[block()].sm = sm(); }
    if (threadIdx.x == blockDim.x - 1) noted[block()].end = now();
}
__global__ void __cluster_dims__(2, 1, 1) in_clusters(Noted* noted, unsigned ns) {
    const unsigned long long begin = now();
    wait(begin, ns);
    if (threadIdx.x == 0) noted[block()] = {begin, now(), sm(), 0};
}
// Lets the next kernel begin at once, and takes `ns`.
__global__ void trigger_early(Noted* noted, unsigned ns) {
    asm volatile("griddepcontrol.launch_dependents;");
    const unsigned long long begin = now();
    wait(begin, ns);
    if (threadIdx.x == 0) noted[block()] = {begin, now(), sm(), 0};
}
__global__ void wait_for_trigger(Noted* noted, unsigned ns) {
    const unsigned long long begin = now();
    asm volatile("griddepcontrol.wait;" ::: "memory");
    wait(now(), ns);
    if (threadIdx.x == 0) noted[block()] = {begin, now(), sm(), 0};
}
// All blocks wait for each other.
__global__ void together(Noted* noted, unsigned* arrived, unsigned ns) {
    const unsigned long long begin = now();
    if (threadIdx.x == 0) { atomicAdd(arrived, 1); while (*static_cast<volatile unsigned*>(arrived) < gridDim.x) {} }
    __syncthreads();
    wait(now(), ns);
    if (threadIdx.x == 0) noted[block()] = {begin, now(), sm(), 0};
}
__global__ void nothing() {}

struct Launched { const char* name; int blocks; };
std::vector<Launched> launched;
Noted* noted_by_all; Noted* next_noted;

Noted* places(const char* name, int blocks) {
    launched.push_back({name, blocks});
    Noted* mine = next_noted;
    next_noted += blocks;
    return mine;
}

int main() {
    int device = 0, sms = 0; OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    OK(cudaMalloc(&noted_by_all, 1 << 20)); OK(cudaMemset(noted_by_all, 0, 1 << 20)); next_noted = noted_by_all;
    unsigned* arrived; OK(cudaMalloc(&arrived, 4)); OK(cudaMemset(arrived, 0, 4));
    cudaStream_t s, t; OK(cudaStreamCreate(&s)); OK(cudaStreamCreate(&t));
    nothing<<<4, 128, 0, s>>>(); places("nothing", 0);
    spin<<<8, 64, 0, s>>>(places("spin", 8), 20000, 10000);
    spin<<<dim3(3, 2, 2), 32, 0, s>>>(places("spin", 12), 5000, 2000);
    leave_one_by_one<<<3, 64, 0, s>>>(places("leave_one_by_one", 3));
    // As many as the GPU holds at a time, and a few more.
    OK(cudaFuncSetAttribute(spin, cudaFuncAttributeMaxDynamicSharedMemorySize, 120 << 10));
    spin<<<sms + 5, 256, 120 << 10, s>>>(places("spin", sms + 5), 15000, 0);
    in_clusters<<<6, 64, 0, s>>>(places("in_clusters", 6), 9000);
    trigger_early<<<4, 64, 0, s>>>(places("trigger_early", 4), 12000);
    cudaLaunchConfig_t config = {}; config.gridDim = 4; config.blockDim = 64; config.stream = s;
    cudaLaunchAttribute attribute = {}; attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization; attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute; config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, wait_for_trigger, places("wait_for_trigger", 4), 6000u));
    Noted* mine = places("together", sms); unsigned ns = 4000; void* given[] = {&mine, &arrived, &ns};
    OK(cudaLaunchCooperativeKernel((void*)together, sms, 64, given, 0, s));
    OK(cudaStreamSynchronize(s));
    // Two branches of a graph, with one function each, launched twice: the second run is what stays.
    cudaGraph_t graph; cudaGraphExec_t made; cudaEvent_t begun, joined; OK(cudaEventCreate(&begun)); OK(cudaEventCreate(&joined));
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    OK(cudaEventRecord(begun, s)); OK(cudaStreamWaitEvent(t, begun));
    spin<<<4, 32, 0, s>>>(places("spin in a graph", 4), 10000, 0);
    spin<<<6, 64, 0, t>>>(places("spin in a graph", 6), 30000, 0);
    OK(cudaEventRecord(joined, t)); OK(cudaStreamWaitEvent(s, joined));
    spin<<<2, 96, 0, s>>>(places("spin in a graph", 2), 7000, 0);
    OK(cudaStreamEndCapture(s, &graph)); OK(cudaGraphInstantiate(&made, graph, 0));
    OK(cudaGraphLaunch(made, s)); OK(cudaGraphLaunch(made, s));
    OK(cudaDeviceSynchronize());
    std::vector<Noted> found(next_noted - noted_by_all);
    OK(cudaMemcpy(found.data(), noted_by_all, found.size() * sizeof(Noted), cudaMemcpyDeviceToHost));
    const char* to = getenv("DEPGRAPH_RECORD_BLOCKS") && *getenv("DEPGRAPH_RECORD_BLOCKS") ? getenv("SPANS_FILE") : nullptr;
    FILE* file = to ? fopen(to, "w") : nullptr;
    if (file == nullptr) return 0;
    fprintf(file, "{\"sms\": %d, \"launches\": [", sms);
    size_t place = 0;
    for (size_t i = 0; i < launched.size(); ++i) {
        fprintf(file, "%s\n{\"name\": \"%s\", \"blocks\": [", i ? "," : "", launched[i].name);
        for (int b = 0; b < launched[i].blocks; ++b, ++place) {
            fprintf(file, "%s[%llu, %llu, %u]", b ? ", " : "", found[place].begin, found[place].end, found[place].sm);
        }
        fprintf(file, "]}");
    }
    fprintf(file, "]}\n");
    fclose(file);
}
