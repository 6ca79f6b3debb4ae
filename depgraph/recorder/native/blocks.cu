// Device code that patched kernels call where a block begins and where its threads end.
#include <sanitizer_patching.h>

#include "table.h"

namespace {

__device__ __forceinline__ uint64_t cycle() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(value));
    return value;
}

// All SMs share this clock, which answers about one warp a nanosecond: a large kernel whose warps all
// ask takes several times as long.
__device__ __forceinline__ uint32_t nanoseconds() {
    uint64_t value;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
    return static_cast<uint32_t>(value);
}

// Keep the larger of two values, without waiting for it as atomicMax on any address would.
__device__ __forceinline__ void keep_larger(unsigned long long* at, uint64_t value) {
    asm volatile("red.global.max.u64 [%0], %1;" :: "l"(__cvta_generic_to_global(at)), "l"(value)
                 : "memory");
}

__device__ __forceinline__ uint32_t grid() {
    uint64_t id;
    asm("mov.u64 %0, %%gridid;" : "=l"(id));
    return static_cast<uint32_t>(id);
}

__device__ __forceinline__ bool is_first_of_warp() {
    uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane == __ffs(__activemask()) - 1;
}

// Return the launch that this grid is; nullptr for one that is not measured. A node of a graph may
// have been given another's: their grids have ids in a row.
__device__ __forceinline__ Launch* own(void* userdata) {
    Launch* launch = static_cast<Launch*>(userdata);
    if (launch == nullptr) return nullptr;
    const uint32_t id = grid();
    if (launch->grid == id) return launch;
    const uint32_t place = launch->place + (id - launch->grid);
    if (launch->is_in_graph && place < MOST_LAUNCHES) {
        Launch* other = launch - launch->place + place;
        if (other->grid == id && other->batch == launch->batch) return other;
    }
    atomicOr(&launch->strays, 1);
    return nullptr;
}

__device__ __forceinline__ uint32_t block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ bool is_first_thread() {
    return (threadIdx.x | threadIdx.y | threadIdx.z) == 0;
}

}  // namespace

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_block_enter(
    void* userdata, uint64_t) {
    if (!is_first_of_warp()) return SANITIZER_PATCH_SUCCESS;
    Launch* launch = own(userdata);
    if (launch == nullptr || block() >= launch->n_blocks) return SANITIZER_PATCH_SUCCESS;
    BlockTime* mine = launch->times + block();
    if (is_first_thread()) {
        asm volatile("mov.u32 %0, %%smid;" : "=r"(mine->sm));
        if (block() < launch->n_timed) mine->began = nanoseconds();
    }
    keep_larger(&mine->not_begin, ~cycle());  // last, as finding the place takes time
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_block_exit(
    void* userdata, uint64_t) {
    const uint64_t now = cycle();
    if (!is_first_of_warp()) return SANITIZER_PATCH_SUCCESS;
    Launch* launch = own(userdata);
    if (launch == nullptr || block() >= launch->n_blocks) return SANITIZER_PATCH_SUCCESS;
    BlockTime* mine = launch->times + block();
    keep_larger(&mine->end, now);
    if (is_first_thread() && block() < launch->n_timed) {
        mine->left = nanoseconds();
        mine->left_cycle = static_cast<uint32_t>(cycle());
    }
    return SANITIZER_PATCH_SUCCESS;
}
