// A driver and a Compute Sanitizer that do nothing but call the recorder, to see what it makes of it
// without a GPU: kernels "run" where they begin, and touch one sector.
#include <fcntl.h>
#include <sanitizer.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "table.h"

extern "C" int InitializeInjection();

namespace {

Sanitizer_CallbackFunc recorder;
int patches_added = 0, memory_touched = 0, reads_left = -1;
bool copies_are_late = false;
std::vector<std::function<void()>> late_copies;
thread_local Launch* table = nullptr;
CUcontext context = reinterpret_cast<CUcontext>(0x1000);

void send(Sanitizer_CallbackDomain domain, int id, const void* data) { recorder(nullptr, domain, id, data); }

Sanitizer_LaunchData launch_data(const char* name) {
    Sanitizer_LaunchData data{};
    data.context = context;
    data.functionName = name;
    data.gridDim_x = *name - 'a' + 1;  // as many blocks as the name's place in the alphabet
    data.gridDim_y = data.gridDim_z = 1;
    data.blockDim_x = 32;
    data.blockDim_y = data.blockDim_z = 1;
    data.hStream = reinterpret_cast<Sanitizer_StreamHandle>(0x2000);
    data.gridId = 100 + *name;
    return data;
}

void run(const Sanitizer_LaunchData& data) {
    if (table == nullptr) return;
    if (getenv("DEPGRAPH_RECORD_BLOCKS") != nullptr) {
        BlockTime* times = table->times;
        if (table->is_in_graph) {
            const uint32_t first = table->counts->sectors;
            const bool has_room = first + data.gridDim_x <= table->most_sectors;
            reinterpret_cast<uint64_t*>(table->slots)[data.gridId & table->slot_mask / 2] =
                data.gridId << 32 | (has_room ? first + TIMES_BEGIN : HAS_NO_ROOM);
            if (!has_room) return;
            table->counts->sectors += data.gridDim_x;
            times += first;
        }
        for (uint32_t block = 0; block < data.gridDim_x; ++block) {
            const uint32_t begin = 1024 * data.gridId, end = begin + 32 * (block + 1);
            times[block] = {~uint64_t(begin), end, block, begin, end, end};
        }
        return;
    }
    const uint32_t place = table->counts->sectors++;
    const uint32_t launch = table->is_in_graph ? static_cast<uint32_t>(data.gridId) : table->number;
    table->sectors[place] = {4096, 0, launch, 15, 0, 0, 1};
}

void begin(const char* name) {
    const auto data = launch_data(name);
    send(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &data);
    run(data);
}

void end(const char* name) {
    const auto data = launch_data(name);
    send(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &data);
}

void call_ends(CUresult result) {
    Sanitizer_CallbackData data{};
    data.callbackSite = SANITIZER_API_EXIT;
    data.functionReturnValue = &result;
    send(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuLaunchKernel, &data);
}

void load_module() {
    Sanitizer_ResourceModuleData data{};
    data.context = context;
    data.module = reinterpret_cast<CUmodule>(0x3000);
    send(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED, &data);
}

void memory(int id, uint64_t address) {
    Sanitizer_ResourceMemoryData data{};
    data.context = context;
    data.address = address;
    send(SANITIZER_CB_DOMAIN_RESOURCE, id, &data);
}

void destroy_context(const std::function<void()>& meanwhile = [] {}) {
    Sanitizer_ResourceContextData data{};
    data.context = context;
    send(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_STARTING, &data);
    meanwhile();
    send(SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_CONTEXT_DESTROY_FINISHED, &data);
}

void node(CUgraphNodeType type, const char* name, CUcontext where, uintptr_t handle = 0) {
    Sanitizer_GraphNodeLaunchData data{};
    data.nodeType = type;
    data.node = reinterpret_cast<CUgraphNode>(handle);
    data.launchData = launch_data(name);
    data.launchData.context = where;
    send(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, &data);
    if (type == CU_GRAPH_NODE_TYPE_KERNEL && where == context) run(data.launchData);
}

void graph(int id, uintptr_t executable = 0) {
    Sanitizer_GraphLaunchData data{};
    data.context = context;
    data.graphExec = reinterpret_cast<CUgraphExec>(executable);
    send(SANITIZER_CB_DOMAIN_GRAPHS, id, &data);
}

void make_graph(int id, uintptr_t made, uintptr_t from, CUresult result = CUDA_SUCCESS) {
    uintptr_t given[] = {made, from};
    given[0] = reinterpret_cast<uintptr_t>(&made);
    Sanitizer_CallbackData data{};
    data.callbackSite = SANITIZER_API_EXIT;
    data.context = context;
    data.functionParams = given;
    data.functionReturnValue = &result;
    send(SANITIZER_CB_DOMAIN_DRIVER_API, id, &data);
}

void launch_graph(uintptr_t executable, const std::map<uintptr_t, const char*>& kernels) {
    graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN, executable);
    for (const auto& [handle, name] : kernels) node(CU_GRAPH_NODE_TYPE_KERNEL, name, context, handle);
    graph(SANITIZER_CBID_GRAPHS_LAUNCH_END, executable);
}

