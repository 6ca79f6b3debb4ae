// How a GPU places and starts blocks: clusters, GPCs, block starts, programmatic launches, partitions.
// nvcc -O2 -std=c++17 -arch=native block_placement.cu && ./a.out
//
// clusters   clusters of c blocks that run at once, a block on each SM
// gpcs       SMs that were seen in one cluster, directly or by others
// start      what a wave takes beyond the work of its blocks
// pdl        a kernel of 10 us in a stream, or in a CUDA graph, by where the one before it triggers
// mega       what a task of a persistent kernel takes beyond its work, by the counters it waits for
// partition  SMs that a green context is given for k
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#define CHECK(call)                                                                        \
    do {                                                                                   \
        cudaError_t error = (call);                                                        \
        if (error != cudaSuccess) printf("line %d: %s\n", __LINE__, cudaGetErrorString(error)); \
    } while (0)

__device__ unsigned sm_id() {
    unsigned id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

__device__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

__global__ void where(unsigned *sm, long long cycles) {
    if (threadIdx.x == 0) sm[blockIdx.x] = sm_id();
    spin(cycles);
}

__global__ void chained(long long before, long long after, int triggers) {
    cudaGridDependencySynchronize();
    spin(before);
    if (triggers) cudaTriggerProgrammaticLaunchCompletion();
    spin(after);
}

__global__ void mega(unsigned *counters, int stages, int needed, long long cycles) {
    const unsigned own = needed > 1 ? 0 : blockIdx.x, other = needed > 1 ? 0 : (blockIdx.x + 1) % gridDim.x;
    for (int stage = 0; stage < stages; stage++) {
        if (stage > 0 && threadIdx.x == 0) {
            volatile unsigned *counter = counters + (stage - 1) * gridDim.x + other;
            while (*counter < needed) {
            }
            __threadfence();
        }
        __syncthreads();
        spin(cycles);
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(counters + stage * gridDim.x + own, 1);
        }
    }
}

static int sms;
static const int LARGE = 200 << 10;

template <class... Args>
cudaError_t launch(void (*kernel)(Args...), int grid, int shared, cudaStream_t stream, int cluster, bool early,
                   Args... args) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = 128;
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    if (cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs].val.clusterDim.x = cluster;
        attributes[config.numAttrs].val.clusterDim.y = 1;
        attributes[config.numAttrs++].val.clusterDim.z = 1;
    }
    if (early) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    return cudaLaunchKernelEx(&config, kernel, args...);
}

void clusters(cudaStream_t stream) {
    unsigned *seen;
    CHECK(cudaMallocManaged(&seen, 4096 * sizeof *seen));
    std::vector<int> group(sms);
    std::iota(group.begin(), group.end(), 0);
    auto root = [&](int at) {
        while (group[at] != at) at = group[at];
        return at;
    };
    for (int c : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16}) {
        cudaLaunchAttribute attribute;
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = c;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
        cudaLaunchConfig_t config = {};
        config.gridDim = c * 132;
        config.blockDim = 128;
        config.dynamicSmemBytes = LARGE;
        config.attrs = &attribute;
        config.numAttrs = 1;
        int n = -1;
        CHECK(cudaOccupancyMaxActiveClusters(&n, where, &config));
        printf("clusters %d: %d, %d SMs\n", c, n, n * c);
        for (int i = 0; n > 0 && i < 20; i++) {
            CHECK(launch(where, c * n, LARGE, stream, c, false, seen, 20000LL));
            CHECK(cudaDeviceSynchronize());
            for (int block = 0; block < c * n; block++)
                group[root(seen[block])] = root(seen[block / c * c]);
        }
    }
    std::vector<std::vector<int>> members(sms);
    for (int sm = 0; sm < sms; sm++) members[root(sm)].push_back(sm);
    for (auto &each : members) {
        if (each.empty()) continue;
        printf("gpc of %zu SMs:", each.size());
        for (int sm : each) printf(" %d", sm);
        printf("\n");
    }
}

