// The files of a recording: events as lines of JSON, and the tables that they point into.
#pragma once

#include <cxxabi.h>
#include <stdlib.h>
#include <string.h>

#include <utility>

#include "state.h"

namespace {

constexpr int FORMAT = 2;

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

void write_lines(const std::string& lines) {
    const std::lock_guard<std::mutex> guard(writing);
    events.write_all(lines.data(), lines.size());
}

// Write an event, without a buffer that a killed process would lose; those of the launch of a graph
// stand together, whatever other threads do meanwhile.
void say(const std::string& event) {
    const std::string line = "{" + event + "}\n";
    if (is_graph_launched) {
        held += line;
    } else {
        write_lines(line);
    }
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

// Tell whether a stream does not wait for the legacy default stream of its context.
bool is_non_blocking(Sanitizer_StreamHandle handle) {
    CUstream stream;
    {
        const Guard guard(lock);
        const auto created = created_streams.find(handle);
        if (created == created_streams.end()) return false;
        stream = created->second;
    }
    unsigned flags = 0;
    return get_flags != nullptr && get_flags(stream, &flags) == CUDA_SUCCESS
        && (flags & CU_STREAM_NON_BLOCKING) != 0;
}

// Number a stream, and say once what it waits for; the default stream of a context has a handle, too,
// if none is given.
int stream_of(CUcontext context, Sanitizer_StreamHandle handle) {
    if (handle == nullptr) sanitizerGetStreamHandle(context, nullptr, &handle);
    {
        const Guard guard(lock);
        const auto known = streams.find(handle);
        if (known != streams.end()) return known->second.number;
    }
    Sanitizer_StreamHandle legacy = nullptr;
    sanitizerGetStreamHandle(context, nullptr, &legacy);
    const int kind = handle == legacy ? 0 : is_non_blocking(handle) ? 2 : 1;
    const Guard guard(lock);
    const auto [known, is_new] = streams.emplace(handle, Stream{streams_seen, context});
    if (!is_new) return known->second.number;
    say("\"event\": \"stream\"" + field("stream", streams_seen) + field("context", number_of(context))
        + field("kind", kind));
    return streams_seen++;
}

Sanitizer_StreamHandle handle_of(CUcontext context, CUstream stream) {
    Sanitizer_StreamHandle handle = nullptr;
    sanitizerGetStreamHandle(context, stream, &handle);
    return handle;
}

// Keep what a stream is called; it is asked when it is first used, not while it is being made.
void note_stream(const Sanitizer_ResourceStreamData* data) {
    const Guard guard(lock);
    created_streams[data->hStream] = data->stream;
}

// Say what orders streams: an event that is recorded or waited for, or a wait of the host.
void say_order(const char* what, CUcontext context, const std::string& more) {
    say(std::string("\"event\": \"sync\", \"what\": \"") + what + "\"" + more
        + field("context", number_of(context)));
}

int new_event() {
    const Guard guard(lock);
    return cuda_events_seen++;
}

int number_of_event(CUevent event) {
    const Guard guard(lock);
    const auto [known, is_new] = cuda_events.emplace(event, cuda_events_seen);
    cuda_events_seen += is_new;
    return known->second;
}

// What a stream does while it is captured happens when its graph is launched.
bool is_captured(CUstream stream) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return get_capture != nullptr && get_capture(stream, &status) == CUDA_SUCCESS
        && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void note_event(Sanitizer_CallbackId id, const Sanitizer_EventData* data) {
    if (id == SANITIZER_CBID_EVENTS_DESTROYED) {
        const Guard guard(lock);
        cuda_events.erase(data->event);
    } else if (id == SANITIZER_CBID_EVENTS_SYNCHRONIZE) {
        say_order("event", data->context, field("id", number_of_event(data->event)));
    } else if (id == SANITIZER_CBID_EVENTS_RECORD || id == SANITIZER_CBID_EVENTS_STREAM_WAIT) {
        if (is_captured(data->stream)) return;
        say_order(id == SANITIZER_CBID_EVENTS_RECORD ? "record" : "wait", data->context,
                  field("id", number_of_event(data->event))
                      + field("stream", stream_of(data->context, data->hStream)));
    }
}

// A function of the host orders streams as an event does that nobody waits for.
void note_host_function(CUcontext context, CUstream stream) {
    if (is_captured(stream)) return;
    say_order("record", context,
              field("id", new_event()) + field("stream", stream_of(context, handle_of(context, stream))));
}

void note_wait(Sanitizer_CallbackId id, const Sanitizer_SynchronizeData* data) {
    if (is_asking) return;
    if (id == SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED) {
        say_order("stream", data->context,
                  field("stream", stream_of(data->context, data->hStream)));
    } else if (id == SANITIZER_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED) {
        say_order("context", data->context, "");
    }
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

bool open_files() {
    make_way(options.folder, getpid(), {{"events", ".jsonl"}, {"sectors", ".bin"}});
    const std::string process = std::to_string(getpid());
    const bool are_open = events.open_as(options.folder + "/events-" + process + ".jsonl", O_APPEND)
        && sectors.open_as(options.folder + "/sectors-" + process + ".bin", 0);
    say("\"event\": \"recording\"" + field("format", FORMAT) + field("process", getpid()));
    return are_open;
}

// In a process that was forked the files are those of the other one, and locks may be held by none.
void forget() {
    is_forked = true;
    events.forget();
    sectors.forget();
    new (&lock) std::recursive_mutex;
    new (&writing) std::mutex;
    new (&patching) std::recursive_mutex;
}

}  // namespace
