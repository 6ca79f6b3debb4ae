// The library that the CUDA driver loads into the program that is recorded: it patches kernels,
// empties their tables after each launch, and notes what else happens to memory, in order. A kernel
// that does not end is let go, with its tables: another launch, or the host, may be what it waits for.
//
// No lock is held while the driver works: each thread has the launches that it has begun to itself,
// and tables are taken and given back.
//
// A recording is a folder with two files a process: events-PID.jsonl, an object a line, and
// sectors-PID.bin, the tables that the events point into.
#include <cxxabi.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ranges.h"
#include "table.h"

namespace {

constexpr uint64_t MIB = 1 << 20;
constexpr uint64_t MOST_GPU_MEMORY = 32768 * MIB;  // beyond it places have no number of 32 bits
constexpr uint32_t MOST_LAUNCHES = 1 << 16;  // of one graph
constexpr uint32_t FEWEST_SLOTS = 1 << 16;
constexpr uint64_t FEWEST_BYTES = 32 * MIB;
constexpr uint32_t SECTORS_PER_BLOCK = 4096;
constexpr int FORMAT = 2;
constexpr int MOST_LATE = 4;  // batches that were let go, in one context
constexpr double PATIENCE = 2, PATIENCE_ONCE_LET_GO = 0.02;  // seconds
constexpr size_t MOST_PARAMETERS = 32768;
constexpr size_t MAP_BYTES = 64;  // what of a tensor map is used
constexpr size_t MOST_CODE = 128 * MIB;

const std::pair<Sanitizer_InstructionId, const char*> PATCHES[] = {
    {SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "depgraph_access"},
    {SANITIZER_INSTRUCTION_MEMCPY_ASYNC, "depgraph_copy_async"},
    {SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, "depgraph_bulk_load"},
    {SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL, "depgraph_bulk_store"},
    {SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL, "depgraph_bulk_reduction"},
#ifndef DEPGRAPH_NO_TILES
    {SANITIZER_INSTRUCTION_TMA_LOAD, "depgraph_tile_load"},
#endif
};

// Options, from the environment.
struct Options {
    std::string folder, patch;
    uint64_t gpu_memory = 1024 * MIB;
    uint64_t first = 0, end = UINT64_MAX;  // launches, from 0
    uint64_t skip = 0, count = UINT64_MAX;  // of those that are chosen otherwise
    std::string name, range;
    bool in_region_only = false;
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
};

// Launches that share tables: one, or the nodes of a graph.
struct Batch {
    CUcontext context = nullptr;
    CUstream stream = nullptr;
    Sanitizer_StreamHandle handle = nullptr;
    std::thread::id thread;
    Tables* tables = nullptr;
    std::vector<Pending> launches;
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
auto& unpatched = *new std::set<CUmodule>;
auto& late = *new std::list<Batch>;
auto& let_go = *new std::set<std::string>;
uint64_t launches_seen = 0, launches_chosen = 0;
uint32_t next_number = 0;
int contexts_seen = 0, streams_seen = 0;
std::atomic<bool> is_in_region{false};
auto& writing = *new std::mutex;  // of the files
int events = -1, sectors = -1;
uint64_t sectors_written = 0;
auto& patching = *new std::recursive_mutex;  // the API wants patches one after another
auto& options = *new Options;
thread_local Batch current;  // launches that this thread has begun
thread_local bool is_graph_launched = false;
thread_local Call call;
auto& only_names = *new std::regex;
auto& never_names = *new std::regex("nccl|nvshmem", std::regex::icase);
CUresult (*get_attribute)(int*, CUfunction_attribute, CUfunction) = nullptr;
CUresult (*get_device_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;
CUresult (*get_parameter)(CUfunction, size_t, size_t*, size_t*) = nullptr;
CUresult (*query)(CUstream) = nullptr;
CUresult (*push_context)(CUcontext) = nullptr;
CUresult (*pop_context)(CUcontext*) = nullptr;
CUresult (*exchange_mode)(CUstreamCaptureMode*) = nullptr;
CUresult (*error_name)(CUresult, const char**) = nullptr;

using Guard = std::lock_guard<std::recursive_mutex>;

// Lets this thread ask the driver for what would end a capture of another thread.
struct Relaxed {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    Relaxed() { swap(); }
    ~Relaxed() { swap(); }
    void swap() { if (exchange_mode != nullptr) exchange_mode(&mode); }
};

std::string text(const char* value) {
    std::string quoted = "\"";
    for (const char* c = value == nullptr ? "" : value; *c; ++c) {
        if (*c == '"' || *c == '\\') quoted += '\\';
        if (static_cast<unsigned char>(*c) >= 0x20) quoted += *c;
    }
    return quoted + '"';
}

std::string field(const char* name, uint64_t value) {
    return std::string(", \"") + name + "\": " + std::to_string(value);
}

// Write all of something to a file, without a buffer that a killed process would lose.
void write_to(int file, const void* from, size_t bytes) {
    const char* at = static_cast<const char*>(from);
    while (bytes > 0) {
        const ssize_t written = write(file, at, bytes);
        if (written <= 0) return;
        at += written;
        bytes -= written;
    }
}

void say(const std::string& event) {
    const std::string line = "{" + event + "}\n";
    const std::lock_guard<std::mutex> guard(writing);
    if (events >= 0) write_to(events, line.data(), line.size());
}

bool worked(SanitizerResult result, const char* what) {
    if (result == SANITIZER_SUCCESS) return true;
    const char* reason = nullptr;
    sanitizerGetResultString(result, &reason);
    say("\"event\": \"fault\", \"what\": " + text(what) + ", \"reason\": " + text(reason));
    return false;
}

int number_of(CUcontext context) {
    const Guard guard(lock);
    int& number = context_of[context].number;
    if (number < 0) number = contexts_seen++;
    return number;
}

// Number a stream; the default stream of a context has a handle, too, if none is given.
int stream_of(CUcontext context, Sanitizer_StreamHandle handle) {
    if (handle == nullptr) sanitizerGetStreamHandle(context, nullptr, &handle);
    const Guard guard(lock);
    const auto [known, is_new] = streams.emplace(handle, Stream{streams_seen, context});
    streams_seen += is_new;
    return known->second.number;
}

std::string demangled(const char* name) {
    if (name == nullptr) return "";
    if (strncmp(name, "_Z", 2) != 0) return name;  // not mangled: `f` is not float
    int status = 0;
    char* found = abi::__cxa_demangle(name, nullptr, nullptr, &status);
    std::string result = status == 0 ? found : name;
    free(found);
    return result;
}

int attribute(CUfunction function, CUfunction_attribute which) {
    int value = -1;
    if (get_attribute == nullptr || get_attribute(&value, which, function) != CUDA_SUCCESS) return -1;
    return value;
}

void open_files() {
    const std::string process = std::to_string(getpid());
    const auto open_one = [&](const std::string& name) {
        const std::string path = options.folder + "/" + name;
        return open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    };
    events = open_one("events-" + process + ".jsonl");
    sectors = open_one("sectors-" + process + ".bin");
    say("\"event\": \"recording\"" + field("format", FORMAT) + field("process", getpid()));
}

// In a process that was forked the files are those of the other one, and locks may be held by none.
void forget() {
    events = sectors = -1;
    new (&lock) std::recursive_mutex;
    new (&writing) std::mutex;
    new (&patching) std::recursive_mutex;
}

// Take device memory of a context for tables.
bool allocate(CUcontext context, uint64_t bytes, Tables& tables) {
    uint32_t slots = FEWEST_SLOTS;
    while (8ull * slots <= bytes / 4) slots *= 2;
    Launch& layout = tables.layout;
    layout.most_tiles = static_cast<uint32_t>(bytes / 10 / sizeof(TileLoad));
    const uint64_t fixed = 4ull * slots + layout.most_tiles * sizeof(TileLoad)
        + MOST_MAPS * sizeof(TensorMap) + MOST_LAUNCHES * sizeof(Launch) + sizeof(Counts);
    layout.most_sectors = static_cast<uint32_t>((bytes - fixed) / sizeof(Row));
    void* taken[6] = {};
    const uint64_t sizes[6] = {
        4ull * slots, layout.most_sectors * sizeof(Row), layout.most_tiles * sizeof(TileLoad),
        MOST_MAPS * sizeof(TensorMap), MOST_LAUNCHES * sizeof(Launch), sizeof(Counts)};
    for (int i = 0; i < 6; ++i) {
        if (sanitizerAlloc(context, &taken[i], sizes[i]) == SANITIZER_SUCCESS) continue;
        while (--i >= 0) sanitizerFree(context, taken[i]);
        return false;
    }
    layout.slots = static_cast<uint32_t*>(taken[0]);
    layout.sectors = static_cast<Row*>(taken[1]);
    layout.tiles = static_cast<TileLoad*>(taken[2]);
    layout.maps = static_cast<TensorMap*>(taken[3]);
    tables.launches = static_cast<Launch*>(taken[4]);
    layout.counts = static_cast<Counts*>(taken[5]);
    tables.most_slots = slots;
    return true;
}

// Take tables that no launch uses, new ones if there are none yet; nullptr if there can be none.
Tables* take_tables(CUcontext handle) {
    uint64_t most = options.gpu_memory;
    {
        const Guard guard(lock);
        Context& context = context_of[handle];
        for (Tables& tables : context.tables) {
            if (tables.is_in_use) continue;
            tables.is_in_use = true;
            return &tables;
        }
        if (context.has_failed || context.tables.size() > MOST_LATE) return nullptr;
        // Behind launches that were let go, or of other threads, there are smaller ones.
        if (!context.tables.empty()) most = std::max(most / 8, FEWEST_BYTES);
    }
    Tables tables;
    tables.is_in_use = true;
    for (uint64_t bytes = most; bytes >= FEWEST_BYTES; bytes /= 2) {
        if (!allocate(handle, bytes, tables)) continue;
        const Guard guard(lock);
        context_of[handle].tables.push_back(tables);
        return &context_of[handle].tables.back();
    }
    const Guard guard(lock);
    context_of[handle].has_failed = true;
    say("\"event\": \"fault\", \"what\": \"no GPU memory for the tables\"");
    return nullptr;
}

void give_back(Tables* tables) {
    const Guard guard(lock);
    if (tables != nullptr) tables->is_in_use = false;
}

// Say once what a context is on.
void note_context(const Sanitizer_LaunchData* data) {
    {
        const Guard guard(lock);
        if (std::exchange(context_of[data->context].is_told, true)) return;
    }
    int major = 0, minor = 0;
    if (get_device_attribute != nullptr) {
        get_device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, data->device);
        get_device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, data->device);
    }
    say("\"event\": \"context\"" + field("context", number_of(data->context))
        + field("device", static_cast<uint64_t>(data->device))
        + field("architecture", 10 * major + minor));
}

bool is_in_selected_region() { return !options.in_region_only || is_in_region; }

// Tell whether to record a launch, and which it is; count those that are not, too.
bool is_wanted(const char* name, uint64_t& ordinal) {
    if (!is_in_selected_region()) return false;
    const bool is_named = options.name.empty() || std::regex_search(demangled(name), only_names);
    const Guard guard(lock);
    ordinal = launches_seen++;
    if (ordinal < options.first || ordinal >= options.end) return false;
    if (!options.range.empty() && !is_in_range(options.range)) return false;
    if (!is_named) return false;
    const uint64_t chosen = launches_chosen++;
    return chosen >= options.skip && chosen - options.skip < options.count;
}

uint32_t new_number() {
    const Guard guard(lock);
    return ++next_number;
}

void clear(Tables& tables, uint32_t slots, Sanitizer_StreamHandle stream) {
    sanitizerMemset(tables.layout.slots, 0, 4ull * slots, stream);
    sanitizerMemset(tables.layout.counts, 0, sizeof(Counts), stream);
    sanitizerMemset(tables.layout.maps, 0, MOST_MAPS * sizeof(TensorMap), stream);
}

uint32_t slots_for(const Sanitizer_LaunchData* data, const Tables& tables) {
    const uint64_t blocks = uint64_t(data->gridDim_x) * data->gridDim_y * data->gridDim_z;
    uint64_t slots = FEWEST_SLOTS;
    while (slots < blocks * SECTORS_PER_BLOCK && slots < tables.most_slots) slots *= 2;
    return static_cast<uint32_t>(slots);
}

std::string describe(
    const Sanitizer_LaunchData* data, uint32_t number, uint64_t ordinal, bool in_graph) {
    const char* name = data->functionName;
    const auto three = [](uint32_t x, uint32_t y, uint32_t z) {
        return "[" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + "]";
    };
    const int registers = attribute(data->function, CU_FUNC_ATTRIBUTE_NUM_REGS);
    const int shared = attribute(data->function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    std::string ranges;
    for (const std::string& range : open_ranges()) {
        ranges += (ranges.empty() ? "" : ", ") + text(range.c_str());
    }
    return "\"event\": \"kernel\"" + field("number", number)
        + field("ordinal", ordinal)
        + ", \"name\": " + text(demangled(name).c_str()) + ", \"mangled\": " + text(name)
        + ", \"grid\": " + three(data->gridDim_x, data->gridDim_y, data->gridDim_z)
        + ", \"block\": " + three(data->blockDim_x, data->blockDim_y, data->blockDim_z)
        + ", \"cluster\": " + three(data->clusterDim_x, data->clusterDim_y, data->clusterDim_z)
        + ", \"registers\": " + std::to_string(registers)
        + ", \"static_shared\": " + std::to_string(shared)
        + ", \"dynamic_shared\": " + (in_graph ? "-1" : std::to_string(call.dynamic_shared))
        + field("stream", stream_of(data->context, data->hStream))
        + field("context", number_of(data->context))
        + field("device", static_cast<uint64_t>(data->device)) + field("graph", in_graph)
        + ", \"ranges\": [" + ranges + "]"
        + field("grid_id", in_graph ? static_cast<uint32_t>(data->gridId) : number);
}

void say_state(uint32_t number, const char* state, const std::string& more = "") {
    say("\"event\": \"tables\"" + field("number", number) + ", \"state\": " + text(state) + more);
}

// Return the bytes of the parameters that a kernel is given; none where they are not known.
std::string parameters_of(CUfunction function) {
    std::string bytes;
    if (call.parameters != nullptr && get_parameter != nullptr) {
        size_t at = 0, size = 0;
        for (size_t i = 0; get_parameter(function, i, &at, &size) == CUDA_SUCCESS; ++i) {
            if (at + size > MOST_PARAMETERS) return "";
            bytes.resize(std::max(bytes.size(), at + size));
            memcpy(&bytes[at], call.parameters[i], size);
        }
    } else if (call.extra != nullptr) {
        const void* from = nullptr;
        size_t size = 0;
        for (void** word = call.extra; *word != CU_LAUNCH_PARAM_END; word += 2) {
            if (*word == CU_LAUNCH_PARAM_BUFFER_POINTER) from = word[1];
            if (*word == CU_LAUNCH_PARAM_BUFFER_SIZE) size = *static_cast<size_t*>(word[1]);
        }
        if (from != nullptr && size <= MOST_PARAMETERS) {
            bytes.assign(static_cast<const char*>(from), size);
        }
    }
    return bytes;
}

std::string hexadecimal(const std::string& bytes) {
    constexpr char digits[] = "0123456789abcdef";
    std::string found;
    for (const unsigned char byte : bytes) {
        found += digits[byte >> 4];
        found += digits[byte & 15];
    }
    return found;
}

// Let a launch run without a table: one that is told nothing takes what another, or a graph that is
// no more, has left there.
void give_nothing(const Sanitizer_LaunchData* data) {
    worked(sanitizerSetLaunchCallbackData(data->hLaunch, data->function, data->hStream, nullptr),
           "giving no table");
}

// Give a launch its table.
void begin(const Sanitizer_LaunchData* data, bool in_graph) {
    uint64_t ordinal = 0;
    if (!is_wanted(data->functionName, ordinal)) {
        give_nothing(data);
        return;
    }
    const uint32_t number = new_number();
    note_context(data);
    say(describe(data, number, ordinal, in_graph));
    const char* name = data->functionName == nullptr ? "" : data->functionName;
    const char* reason = nullptr;
    {
        const Guard guard(lock);
        if (unpatched.count(data->module)) reason = "not patched";
    }
    if (std::regex_search(name, never_names)) reason = "left out";
    if (in_graph && data->context != current.context) reason = "in another context than its graph";
    if (!in_graph && reason == nullptr) {
        current.context = data->context;
        current.tables = take_tables(data->context);
    }
    const bool has_room = current.tables != nullptr && current.launches.size() < MOST_LAUNCHES;
    if (reason == nullptr && !has_room) reason = "no table";
    if (reason != nullptr) {
        give_nothing(data);
        say_state(number, reason);
        return;
    }
    Launch launch = current.tables->layout;
    const uint32_t slots = in_graph ? current.tables->most_slots : slots_for(data, *current.tables);
    if (!in_graph) clear(*current.tables, slots, data->hStream);
    launch.number = number;
    launch.slot_mask = slots - 1;
    launch.is_in_graph = in_graph;
    launch.grid = static_cast<uint32_t>(data->gridId);
    Launch* on_gpu = current.tables->launches + current.launches.size();
    if (!worked(sanitizerMemcpyHostToDeviceAsync(on_gpu, &launch, sizeof(launch), data->hStream),
                "filling a table")
        || !worked(sanitizerSetLaunchCallbackData(
                       data->hLaunch, data->function, data->hStream, on_gpu), "giving a table")) {
        say_state(number, "no table");
        return;
    }
    const std::string parameters = in_graph ? "" : parameters_of(data->function);
    current.launches.push_back({number, demangled(name), parameters});
}

// Add what lies on the GPU to what is to be written; return whether it could be read.
bool read_part(const void* from, uint64_t bytes, Sanitizer_StreamHandle stream, std::vector<char>& into) {
    const size_t before = into.size();
    into.resize(before + bytes);
    if (bytes == 0) return true;
    return worked(sanitizerMemcpyDeviceToHost(
                      into.data() + before, const_cast<void*>(from), bytes, stream), "reading");
}

// Leave out the places for maps that none has; return how many are left, from some byte on.
uint64_t drop_free_maps(std::vector<char>& into, uint64_t at) {
    auto* maps = reinterpret_cast<TensorMap*>(into.data() + at);
    auto* end = std::remove_if(maps, maps + MOST_MAPS, [](const TensorMap& m) { return !m.is_whole; });
    into.resize(at + (end - maps) * sizeof(TensorMap));
    return end - maps;
}

// Say what parameters a launch had that loaded tiles, and where they lay: a map that it loaded tells.
void say_parameters(const Pending& launch, const TensorMap* maps, uint64_t n) {
    for (uint64_t i = 0; i < n && !launch.parameters.empty(); ++i) {
        const std::string words(reinterpret_cast<const char*>(maps[i].words), MAP_BYTES);
        const size_t offset = launch.parameters.find(words);
        if (offset == std::string::npos) continue;
        say("\"event\": \"params\"" + field("number", launch.number)
            + field("at", maps[i].at - offset)
            + ", \"bytes\": " + text(hexadecimal(launch.parameters).c_str()));
        return;
    }
}

// Write what launches touched that have ended.
void read_back(Batch& batch) {
    const Launch& layout = batch.tables->layout;
    // Handles are given to a callback for as long as it runs.
    sanitizerGetStreamHandle(batch.context, batch.stream, &batch.handle);
    Counts counts{};
    std::vector<Launch> done(batch.launches.size());
    bool is_read = worked(sanitizerMemcpyDeviceToHost(
                                  &counts, layout.counts, sizeof(counts), batch.handle), "reading")
        && worked(sanitizerMemcpyDeviceToHost(done.data(), batch.tables->launches,
                                              done.size() * sizeof(Launch), batch.handle), "reading");
    const uint64_t n_sectors = std::min(counts.sectors, layout.most_sectors);
    const uint64_t n_tiles = std::min(counts.tiles, layout.most_tiles);
    std::vector<char> read;
    read.reserve(n_sectors * sizeof(Row) + n_tiles * sizeof(TileLoad)
                 + (n_tiles > 0 ? MOST_MAPS * sizeof(TensorMap) : 0));
    is_read &= read_part(layout.sectors, n_sectors * sizeof(Row), batch.handle, read);
    const uint64_t tiles_at = read.size();
    is_read &= read_part(layout.tiles, n_tiles * sizeof(TileLoad), batch.handle, read);
    const uint64_t maps_at = read.size();
    uint64_t n_maps = 0;
    if (n_tiles > 0) {
        is_read &= read_part(layout.maps, MOST_MAPS * sizeof(TensorMap), batch.handle, read);
        n_maps = drop_free_maps(read, maps_at);
    }
    give_back(batch.tables);
    uint64_t at;
    {
        const std::lock_guard<std::mutex> guard(writing);
        at = sectors_written;
        if (sectors >= 0) write_to(sectors, read.data(), read.size());
        sectors_written += read.size();
    }
    // Nodes of a graph may have been given one another's tables: what one lost may be any other's.
    uint32_t lost = 0;
    for (const Launch& each : done) lost = std::max(lost, each.lost);
    const auto* maps = reinterpret_cast<const TensorMap*>(read.data() + maps_at);
    for (size_t i = 0; i < batch.launches.size(); ++i) {
        const Pending& launch = batch.launches[i];
        say_parameters(launch, maps, n_maps);
        say_state(launch.number, is_read ? "recorded" : "failed",
                  field("lost", lost) + field("strays", done[i].strays)
                      + field("sectors_at", at) + field("sectors", n_sectors)
                      + field("tiles_at", at + tiles_at) + field("tiles", n_tiles)
                      + field("maps_at", at + maps_at) + field("maps", n_maps));
    }
}

// Ask whether a stream has ended; where another one is captured that may be unknown for now.
CUresult state_of(CUstream stream) {
    const CUresult state = query(stream);
    const bool is_captured = state >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        && state <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    return is_captured ? CUDA_ERROR_NOT_READY : state;
}

// Wait for all launches of a stream, some seconds at most; return how it is then.
CUresult state_after(CUstream stream, double seconds) {
    const auto start = std::chrono::steady_clock::now();
    while (true) {
        const CUresult state = state_of(stream);
        if (state != CUDA_ERROR_NOT_READY) return state;
        const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
        if (waited.count() > seconds) return state;
        if (waited.count() > 1e-3) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
}

// Give up launches: their tables stay in use, since they may still write there.
void give_up(const Batch& batch) {
    for (const Pending& launch : batch.launches) say_state(launch.number, "did not end");
}

// Say which kernel ended with an error, which its program will find later, at another call.
void say_failed(const Batch& batch, CUresult state) {
    static std::atomic<bool> is_said{false};  // no kernel of this process runs any more
    for (const Pending& launch : batch.launches) say_state(launch.number, "failed");
    if (is_said.exchange(true)) return;
    const char* name = nullptr;
    if (error_name != nullptr) error_name(state, &name);
    const size_t n = batch.launches.size();
    const std::string which = n == 1 ? batch.launches.back().name
        : "one of the " + std::to_string(n) + " kernels of a CUDA graph";
    fprintf(stderr, "depgraph: %s ended with %s\n", which.c_str(), name == nullptr ? "an error" : name);
}

// Read what a batch touched that was let go; return whether that is settled.
bool is_settled(Batch& batch) {
    // A thread's own default stream can be asked by that thread alone.
    const bool is_mine = batch.stream != CU_STREAM_PER_THREAD
        || batch.thread == std::this_thread::get_id();
    if (!is_mine || push_context(batch.context) != CUDA_SUCCESS) return false;
    const CUresult state = state_of(batch.stream);
    if (state == CUDA_SUCCESS) read_back(batch);
    CUcontext popped;
    pop_context(&popped);
    if (state != CUDA_SUCCESS && state != CUDA_ERROR_NOT_READY) give_up(batch);
    return state != CUDA_ERROR_NOT_READY;
}

// Read what launches that were let go touched, if they have ended since.
void read_late() {
    thread_local bool is_reading = false;  // asking a stream is an event that leads here, too
    if (is_reading) return;
    std::list<Batch> mine;
    {
        const Guard guard(lock);
        mine.swap(late);
    }
    if (mine.empty()) return;
    is_reading = true;
    const Relaxed relaxed;
    mine.remove_if(is_settled);
    is_reading = false;
    const Guard guard(lock);
    late.splice(late.end(), mine);
}

// Give up what waits in a stream, or in any of a context, that is no more.
void give_up_late(CUcontext context, const CUstream* stream) {
    read_late();
    const Guard guard(lock);
    late.remove_if([&](const Batch& batch) {
        const bool is_gone = batch.context == context && (!stream || batch.stream == *stream);
        if (is_gone) give_up(batch);
        return is_gone;
    });
}

// Forget the tables and streams of a context that is being destroyed.
void close_context(CUcontext context) {
    give_up_late(context, nullptr);
    const Guard guard(lock);
    const int number = number_of(context);  // what is freed from now on is still its own
    context_of[context] = Context();
    context_of[context].number = number;
    for (auto stream = streams.begin(); stream != streams.end();) {
        stream = stream->second.context == context ? streams.erase(stream) : std::next(stream);
    }
}

// Forget a context that is no more: another one may have its address.
void forget_context(CUcontext context) {
    const Guard guard(lock);
    context_of.erase(context);
}

// Let the program go on beside launches that have begun.
void let_go_of(Batch& batch) {
    const Guard guard(lock);
    late.push_back(std::move(batch));
}

// Wait for launches that this thread has begun, and write what they touched; let go those that do
// not end.
void finish(CUcontext context, CUstream stream) {
    Batch batch = std::exchange(current, Batch());
    if (batch.launches.empty()) {
        give_back(batch.tables);
        return;
    }
    batch.context = context;
    batch.stream = stream;
    batch.thread = std::this_thread::get_id();
    const std::string name = batch.launches.back().name;
    double patience = PATIENCE;
    {
        const Guard guard(lock);
        if (let_go.count(name)) patience = PATIENCE_ONCE_LET_GO;
    }
    const Relaxed relaxed;
    const CUresult state = state_after(stream, patience);
    if (state == CUDA_SUCCESS) {
        read_back(batch);
    } else if (state != CUDA_ERROR_NOT_READY) {
        say_failed(batch, state);
    } else {
        {
            const Guard guard(lock);
            if (let_go.insert(name).second) {
                fprintf(stderr, "depgraph: %s has not ended for %g s: the program goes on beside it\n",
                        name.c_str(), PATIENCE);
            }
        }
        let_go_of(batch);
    }
    read_late();
}

// What this thread began and no event ended: it is read when its stream has ended.
void settle_unended() {
    if (current.launches.empty()) {
        give_back(current.tables);
    } else {
        current.thread = std::this_thread::get_id();
        let_go_of(current);
    }
    current = Batch();
    is_graph_launched = false;
}

// Keep the machine code of a module, which says what no hook sees; a library's own may be too large.
void keep(const Sanitizer_ResourceModuleData* data) {
    static std::atomic<int> next_module{0};
    if (data->pCubin == nullptr || data->cubinSize > MOST_CODE) return;
    const std::string path = options.folder + "/module-" + std::to_string(getpid()) + "-"
        + std::to_string(next_module++) + ".cubin";
    FILE* file = fopen(path.c_str(), "wb");
    if (file == nullptr) return;
    fwrite(data->pCubin, 1, data->cubinSize, file);
    fclose(file);
}

void patch(const Sanitizer_ResourceModuleData* data) {
    keep(data);
    const Guard one_at_a_time(patching);  // loading the patch loads a module, too
    bool is_first;
    {
        const Guard guard(lock);
        is_first = !std::exchange(context_of[data->context].is_patched, true);
    }
    if (is_first) {
        worked(sanitizerAddPatchesFromFile(options.patch.c_str(), data->context), "loading the patch");
    }
    bool is_whole = true;
    for (const auto& [kind, name] : PATCHES) {
        is_whole &= worked(sanitizerPatchInstructions(kind, data->module, name), name);
    }
    is_whole &= worked(sanitizerPatchModule(data->module), "patching a module");
    const Guard guard(lock);
    if (is_whole) {
        unpatched.erase(data->module);
    } else {
        unpatched.insert(data->module);
    }
}

void note_memory(const char* event, const Sanitizer_ResourceMemoryData* data) {
    say(std::string("\"event\": \"") + event + "\"" + field("address", data->address)
        + field("bytes", data->size) + field("flags", data->flags)
        + field("context", number_of(data->context))
        + field("stream", stream_of(data->context, data->hStream)));
}

void note_region(bool begins) {
    is_in_region = begins;
    const Guard guard(lock);
    say("\"event\": \"region\"" + field("begins", begins) + field("launches", launches_seen));
}

void note_copy(const Sanitizer_MemcpyData* data) {
    if (!is_in_selected_region()) return;
    say("\"event\": \"copy\"" + field("from", data->srcAddress) + field("to", data->dstAddress)
        + field("bytes", data->size) + field("width", data->width) + field("height", data->height)
        + field("depth", data->depth) + field("from_pitch", data->srcPitch)
        + field("to_pitch", data->dstPitch) + field("direction", data->direction)
        + field("from_context", number_of(data->srcContext))
        + field("to_context", number_of(data->dstContext))
        + field("stream", stream_of(data->apiContext, data->hApiStream)));
}

void note_memset(const Sanitizer_MemsetData* data) {
    if (!is_in_selected_region()) return;
    say("\"event\": \"memset\"" + field("address", data->address) + field("width", data->width)
        + field("height", data->height) + field("pitch", data->pitch)
        + field("element", data->elementSize) + field("context", number_of(data->context))
        + field("stream", stream_of(data->context, data->hStream)));
}

void on_resource(Sanitizer_CallbackId id, const void* data) {
    const auto* memory = static_cast<const Sanitizer_ResourceMemoryData*>(data);
    switch (id) {
    case SANITIZER_CBID_RESOURCE_MODULE_LOADED:
        patch(static_cast<const Sanitizer_ResourceModuleData*>(data));
        break;
    case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC:
    case SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC:
    case SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC:
        note_memory("alloc", memory);
        break;
    case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE:
    case SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE:
    case SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC:
        note_memory("free", memory);
        break;
    case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING:
        close_context(static_cast<const Sanitizer_ResourceContextData*>(data)->context);
        break;
    case SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_FINISHED:
        forget_context(static_cast<const Sanitizer_ResourceContextData*>(data)->context);
        break;
    case SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING: {
        const auto* gone = static_cast<const Sanitizer_ResourceStreamData*>(data);
        give_up_late(gone->context, &gone->stream);
        const Guard guard(lock);
        streams.erase(gone->hStream);
        break;
    }
    default: break;
    }
}

void on_launch(Sanitizer_CallbackId id, const void* raw) {
    if (is_graph_launched) return;
    const auto* data = static_cast<const Sanitizer_LaunchData*>(raw);
    if (id == SANITIZER_CBID_LAUNCH_BEGIN) {
        settle_unended();
        begin(data, false);
        current.stream = data->stream;
    } else if (id == SANITIZER_CBID_LAUNCH_END) {
        finish(data->context, data->stream);
    }
}

// Note what nobody sees into: a kernel without footprint, opaque, by name.
void note_opaque(const char* name, CUcontext context, Sanitizer_StreamHandle stream) {
    if (!is_in_selected_region()) return;
    say("\"event\": \"opaque\"" + field("number", new_number()) + ", \"name\": " + text(name)
        + field("stream", stream_of(context, stream)) + field("context", number_of(context)));
}

void on_node(const Sanitizer_GraphNodeLaunchData* node) {
    if (node->isGraphUpload) return;
    switch (static_cast<int>(node->nodeType)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: begin(&node->launchData, true); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: note_copy(&node->memcpyData); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: note_memset(&node->memsetData); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: note_memory("alloc", &node->memAllocData); break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        say("\"event\": \"free\"" + field("address", node->memFreeAddress) + field("bytes", 0)
            + field("context", number_of(current.context)));
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        note_opaque("(a node of a CUDA graph that waits on memory)", current.context, current.handle);
        break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        note_opaque("(a conditional node of a CUDA graph)", current.context, current.handle);
        break;
    default: break;
    }
}

void on_graph(Sanitizer_CallbackId id, const void* raw) {
    const auto* data = static_cast<const Sanitizer_GraphLaunchData*>(raw);
    if (id == SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN) {
        on_node(static_cast<const Sanitizer_GraphNodeLaunchData*>(raw));
    } else if (id == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN && !data->isGraphUpload) {
        settle_unended();
        is_graph_launched = true;
        current.context = data->context;
        current.stream = data->stream;
        current.handle = data->hStream;
        if (is_in_selected_region()) current.tables = take_tables(data->context);
        if (current.tables != nullptr) {
            clear(*current.tables, current.tables->most_slots, data->hStream);
        }
    } else if (id == SANITIZER_CBID_GRAPHS_LAUNCH_END && !data->isGraphUpload) {
        finish(data->context, data->stream);
        is_graph_launched = false;
    }
}

// Writes by a stream are like those of a memset; what it waits for nobody knows.
void on_memory_operation(Sanitizer_CallbackId id, const Sanitizer_BatchMemopData* data) {
    if (!is_in_selected_region()) return;
    if (id == SANITIZER_CBID_BATCH_MEMOP_WRITE) {
        Sanitizer_MemsetData written{};
        written.context = data->context;
        written.hStream = data->hStream;
        written.address = data->address;
        written.width = written.height = 1;
        written.elementSize = data->type == SANITIZER_BATCH_MEMOP_TYPE_64B ? 8 : 4;
        note_memset(&written);
    } else {
        const bool waits = id == SANITIZER_CBID_BATCH_MEMOP_WAIT_BEGIN;
        note_opaque(waits ? "(a stream that waits on memory)" : "(a stream that adds to memory)",
                    data->context, data->hStream);
    }
}

// What the driver's calls are given, as generated_cuda_meta.h has it: that file asks for CUDA headers
// of its own version, which need not be the ones that are there.
struct LaunchKernel {
    CUfunction function;
    unsigned grid[3], block[3], sharedMemBytes;
    CUstream stream;
    void** kernelParams;
    void** extra;  // not of cooperative launches
};

struct LaunchKernelEx {
    const CUlaunchConfig* config;
    CUfunction function;
    void** kernelParams;
    void** extra;
};

struct MemMap {
    CUdeviceptr address;
    size_t bytes, offset;
    CUmemGenericAllocationHandle memory;
};

struct MemUnmap {
    CUdeviceptr address;
    size_t bytes;
};

template <class Parameters>
void note_call(const Parameters* given, unsigned dynamic_shared, void** extra) {
    call = {dynamic_shared, given->kernelParams, extra};
}

void on_driver(Sanitizer_CallbackId id, const Sanitizer_CallbackData* data) {
    if (data->callbackSite != SANITIZER_API_ENTER) {
        if (!current.launches.empty() || is_graph_launched) settle_unended();  // a launch that failed
        call = Call();
        return;
    }
    switch (id) {
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernel:
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz: {
        const auto* given = static_cast<const LaunchKernel*>(data->functionParams);
        note_call(given, given->sharedMemBytes, given->extra);
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx:
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz: {
        const auto* given = static_cast<const LaunchKernelEx*>(data->functionParams);
        note_call(given, given->config->sharedMemBytes, given->extra);
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel:
    case SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz: {
        const auto* given = static_cast<const LaunchKernel*>(data->functionParams);
        note_call(given, given->sharedMemBytes, nullptr);
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuMemMap: {
        const auto* given = static_cast<const MemMap*>(data->functionParams);
        say("\"event\": \"map\"" + field("address", given->address) + field("bytes", given->bytes)
            + field("memory", given->memory) + field("offset", given->offset));
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuMemUnmap: {
        const auto* given = static_cast<const MemUnmap*>(data->functionParams);
        say("\"event\": \"unmap\"" + field("address", given->address) + field("bytes", given->bytes));
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuProfilerStart: note_region(true); break;
    case SANITIZER_CBID_DRIVER_API_cuProfilerStop: note_region(false); break;
    default: break;
    }
}

void SANITIZERAPI on_event(
    void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    switch (domain) {
    case SANITIZER_CB_DOMAIN_RESOURCE: on_resource(id, data); break;
    case SANITIZER_CB_DOMAIN_LAUNCH: on_launch(id, data); break;
    case SANITIZER_CB_DOMAIN_GRAPHS: on_graph(id, data); break;
    case SANITIZER_CB_DOMAIN_SYNCHRONIZE: read_late(); break;
    case SANITIZER_CB_DOMAIN_MEMCPY:
        if (id == SANITIZER_CBID_MEMCPY_STARTING || id == SANITIZER_CBID_MEMCPY_BATCH_ITEM_STARTING) {
            note_copy(static_cast<const Sanitizer_MemcpyData*>(data));
        }
        break;
    case SANITIZER_CB_DOMAIN_MEMSET:
        if (id == SANITIZER_CBID_MEMSET_STARTING) {
            note_memset(static_cast<const Sanitizer_MemsetData*>(data));
        }
        break;
    case SANITIZER_CB_DOMAIN_BATCH_MEMOP:
        on_memory_operation(id, static_cast<const Sanitizer_BatchMemopData*>(data));
        break;
    case SANITIZER_CB_DOMAIN_DRIVER_API:
        on_driver(id, static_cast<const Sanitizer_CallbackData*>(data));
        break;
    default: break;
    }
}

const char* setting(const char* name) {
    const char* value = getenv(name);
    return value == nullptr ? "" : value;
}

void read_options() {
    options.folder = setting("DEPGRAPH_RECORD_FOLDER");
    options.patch = setting("DEPGRAPH_RECORD_PATCH");
    options.name = setting("DEPGRAPH_RECORD_NAME");
    options.range = setting("DEPGRAPH_RECORD_NVTX");
    options.in_region_only = *setting("DEPGRAPH_RECORD_REGION") != 0;
    const auto number = [](const char* name, uint64_t otherwise) {
        return *setting(name) ? strtoull(setting(name), nullptr, 10) : otherwise;
    };
    options.gpu_memory = std::min<uint64_t>(
        number("DEPGRAPH_RECORD_GPU_MEMORY", options.gpu_memory), MOST_GPU_MEMORY);
    options.first = number("DEPGRAPH_RECORD_FIRST", options.first);
    options.end = number("DEPGRAPH_RECORD_END", options.end);
    options.skip = number("DEPGRAPH_RECORD_SKIP", options.skip);
    options.count = number("DEPGRAPH_RECORD_COUNT", options.count);
}

// Read the pattern of names; one that makes no sense lets nothing be recorded.
bool read_names() {
    if (options.name.empty()) return true;
    try {
        only_names = std::regex(options.name);
        return true;
    } catch (const std::regex_error& error) {
        say("\"event\": \"fault\", \"what\": \"reading --name\", \"reason\": "
            + text(error.what()));
        return false;
    }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    read_options();
    if (options.folder.empty()) return 1;
    open_files();
    if (events < 0 || sectors < 0 || !read_names()) return 1;
    pthread_atfork(nullptr, nullptr, forget);
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(driver, name));
    };
    find(get_attribute, "cuFuncGetAttribute");
    find(get_device_attribute, "cuDeviceGetAttribute");
    find(get_parameter, "cuFuncGetParamInfo");
    find(query, "cuStreamQuery");
    find(push_context, "cuCtxPushCurrent_v2");
    find(pop_context, "cuCtxPopCurrent_v2");
    find(exchange_mode, "cuThreadExchangeStreamCaptureMode");
    find(error_name, "cuGetErrorName");
    if (query == nullptr || push_context == nullptr || pop_context == nullptr) return 1;
    Sanitizer_SubscriberHandle subscriber;
    if (!worked(sanitizerSubscribe(&subscriber, on_event, nullptr), "subscribing")) return 1;
    for (const auto domain : {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CB_DOMAIN_LAUNCH,
                              SANITIZER_CB_DOMAIN_MEMCPY, SANITIZER_CB_DOMAIN_MEMSET,
                              SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CB_DOMAIN_SYNCHRONIZE,
                              SANITIZER_CB_DOMAIN_BATCH_MEMOP}) {
        worked(sanitizerEnableDomain(1, subscriber, domain), "listening");
    }
    for (const auto id :
         {SANITIZER_CBID_DRIVER_API_cuLaunchKernel, SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel,
          SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuGraphLaunch, SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz,
          SANITIZER_CBID_DRIVER_API_cuMemMap, SANITIZER_CBID_DRIVER_API_cuMemUnmap,
          SANITIZER_CBID_DRIVER_API_cuProfilerStart, SANITIZER_CBID_DRIVER_API_cuProfilerStop}) {
        worked(sanitizerEnableCallback(1, subscriber, SANITIZER_CB_DOMAIN_DRIVER_API, id), "listening");
    }
    return 1;
}
