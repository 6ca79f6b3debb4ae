// The library that the CUDA driver loads into the program that is timed: it notes when kernels,
// copies and memsets ran, as events of a PyTorch profiler trace, one a line, in times-PID.jsonl.
#include <cupti.h>
#include <cxxabi.h>
#include <stdlib.h>
#include <string.h>

#include <mutex>

#include "files.h"

namespace {

constexpr size_t BUFFER_BYTES = 8 << 20;

auto& times = *new File;
auto& lines = *new std::string;  // that are not written yet
pid_t owner = 0;  // a process that is forked from it has no threads that CUPTI could wait for
auto& lock = *new std::mutex;  // used until the process is gone, as the file is

std::string quoted(const char* value) {
    std::string text = "\"";
    for (const char* c = value == nullptr ? "" : value; *c; ++c) {
        if (*c == '"' || *c == '\\') text += '\\';
        if (static_cast<unsigned char>(*c) >= 0x20) text += *c;
    }
    return text + '"';
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

// Microseconds, whatever the program's locale takes for a decimal point.
std::string microseconds(uint64_t nanoseconds) {
    std::string fraction = std::to_string(nanoseconds % 1000);
    fraction.insert(0, 3 - fraction.size(), '0');
    return std::to_string(nanoseconds / 1000) + "." + fraction;
}

void write_lines() {
    times.write_all(lines.data(), lines.size());
    lines.clear();
}

std::string field(const char* name, uint64_t value) {
    return std::string(", \"") + name + "\": " + std::to_string(value);
}

std::string three(int x, int y, int z) {
    return "[" + std::to_string(x) + ", " + std::to_string(y) + ", " + std::to_string(z) + "]";
}

// Say what ran from one nanosecond to another.
template <class Record>
void say(const Record* record, const std::string& category, const std::string& name,
         const std::string& arguments) {
    lines += "{\"ph\": \"X\", \"cat\": \"" + category + "\", \"name\": " + name
        + field("pid", record->deviceId) + field("tid", record->streamId)
        + ", \"ts\": " + microseconds(record->start)
        + ", \"dur\": " + microseconds(record->end - record->start)
        + ", \"args\": {\"device\": " + std::to_string(record->deviceId)
        + field("context", record->contextId) + field("stream", record->streamId)
        + field("correlation", record->correlationId) + arguments + "}}\n";
}

void take(const CUpti_Activity* record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto* kernel = reinterpret_cast<const DEPGRAPH_KERNEL*>(record);
        say(kernel, "kernel", quoted(demangled(kernel->name).c_str()),
            ", \"grid\": " + three(kernel->gridX, kernel->gridY, kernel->gridZ)
                + ", \"block\": " + three(kernel->blockX, kernel->blockY, kernel->blockZ)
                + field("registers per thread", kernel->registersPerThread)
                + field("shared memory", kernel->staticSharedMemory + kernel->dynamicSharedMemory));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto* copy = reinterpret_cast<const DEPGRAPH_MEMCPY*>(record);
        say(copy, "gpu_memcpy", "\"Memcpy\"", field("bytes", copy->bytes));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto* set = reinterpret_cast<const DEPGRAPH_MEMSET*>(record);
        say(set, "gpu_memset", "\"Memset\"", field("bytes", set->bytes));
    }
}

void CUPTIAPI give_buffer(uint8_t** buffer, size_t* size, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(aligned_alloc(8, BUFFER_BYTES));
    *size = BUFFER_BYTES;
    *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t used) {
    const std::lock_guard<std::mutex> guard(lock);
    CUpti_Activity* record = nullptr;
    while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) take(record);
    write_lines();
    free(buffer);
}

// Launches between these two calls have correlation ids between theirs.
void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId id, const void* raw) {
    const auto* call = static_cast<const CUpti_CallbackData*>(raw);
    if (call->callbackSite != CUPTI_API_ENTER) return;
    const std::lock_guard<std::mutex> guard(lock);
    const std::string which = id == CUPTI_DRIVER_TRACE_CBID_cuProfilerStart ? "start" : "stop";
    lines += "{\"region\": \"" + which + "\"" + field("correlation", call->correlationId) + "}\n";
    write_lines();
}

void finish() {
    if (getpid() == owner) cuptiActivityFlushAll(1);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    const char* folder = getenv("DEPGRAPH_RECORD_FOLDER");
    if (folder == nullptr) return 1;
    make_way(folder, getpid(), {{"times", ".jsonl"}});
    if (!times.open_as(std::string(folder) + "/times-" + std::to_string(getpid()) + ".jsonl", O_APPEND)) return 1;
    owner = getpid();
    CUpti_SubscriberHandle subscriber;
    if (cuptiSubscribe(&subscriber, on_call, nullptr) == CUPTI_SUCCESS) {
        for (const auto id :
             {CUPTI_DRIVER_TRACE_CBID_cuProfilerStart, CUPTI_DRIVER_TRACE_CBID_cuProfilerStop}) {
            cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API, id);
        }
    }
    cuptiActivityRegisterCallbacks(give_buffer, take_buffer);
    for (const auto kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                            CUPTI_ACTIVITY_KIND_MEMSET}) {
        cuptiActivityEnable(kind);
    }
    atexit(finish);
    return 1;
}
