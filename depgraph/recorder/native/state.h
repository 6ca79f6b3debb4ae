// What the recorder knows while its program runs: options, contexts, tables, launches that have begun.
#pragma once

#include <sanitizer.h>
#include <stdint.h>

#include <algorithm>
#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "files.h"
#include "table.h"

namespace {

constexpr uint64_t MIB = 1 << 20;
constexpr uint64_t MOST_GPU_MEMORY = 32768 * MIB;  // beyond it places have no number of 32 bits
constexpr uint32_t FEWEST_SLOTS = 1 << 16;
constexpr uint64_t FEWEST_BYTES = 32 * MIB;
constexpr uint32_t SECTORS_PER_BLOCK = 4096;
// Few blocks may touch much, each: where a place is not found, it is taken again for each access.
constexpr uint32_t SLOTS_OF_ANY = 1 << 26;
constexpr int MOST_LATE = 4;  // batches that were let go, in one context
constexpr double PATIENCE = 2, PATIENCE_ONCE_LET_GO = 0.02;  // seconds
constexpr size_t MOST_PARAMETERS = 32768;
constexpr size_t MAP_BYTES = 64;  // what of a tensor map is used

// Options, from the environment.
struct Options {
    std::string folder, patch;
    uint64_t gpu_memory = 1024 * MIB;
    uint64_t first = 0, end = UINT64_MAX;  // launches, from 0
    uint64_t skip = 0, count = UINT64_MAX;  // of those that are chosen otherwise
    std::string name, range;
    bool in_region_only = false;
    bool times_blocks = false;  // and nothing else
};

// Device memory for what launches touch.
struct Tables {
    Launch layout{};            // pointers and sizes that all launches share
    uint32_t most_slots = 0;
    Launch* launches = nullptr;  // on the GPU
    bool is_in_use = false;
};

struct Context {
    int number = -1;  // counts from 0
    bool is_patched = false;
    bool is_told = false;
    bool has_failed = false;
    std::list<Tables> tables;  // the first is the largest
};

struct Stream {
    int number;
    CUcontext context;
};

// A launch that has begun and whose table has not been read.
struct Pending {
    uint32_t number;
    std::string name, parameters;
    uint64_t n_blocks = 0;
    uint32_t grid = 0;  // its id
};

// Launches that share tables: one, or the nodes of a graph.
struct Batch {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    Sanitizer_StreamHandle handle = nullptr;
    std::thread::id thread;
    Tables* tables = nullptr;
    bool is_graph = false;
    std::vector<Pending> launches;
};

// A graph that can be launched, by the number of each node.
struct Executable {
    std::map<CUgraphNode, int> nodes;
    int n_nodes = 0;       // and places where graphs inside of it end
    std::string edges;     // pairs of numbers, the earlier first
    bool is_known = true;  // else nobody can tell what its nodes wait for
    bool is_flat = true;   // without graphs inside of its nodes
    bool is_told = false;
    int number = 0;
    int turn = 0;          // an event that its launches wait for and record
};

// What the call that launches was given.
struct Call {
    unsigned dynamic_shared = 0;
    void** parameters = nullptr;
    void** extra = nullptr;
};

// The driver calls until the process is gone: what it calls for is never destroyed.
auto& lock = *new std::recursive_mutex;      // of what follows, up to the files
auto& context_of = *new std::map<CUcontext, Context>;
auto& streams = *new std::map<const void*, Stream>;
auto& created_streams = *new std::map<const void*, CUstream>;
auto& cuda_events = *new std::map<CUevent, int>;
auto& executables = *new std::map<CUgraphExec, Executable>;
auto& unpatched = *new std::set<CUmodule>;
auto& late = *new std::list<Batch>;
auto& let_go = *new std::set<std::string>;
uint64_t launches_seen = 0, launches_chosen = 0;
uint32_t next_number = 0;
int contexts_seen = 0, streams_seen = 0, cuda_events_seen = 0, graphs_seen = 0;
std::atomic<bool> is_in_region{false};
bool is_forked = false;  // from the process that uses the GPU, whose memory it must leave alone
auto& abandoned = *new std::list<Tables>;  // of contexts that are no more
auto& writing = *new std::mutex;  // of the files
auto& events = *new File;
auto& sectors = *new File;
uint64_t sectors_written = 0;
auto& patching = *new std::recursive_mutex;  // the API wants patches one after another
auto& options = *new Options;
thread_local Batch current;  // launches that this thread has begun
thread_local bool is_graph_launched = false;
// Of the graph that this thread launches:
thread_local Executable* launched = nullptr;
thread_local CUgraphNode node = nullptr;
thread_local std::string held, after_launch;  // events that are written, and said, once that is done
thread_local bool is_asking = false;  // a stream, on the recorder's own account
thread_local Call call;
auto& only_names = *new std::regex;
auto& never_names = *new std::regex("nccl|nvshmem", std::regex::icase);
CUresult (*get_attribute)(int*, CUfunction_attribute, CUfunction) = nullptr;
CUresult (*get_device_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
CUresult (*get_parameter)(CUfunction, size_t, size_t*, size_t*) = nullptr;
CUresult (*query)(CUstream) = nullptr;
CUresult (*get_flags)(CUstream, unsigned*) = nullptr;
CUresult (*get_capture)(CUstream, CUstreamCaptureStatus*) = nullptr;
CUresult (*push_context)(CUcontext) = nullptr;
CUresult (*pop_context)(CUcontext*) = nullptr;
CUresult (*exchange_mode)(CUstreamCaptureMode*) = nullptr;
CUresult (*get_nodes)(CUgraph, CUgraphNode*, size_t*) = nullptr;
CUresult (*get_edges)(CUgraph, CUgraphNode*, CUgraphNode*, CUgraphEdgeData*, size_t*) = nullptr;
CUresult (*get_dependencies)(CUgraphNode, CUgraphNode*, CUgraphEdgeData*, size_t*) = nullptr;
CUresult (*get_node_type)(CUgraphNode, CUgraphNodeType*) = nullptr;
CUresult (*get_child)(CUgraphNode, CUgraph*) = nullptr;
CUresult (*get_copy)(CUgraphNode, CUDA_MEMCPY3D*) = nullptr;
CUresult (*error_name)(CUresult, const char**) = nullptr;

using Guard = std::lock_guard<std::recursive_mutex>;

// Lets this thread ask the driver for what would end a capture of another thread.
struct Relaxed {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    Relaxed() { swap(); }
    ~Relaxed() { swap(); }
    void swap() { if (exchange_mode != nullptr) exchange_mode(&mode); }
};

}  // namespace
