// The library that the CUDA driver loads into the program that is recorded: it patches kernels,
// empties their tables after each launch, and notes what else happens to memory, in order.
//
// A recording is a folder with two files a process: events-PID.jsonl, an object a line, and
// sectors-PID.bin, the tables that the events point into.
#include <cxxabi.h>
#include <dlfcn.h>
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <regex>
#include <string>
#include <vector>

#include "generated_cuda_meta.h"
#include "table.h"

namespace {

constexpr uint64_t MIB = 1 << 20;
constexpr uint64_t MOST_GPU_MEMORY = 32768 * MIB;  // beyond it places have no number of 32 bits
constexpr uint32_t MOST_LAUNCHES = 1 << 16;  // of one graph
constexpr uint32_t FEWEST_SLOTS = 1 << 16;
constexpr uint32_t SECTORS_PER_BLOCK = 4096;
constexpr int FORMAT = 1;

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
    std::string name;
    bool in_region_only = false;
};

// Device memory of one context.
struct Tables {
    bool is_patched = false;
    bool is_ready = false;
    bool has_failed = false;
    Launch layout{};            // pointers and sizes that all launches share
    uint32_t most_slots = 0;
    Launch* launches = nullptr;  // on the GPU
};

// A launch that has begun and whose table has not been read.
struct Pending {
    uint32_t number;
    std::string event;
};

std::recursive_mutex lock;
Options options;
FILE* events = nullptr;
FILE* sectors = nullptr;
uint64_t sectors_written = 0;
std::map<CUcontext, Tables> tables_of;
std::map<const void*, int> streams, contexts;
std::vector<Pending> pending;
// Other operations of the graph that is launched, each with the number of launches before it.
std::vector<std::pair<size_t, std::string>> between;
std::vector<char> buffer;
uint64_t launches_seen = 0;
uint32_t next_number = 0;
bool is_in_region = false;
bool is_graph_launched = false;
bool has_given_a_table = false;
thread_local unsigned dynamic_shared = 0;
std::regex only_names, never_names("nccl|nvshmem", std::regex::icase);
CUresult (*get_attribute)(int*, CUfunction_attribute, CUfunction) = nullptr;
CUresult (*get_device_attribute)(int*, CUdevice_attribute, CUdevice) = nullptr;

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

void say(const std::string& event) {
    if (events == nullptr) return;
    fprintf(events, "{%s}\n", event.c_str());
    fflush(events);
}

// Write an event where it belongs: behind the launches that have begun before it.
void say_in_order(const std::string& event) {
    if (is_graph_launched) between.push_back({pending.size(), event});
    else say(event);
}

bool worked(SanitizerResult result, const char* what) {
    if (result == SANITIZER_SUCCESS) return true;
    const char* reason = nullptr;
    sanitizerGetResultString(result, &reason);
    say("\"event\": \"fault\", \"what\": " + text(what) + ", \"reason\": " + text(reason));
    return false;
}

int number_of(std::map<const void*, int>& known, const void* handle) {
    return known.emplace(handle, static_cast<int>(known.size())).first->second;
}

int stream_of(const void* handle) { return handle == nullptr ? 0 : number_of(streams, handle); }

std::string demangled(const char* name) {
    if (name == nullptr) return "";
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
    events = fopen((options.folder + "/events-" + process + ".jsonl").c_str(), "w");
    sectors = fopen((options.folder + "/sectors-" + process + ".bin").c_str(), "wb");
    say("\"event\": \"recording\"" + field("format", FORMAT) + field("process", getpid()));
}

