// Kernels whose footprints are known by construction: one for each way to touch global memory.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>
#define OK(x) do { auto e = (x); if (e) { fprintf(stderr, "%s: %d\n", #x, int(e)); exit(1);} } while (0)
__device__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
template <class T> __global__ void copies(const T* from, T* to) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    to[2 * i] = from[i];
}
__global__ void atomics(unsigned* counter, float* sums) {
    if (threadIdx.x == 0) atomicAdd(counter, 1u);
    atomicAdd(sums + blockIdx.x * blockDim.x + threadIdx.x, 1.0f);
}
// A thread reads the first 16, 8 or 4 bytes, or none, of its 16, and zeros fill the rest.
__global__ void asynchronous(const char* from, char* to) {
    __shared__ alignas(16) char here[32 * 16];
    const int t = threadIdx.x;
    const int sizes[] = {16, 8, 4, 0};
    const char* at = from + (blockIdx.x * blockDim.x + t) * 16;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(here + 16 * t)), "l"(at), "r"(sizes[t % 4]));
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    if (t == 0) to[blockIdx.x] = here[1];
}
__global__ void bulk(const char* from, char* to, float* sums) {
    __shared__ alignas(128) char here[1024];
    __shared__ alignas(8) uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(shared_address(here)), "l"(from + blockIdx.x * 2048), "r"(shared_address(&barrier)) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again;}" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 512;" ::"l"(to + blockIdx.x * 4096), "r"(shared_address(here)) : "memory");
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], 256;" ::"l"(sums + blockIdx.x * 64), "r"(shared_address(here)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
__global__ void tiles(const __grid_constant__ CUtensorMap map, const __grid_constant__ CUtensorMap out, float* to) {
    __shared__ alignas(128) float here[32 * 16];
    __shared__ alignas(8) uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 2048;" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(shared_address(here)), "l"(&map), "r"(int(blockIdx.x) * 32 - 8), "r"(int(blockIdx.y) * 16), "r"(shared_address(&barrier)) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again;}" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out), "r"(int(blockIdx.x) * 32), "r"(int(blockIdx.y) * 16), "r"(shared_address(here)) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
        to[blockIdx.y * gridDim.x + blockIdx.x] = here[9];
    }
}
CUtensorMap map_of(void* base, uint64_t width, uint64_t height) {
    typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static Encode encode = Encode(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuTensorMapEncodeTiled"));
    CUtensorMap map; cuuint64_t sizes[] = {width, height}, strides[] = {width * 4}; cuuint32_t box[] = {32, 16}, steps[] = {1, 1};
    OK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}
// A box of a tensor of any rank; in a cluster, the first block loads it for both.
template <int RANK, bool FOR_TWO = false> __global__ void boxes(const __grid_constant__ CUtensorMap map, int bytes, float* to) {
    __shared__ alignas(128) float here[512];
    __shared__ alignas(8) uint64_t barrier;
    const uint32_t at = shared_address(here), done = shared_address(&barrier);
    const int x = int(blockIdx.x) * 12 + 4, z = RANK > 2 ? 1 : 0;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(done));
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(done), "r"(bytes) : "memory");
    }
    if constexpr (FOR_TWO) cooperative_groups::this_cluster().sync();
    if (threadIdx.x == 0) {
        if constexpr (FOR_TWO) {
            if (blockIdx.x % 2 == 0) asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(at), "l"(&map), "r"(x), "r"(4), "r"(done), "h"(uint16_t(3)) : "memory");
        } else if constexpr (RANK == 1) asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2}], [%3];" ::"r"(at), "l"(&map), "r"(x), "r"(done) : "memory");
        else if constexpr (RANK == 3) asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(at), "l"(&map), "r"(x), "r"(4), "r"(z), "r"(done) : "memory");
        else if constexpr (RANK == 4) asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %4}], [%5];" ::"r"(at), "l"(&map), "r"(x), "r"(4), "r"(z), "r"(done) : "memory");
        else asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %4, %4}], [%5];" ::"r"(at), "l"(&map), "r"(x), "r"(4), "r"(z), "r"(done) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again;}" ::"r"(done) : "memory");
        to[blockIdx.x] = here[3];
    }
    if constexpr (FOR_TWO) cooperative_groups::this_cluster().sync();
}
CUtensorMap map_of_rank(void* base, int rank, int& bytes) {
    typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static Encode encode = Encode(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuTensorMapEncodeTiled"));
    CUtensorMap map; cuuint64_t sizes[] = {36, 6, 4, 3, 2}, strides[] = {144, 864, 3456, 10368}; cuuint32_t box[] = {16, 3, 2, 2, 2}, steps[] = {1, 1, 1, 1, 1};
    bytes = 4; for (int d = 0; d < rank; ++d) bytes *= box[d];
    OK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, rank, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
}
template <int RANK> void load_boxes(char* base, float* to) {
    int bytes; const CUtensorMap map = map_of_rank(base, RANK, bytes);
    boxes<RANK><<<3, 32>>>(map, bytes, to);
}
void load_for_two(char* base, float* to) {
    int bytes; const CUtensorMap map = map_of_rank(base, 2, bytes);
    cudaLaunchConfig_t config = {}; config.gridDim = 4; config.blockDim = 32;
    cudaLaunchAttribute cluster; cluster.id = cudaLaunchAttributeClusterDimension; cluster.val.clusterDim.x = 2; cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.attrs = &cluster; config.numAttrs = 1;
    OK(cudaLaunchKernelEx(&config, boxes<2, true>, map, bytes, to));
}
// A thread takes 32 bytes in two halves, and one byte behind all of them.
__global__ void halves(const uint4* from, char* to) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 first = from[2 * i], second = from[2 * i + 1];
    if (i == 0) to[1 << 16] = 1;
    reinterpret_cast<uint4*>(to)[2 * i] = first;
    reinterpret_cast<uint4*>(to)[2 * i + 1] = second;
}
__global__ void together(int* to) {
    to[blockIdx.x] = 1;
    cooperative_groups::this_grid().sync();
    if (threadIdx.x == 0) to[64 + blockIdx.x] = to[(blockIdx.x + 1) % gridDim.x];
}
__global__ void child(char* to) { to[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
__global__ void parent(char* to) { if (threadIdx.x == 0) child<<<2, 32>>>(to); }
// A column of pixels (im2col) into B, for the host to see which elements of A the hardware took.
struct Column { int counts[3], lower[3], steps[3], pixels, channels; };
template <int RANK> __global__ void pixels(const __grid_constant__ CUtensorMap map, Column column, int* to) {
    __shared__ alignas(128) int here[128];
    __shared__ alignas(8) uint64_t barrier;
    const uint32_t at = shared_address(here), done = shared_address(&barrier);
    int place[3] = {}, first = blockIdx.x * column.pixels;
    for (int d = 0; d < RANK - 2; ++d) {
        place[d] = column.lower[d] + first % column.counts[d] * column.steps[d];
        first /= column.counts[d];
    }
    const int c = column.channels * (blockIdx.x % 2), size = column.pixels * column.channels;
    const uint16_t x = blockIdx.x % 3, y = blockIdx.x / 3, z = 1;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(done));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(done), "r"(size * 4) : "memory");
        if constexpr (RANK == 3) asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5], {%6};" ::"r"(at), "l"(&map), "r"(c), "r"(place[0]), "r"(first), "r"(done), "h"(x) : "memory");
        else if constexpr (RANK == 4) asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(at), "l"(&map), "r"(c), "r"(place[0]), "r"(place[1]), "r"(first), "r"(done), "h"(x), "h"(y) : "memory");
        else asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(at), "l"(&map), "r"(c), "r"(place[0]), "r"(place[1]), "r"(place[2]), "r"(first), "r"(done), "h"(x), "h"(y), "h"(z) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again;}" ::"r"(done) : "memory");
    }
    __syncthreads();
    if (threadIdx.x < size) to[blockIdx.x * 128 + threadIdx.x] = here[threadIdx.x];
}
template <int RANK> void load_pixels(const char* name, int* base, int* to, std::vector<int> lower, std::vector<int> upper, std::vector<cuuint32_t> steps) {
    typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const int*, const int*, cuuint32_t, cuuint32_t, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static Encode encode = Encode(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuTensorMapEncodeIm2col"));
    const cuuint64_t spatial[] = {7, 5, 4};
    cuuint64_t sizes[5] = {8}, strides[4] = {32};
    Column column = {{1, 1, 1}, {}, {1, 1, 1}, 20, 4};
    for (int d = 0; d < RANK - 2; ++d) {
        sizes[d + 1] = spatial[d];
        strides[d + 1] = strides[d] * spatial[d];
        column.lower[d] = lower[d]; column.steps[d] = steps[d + 1];
        column.counts[d] = (int(spatial[d]) - 1 + upper[d] - lower[d]) / int(steps[d + 1]) + 1;
    }
    sizes[RANK - 1] = 3;
    CUtensorMap map;
    OK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, RANK, base, sizes, strides, lower.data(), upper.data(), column.channels, column.pixels, steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    pixels<RANK><<<4, 128>>>(map, column, to);
    std::vector<int> taken(4 * 128);
    OK(cudaMemcpy(taken.data(), to, taken.size() * 4, cudaMemcpyDeviceToHost));
    printf(", \"%s\": [", name);
    for (int block = 0; block < 4; ++block) for (int i = 0; i < 80; ++i) printf("%s%d", block + i ? ", " : "", taken[128 * block + i]);
    printf("]");
}
// A box of a matrix of a batch that is one matrix over and over, as cuBLAS gives operands that products share.
__global__ void one_of_many(const __grid_constant__ CUtensorMap map, int* to) {
    __shared__ alignas(128) int here[48];
    __shared__ alignas(8) uint64_t barrier;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 192;" ::"r"(shared_address(&barrier)) : "memory");
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(here)), "l"(&map), "r"(4), "r"(2), "r"(500 * int(blockIdx.x)), "r"(shared_address(&barrier)) : "memory");
        asm volatile("{.reg .pred p; again: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra again;}" ::"r"(shared_address(&barrier)) : "memory");
    }
    __syncthreads();
    if (threadIdx.x < 48) to[48 * blockIdx.x + threadIdx.x] = here[threadIdx.x];
}
void load_one_of_many(int* base, int* to) {
    typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static Encode encode = Encode(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), "cuTensorMapEncodeTiled"));
    CUtensorMap map; cuuint64_t sizes[] = {36, 6, 1000}, strides[] = {144, 864}; cuuint32_t box[] = {16, 3, 1}, steps[] = {1, 1, 1};
    OK(encode(&map, CU_TENSOR_MAP_DATA_TYPE_INT32, 3, base, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    reinterpret_cast<uint64_t*>(&map)[2] = 0;  // the stride of the batch
    one_of_many<<<3, 64>>>(map, to);
    std::vector<int> taken(3 * 48);
    OK(cudaMemcpy(taken.data(), to, taken.size() * 4, cudaMemcpyDeviceToHost));
    printf(", \"one of many\": [");
    for (size_t i = 0; i < taken.size(); ++i) printf("%s%d", i ? ", " : "", taken[i]);
    printf("]");
}
__constant__ int constants[64];
__global__ void fill(int* to) { to[threadIdx.x] = threadIdx.x; }
__global__ void read_constants(int* to, int n) { to[threadIdx.x] = constants[(threadIdx.x + n) % 64]; }
__global__ void store_tile(const __grid_constant__ CUtensorMap out) {
    __shared__ alignas(128) float here[32 * 16];
    here[threadIdx.x] = threadIdx.x;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x) return;
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&out), "r"(0), "r"(0), "r"(shared_address(here)) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
__global__ void read_texture(cudaTextureObject_t texture, float* to) { to[threadIdx.x] = tex1Dfetch<float>(texture, threadIdx.x); }
__global__ void write_surface(cudaSurfaceObject_t surface) { surf2Dwrite<int>(threadIdx.x, surface, threadIdx.x * 4, 1); }
__device__ void store(const CUtensorMap* out, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" :: "l"(out), "r"(0), "r"(0), "r"((unsigned)__cvta_generic_to_shared(from)) : "memory");
    asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}
