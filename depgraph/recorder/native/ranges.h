// The NVTX ranges that are open when a kernel is launched. The program's NVTX finds this library by
// NVTX_INJECTION64_PATH; the few types and numbers are those of the NVTX 3 headers.
#pragma once

#include <stdint.h>

#include <algorithm>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace nvtx {

enum Module : uint32_t { CORE = 1, CORE2 = 5 };
enum Core : uint32_t {
    RANGE_START_EX = 4, RANGE_START = 5, RANGE_END = 7, RANGE_PUSH_EX = 8, RANGE_PUSH = 9, RANGE_POP = 11
};
enum Core2 : uint32_t {
    DOMAIN_RANGE_START_EX = 2, DOMAIN_RANGE_END = 3, DOMAIN_RANGE_PUSH_EX = 4, DOMAIN_RANGE_POP = 5,
    DOMAIN_REGISTER_STRING = 10
};
enum Message : int32_t { ASCII = 1, REGISTERED = 3 };
constexpr uint32_t TABLE_CALLBACKS = 1;

struct Attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void* message;  // text, or the handle of a registered text
};

struct Callbacks {
    size_t size;
    int (*table)(uint32_t module, void**** functions, uint32_t* count);
};

inline auto& lock = *new std::mutex;  // as all of this, used until the process is gone
inline thread_local std::vector<std::string> pushed;   // of this thread
inline auto& started = *new std::map<uint64_t, std::string>;  // of the process
inline auto& registered = *new std::list<std::string>;        // a handle is the address of its text
inline uint64_t next_range = 1;

inline std::string message_of(const Attributes* attributes) {
    if (attributes == nullptr || attributes->message == nullptr) return "";
    if (attributes->message_type == ASCII) return static_cast<const char*>(attributes->message);
    if (attributes->message_type == REGISTERED) {
        return *static_cast<const std::string*>(attributes->message);
    }
    return "";
}

inline int push(const std::string& name) {
    pushed.push_back(name);
    return static_cast<int>(pushed.size()) - 1;
}

inline int pop() {
    if (!pushed.empty()) pushed.pop_back();
    return static_cast<int>(pushed.size());
}

inline uint64_t start(const std::string& name) {
    const std::lock_guard<std::mutex> guard(lock);
    started[next_range] = name;
    return next_range++;
}

inline void end(uint64_t range) {
    const std::lock_guard<std::mutex> guard(lock);
    started.erase(range);
}

inline int on_push(const char* name) { return push(name == nullptr ? "" : name); }
inline int on_push_ex(const Attributes* attributes) { return push(message_of(attributes)); }
inline int on_domain_push(void*, const Attributes* attributes) { return push(message_of(attributes)); }
inline int on_domain_pop(void*) { return pop(); }
inline uint64_t on_start(const char* name) { return start(name == nullptr ? "" : name); }
inline uint64_t on_start_ex(const Attributes* attributes) { return start(message_of(attributes)); }
inline uint64_t on_domain_start(void*, const Attributes* attributes) {
    return start(message_of(attributes));
}
inline void on_domain_end(void*, uint64_t range) { end(range); }
inline void* on_register(void*, const char* name) {
    const std::lock_guard<std::mutex> guard(lock);
    return &registered.emplace_back(name == nullptr ? "" : name);
}

}  // namespace nvtx

// Return the names of the ranges that are open on this thread, the outermost first.
inline std::vector<std::string> open_ranges() {
    const std::lock_guard<std::mutex> guard(nvtx::lock);
    std::vector<std::string> names;
    for (const auto& [range, name] : nvtx::started) names.push_back(name);
    names.insert(names.end(), nvtx::pushed.begin(), nvtx::pushed.end());
    return names;
}

// Tell whether a range of a name is open on this thread.
inline bool is_in_range(const std::string& name) {
    const std::vector<std::string> names = open_ranges();
    return std::find(names.begin(), names.end(), name) != names.end();
}

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    const void* (*find_table)(uint32_t)) {
    using namespace nvtx;
    const auto* callbacks = static_cast<const Callbacks*>(find_table(TABLE_CALLBACKS));
    if (callbacks == nullptr || callbacks->size < sizeof(Callbacks)) return 0;
    const auto give = [&](uint32_t module, uint32_t id, auto* function) {
        void*** functions = nullptr;
        uint32_t count = 0;
        if (!callbacks->table(module, &functions, &count) || id >= count) return;
        if (functions[id] != nullptr) *functions[id] = reinterpret_cast<void*>(function);
    };
    give(CORE, RANGE_PUSH, on_push);
    give(CORE, RANGE_PUSH_EX, on_push_ex);
    give(CORE, RANGE_POP, pop);
    give(CORE, RANGE_START, on_start);
    give(CORE, RANGE_START_EX, on_start_ex);
    give(CORE, RANGE_END, end);
    give(CORE2, DOMAIN_RANGE_PUSH_EX, on_domain_push);
    give(CORE2, DOMAIN_RANGE_POP, on_domain_pop);
    give(CORE2, DOMAIN_RANGE_START_EX, on_domain_start);
    give(CORE2, DOMAIN_RANGE_END, on_domain_end);
    give(CORE2, DOMAIN_REGISTER_STRING, on_register);
    return 1;
}