// Take device memory of a context, less if there is not so much.
void allocate(CUcontext context, Tables& tables) {
    for (uint64_t bytes = options.gpu_memory; bytes >= 32 * MIB; bytes /= 2) {
        uint32_t slots = FEWEST_SLOTS;
        while (8ull * slots <= bytes / 4) slots *= 2;
        Launch& layout = tables.layout;
        layout.most_tiles = static_cast<uint32_t>(bytes / 10 / sizeof(TileLoad));
        const uint64_t fixed = 4ull * slots + layout.most_tiles * sizeof(TileLoad)
            + MOST_MAPS * sizeof(TensorMap) + MOST_LAUNCHES * sizeof(Launch) + sizeof(Counts);
        layout.most_sectors = static_cast<uint32_t>((bytes - fixed) / sizeof(Sector));
        const auto take = [&](void* pointer, uint64_t size) {
            return sanitizerAlloc(context, static_cast<void**>(pointer), size) == SANITIZER_SUCCESS;
        };
        void* taken[6] = {};
        const bool fits = take(&taken[0], 4ull * slots)
            && take(&taken[1], layout.most_sectors * sizeof(Sector))
            && take(&taken[2], layout.most_tiles * sizeof(TileLoad))
            && take(&taken[3], MOST_MAPS * sizeof(TensorMap))
            && take(&taken[4], MOST_LAUNCHES * sizeof(Launch))
            && take(&taken[5], sizeof(Counts));
        if (fits) {
            layout.slots = static_cast<uint32_t*>(taken[0]);
            layout.sectors = static_cast<Sector*>(taken[1]);
            layout.tiles = static_cast<TileLoad*>(taken[2]);
            layout.maps = static_cast<TensorMap*>(taken[3]);
            tables.launches = static_cast<Launch*>(taken[4]);
            layout.counts = static_cast<Counts*>(taken[5]);
            tables.most_slots = slots;
            tables.is_ready = true;
            return;
        }
        for (void* each : taken) {
            if (each != nullptr) sanitizerFree(context, each);
        }
    }
    tables.has_failed = true;
    say("\"event\": \"fault\", \"what\": \"no GPU memory for the tables\"");
}

void note_context(const Sanitizer_LaunchData* data) {
    int major = 0, minor = 0;
    if (get_device_attribute != nullptr) {
        get_device_attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, data->device);
        get_device_attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, data->device);
    }
    say("\"event\": \"context\"" + field("context", number_of(contexts, data->context))
        + field("device", static_cast<uint64_t>(data->device))
        + field("architecture", 10 * major + minor));
}

bool is_in_selected_region() { return !options.in_region_only || is_in_region; }

