// Launches that begin: which are recorded, and the table on the GPU that each is given.
#pragma once

#include <utility>

#include "graphs.h"
#include "ranges.h"

namespace {

// Take device memory of a context for tables.
bool allocate(CUcontext context, uint64_t bytes, Tables& tables) {
    uint32_t slots = FEWEST_SLOTS;
    while (8ull * slots <= bytes / 4) slots *= 2;
    Launch& layout = tables.layout;
    layout.most_tiles = static_cast<uint32_t>(bytes / 10 / sizeof(TileLoad));
    const uint64_t fixed = 4ull * slots + layout.most_tiles * sizeof(TileLoad)
        + MOST_MAPS * sizeof(TensorMap) + LAUNCHES * sizeof(Launch) + sizeof(Counts);
    layout.most_sectors = static_cast<uint32_t>((bytes - fixed) / sizeof(Row));
    void* taken[6] = {};
    const uint64_t sizes[6] = {
        4ull * slots, layout.most_sectors * sizeof(Row), layout.most_tiles * sizeof(TileLoad),
        MOST_MAPS * sizeof(TensorMap), LAUNCHES * sizeof(Launch), sizeof(Counts)};
    for (int i = 0; i < 6; ++i) {
        if (sanitizerAlloc(context, &taken[i], sizes[i]) == SANITIZER_SUCCESS) continue;
        while (--i >= 0) sanitizerFree(context, taken[i]);
        return false;
    }
    layout.slots = static_cast<uint32_t*>(taken[0]);
    layout.sectors = static_cast<Row*>(taken[1]);
    layout.times = static_cast<BlockTime*>(taken[1]);
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

void clear(const Tables& tables, uint32_t slots, Sanitizer_StreamHandle stream) {
    sanitizerMemset(tables.layout.slots, 0, 4ull * slots, stream);
    sanitizerMemset(tables.layout.counts, 0, sizeof(Counts), stream);
    sanitizerMemset(tables.layout.maps, 0, MOST_MAPS * sizeof(TensorMap), stream);
}

uint64_t n_blocks(const Sanitizer_LaunchData* data) {
    return uint64_t(data->gridDim_x) * data->gridDim_y * data->gridDim_z;
}

uint32_t slots_for(const Sanitizer_LaunchData* data, const Tables& tables) {
    uint64_t slots = std::min(SLOTS_OF_ANY, tables.most_slots);
    while (slots < n_blocks(data) * SECTORS_PER_BLOCK && slots < tables.most_slots) slots *= 2;
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
    return "\"event\": \"kernel\"" + of_node() + field("number", number)
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

// Let a launch run without a table: one that is told nothing may take what another, or a graph that
// is no more, has left there.
void give_nothing(const Sanitizer_LaunchData* data) {
    // A function that is not patched has no place for it, which is no fault.
    sanitizerSetLaunchCallbackData(data->hLaunch, data->function, data->hStream, nullptr);
}

// Fill what a launch is given.
bool fill(Launch* on_gpu, const Sanitizer_LaunchData* data, uint32_t number) {
    Launch launch = current.tables->layout;
    launch.number = number;
    launch.grid = static_cast<uint32_t>(data->gridId);
    if (options.times_blocks) {
        launch.n_blocks = static_cast<uint32_t>(n_blocks(data));
        sanitizerMemset(launch.times, 0, n_blocks(data) * sizeof(BlockTime), data->hStream);
    } else {
        const uint32_t slots = slots_for(data, *current.tables);
        launch.slot_mask = slots - 1;
        clear(*current.tables, slots, data->hStream);
    }
    return worked(sanitizerMemcpyHostToDeviceAsync(on_gpu, &launch, sizeof(launch), data->hStream),
                  "filling a table");
}

// Give the launches of a graph their tables: all nodes one. What is copied for a node alone, in its
// stream, may come after it has begun.
bool begin_nodes(const Tables& tables, const Sanitizer_GraphLaunchData* data) {
    clear(tables, tables.most_slots, data->hStream);
    Launch both[] = {tables.layout, tables.layout};  // the first is for what is no node
    both[OF_GRAPH].is_in_graph = 1;
    both[OF_GRAPH].slot_mask = tables.most_slots - 1;
    if (options.times_blocks) {
        sanitizerMemset(tables.layout.times, 0, tables.layout.most_sectors * sizeof(BlockTime), data->hStream);
    }
    return worked(sanitizerMemcpyHostToDeviceAsync(tables.launches, both, sizeof(both), data->hStream),
                  "filling a table");
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
    const bool has_room = current.tables != nullptr
        && (!options.times_blocks || n_blocks(data) <= current.tables->layout.most_sectors);
    if (reason == nullptr && !has_room) reason = "no table";
    if (reason != nullptr) {
        give_nothing(data);
        say_state(number, reason);
        return;
    }
    Launch* on_gpu = current.tables->launches + (in_graph ? OF_GRAPH : ALONE);
    if ((!in_graph && !fill(on_gpu, data, number))
        || !worked(sanitizerSetLaunchCallbackData(
                       data->hLaunch, data->function, data->hStream, on_gpu), "giving a table")) {
        give_nothing(data);
        say_state(number, "no table");
        return;
    }
    const bool is_given = !in_graph && !options.times_blocks;
    const std::string parameters = is_given ? parameters_of(data->function) : "";
    current.launches.push_back(
        {number, demangled(name), parameters, n_blocks(data), static_cast<uint32_t>(data->gridId)});
}

}  // namespace