template <class F>
double median(cudaStream_t stream, int n, F work) {
    cudaEvent_t first, last;
    CHECK(cudaEventCreate(&first));
    CHECK(cudaEventCreate(&last));
    std::vector<double> times;
    for (int i = 0; i < 11; i++) {
        CHECK(launch(chained, 1, 0, stream, 1, false, 10000000LL, 0LL, 0));
        CHECK(cudaEventRecord(first, stream));
        work();
        CHECK(cudaEventRecord(last, stream));
        CHECK(cudaDeviceSynchronize());
        float ms;
        CHECK(cudaEventElapsedTime(&ms, first, last));
        times.push_back(ms * 1e3 / n);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

template <class F>
F driver(const char *name) {
    void *found = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result));
    return (F)found;
}

int main() {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    sms = device.multiProcessorCount;
    int khz;
    CHECK(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, 0));
    printf("%s, %d SMs, %d MHz\n", device.name, sms, khz / 1000);
    CHECK(cudaFuncSetAttribute(where, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE));
    CHECK(cudaFuncSetAttribute(where, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    CHECK(cudaFuncSetAttribute(chained, cudaFuncAttributeMaxDynamicSharedMemorySize, LARGE));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    clusters(stream);

    auto waves = [&](long long cycles, int n, int shared) {
        return median(stream, 1, [&] { CHECK(launch(chained, n * sms, shared, stream, 1, false, cycles, 0LL, 0)); });
    };
    double us = (waves(400000, 8, LARGE) - waves(200000, 8, LARGE)) / 8 / 200000;
    printf("clock %.1f MHz\n", 1 / us);
    for (int shared : {0, 32 << 10, LARGE})
        for (long long cycles : {0LL, 20000LL})
            printf("start: %d bytes, blocks of %lld cycles: %.3f us a wave of a block per SM beyond its work\n", shared,
                   cycles, (waves(cycles, 1100, shared) - waves(cycles, 100, shared)) / 1000 - cycles * us *
                   (shared == LARGE ? 1 : 0));

    const int n = 64;
    const long long ten = (long long)(10 / us);
    for (int shared : {0, LARGE})
        for (int grid : {sms / 2, sms})
            for (bool graph : {false, true})
                for (int share : {-1, 0, 25, 50, 75, 90, 100}) {
                    long long before = ten * std::max(share, 0) / 100;
                    auto chain = [&] {
                        for (int i = 0; i < n; i++)
                            CHECK(launch(chained, grid, shared, stream, 1, share >= 0, before, ten - before,
                                         (int)(share < 100)));
                    };
                    double time;
                    if (graph) {
                        cudaGraph_t made;
                        cudaGraphExec_t ready;
                        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
                        chain();
                        CHECK(cudaStreamEndCapture(stream, &made));
                        CHECK(cudaGraphInstantiate(&ready, made, 0));
                        time = median(stream, n, [&] { CHECK(cudaGraphLaunch(ready, stream)); });
                    } else {
                        time = median(stream, n, chain);
                    }
                    printf("pdl: %d bytes, %d blocks, %s, trigger %d %%: %.3f us a kernel of 10\n", shared, grid,
                           graph ? "graph" : "stream", share, time);
                }

    const int stages = 1000;
    unsigned *counters;
    CHECK(cudaMalloc(&counters, sizeof(unsigned) * stages * sms));
    for (int needed : {0, 1, sms})
        for (long long cycles : {0LL, ten}) {
            double time = median(stream, stages, [&] {
                CHECK(cudaMemsetAsync(counters, 0, sizeof(unsigned) * stages * sms, stream));
                mega<<<sms, 128, 0, stream>>>(counters, stages, needed, cycles);
            });
            printf("mega: waits for %d, tasks of %.0f us: %.3f us beyond its work\n", needed, cycles * us,
                   time - cycles * us);
        }

    auto resource = driver<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource");
    auto split = driver<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount");
    CUdevResource all;
    if (resource && split && resource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS) {
        printf("partition: %u SMs, at least %u, aligned to %u\n", all.sm.smCount, all.sm.minSmPartitionSize,
               all.sm.smCoscheduledAlignment);
        for (unsigned k : {1, 2, 4, 6, 8, 10, 16, 20, 32, 64, 66}) {
            CUdevResource part, rest;
            unsigned groups = 1;
            CUresult found = split(&part, &groups, &all, &rest, 0, k);
            printf("partition %u: result %d, %u SMs, %u left\n", k, found, part.sm.smCount, rest.sm.smCount);
        }
    }
}
