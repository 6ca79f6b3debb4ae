// The library that the CUDA driver loads into the program that is timed: it notes when kernels,
// copies and memsets ran, as events of a PyTorch profiler trace, one a line, in times-PID.jsonl.
#include <cupti.h>
#include <cxxabi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <mutex>
#include <string>

namespace {

constexpr size_t BUFFER_BYTES = 8 << 20;

FILE* times = nullptr;
pid_t owner = 0;  // a process that is forked from it has no threads that CUPTI could wait for
std::mutex lock;

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

// Say what ran from one nanosecond to another.
template <class Record>
void say(const Record* record, const char* category, const std::string& name,
         const std::string& arguments) {
    fprintf(times,
            "{\"ph\": \"X\", \"cat\": \"%s\", \"name\": %s, \"pid\": %u, \"tid\": %u, "
            "\"ts\": %s, \"dur\": %s, \"args\": {\"device\": %u, \"context\": %u, "
            "\"stream\": %u, \"correlation\": %u%s}}\n",
            category, name.c_str(), record->deviceId, record->streamId,
            microseconds(record->start).c_str(),
            microseconds(record->end - record->start).c_str(), record->deviceId, record->contextId,
            record->streamId, record->correlationId, arguments.c_str());
}

void take(const CUpti_Activity* record) {
    if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto* kernel = reinterpret_cast<const DEPGRAPH_KERNEL*>(record);
        char arguments[256];
        snprintf(arguments, sizeof(arguments),
                 ", \"grid\": [%d, %d, %d], \"block\": [%d, %d, %d], "
                 "\"registers per thread\": %u, \"shared memory\": %d",
                 kernel->gridX, kernel->gridY, kernel->gridZ, kernel->blockX, kernel->blockY,
                 kernel->blockZ, kernel->registersPerThread,
                 kernel->staticSharedMemory + kernel->dynamicSharedMemory);
        say(kernel, "kernel", quoted(demangled(kernel->name).c_str()), arguments);
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto* copy = reinterpret_cast<const DEPGRAPH_MEMCPY*>(record);
        say(copy, "gpu_memcpy", "\"Memcpy\"", ", \"bytes\": " + std::to_string(copy->bytes));
    } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        const auto* set = reinterpret_cast<const DEPGRAPH_MEMSET*>(record);
        say(set, "gpu_memset", "\"Memset\"", ", \"bytes\": " + std::to_string(set->bytes));
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
    fflush(times);
    free(buffer);
}

// Launches between these two calls have correlation ids between theirs.
void CUPTIAPI on_call(void*, CUpti_CallbackDomain, CUpti_CallbackId id, const void* raw) {
    const auto* call = static_cast<const CUpti_CallbackData*>(raw);
    if (call->callbackSite != CUPTI_API_ENTER) return;
    const std::lock_guard<std::mutex> guard(lock);
    fprintf(times, "{\"region\": \"%s\", \"correlation\": %u}\n",
            id == CUPTI_DRIVER_TRACE_CBID_cuProfilerStart ? "start" : "stop", call->correlationId);
    fflush(times);
}

void finish() {
    if (getpid() == owner) cuptiActivityFlushAll(1);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    const char* folder = getenv("DEPGRAPH_RECORD_FOLDER");
    if (folder == nullptr) return 1;
    const std::string path =
        std::string(folder) + "/times-" + std::to_string(getpid()) + ".jsonl";
    times = fopen(path.c_str(), "w");
    if (times == nullptr) return 1;
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
