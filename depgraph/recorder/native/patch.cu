// Device code that patched kernels call at every access to global memory.
#include <sanitizer_patching.h>

#include "table.h"

namespace {

constexpr int PROBES = 64;
constexpr int USED_WORDS = 8;  // of a tensor map
#ifdef DEPGRAPH_NO_TILES  // an older API, which does not tell loads that are ordered with others
constexpr uint32_t ORDERED = SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS;
#else
constexpr uint32_t ORDERED = SANITIZER_MEMORY_DEVICE_FLAG_SCOPE_GPU
    | SANITIZER_MEMORY_DEVICE_FLAG_SCOPE_SYS | SANITIZER_MEMORY_DEVICE_FLAG_ATOMSYS;
#endif

__device__ __forceinline__ uint32_t lane() {
    uint32_t value;
    asm("mov.u32 %0, %%laneid;" : "=r"(value));
    return value;
}

__device__ __forceinline__ uint32_t block() {
    return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
}

__device__ __forceinline__ uint64_t mixed(uint64_t value) {
    value ^= value >> 31;
    value *= 0x7fb5d329728ea185ull;
    value ^= value >> 27;
    value *= 0x81dadef4bc2dd44dull;
    return value ^ (value >> 33);
}

__device__ __forceinline__ uint32_t grid() {
    uint64_t id;
    asm("mov.u64 %0, %%gridid;" : "=l"(id));
    return static_cast<uint32_t>(id);
}

// The number of the launch that runs; a node of a graph has its grid's id.
__device__ __forceinline__ uint32_t number_of(const Launch* launch) {
    return launch->is_in_graph ? grid() : launch->number;
}

// Return the launch that a patch was given; nullptr in a kernel that no host launched.
__device__ __forceinline__ Launch* launch_of(void* userdata) {
    Launch* launch = static_cast<Launch*>(userdata);
    if (launch == nullptr || launch->is_in_graph || grid() == launch->grid) return launch;
    atomicOr(&launch->strays, 1);
    return nullptr;
}

__device__ __forceinline__ bool is_full(const uint32_t* count, uint32_t most) {
    return *static_cast<const volatile uint32_t*>(count) >= most;
}

// Count an access that found no place; the highest bit stays once it is set.
__device__ __forceinline__ void lose(Launch* launch) {
    if (atomicAdd(&launch->lost, 1) >> 31) atomicOr(&launch->lost, 1u << 31);
}

// Return the place of a sector or page among those of the launch; nullptr if all places are taken.
__device__ Row* place_of(Launch* launch, uint64_t number, uint32_t block) {
    const uint32_t launched = number_of(launch);
    const uint64_t hash = mixed(number * 0x9e3779b97f4a7c15ull + block) + launched;
    uint32_t mine = 0;
    for (int probe = 0; probe <= PROBES; ++probe) {
        const uint32_t slot = (static_cast<uint32_t>(hash) + probe) & launch->slot_mask;
        uint32_t found = probe < PROBES
            ? *static_cast<volatile uint32_t*>(launch->slots + slot) : 0;
        if (found == 0) {
            if (mine == 0) {
                // Where all are taken nothing is counted, lest the count begin anew.
                if (is_full(&launch->counts->sectors, launch->most_sectors)) {
                    lose(launch);
                    return nullptr;
                }
                mine = atomicAdd(&launch->counts->sectors, 1) + 1;
                if (mine > launch->most_sectors) {
                    lose(launch);
                    return nullptr;
                }
                launch->sectors[mine - 1] = {number, block, launched, 0, 0, 0, 0};
                __threadfence();
            }
            // Behind the last probe a sector is kept without a slot: it may stand there twice.
            if (probe == PROBES) return launch->sectors + mine - 1;
            found = atomicCAS(launch->slots + slot, 0, mine);
            if (found == 0) return launch->sectors + mine - 1;
        }
        volatile Row* other = launch->sectors + found - 1;
        if (other->number == number && other->block == block && other->launch == launched) {
            if (mine != 0) launch->sectors[mine - 1].launch = 0;
            return launch->sectors + found - 1;
        }
    }
    return nullptr;
}

__device__ __forceinline__ void add(uint32_t* mask, uint32_t bits) {
    if ((*static_cast<volatile uint32_t*>(mask) & bits) != bits) atomicOr(mask, bits);
}

// Return the bits that any of some threads of a warp has, to all of them. (A patch may not reduce.)
template <class Bits>
__device__ __forceinline__ Bits any_of(uint32_t threads, Bits bits) {
    Bits all = 0;
    for (uint32_t left = threads; left != 0; left &= left - 1) {
        all |= __shfl_sync(threads, bits, __ffs(left) - 1);
    }
    return all;
}

// How an instruction touches memory.
struct Way {
    bool reads, writes, is_ordered;
};

__device__ void note_sector(
    Launch* launch, uint64_t number, uint32_t bits, Way way, bool is_counted) {
    Row* row = place_of(launch, number, block());
    if (row == nullptr) return;
    if (way.reads) add(way.is_ordered ? &row->synchronised : &row->read, bits);
    if (way.writes) add(&row->written, bits);
    if (is_counted) atomicAdd(&row->accesses, 1);
}

__device__ void note_page(Launch* launch, uint64_t number, uint64_t bits, Way way, bool is_counted) {
    Row* row = place_of(launch, IS_PAGE | (way.writes ? IS_WRITTEN : 0) | number, block());
    if (row == nullptr) return;
    if (static_cast<uint32_t>(bits)) add(&row->read, static_cast<uint32_t>(bits));
    if (bits >> 32) add(&row->written, static_cast<uint32_t>(bits >> 32));
    if (is_counted) atomicAdd(&row->accesses, 1);
}

// Return the pieces of a sector that bytes fill; 0 if one is filled in part.
__device__ __forceinline__ uint32_t pieces_of(uint32_t bytes) {
    const uint32_t low = bytes & 0xffff, high = bytes >> 16;
    if ((low != 0 && low != 0xffff) || (high != 0 && high != 0xffff)) return 0;
    return (low != 0) | (high != 0) << 1;
}

// Note what one thread touches: once for all threads of the warp that touch the same sector, and
// once for all pieces of a page that the warp touches whole.
__device__ void note(Launch* launch, uint64_t address, uint32_t size, Way way) {
    const uint64_t sector = address / SECTOR;
    const uint32_t active = __activemask();
    const uint32_t peers = __match_any_sync(active, sector);
    const uint32_t own = size >= SECTOR ? ~0u : ((1u << size) - 1) << (address % SECTOR);
    const uint32_t bytes = any_of(peers, own);
    if (lane() != __ffs(peers) - 1) return;
    const bool is_counted = lane() == __ffs(active) - 1;
    const uint32_t pieces = pieces_of(bytes);
    if (pieces == 0 || way.is_ordered || way.reads == way.writes) {
        note_sector(launch, sector, bytes, way, is_counted);
        return;
    }
    const uint64_t page = address / PAGE;
    const uint32_t alike = __match_any_sync(__activemask(), page);
    const bool counted = any_of(alike, static_cast<uint32_t>(is_counted));
    const uint64_t all = any_of(
        alike, static_cast<unsigned long long>(pieces) << (sector * 2 % (PAGE / PIECE)));
    if (lane() == __ffs(alike) - 1) note_page(launch, page, all, way, counted);
}

// Note what one thread touches for the whole warp: many bytes in a row.
__device__ void note_all(Launch* launch, uint64_t address, uint64_t size, Way way) {
    const uint32_t active = __activemask();
    if (lane() != __ffs(active) - 1) return;
    const uint64_t end = address + size;
    bool is_first = true;
    for (uint64_t at = address; at < end; is_first = false) {
        uint64_t next = min((at / PIECE + 1) * PIECE, end);
        if (next - at < PIECE || way.reads == way.writes) {
            next = min((at / SECTOR + 1) * SECTOR, end);
            const uint32_t bytes = next - at == SECTOR ? ~0u : (1u << (next - at)) - 1;
            note_sector(launch, at / SECTOR, bytes << (at % SECTOR), way, is_first);
        } else {
            next = min((at / PAGE + 1) * PAGE, end / PIECE * PIECE);
            const uint64_t pieces = (next - at) / PIECE;
            const uint64_t bits = pieces == PAGE / PIECE ? ~0ull : (1ull << pieces) - 1;
            note_page(launch, at / PAGE, bits << (at / PIECE % (PAGE / PIECE)), way, is_first);
        }
        at = next;
    }
}

// Keep a copy of a tensor map, once for each launch and place.
__device__ void keep_map(Launch* launch, uint64_t at) {
    const unsigned long long key =
        mixed(at * 0x9e3779b97f4a7c15ull + number_of(launch)) | 1;
    for (uint32_t probe = 0; probe < MOST_MAPS; ++probe) {
        TensorMap* map = launch->maps + ((key >> 8) + probe) % MOST_MAPS;
        const unsigned long long found = atomicCAS(&map->key, 0ull, key);
        if (found != 0 && found != key) continue;
        const uint64_t* words = reinterpret_cast<const uint64_t*>(at);
        if (found == key) {
            // A kernel that changes a map loads by what one copy does not tell.
            const bool is_whole = *static_cast<volatile uint32_t*>(&map->is_whole);
            for (int i = 0; is_whole && i < USED_WORDS; ++i) {
                if (map->words[i] != words[i]) lose(launch);
            }
            return;
        }
        for (int i = 0; i < 16; ++i) map->words[i] = words[i];
        map->at = at;
        map->launch = number_of(launch);
        __threadfence();
        map->is_whole = 1;
        return;
    }
    lose(launch);
}

}  // namespace

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_access(
    void* userdata, uint64_t, void* pointer, uint32_t size, uint32_t flags, const void*) {
    Launch* launch = launch_of(userdata);
    if (launch == nullptr || (flags & SANITIZER_MEMORY_DEVICE_FLAG_PREFETCH)) {
        return SANITIZER_PATCH_SUCCESS;
    }
    const bool reads = flags & SANITIZER_MEMORY_DEVICE_FLAG_READ;
    const bool writes = flags & SANITIZER_MEMORY_DEVICE_FLAG_WRITE;
    const bool is_ordered = reads && (writes || (flags & ORDERED));
    note(launch, reinterpret_cast<uint64_t>(pointer), size, {reads, writes, is_ordered});
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_copy_async(
    void* userdata, uint64_t, void* source, uint32_t, uint32_t size, uint32_t zeros) {
    Launch* launch = launch_of(userdata);
    // Zeros are filled in where nothing is read.
    if (launch != nullptr && source != nullptr && size > zeros) {
        note(launch, reinterpret_cast<uint64_t>(source), size - zeros, {true, false, false});
    }
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_bulk_load(
    void* userdata, uint64_t, uint64_t source, uint32_t, uint32_t, uint32_t mask_and_size,
    uint32_t) {
    Launch* launch = launch_of(userdata);
    if (launch != nullptr) note_all(launch, source, 16ull * (mask_and_size & 0xffff), {true, false, false});
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_bulk_store(
    void* userdata, uint64_t, uint64_t target, uint32_t, uint32_t mask_and_size, uint32_t has_mask) {
    Launch* launch = launch_of(userdata);
    if (launch == nullptr) return SANITIZER_PATCH_SUCCESS;
    const uint64_t pieces = mask_and_size & 0xffff;
    if (!has_mask) {
        note_all(launch, target, 16 * pieces, {false, true, false});
        return SANITIZER_PATCH_SUCCESS;
    }
    for (uint64_t piece = 0; piece < pieces; ++piece) {
        for (int byte = 0; byte < 16; ++byte) {
            if (mask_and_size >> 16 >> byte & 1) {
                note_all(launch, target + 16 * piece + byte, 1, {false, true, false});
            }
        }
    }
    return SANITIZER_PATCH_SUCCESS;
}

extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_bulk_reduction(
    void* userdata, uint64_t, uint64_t target, uint32_t, uint32_t pieces) {
    Launch* launch = launch_of(userdata);
    if (launch != nullptr) note_all(launch, target, 16ull * pieces, {true, true, false});
    return SANITIZER_PATCH_SUCCESS;
}

#ifndef DEPGRAPH_NO_TILES
extern "C" __device__ __noinline__ SanitizerPatchResult depgraph_tile_load(
    void* userdata, uint64_t, uint64_t map, uint32_t, uint32_t, int32_t at0, int32_t at1,
    int32_t at2, int32_t at3, int32_t at4, uint32_t, uint32_t is_multicast,
    uint32_t mask_and_offsets, uint32_t mode) {
    Launch* launch = launch_of(userdata);
    if (launch == nullptr) return SANITIZER_PATCH_SUCCESS;
    const uint32_t active = __activemask();
    if (lane() != __ffs(active) - 1) return SANITIZER_PATCH_SUCCESS;
    keep_map(launch, map);
    const bool has_room = !is_full(&launch->counts->tiles, launch->most_tiles);
    const uint32_t place = has_room ? atomicAdd(&launch->counts->tiles, 1) : 0;
    if (!has_room || place >= launch->most_tiles) {
        lose(launch);
        return SANITIZER_PATCH_SUCCESS;
    }
    launch->tiles[place] = {
        map, block(), number_of(launch), {at0, at1, at2, at3, at4},
        is_multicast ? mask_and_offsets >> 16 : 0, mode, mask_and_offsets & 0xffff};
    return SANITIZER_PATCH_SUCCESS;
}
#endif
