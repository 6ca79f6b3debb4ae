// Launches that end, or do not: what they touched is read and written, or they are let go.
#pragma once

#include <stdio.h>

#include <chrono>
#include <utility>

#include "launches.h"

namespace {

constexpr uint64_t COPIED_AT_ONCE = 64 * MIB;

// Read what lies on the GPU; return whether it could be read.
template <class Thing>
bool fetch(std::vector<Thing>& into, const void* from, uint64_t n, Sanitizer_StreamHandle stream) {
    into.resize(n);
    return n == 0 || worked(sanitizerMemcpyDeviceToHost(
        into.data(), const_cast<void*>(from), n * sizeof(Thing), stream), "reading");
}

// Take so many bytes of the file of tables; return where they begin.
uint64_t reserve(uint64_t bytes) {
    const std::lock_guard<std::mutex> guard(writing);
    return std::exchange(sectors_written, sectors_written + bytes);
}

// Write something to its place in the file of tables; return whether all of it is there.
bool keep_at(uint64_t place, const void* from, uint64_t bytes) {
    bool is_written;
    {
        const std::lock_guard<std::mutex> guard(writing);
        is_written = sectors.write_all(from, bytes, place);
    }
    if (!is_written) {
        say("\"event\": \"fault\", \"what\": \"writing\", \"reason\": " + text(strerror(errno)));
    }
    return is_written;
}

// Copy what lies on the GPU to its place in the file of tables; return whether all of it is there.
bool keep_table(uint64_t place, const void* from, uint64_t bytes, Sanitizer_StreamHandle stream) {
    std::vector<char> piece;
    const char* at = static_cast<const char*>(from);
    for (uint64_t done = 0; done < bytes; done += piece.size()) {
        if (!fetch(piece, at + done, std::min(bytes - done, COPIED_AT_ONCE), stream)) return false;
        if (!keep_at(place + done, piece.data(), piece.size())) return false;
    }
    return true;
}

// Say what parameters a launch had that loaded tiles, and where they lay: a map that it loaded tells.
void say_parameters(const Pending& launch, const std::vector<TensorMap>& maps) {
    if (launch.parameters.empty()) return;
    for (const TensorMap& map : maps) {
        const std::string words(reinterpret_cast<const char*>(map.words), MAP_BYTES);
        const size_t offset = launch.parameters.find(words);
        if (offset == std::string::npos) continue;
        say("\"event\": \"params\"" + field("number", launch.number)
            + field("at", map.at - offset)
            + ", \"bytes\": " + text(hexadecimal(launch.parameters).c_str()));
        return;
    }
}

// Find where the times of a node of a graph begin; return whether there are any.
bool find_times(const Batch& batch, const Pending& launch, uint64_t& first) {
    const Tables& tables = *batch.tables;
    const auto* places = reinterpret_cast<const uint64_t*>(tables.layout.slots);
    std::vector<uint64_t> found;
    if (!fetch(found, places + (launch.grid & (tables.most_slots - 1) / 2), 1, batch.handle)) return false;
    const uint32_t begin = static_cast<uint32_t>(found[0]);
    first = begin - TIMES_BEGIN;
    return found[0] >> 32 == launch.grid && begin >= TIMES_BEGIN
        && first + launch.n_blocks <= tables.layout.most_sectors;
}

// Write when the blocks of launches ran that have ended.
void read_times(Batch& batch) {
    for (const Pending& launch : batch.launches) {
        uint64_t first = 0;
        if (batch.is_graph && !find_times(batch, launch, first)) {
            say_state(launch.number, "no table");
            continue;
        }
        const uint64_t bytes = launch.n_blocks * sizeof(BlockTime), at = reserve(bytes);
        const bool is_read = keep_table(at, batch.tables->layout.times + first, bytes, batch.handle);
        say_state(launch.number, is_read ? "recorded" : "failed",
                  field("times_at", at) + field("times", launch.n_blocks));
    }
    give_back(batch.tables);
}

// Write what launches touched that have ended.
void read_back(Batch& batch) {
    const Launch& layout = batch.tables->layout;
    // Handles are given to a callback for as long as it runs.
    sanitizerGetStreamHandle(batch.context, batch.stream, &batch.handle);
    if (options.times_blocks) return read_times(batch);
    std::vector<Counts> counts;
    std::vector<Launch> done;
    std::vector<TensorMap> maps;
    bool is_read = fetch(counts, layout.counts, 1, batch.handle);
    is_read &= fetch(done, batch.tables->launches, OF_GRAPH + 1, batch.handle);
    const uint64_t n_sectors = std::min(counts[0].sectors, layout.most_sectors);
    const uint64_t n_tiles = std::min(counts[0].tiles, layout.most_tiles);
    is_read = is_read && fetch(maps, layout.maps, n_tiles > 0 ? MOST_MAPS : 0, batch.handle);
    maps.erase(std::remove_if(maps.begin(), maps.end(), [](const auto& map) { return !map.is_whole; }),
               maps.end());
    const uint64_t sectors_bytes = n_sectors * sizeof(Row), tiles_bytes = n_tiles * sizeof(TileLoad);
    const uint64_t maps_bytes = maps.size() * sizeof(TensorMap);
    const uint64_t at = reserve(sectors_bytes + tiles_bytes + maps_bytes);
    const uint64_t tiles_at = at + sectors_bytes, maps_at = tiles_at + tiles_bytes;
    is_read = is_read && keep_table(at, layout.sectors, sectors_bytes, batch.handle)
        && keep_table(tiles_at, layout.tiles, tiles_bytes, batch.handle)
        && keep_at(maps_at, maps.data(), maps_bytes);
    give_back(batch.tables);
    // What one node of a graph lost may be any other's, and so may what was noted as of no node.
    const uint32_t lost = done[batch.is_graph ? OF_GRAPH : 0].lost;
    for (const Pending& launch : batch.launches) {
        say_parameters(launch, maps);
        say_state(launch.number, is_read ? "recorded" : "failed",
                  field("lost", lost) + field("strays", done[0].strays)
                      + field("sectors_at", at) + field("sectors", n_sectors)
                      + field("tiles_at", tiles_at) + field("tiles", n_tiles)
                      + field("maps_at", maps_at) + field("maps", maps.size()));
    }
}

// Ask whether a stream has ended; where another one is captured that may be unknown for now.
CUresult state_of(CUstream stream) {
    is_asking = true;
    const CUresult state = query(stream);
    is_asking = false;
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
    abandoned.splice(abandoned.end(), context_of[context].tables);  // a thread may still have one
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
    end_graph(current.context);
    current = Batch();
}

}  // namespace