// The map lies in memory; the one among the parameters is not used.
__global__ void store_by_a_map_in_memory(const __grid_constant__ CUtensorMap unused, const CUtensorMap* out) {
    __shared__ alignas(128) float tile[1024];
    for (int i = threadIdx.x; i < 1024; i += 32) tile[i] = 1;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) store(out, tile);
}
// The map is made here: as the one among the parameters, with another address.
__global__ void store_by_a_map_made_here(const __grid_constant__ CUtensorMap like, char* made, char* to) {
    __shared__ alignas(128) char map[128]; __shared__ alignas(128) float tile[1024];
    for (int i = threadIdx.x; i < 1024; i += 32) tile[i] = 2;
    for (int i = threadIdx.x; i < 128; i += 32) map[i] = reinterpret_cast<const char*>(&like)[i];
    __syncwarp();
    const unsigned at = __cvta_generic_to_shared(map);
    if (threadIdx.x == 0) asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" :: "r"(at), "l"(to) : "memory");
    __syncwarp();
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" :: "l"(made), "r"(at) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(made) : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (threadIdx.x == 0) store(reinterpret_cast<const CUtensorMap*>(made), tile);
}
__global__ void before_arrays(int* to) { to[threadIdx.x] = threadIdx.x; }
__global__ void after_arrays(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void in_child_graph(int* to) { to[threadIdx.x] = 1; }
__global__ void in_conditional_node(int* to) { to[threadIdx.x] = 1; }
__global__ void in_another_context(int* to) { to[threadIdx.x] = 1; }
__global__ void through_one_address(int* to) { to[threadIdx.x] = 1; }
__global__ void through_the_other(const int* from, int* to) { to[threadIdx.x] = from[threadIdx.x]; }
__global__ void of_a_thread(int* to) { to[threadIdx.x] += 1; }
template <class Function> Function of_driver(const char* name) {
    const auto found = Function(dlsym(dlopen("libcuda.so.1", RTLD_LAZY), name));
    if (found == nullptr) { fprintf(stderr, "no %s\n", name); exit(1); }
    return found;
}
void graphs_of_graphs(int* to, cudaStream_t s) {
    cudaGraph_t inner, outer, body; cudaGraphExec_t x; cudaGraphNode_t node, second;
    void* given[] = {&to};
    cudaKernelNodeParams kernel = {}; kernel.func = (void*)in_child_graph; kernel.gridDim = 1; kernel.blockDim = 32; kernel.kernelParams = given;
    OK(cudaGraphCreate(&inner, 0)); OK(cudaGraphAddKernelNode(&node, inner, nullptr, 0, &kernel));
    OK(cudaGraphCreate(&outer, 0)); OK(cudaGraphAddChildGraphNode(&node, outer, nullptr, 0, inner));
    OK(cudaGraphInstantiate(&x, outer, 0)); OK(cudaGraphLaunch(x, s)); OK(cudaStreamSynchronize(s));
    OK(cudaGraphCreate(&outer, 0));
    cudaGraphConditionalHandle handle;
    OK(cudaGraphConditionalHandleCreate(&handle, outer, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams conditional = {}; conditional.type = cudaGraphNodeTypeConditional; conditional.conditional.handle = handle; conditional.conditional.type = cudaGraphCondTypeIf; conditional.conditional.size = 1;
    OK(cudaGraphAddNode(&second, outer, nullptr, nullptr, 0, &conditional));
    body = conditional.conditional.phGraph_out[0];
    kernel.func = (void*)in_conditional_node;
    OK(cudaGraphAddKernelNode(&node, body, nullptr, 0, &kernel));
    OK(cudaGraphInstantiate(&x, outer, 0)); OK(cudaGraphLaunch(x, s)); OK(cudaStreamSynchronize(s));
}
void two_addresses(int* to) {
    CUmemAllocationProp what = {}; what.type = CU_MEM_ALLOCATION_TYPE_PINNED; what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    CUmemAccessDesc access = {}; access.location = what.location; access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    const size_t size = 2 << 20; CUmemGenericAllocationHandle handle; CUdeviceptr at[2];
    OK(of_driver<CUresult (*)(CUmemGenericAllocationHandle*, size_t, const CUmemAllocationProp*, unsigned long long)>("cuMemCreate")(&handle, size, &what, 0));
    for (CUdeviceptr& each : at) {
        OK(of_driver<CUresult (*)(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)>("cuMemAddressReserve")(&each, size, 0, 0, 0));
        OK(of_driver<CUresult (*)(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)>("cuMemMap")(each, size, 0, handle, 0));
        OK(of_driver<CUresult (*)(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>("cuMemSetAccess")(each, size, &access, 1));
    }
    through_one_address<<<1, 32>>>((int*)at[0]);
    through_the_other<<<1, 32>>>((const int*)at[1], to);
    OK(cudaMemcpyAsync((void*)at[0], to, 128, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpyAsync(to, (void*)at[1], 128, cudaMemcpyDeviceToDevice));
    OK(cudaDeviceSynchronize());
}
void arrays(int* a, int* b, int* c) {
    cudaArray_t array; cudaChannelFormatDesc what = cudaCreateChannelDesc<int>();
    OK(cudaMallocArray(&array, &what, 64, 4, cudaArraySurfaceLoadStore));
    before_arrays<<<1, 256>>>(a);
    OK(cudaMemcpy2DToArray(array, 0, 0, a, 256, 256, 4, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpy2DFromArray(b, 256, array, 0, 0, 256, 4, cudaMemcpyDeviceToDevice));
    after_arrays<<<1, 256>>>(b, c);
    cudaResourceDesc resource = {}; resource.resType = cudaResourceTypeArray; resource.res.array.array = array;
    cudaSurfaceObject_t surface; OK(cudaCreateSurfaceObject(&surface, &resource));
    write_surface<<<1, 32>>>(surface);
    OK(cudaDeviceSynchronize());
}
void maps_in_memory(char* d) {
    const CUtensorMap other = map_of(d, 100, 40), out = map_of(d + (1 << 16), 100, 40);
    char* kept; OK(cudaMalloc(&kept, 256));
    OK(cudaMemcpy(kept, &out, 128, cudaMemcpyHostToDevice));
    store_by_a_map_in_memory<<<1, 32>>>(other, (const CUtensorMap*)kept);
    store_by_a_map_made_here<<<1, 32>>>(other, kept + 128, d + (2 << 16));
    OK(cudaDeviceSynchronize());
}
__global__ void writes_host(int* to) { to[threadIdx.x] = threadIdx.x; }
void host_memory(int* to) {
    int* host;
    OK(cudaMallocHost(&host, 4096));
    writes_host<<<1, 32>>>(host);
    OK(cudaMemcpyAsync(to, host, 128, cudaMemcpyHostToDevice));
    host = (int*)aligned_alloc(4096, 4096);
    OK(cudaHostRegister(host, 4096, cudaHostRegisterDefault));
    writes_host<<<1, 32>>>(host);
    OK(cudaMemcpyAsync(to, host, 128, cudaMemcpyHostToDevice));
    OK(cudaDeviceSynchronize());
}
void contexts() {
    for (int i = 0; i < 2; ++i) {
        CUcontext made; int* p;
        OK(of_driver<CUresult (*)(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2")(&made, 0, 0));
        OK(cudaMalloc(&p, 4096));
        in_another_context<<<1, 32>>>(p);
        OK(cudaDeviceSynchronize());
        OK(of_driver<CUresult (*)(CUcontext)>("cuCtxDestroy_v2")(made));
    }
}
// The second program: what else there is, each kernel by a name of its own.
int kinds() {
    int *a, *b, *c; char* d; cudaStream_t s;
    OK(cudaMalloc(&a, 1 << 16)); OK(cudaMalloc(&b, 1 << 16)); OK(cudaMalloc(&c, 1 << 16)); OK(cudaMalloc(&d, 1 << 20)); OK(cudaStreamCreate(&s));
    std::vector<int> numbers(1 << 14); for (int i = 0; i < 1 << 14; ++i) numbers[i] = i + 1;
    OK(cudaMemcpy(a, numbers.data(), 1 << 16, cudaMemcpyHostToDevice));
    printf("{\"a\": %llu, \"b\": %llu, \"c\": %llu", (unsigned long long)a, (unsigned long long)b, (unsigned long long)c);
    load_pixels<3>("3", a, b, {-1}, {-1}, {1, 1, 1});
    load_pixels<4>("4", a, b, {-1, -2}, {-1, 0}, {1, 1, 1, 1});
    load_pixels<5>("5", a, b, {-1, -2, 0}, {-1, 0, -1}, {1, 1, 1, 1, 1});
    load_pixels<4>("4 in steps", a, b, {-1, -2}, {0, 1}, {1, 2, 3, 1});
    load_one_of_many(a, b);
    printf("}\n"); fflush(stdout);
    int* at; OK(cudaGetSymbolAddress((void**)&at, constants));
    fill<<<1, 64>>>(at);
    read_constants<<<1, 64>>>(c, 3);
    store_tile<<<1, 32>>>(map_of(d, 100, 40));
    cudaResourceDesc resource = {}; resource.resType = cudaResourceTypeLinear; resource.res.linear.devPtr = a; resource.res.linear.sizeInBytes = 4096; resource.res.linear.desc = cudaCreateChannelDesc<float>();
    cudaTextureDesc description = {}; description.readMode = cudaReadModeElementType; cudaTextureObject_t texture;
    OK(cudaCreateTextureObject(&texture, &resource, &description, nullptr));
    read_texture<<<1, 32>>>(texture, (float*)c);
    OK(cudaDeviceSynchronize());
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) threads.emplace_back([=] {
        cudaStream_t mine; OK(cudaStreamCreate(&mine));
        for (int k = 0; k < 20; ++k) of_a_thread<<<1, 32, 0, mine>>>(c + 1024 * (i + 1));
        OK(cudaStreamSynchronize(mine));
    });
    for (std::thread& each : threads) each.join();
    OK(of_driver<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWriteValue32_v2")(s, CUdeviceptr(c + 8192), 7, 0));
    OK(of_driver<CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned)>("cuStreamWaitValue32_v2")(s, CUdeviceptr(c + 8192), 7, CU_STREAM_WAIT_VALUE_EQ));
    OK(cudaStreamSynchronize(s));
    cudaMemcpy3DParms copy = {}; copy.srcPtr = make_cudaPitchedPtr(a, 64, 64, 8); copy.dstPtr = make_cudaPitchedPtr(b, 64, 64, 4); copy.extent = make_cudaExtent(32, 2, 3); copy.kind = cudaMemcpyDeviceToDevice;
    OK(cudaMemcpy3D(&copy));
    graphs_of_graphs(c, s);
    two_addresses(c);
    arrays(a, b, c);
    maps_in_memory(d);
    host_memory(c);
    contexts();
    return 0;
}
int main(int n, char**) {
    if (n > 1) return kinds();
    char *a, *b; float* sums; unsigned* counter;
    OK(cudaMalloc(&a, 1 << 20)); OK(cudaMalloc(&b, 1 << 20)); OK(cudaMalloc(&sums, 1 << 16)); OK(cudaMalloc(&counter, 256));
    printf("{\"a\": %llu, \"b\": %llu, \"sums\": %llu, \"counter\": %llu}\n", (unsigned long long)a, (unsigned long long)b, (unsigned long long)sums, (unsigned long long)counter);
    OK(cudaMemset(a, 1, 1 << 20)); OK(cudaMemset(sums, 0, 1 << 16));
    copies<uint8_t><<<3, 64>>>((uint8_t*)a, (uint8_t*)b);
    copies<uint16_t><<<3, 64>>>((uint16_t*)a, (uint16_t*)b);
    copies<uint32_t><<<3, 64>>>((uint32_t*)a, (uint32_t*)b);
    copies<uint2><<<3, 64>>>((uint2*)a, (uint2*)b);
    copies<uint4><<<3, 64>>>((uint4*)a, (uint4*)b);
    atomics<<<2, 40>>>(counter, sums);
    asynchronous<<<2, 32>>>(a, b);
    bulk<<<3, 32>>>(a, b, sums);
    tiles<<<dim3(4, 2), 32>>>(map_of(a, 100, 40), map_of(b, 100, 40), sums);
    OK(cudaMemcpy(a, b, 4096, cudaMemcpyDeviceToDevice));
    cudaStream_t s; OK(cudaStreamCreate(&s));
    cudaGraph_t g; cudaGraphExec_t x;
    OK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    copies<uint32_t><<<2, 32, 0, s>>>((uint32_t*)a, (uint32_t*)b);
    OK(cudaMemsetAsync(a, 0, 512, s));
    copies<uint4><<<2, 32, 0, s>>>((uint4*)b, (uint4*)a);
    OK(cudaStreamEndCapture(s, &g)); OK(cudaGraphInstantiate(&x, g, 0)); OK(cudaGraphLaunch(x, s)); OK(cudaGraphLaunch(x, s));
    void* p; OK(cudaMallocAsync(&p, 1000, s)); OK(cudaFreeAsync(p, s));
    load_boxes<1>(a, sums); load_boxes<3>(a, sums); load_boxes<4>(a, sums); load_boxes<5>(a, sums);
    load_for_two(a, sums);
    halves<<<2, 64>>>((uint4*)a, b);
    void* given[] = {&sums}; OK(cudaLaunchCooperativeKernel((void*)together, dim3(4), dim3(32), given, 0, nullptr));
    parent<<<1, 32>>>(b);
    // The same memory twice: freed in between.
    for (int i = 0; i < 2; ++i) { OK(cudaMallocAsync(&p, 4096, s)); child<<<2, 32, 0, s>>>((char*)p); OK(cudaFreeAsync(p, s)); }
    OK(cudaStreamSynchronize(s));
    char* host; OK(cudaMallocHost(&host, 4096)); memset(host, 1, 4096);
    OK(cudaMemcpyAsync(a, host, 4096, cudaMemcpyHostToDevice, s)); OK(cudaMemcpyAsync(host, a + 64, 1024, cudaMemcpyDeviceToHost, s));
    OK(cudaMemcpy2DAsync(b, 256, a, 128, 64, 4, cudaMemcpyDeviceToDevice, s));
    OK(cudaDeviceSynchronize());
    cudaFree(b);
}