void stream(int id, uintptr_t handle) {
    Sanitizer_ResourceStreamData data{};
    data.context = context;
    data.stream = reinterpret_cast<CUstream>(handle);
    data.hStream = reinterpret_cast<Sanitizer_StreamHandle>(handle);
    send(SANITIZER_CB_DOMAIN_RESOURCE, id, &data);
}

void event(int id, uintptr_t number, uintptr_t stream = 0) {
    Sanitizer_EventData data{};
    data.context = context;
    data.event = reinterpret_cast<CUevent>(number);
    data.stream = reinterpret_cast<CUstream>(stream);
    data.hStream = reinterpret_cast<Sanitizer_StreamHandle>(stream);
    send(SANITIZER_CB_DOMAIN_EVENTS, id, &data);
}

void synchronize(int id, uintptr_t stream) {
    Sanitizer_SynchronizeData data{};
    data.context = context;
    data.stream = reinterpret_cast<CUstream>(stream);
    data.hStream = reinterpret_cast<Sanitizer_StreamHandle>(stream);
    send(SANITIZER_CB_DOMAIN_SYNCHRONIZE, id, &data);
}

void query_event(uintptr_t number, CUresult result) {
    CUevent given = reinterpret_cast<CUevent>(number);
    Sanitizer_CallbackData data{};
    data.callbackSite = SANITIZER_API_EXIT;
    data.context = context;
    data.functionParams = &given;
    data.functionReturnValue = &result;
    send(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuEventQuery, &data);
}

void host_function(int id = SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc) {
    CUstream given = nullptr;
    CUresult result = CUDA_SUCCESS;
    Sanitizer_CallbackData data{};
    data.callbackSite = SANITIZER_API_EXIT;
    data.context = context;
    data.functionParams = &given;
    data.functionReturnValue = &result;
    send(SANITIZER_CB_DOMAIN_DRIVER_API, id, &data);
}

void copy(int id, std::vector<const void*> given, CUresult result = CUDA_SUCCESS) {
    Sanitizer_CallbackData data{};
    data.context = context;
    data.functionParams = given.data();
    data.functionReturnValue = &result;
    for (const auto site : {SANITIZER_API_ENTER, SANITIZER_API_EXIT}) {
        data.callbackSite = site;
        send(SANITIZER_CB_DOMAIN_DRIVER_API, id, &data);
    }
}

CUresult& state() {
    static CUresult value = CUDA_SUCCESS;
    return value;
}