bool is_wanted(const char* name) {
    if (!is_in_selected_region()) return false;
    const uint64_t place = launches_seen++;
    if (place < options.first || place >= options.end) return false;
    return options.name.empty() || std::regex_search(demangled(name), only_names);
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

std::string describe(const Sanitizer_LaunchData* data, uint32_t number, bool in_graph) {
    const char* name = data->functionName;
    const auto three = [](uint32_t x, uint32_t y, uint32_t z) {
        return "[" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + "]";
    };
    const int registers = attribute(data->function, CU_FUNC_ATTRIBUTE_NUM_REGS);
    const int shared = attribute(data->function, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
    return "\"event\": \"kernel\"" + field("number", number)
        + ", \"name\": " + text(demangled(name).c_str()) + ", \"mangled\": " + text(name)
        + ", \"grid\": " + three(data->gridDim_x, data->gridDim_y, data->gridDim_z)
        + ", \"block\": " + three(data->blockDim_x, data->blockDim_y, data->blockDim_z)
        + ", \"cluster\": " + three(data->clusterDim_x, data->clusterDim_y, data->clusterDim_z)
        + ", \"registers\": " + std::to_string(registers)
        + ", \"static_shared\": " + std::to_string(shared)
        + field("dynamic_shared", in_graph ? 0 : dynamic_shared)
        + field("stream", stream_of(data->hStream))
        + field("context", number_of(contexts, data->context))
        + field("device", static_cast<uint64_t>(data->device)) + field("graph", in_graph)
        + field("grid_id", in_graph ? static_cast<uint32_t>(data->gridId) : number);
}

// Give a launch its table.
void begin(const Sanitizer_LaunchData* data, bool in_graph) {
    if (!is_wanted(data->functionName)) {
        // A node of a graph, and a function that was given a table, would use what is there.
        if (in_graph || has_given_a_table) {
            sanitizerSetLaunchCallbackData(data->hLaunch, data->function, data->hStream, nullptr);
        }
        return;
    }
    const uint32_t number = ++next_number;
    if (contexts.count(data->context) == 0) note_context(data);
    const std::string event = describe(data, number, in_graph);
    Tables& tables = tables_of[data->context];
    if (std::regex_search(data->functionName == nullptr ? "" : data->functionName, never_names)) {
        say_in_order(event + ", \"state\": \"left out\"");
        return;
    }
    if (!tables.is_ready && !tables.has_failed) allocate(data->context, tables);
    if (!tables.is_ready || pending.size() == MOST_LAUNCHES) {
        say_in_order(event + ", \"state\": \"no table\"");
        return;
    }
    Launch launch = tables.layout;
    const uint32_t slots = in_graph ? tables.most_slots : slots_for(data, tables);
    if (!in_graph) clear(tables, slots, data->hStream);
    launch.number = number;
    launch.slot_mask = slots - 1;
    launch.is_in_graph = in_graph;
    Launch* on_gpu = tables.launches + pending.size();
    if (!worked(sanitizerMemcpyHostToDeviceAsync(on_gpu, &launch, sizeof(launch), data->hStream),
                "filling a table")
        || !worked(sanitizerSetLaunchCallbackData(
                       data->hLaunch, data->function, data->hStream, on_gpu), "giving a table")) {
        say_in_order(event + ", \"state\": \"no table\"");
        return;
    }
    has_given_a_table = true;
    pending.push_back({number, event});
}

void write_part(const void* from, uint64_t bytes, Sanitizer_StreamHandle stream) {
    buffer.resize(bytes);
    if (bytes == 0) return;
    sanitizerMemcpyDeviceToHost(buffer.data(), const_cast<void*>(from), bytes, stream);
    fwrite(buffer.data(), 1, bytes, sectors);
    sectors_written += bytes;
}

// Write the events between the launches, up to a launch.
void say_between(size_t launches) {
    size_t said = 0;
    while (said < between.size() && between[said].first <= launches) say(between[said++].second);
    between.erase(between.begin(), between.begin() + said);
}

// Wait for the launches that have begun, and write what they touched.
void finish(CUcontext context, Sanitizer_StreamHandle stream) {
    if (pending.empty()) {
        say_between(0);
        return;
    }
    Tables& tables = tables_of[context];
    const bool ended = worked(sanitizerStreamSynchronize(stream), "waiting for a kernel");
    Counts counts{};
    std::vector<Launch> done(pending.size());
    if (ended) {
        sanitizerMemcpyDeviceToHost(&counts, tables.layout.counts, sizeof(counts), stream);
        sanitizerMemcpyDeviceToHost(
            done.data(), tables.launches, done.size() * sizeof(Launch), stream);
    }
    const uint64_t n_sectors = std::min(counts.sectors, tables.layout.most_sectors);
    const uint64_t n_tiles = std::min(counts.tiles, tables.layout.most_tiles);
    const uint64_t at = sectors_written;
    write_part(tables.layout.sectors, n_sectors * sizeof(Sector), stream);
    const uint64_t tiles_at = sectors_written;
    write_part(tables.layout.tiles, n_tiles * sizeof(TileLoad), stream);
    const uint64_t maps_at = sectors_written;
    if (n_tiles > 0) write_part(tables.layout.maps, MOST_MAPS * sizeof(TensorMap), stream);
    fflush(sectors);
    for (size_t i = 0; i < pending.size(); ++i) {
        say_between(i);
        say(pending[i].event + ", \"state\": " + (ended ? "\"recorded\"" : "\"failed\"")
            + field("lost", done[i].lost) + field("sectors_at", at) + field("sectors", n_sectors)
            + field("tiles_at", tiles_at) + field("tiles", n_tiles) + field("maps_at", maps_at)
            + field("maps", n_tiles > 0 ? MOST_MAPS : 0));
    }
    say_between(pending.size());
    pending.clear();
}

void patch(const Sanitizer_ResourceModuleData* data) {
    Tables& tables = tables_of[data->context];
    if (!tables.is_patched) {
        tables.is_patched = true;
        worked(sanitizerAddPatchesFromFile(options.patch.c_str(), data->context), "loading the patch");
    }
    for (const auto& [kind, name] : PATCHES) {
        worked(sanitizerPatchInstructions(kind, data->module, name), name);
    }
    worked(sanitizerPatchModule(data->module), "patching a module");
}

void note_memory(const char* event, const Sanitizer_ResourceMemoryData* data) {
    say(std::string("\"event\": \"") + event + "\"" + field("address", data->address)
        + field("bytes", data->size) + field("flags", data->flags)
        + field("stream", stream_of(data->hStream)));
}

void note_copy(const Sanitizer_MemcpyData* data) {
    if (!is_in_selected_region()) return;
    say_in_order("\"event\": \"copy\"" + field("from", data->srcAddress) + field("to", data->dstAddress)
        + field("bytes", data->size) + field("width", data->width) + field("height", data->height)
        + field("depth", data->depth) + field("from_pitch", data->srcPitch)
        + field("to_pitch", data->dstPitch) + field("direction", data->direction)
        + field("stream", stream_of(data->hApiStream)));
}

void note_memset(const Sanitizer_MemsetData* data) {
    if (!is_in_selected_region()) return;
    say_in_order("\"event\": \"memset\"" + field("address", data->address) + field("width", data->width)
        + field("height", data->height) + field("pitch", data->pitch)
        + field("element", data->elementSize) + field("stream", stream_of(data->hStream)));
}

void on_resource(Sanitizer_CallbackId id, const void* data) {
    const auto* memory = static_cast<const Sanitizer_ResourceMemoryData*>(data);
    switch (id) {
    case SANITIZER_CBID_RESOURCE_MODULE_LOADED:
        patch(static_cast<const Sanitizer_ResourceModuleData*>(data));
        break;
    case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC:
    case SANITIZER_CBID_RESOURCE_MEMORY_ALLOC_ASYNC:
        note_memory("alloc", memory);
        break;
    case SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE:
    case SANITIZER_CBID_RESOURCE_MEMORY_FREE_ASYNC:
        note_memory("free", memory);
        break;
    default: break;
    }
}

void on_launch(Sanitizer_CallbackId id, const void* raw) {
    const auto* data = static_cast<const Sanitizer_LaunchData*>(raw);
    if (id == SANITIZER_CBID_LAUNCH_BEGIN) {
        lock.lock();  // until the launch ends: one table serves all
        if (!is_graph_launched) begin(data, false);
    } else if (id == SANITIZER_CBID_LAUNCH_END) {
        if (!is_graph_launched) finish(data->context, data->hStream);
        lock.unlock();
    }
}

void on_node(const Sanitizer_GraphNodeLaunchData* node) {
    if (node->isGraphUpload) return;
    if (node->nodeType == CU_GRAPH_NODE_TYPE_KERNEL) begin(&node->launchData, true);
    if (node->nodeType == CU_GRAPH_NODE_TYPE_MEMCPY) note_copy(&node->memcpyData);
    if (node->nodeType == CU_GRAPH_NODE_TYPE_MEMSET) note_memset(&node->memsetData);
}

void on_graph(Sanitizer_CallbackId id, const void* raw) {
    const auto* data = static_cast<const Sanitizer_GraphLaunchData*>(raw);
    if (id == SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN) {
        on_node(static_cast<const Sanitizer_GraphNodeLaunchData*>(raw));
    } else if (id == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN && !data->isGraphUpload) {
        lock.lock();
        is_graph_launched = true;
        Tables& tables = tables_of[data->context];
        if (!tables.is_ready && !tables.has_failed) allocate(data->context, tables);
        if (tables.is_ready) clear(tables, tables.most_slots, data->hStream);
    } else if (id == SANITIZER_CBID_GRAPHS_LAUNCH_END && !data->isGraphUpload) {
        finish(data->context, data->hStream);
        is_graph_launched = false;
        lock.unlock();
    }
}

void on_driver(Sanitizer_CallbackId id, const Sanitizer_CallbackData* data) {
    if (data->callbackSite != SANITIZER_API_ENTER) return;
    switch (id) {
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernel:
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz:
        dynamic_shared =
            static_cast<const cuLaunchKernel_params*>(data->functionParams)->sharedMemBytes;
        break;
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx:
    case SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz:
        dynamic_shared = static_cast<const cuLaunchKernelEx_params*>(data->functionParams)
                             ->config->sharedMemBytes;
        break;
    case SANITIZER_CBID_DRIVER_API_cuProfilerStart: is_in_region = true; break;
    case SANITIZER_CBID_DRIVER_API_cuProfilerStop: is_in_region = false; break;
    default: break;
    }
}

void SANITIZERAPI on_event(
    void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    const std::lock_guard<std::recursive_mutex> guard(lock);
    switch (domain) {
    case SANITIZER_CB_DOMAIN_RESOURCE: on_resource(id, data); break;
    case SANITIZER_CB_DOMAIN_LAUNCH: on_launch(id, data); break;
    case SANITIZER_CB_DOMAIN_GRAPHS: on_graph(id, data); break;
    case SANITIZER_CB_DOMAIN_MEMCPY:
        if (id == SANITIZER_CBID_MEMCPY_STARTING) {
            note_copy(static_cast<const Sanitizer_MemcpyData*>(data));
        }
        break;
    case SANITIZER_CB_DOMAIN_MEMSET:
        if (id == SANITIZER_CBID_MEMSET_STARTING) {
            note_memset(static_cast<const Sanitizer_MemsetData*>(data));
        }
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
    options.in_region_only = *setting("DEPGRAPH_RECORD_REGION") != 0;
    if (*setting("DEPGRAPH_RECORD_GPU_MEMORY")) {
        options.gpu_memory = std::min<uint64_t>(
            strtoull(setting("DEPGRAPH_RECORD_GPU_MEMORY"), nullptr, 10), MOST_GPU_MEMORY);
    }
    if (*setting("DEPGRAPH_RECORD_FIRST")) {
        options.first = strtoull(setting("DEPGRAPH_RECORD_FIRST"), nullptr, 10);
    }
    if (*setting("DEPGRAPH_RECORD_END")) {
        options.end = strtoull(setting("DEPGRAPH_RECORD_END"), nullptr, 10);
    }
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
    if (events == nullptr || sectors == nullptr || !read_names()) return 1;
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
    get_attribute =
        reinterpret_cast<decltype(get_attribute)>(dlsym(driver, "cuFuncGetAttribute"));
    get_device_attribute =
        reinterpret_cast<decltype(get_device_attribute)>(dlsym(driver, "cuDeviceGetAttribute"));
    Sanitizer_SubscriberHandle subscriber;
    if (!worked(sanitizerSubscribe(&subscriber, on_event, nullptr), "subscribing")) return 1;
    for (const auto domain : {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CB_DOMAIN_LAUNCH,
                              SANITIZER_CB_DOMAIN_MEMCPY, SANITIZER_CB_DOMAIN_MEMSET,
                              SANITIZER_CB_DOMAIN_GRAPHS}) {
        worked(sanitizerEnableDomain(1, subscriber, domain), "listening");
    }
    for (const auto id :
         {SANITIZER_CBID_DRIVER_API_cuLaunchKernel, SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
          SANITIZER_CBID_DRIVER_API_cuProfilerStart, SANITIZER_CBID_DRIVER_API_cuProfilerStop}) {
        worked(sanitizerEnableCallback(1, subscriber, SANITIZER_CB_DOMAIN_DRIVER_API, id), "listening");
    }
    return 1;
}
