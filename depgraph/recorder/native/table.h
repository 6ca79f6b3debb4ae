// What the patched kernels fill on the GPU and the host library reads back.
#pragma once

#include <stdint.h>

// What one block of one launch touched: of a sector of 32 bytes, a bit of a mask for each byte; or of
// a page of 1024 bytes, a bit for each 16 bytes that a warp read, or wrote, whole.
struct Row {
    uint64_t number;  // address / 32; of a page address / 1024, IS_PAGE, and IS_WRITTEN if it is
    uint32_t block;
    uint32_t launch;  // from 1; 0: not used
    uint32_t read;          // of a page the lower half of its mask
    uint32_t written;       // of a page the upper half
    uint32_t synchronised;  // read by an atomic, or by a load that is ordered with other blocks
    uint32_t accesses;      // warp instructions, each counted at one of its rows
};

// One box of a tensor that one block loaded.
struct TileLoad {
    uint64_t map;  // where the tensor map lies
    uint32_t block;
    uint32_t launch;
    int32_t at[5];
    uint32_t multicast;  // mask of blocks of the cluster; 0 for this one alone
    uint32_t mode;
    uint32_t offsets;  // of im2col
};

// A tensor map as the kernel found it.
struct TensorMap {
    unsigned long long key;  // 0: free
    uint64_t at;
    uint64_t words[16];
    uint32_t launch;
    uint32_t is_whole;
};

struct Counts {
    uint32_t sectors;
    uint32_t tiles;
};

// When and where one block ran, in the place of its number: zeros where it has not.
struct BlockTime {
    unsigned long long not_begin;  // ~begin, so that the first of all warps is a maximum
    unsigned long long end;        // of the last thread; both in cycles of the SM
    uint32_t sm;
    // Of the first blocks, the lower halves of nanoseconds, and of a cycle at the same time.
    uint32_t began, left;  // when their first threads did
    uint32_t left_cycle;
};

static_assert(sizeof(BlockTime) == sizeof(Row), "they share tables");

// What a patch is given: one for each launch.
struct Launch {
    uint32_t number;
    uint32_t slot_mask;
    uint32_t most_sectors;
    uint32_t most_tiles;
    uint32_t* slots;  // place of a sector, plus one; 0: free
    Row* sectors;
    TileLoad* tiles;
    TensorMap* maps;
    Counts* counts;
    uint32_t lost;  // accesses that found no place
    uint32_t is_in_graph;  // nodes of a graph may be given each other's: the grid's own id tells them apart
    uint32_t grid;         // the id of its own grid
    uint32_t strays;       // accesses of other grids: of kernels that it launched itself
    BlockTime* times;      // of its blocks, where those are measured
    uint32_t n_blocks;     // but for nodes of a graph, which take room for them as they begin
};

// What launches are given: one, or all nodes of a graph.
constexpr uint32_t ALONE = 0, OF_GRAPH = 1, LAUNCHES = 2;
// Where the times of a node begin, by its grid: the grid's id, and the place and TIMES_BEGIN.
constexpr uint32_t IS_TAKING_ROOM = 1, HAS_NO_ROOM = 2, TIMES_BEGIN = 3;
constexpr uint32_t MOST_MAPS = 4096;
constexpr uint32_t SECTOR = 32;
constexpr uint32_t PIECE = 16;  // of a page
constexpr uint32_t PAGE = 64 * PIECE;
constexpr uint64_t IS_PAGE = 1ull << 63;
constexpr uint64_t IS_WRITTEN = 1ull << 62;
