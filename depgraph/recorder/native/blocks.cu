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

__device__ __forceinline__ uint64_t block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + uint64_t(gridDim.y) * blockIdx.z);
}

// Take room for the times of all blocks of this grid; return where they begin.
__device__ uint32_t take_room(Launch* launch) {
    const uint64_t n = uint64_t(gridDim.x) * gridDim.y * gridDim.z;
    uint32_t* taken = &launch->counts->sectors;
    if (*static_cast<volatile uint32_t*>(taken) + n > launch->most_sectors) return HAS_NO_ROOM;
    const uint64_t first = atomicAdd(taken, static_cast<uint32_t>(n));
    return first + n > launch->most_sectors ? HAS_NO_ROOM : TIMES_BEGIN + static_cast<uint32_t>(first);
}

// Return the times of this node's blocks. The first warp that asks takes the room, and others wait for it.
__device__ BlockTime* of_node(Launch* launch) {
    const unsigned long long id = static_cast<unsigned long long>(grid()) << 32;
    unsigned long long* place =
        reinterpret_cast<unsigned long long*>(launch->slots) + (grid() & launch->slot_mask / 2);
    const volatile unsigned long long* seen = place;
    unsigned long long found = *seen;
    if (found == 0 && (found = atomicCAS(place, 0ull, id | IS_TAKING_ROOM)) == 0) {
        found = id | take_room(launch);
        atomicExch(place, found);
    }
    while (found == (id | IS_TAKING_ROOM)) found = *seen;
    if (found < (id | TIMES_BEGIN) || found >> 32 != id >> 32) return nullptr;
    return launch->times + (static_cast<uint32_t>(found) - TIMES_BEGIN);
}

// Return the times of this block; nullptr where it is not measured.
__device__ __forceinline__ BlockTime* own(void* userdata) {
    Launch* launch = static_cast<Launch*>(userdata);
    if (launch == nullptr) return nullptr;
    if (launch->is_in_graph) {
        BlockTime* all = of_node(launch);
        return all == nullptr ? nullptr : all + block();
    }
    return launch->grid == grid() && block() < launch->n_blocks ? launch->times + block() : nullptr;
}

// Tell whether this block reads the clock of all SMs: the first ones do, about as many as there are SMs.
__device__ __forceinline__ bool is_timed() {
    uint32_t n_sms;
    asm("mov.u32 %0, %%nsmid;" : "=r"(n_sms));
    return block() < n_sms;
}

__device__ __forceinline__ bool is_first_thread() {
    return (threadIdx.x | threadIdx.y | threadIdx.z) == 0;
}

}  // namespace

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_block_enter(
    void* userdata, uint64_t) {
    if (!is_first_of_warp()) return SANITIZER_PATCH_SUCCESS;
    BlockTime* mine = own(userdata);
    if (mine == nullptr) return SANITIZER_PATCH_SUCCESS;
    if (is_first_thread()) {
        asm volatile("mov.u32 %0, %%smid;" : "=r"(mine->sm));
        if (is_timed()) mine->began = nanoseconds();
    }
    keep_larger(&mine->not_begin, ~cycle());  // last, as finding the place takes time
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_block_exit(
    void* userdata, uint64_t) {
    const uint64_t now = cycle();
    if (!is_first_of_warp()) return SANITIZER_PATCH_SUCCESS;
    BlockTime* mine = own(userdata);
    if (mine == nullptr) return SANITIZER_PATCH_SUCCESS;
    keep_larger(&mine->end, now);
    if (is_first_thread() && is_timed()) {
        mine->left = nanoseconds();
        mine->left_cycle = static_cast<uint32_t>(cycle());
    }
    return SANITIZER_PATCH_SUCCESS;
}