const std::map<std::string, std::function<void()>> programs = {
    {"one launch after another", [] { begin("a"); end("a"); begin("b"); end("b"); }},
    {"a launch that no event ends", [] {
        begin("a");
        call_ends(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
        std::thread([] { begin("b"); end("b"); }).join();
    }},
    {"a thread that launches while another one does", [] {
        begin("a");
        std::thread([] { begin("b"); end("b"); }).join();
        end("a");
    }},
    {"a fork between two launches", [] {
        begin("a");
        if (fork() == 0) {
            memory_touched = 0;
            begin("child"); end("child");
            destroy_context();
            printf("%d\n", memory_touched);
            exit(0);
        }
        wait(nullptr);
        end("a");
        begin("b");
        end("b");
    }},
    {"a context made again", [] {
        begin("a"); end("a");
        destroy_context();
        load_module();
        begin("b"); end("b");
        printf("%d\n", patches_added);
    }},
    {"launches that are left out", [] {
        static Launch of_another{};
        table = &of_another;
        begin("a"); end("a");
        printf("%d\n", table != nullptr);
        begin("b"); end("b");
    }},
    {"memory of a context that ends", [] {
        memory(SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC, 1);
        memory(SANITIZER_CBID_RESOURCE_HOST_MEMORY_ALLOC, 2);
        begin("a"); end("a");
        destroy_context([] {
            memory(SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_FREE, 1);
            memory(SANITIZER_CBID_RESOURCE_HOST_MEMORY_FREE, 2);
        });
        memory(SANITIZER_CBID_RESOURCE_DEVICE_MEMORY_ALLOC, 3);
    }},
    {"a large grid", [] {
        auto data = launch_data("a");
        data.gridDim_x = data.gridDim_y = 1 << 15;
        send(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &data);
        send(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &data);
        begin("b"); end("b");
    }},
    {"a graph that is filled by one of its nodes", [] {
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN);
        node(CU_GRAPH_NODE_TYPE_KERNEL, "a", context);
        table->counts->sectors = table->most_sectors - 1;
        node(CU_GRAPH_NODE_TYPE_KERNEL, "b", context);
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_END);
    }},
    {"a kernel that touches 96 MB of sectors", [] {
        begin("a");
        for (uint32_t i = 1; i < 3'000'000; ++i) table->sectors[i] = {4096 + i, 0, table->number, i, 0, 0, 1};
        table->counts->sectors = 3'000'000;
        end("a");
        begin("b"); end("b");
    }},
    {"a program that runs another in its place", [] {
        begin("a"); end("a");
        execl("/proc/self/exe", "program", "one launch after another", nullptr);
    }},
    {"a program that closes all files", [] {
        begin("a"); end("a");
        for (int file = 3; file < 64; ++file) close(file);
        for (const char* name : {"own-1", "own-2"}) open((std::string(getenv("DEPGRAPH_RECORD_FOLDER")) + "/" + name).c_str(), O_WRONLY | O_CREAT, 0600);
        begin("b"); end("b");
    }},
    {"files that may be no larger than a megabyte", [] {
        const rlimit most{1 << 20, 1 << 20};
        setrlimit(RLIMIT_FSIZE, &most);
        begin("a");
        table->counts->sectors = 100'000;
        end("a");
        begin("b"); end("b");
    }},
    {"a context that ends while a kernel runs in it", [] {
        begin("a");
        std::thread([] { destroy_context(); }).join();
        end("a");
    }},
    {"memory at several addresses", [] {
        begin("a"); end("a");
        uintptr_t mapped[] = {1 << 21, 1 << 20, 0, 7}, bound[] = {9};
        Sanitizer_CallbackData data{};
        data.callbackSite = SANITIZER_API_ENTER;
        data.functionParams = mapped;
        send(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuMemMap, &data);
        data.functionParams = bound;
        send(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuMulticastBindMem, &data);
        send(SANITIZER_CB_DOMAIN_DRIVER_API, SANITIZER_CBID_DRIVER_API_cuMulticastBindAddr, &data);
    }},
    {"copies of rows and of an array", [] {
        begin("a"); end("a");
        CUDA_MEMCPY2D of_rows{};
        CUDA_MEMCPY3D of_array{};
        of_array.dstMemoryType = CU_MEMORYTYPE_ARRAY;
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy2DAsync_v2, {&of_rows, nullptr});
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3D_v2, {&of_array});
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3DAsync_v2, {&of_array, reinterpret_cast<void*>(0x5001)});
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3DAsync_v2, {&of_array, reinterpret_cast<void*>(0x5ca0)});
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpyHtoAAsync_v2_ptsz, {nullptr, nullptr, nullptr, nullptr, nullptr});
        CUDA_MEMCPY3D_BATCH_OP batch[2]{};
        const auto two = reinterpret_cast<void*>(2), stream = reinterpret_cast<void*>(0x5001);
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3DBatchAsync_v2, {two, batch, nullptr, stream});
        batch[1].src.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3DBatchAsync_v2, {two, batch, nullptr, stream});
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3DWithAttributesAsync, {batch + 1, nullptr, stream});
        copy(SANITIZER_CBID_DRIVER_API_cuMemcpy3D_v2, {nullptr}, CUDA_ERROR_INVALID_VALUE);
    }},
    {"a graph that copies an array", [] {
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN);
        node(CU_GRAPH_NODE_TYPE_KERNEL, "a", context);
        for (const auto [handle, address] : {std::pair{0, 0}, {0, 16}, {0x500, 16}}) {
            Sanitizer_GraphNodeLaunchData data{};
            data.nodeType = CU_GRAPH_NODE_TYPE_MEMCPY;
            data.node = reinterpret_cast<CUgraphNode>(handle);
            data.memcpyData.srcAddress = data.memcpyData.dstAddress = address;
            data.memcpyData.apiContext = data.memcpyData.srcContext = data.memcpyData.dstContext = context;
            send(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN, &data);
        }
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_END);
    }},
    {"a kernel without a name", [] {
        auto data = launch_data("a");
        data.functionName = nullptr;
        data.hStream = nullptr;
        send(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_BEGIN, &data);
        run(data);
        send(SANITIZER_CB_DOMAIN_LAUNCH, SANITIZER_CBID_LAUNCH_END, &data);
    }},
    {"a table that cannot be read", [] {
        begin("a");
        reads_left = 1;
        end("a");
        reads_left = -1;
        begin("b"); end("b");
    }},
    {"a kernel that fails", [] { begin("a"); state() = CUDA_ERROR_ILLEGAL_ADDRESS; end("a"); }},
    {"a capture elsewhere", [] {
        begin("a");
        state() = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        end("a");
        state() = CUDA_SUCCESS;
        begin("b");
        end("b");
    }},
    {"streams and events", [] {
        stream(SANITIZER_CBID_RESOURCE_STREAM_CREATED, 0x5001);  // odd ones do not block
        begin("a"); end("a");
        event(SANITIZER_CBID_EVENTS_RECORD, 70, 0x5001);
        event(SANITIZER_CBID_EVENTS_STREAM_WAIT, 70, 0x5002);
        event(SANITIZER_CBID_EVENTS_RECORD, 71, 0x5ca0);  // while it is captured
        event(SANITIZER_CBID_EVENTS_DESTROYED, 70);
        event(SANITIZER_CBID_EVENTS_RECORD, 70, 0x5002);
        query_event(70, CUDA_ERROR_NOT_READY);
        query_event(70, CUDA_SUCCESS);
        event(SANITIZER_CBID_EVENTS_SYNCHRONIZE, 70);
        host_function();
        host_function(SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_v2_ptsz);
        synchronize(SANITIZER_CBID_SYNCHRONIZE_STREAM_SYNCHRONIZED, 0x5002);
        synchronize(SANITIZER_CBID_SYNCHRONIZE_CONTEXT_SYNCHRONIZED, 0);
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN);
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_END);
    }},
    {"a graph whose nodes begin before what is copied for them", [] {
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN);
        copies_are_late = true;
        node(CU_GRAPH_NODE_TYPE_KERNEL, "a", context);
        node(CU_GRAPH_NODE_TYPE_KERNEL, "b", context);
        for (const auto& copy : late_copies) copy();
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_END);
    }},
    {"graphs with edges", [] {
        make_graph(SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithFlags, 0xe1, 0x10);
        launch_graph(0xe1, {{0x100, "a"}, {0x200, "b"}});
        launch_graph(0xe1, {{0x100, "a"}, {0x999, "of a conditional node"}});
        make_graph(SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams, 0xe2, 0x30);
        launch_graph(0xe2, {{0x300, "a"}});
        make_graph(SANITIZER_CBID_DRIVER_API_cuGraphInstantiate_v2, 0xe3, 0x40, CUDA_ERROR_UNKNOWN);
        make_graph(SANITIZER_CBID_DRIVER_API_cuGraphInstantiate_v2, 0xe3, 0x40);
        launch_graph(0xe3, {{0x400, "a"}, {0x401, "b"}});
        launch_graph(0xe3, {{0x410, "a"}, {0x411, "b"}, {0x413, "c"}});  // once that is destroyed
        launch_graph(0xe3, {{0x410, "a"}, {0x411, "b"}});
        Sanitizer_GraphExecData gone{};
        gone.graphExec = reinterpret_cast<CUgraphExec>(0xe1);
        send(SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CBID_GRAPHS_GRAPHEXEC_DESTROYING, &gone);
        launch_graph(0xe1, {{0x100, "a"}});
    }},
    {"a launch of another thread beside a graph", [] {
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN);
        node(CU_GRAPH_NODE_TYPE_KERNEL, "a", context);
        std::thread([] { begin("b"); end("b"); }).join();
        node(CU_GRAPH_NODE_TYPE_KERNEL, "c", context);
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_END);
    }},
    {"a graph", [] {
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN);
        node(CU_GRAPH_NODE_TYPE_KERNEL, "a", context);
        node(CU_GRAPH_NODE_TYPE_KERNEL, "elsewhere", reinterpret_cast<CUcontext>(0x1008));
        node(CU_GRAPH_NODE_TYPE_CONDITIONAL, "", context);
        graph(SANITIZER_CBID_GRAPHS_LAUNCH_END);
        begin("b");
        end("b");
    }},
};

}  // namespace

extern "C" {
SanitizerResult sanitizerSubscribe(Sanitizer_SubscriberHandle*, Sanitizer_CallbackFunc function, void*) {
    recorder = function;
    return SANITIZER_SUCCESS;
}
SanitizerResult sanitizerEnableDomain(uint32_t, Sanitizer_SubscriberHandle, Sanitizer_CallbackDomain) { return SANITIZER_SUCCESS; }
SanitizerResult sanitizerEnableCallback(uint32_t, Sanitizer_SubscriberHandle, Sanitizer_CallbackDomain, Sanitizer_CallbackId) { return SANITIZER_SUCCESS; }
SanitizerResult sanitizerAddPatchesFromFile(const char*, CUcontext) { ++patches_added; return SANITIZER_SUCCESS; }
SanitizerResult sanitizerPatchInstructions(Sanitizer_InstructionId, CUmodule, const char*) { return SANITIZER_SUCCESS; }
SanitizerResult sanitizerPatchModule(CUmodule) { return SANITIZER_SUCCESS; }
SanitizerResult sanitizerAlloc(CUcontext, void** at, size_t bytes) { ++memory_touched; *at = calloc(bytes, 1); return SANITIZER_SUCCESS; }
SanitizerResult sanitizerFree(CUcontext, void* at) { ++memory_touched; free(at); return SANITIZER_SUCCESS; }
SanitizerResult sanitizerMemset(void* at, int value, size_t bytes, Sanitizer_StreamHandle) { ++memory_touched; memset(at, value, bytes); return SANITIZER_SUCCESS; }
SanitizerResult sanitizerMemcpyHostToDeviceAsync(void* to, void* from, size_t bytes, Sanitizer_StreamHandle) {
    ++memory_touched;
    const std::string content(static_cast<const char*>(from), bytes);
    const auto copy = [=] { memcpy(to, content.data(), content.size()); };
    if (copies_are_late) late_copies.push_back(copy); else copy();
    return SANITIZER_SUCCESS;
}
SanitizerResult sanitizerMemcpyDeviceToHost(void* to, void* from, size_t bytes, Sanitizer_StreamHandle) {
    ++memory_touched;
    if (reads_left-- == 0) return SANITIZER_ERROR_UNKNOWN;
    memcpy(to, from, bytes);
    return SANITIZER_SUCCESS;
}
SanitizerResult sanitizerGetStreamHandle(CUcontext, CUstream stream, Sanitizer_StreamHandle* handle) {
    *handle = reinterpret_cast<Sanitizer_StreamHandle>(stream == nullptr ? 0x2000 : reinterpret_cast<uintptr_t>(stream));
    return SANITIZER_SUCCESS;
}
SanitizerResult sanitizerGetResultString(SanitizerResult, const char** text) { *text = "an error"; return SANITIZER_SUCCESS; }
SanitizerResult sanitizerSetLaunchCallbackData(Sanitizer_LaunchHandle, CUfunction, Sanitizer_StreamHandle, const void* data) {
    table = static_cast<Launch*>(const_cast<void*>(data));
    return SANITIZER_SUCCESS;
}
int state_of_a_stream() { return state(); }  // for the driver's library
}

int main(int, char** words) {
    InitializeInjection();
    load_module();
    programs.at(words[1])();
    fflush(stdout);
    _exit(0);
}
