// The library that the CUDA driver loads into the program that is recorded: it patches kernels,
// empties their tables after each launch, and notes what else happens to memory, in order. A kernel
// that does not end is let go, with its tables: another launch, or the host, may be what it waits for.
//
// No lock is held while the driver works: each thread has the launches that it has begun to itself,
// and tables are taken and given back.
//
// A recording is a folder with two files a process: events-PID.jsonl, an object a line, and
// sectors-PID.bin, the tables that the events point into.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

#include <utility>

#include "results.h"

namespace {

constexpr size_t MOST_CODE = 128 * MIB;
// By number, since older versions of the API have no names for them (and call with none of them):
constexpr Sanitizer_CallbackId BATCHED_COPY = 2;    // SANITIZER_CBID_MEMCPY_BATCH_ITEM_STARTING
constexpr Sanitizer_CallbackId WAIT_ON_MEMORY = 2;  // SANITIZER_CBID_BATCH_MEMOP_WAIT_BEGIN

using Patch = std::pair<Sanitizer_InstructionId, const char*>;

const auto& PATCHES = *new std::vector<Patch>{
    {SANITIZER_INSTRUCTION_GLOBAL_MEMORY_ACCESS, "depgraph_access"},
    {SANITIZER_INSTRUCTION_MEMCPY_ASYNC, "depgraph_copy_async"},
    {SANITIZER_INSTRUCTION_BULK_COPY_GLOBAL_TO_SHARED, "depgraph_bulk_load"},
    {SANITIZER_INSTRUCTION_BULK_COPY_SHARED_TO_GLOBAL, "depgraph_bulk_store"},
    {SANITIZER_INSTRUCTION_BULK_REDUCTION_SHARED_TO_GLOBAL, "depgraph_bulk_reduction"},
#ifndef DEPGRAPH_NO_TILES
    {SANITIZER_INSTRUCTION_TMA_LOAD, "depgraph_tile_load"},
#endif
};

const auto& PATCHES_OF_BLOCKS = *new std::vector<Patch>{
    {SANITIZER_INSTRUCTION_BLOCK_ENTER, "depgraph_block_enter"},
    {SANITIZER_INSTRUCTION_BLOCK_EXIT, "depgraph_block_exit"},
};

// Keep the machine code of a module, which says what no hook sees; a library's own may be too large.
void keep(const Sanitizer_ResourceModuleData* data) {
    static std::atomic<int> next_module{0};
    if (data->pCubin == nullptr || data->cubinSize > MOST_CODE) return;
    FILE* file = nullptr;
    do {  // those of an earlier program of this process stay
        const std::string path = options.folder + "/module-" + std::to_string(getpid()) + "-"
            + std::to_string(next_module++) + ".cubin";
        file = fopen(path.c_str(), "wbxe");
    } while (file == nullptr && errno == EEXIST);
    if (file == nullptr) return;
    fwrite(data->pCubin, 1, data->cubinSize, file);
    fclose(file);
}

void patch(const Sanitizer_ResourceModuleData* data) {
    if (!options.times_blocks) keep(data);
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
    for (const auto& [kind, name] : options.times_blocks ? PATCHES_OF_BLOCKS : PATCHES) {
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
    say("\"event\": \"copy\"" + of_node() + field("from", data->srcAddress) + field("to", data->dstAddress)
        + field("bytes", data->size) + field("width", data->width) + field("height", data->height)
        + field("depth", data->depth) + field("from_pitch", data->srcPitch)
        + field("to_pitch", data->dstPitch) + field("direction", data->direction)
        + field("async", data->isAsync)
        + field("from_context", number_of(data->srcContext))
        + field("to_context", number_of(data->dstContext))
        + field("stream", stream_of(data->apiContext, data->hApiStream)));
}

void note_memset(const Sanitizer_MemsetData* data) {
    if (!is_in_selected_region()) return;
    say("\"event\": \"memset\"" + of_node() + field("address", data->address) + field("width", data->width)
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
    case SANITIZER_CBID_RESOURCE_STREAM_CREATED:
        note_stream(static_cast<const Sanitizer_ResourceStreamData*>(data));
        break;
    case SANITIZER_CBID_RESOURCE_STREAM_DESTROY_STARTING: {
        const auto* gone = static_cast<const Sanitizer_ResourceStreamData*>(data);
        give_up_late(gone->context, &gone->stream);
        const Guard guard(lock);
        streams.erase(gone->hStream);
        created_streams.erase(gone->hStream);
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
    say("\"event\": \"opaque\"" + of_node() + field("number", new_number()) + ", \"name\": " + text(name)
        + field("stream", stream_of(context, stream)) + field("context", number_of(context)));
}

constexpr auto COPY_OF_ARRAY = "(a copy of an array)";  // which has no addresses

template <class What>
bool has_array(const What* what) {
    return what->srcMemoryType == CU_MEMORYTYPE_ARRAY || what->dstMemoryType == CU_MEMORYTYPE_ARRAY;
}

// Tell whether a node of a graph copies from or to an array, of which the API tells nothing.
bool copies_array(const Sanitizer_GraphNodeLaunchData* data) {
    CUDA_MEMCPY3D what{};
    return data->memcpyData.srcAddress == 0 || data->memcpyData.dstAddress == 0
        || (get_copy != nullptr && get_copy(data->node, &what) == CUDA_SUCCESS && has_array(&what));
}

void on_node(const Sanitizer_GraphNodeLaunchData* data) {
    if (data->isGraphUpload) return;
    node = data->node;
    switch (static_cast<int>(data->nodeType)) {
    case CU_GRAPH_NODE_TYPE_KERNEL: begin(&data->launchData, true); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (copies_array(data)) {
            note_opaque(COPY_OF_ARRAY, current.context, current.handle);
        } else {
            note_copy(&data->memcpyData);
        }
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET: note_memset(&data->memsetData); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: note_memory("alloc", &data->memAllocData); break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        say("\"event\": \"free\"" + field("address", data->memFreeAddress) + field("bytes", 0)
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
    node = nullptr;
}

void on_graph(Sanitizer_CallbackId id, const void* raw) {
    const auto* data = static_cast<const Sanitizer_GraphLaunchData*>(raw);
    if (id == SANITIZER_CBID_GRAPHS_NODE_LAUNCH_BEGIN) {
        on_node(static_cast<const Sanitizer_GraphNodeLaunchData*>(raw));
    } else if (id == SANITIZER_CBID_GRAPHS_LAUNCH_BEGIN && !data->isGraphUpload) {
        settle_unended();
        begin_graph(data);
        current.context = data->context;
        current.stream = data->stream;
        current.handle = data->hStream;
        current.is_graph = true;
        if (is_in_selected_region()) current.tables = take_tables(data->context);
        if (current.tables != nullptr && !begin_nodes(*current.tables, data)) {
            give_back(std::exchange(current.tables, nullptr));
        }
    } else if (id == SANITIZER_CBID_GRAPHS_LAUNCH_END && !data->isGraphUpload) {
        finish(data->context, data->stream);
        end_graph(data->context);
    } else if (id == SANITIZER_CBID_GRAPHS_GRAPHEXEC_DESTROYING) {
        forget_graph(static_cast<const Sanitizer_GraphExecData*>(raw)->graphExec);
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
        const bool waits = id == WAIT_ON_MEMORY;
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

struct MulticastBind {  // and what more these calls are given
    CUmemGenericAllocationHandle multicast;
};

struct EventQuery {
    CUevent event;
};

struct Instantiate {  // and what more some of these calls are given
    CUgraphExec* made;
    CUgraph from;
};

struct LaunchHostFunction {
    CUstream stream;
};

// Of calls for which each thread has a default stream of its own.
CUstream own(CUstream stream) { return stream == nullptr ? CU_STREAM_PER_THREAD : stream; }

// A call that may copy from or to an array, and in which stream.
struct CopyCall {
    bool (*is_of_array)(void* const* given);
    int stream = 0;             // place among that; 0 for none
    bool is_of_thread = false;  // its default stream
};

template <class What>
bool first_has_array(void* const* given) {
    return has_array(static_cast<const What*>(given[0]));
}

constexpr auto OF_ROWS = first_has_array<CUDA_MEMCPY2D>;
constexpr auto OF_SLICES = first_has_array<CUDA_MEMCPY3D>;
constexpr auto BETWEEN_GPUS = first_has_array<CUDA_MEMCPY3D_PEER>;
bool of_array(void* const*) { return true; }

#ifndef DEPGRAPH_NO_TILES
bool is_of_array(const CUDA_MEMCPY3D_BATCH_OP& copy) {
    return copy.src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY || copy.dst.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
}

bool with_attributes(void* const* given) {
    return is_of_array(*static_cast<const CUDA_MEMCPY3D_BATCH_OP*>(given[0]));
}

bool of_batch(void* const* given) {
    const auto* all = static_cast<const CUDA_MEMCPY3D_BATCH_OP*>(given[1]);
    return std::any_of(all, all + reinterpret_cast<size_t>(given[0]), is_of_array);
}
#endif

const auto& COPIES = *new std::map<Sanitizer_CallbackId, CopyCall>{
    {SANITIZER_CBID_DRIVER_API_cuMemcpy2D_v2, {OF_ROWS}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy2D_v2_ptds, {OF_ROWS, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy2DUnaligned_v2, {OF_ROWS}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy2DUnaligned_v2_ptds, {OF_ROWS, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy2DAsync_v2, {OF_ROWS, 1}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy2DAsync_v2_ptsz, {OF_ROWS, 1, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3D_v2, {OF_SLICES}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3D_v2_ptds, {OF_SLICES, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DAsync_v2, {OF_SLICES, 1}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DAsync_v2_ptsz, {OF_SLICES, 1, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DPeer, {BETWEEN_GPUS}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DPeer_ptds, {BETWEEN_GPUS, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DPeerAsync, {BETWEEN_GPUS, 1}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DPeerAsync_ptsz, {BETWEEN_GPUS, 1, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoD_v2, {of_array}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoD_v2_ptds, {of_array, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyDtoA_v2, {of_array}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyDtoA_v2_ptds, {of_array, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoA_v2, {of_array}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoA_v2_ptds, {of_array, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyHtoA_v2, {of_array}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyHtoA_v2_ptds, {of_array, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoH_v2, {of_array}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoH_v2_ptds, {of_array, 0, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyHtoAAsync_v2, {of_array, 4}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyHtoAAsync_v2_ptsz, {of_array, 4, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoHAsync_v2, {of_array, 4}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpyAtoHAsync_v2_ptsz, {of_array, 4, true}},
#ifndef DEPGRAPH_NO_TILES
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DBatchAsync, {of_batch, 4}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DBatchAsync_ptsz, {of_batch, 4, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DBatchAsync_v2, {of_batch, 3}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DBatchAsync_v2_ptsz, {of_batch, 3, true}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DWithAttributesAsync, {with_attributes, 2}},
    {SANITIZER_CBID_DRIVER_API_cuMemcpy3DWithAttributesAsync_ptsz, {with_attributes, 2, true}},
#endif
};

// Note a copy from or to an array in its stream; one that is captured is a node of a graph.
void note_copy_of_array(const CopyCall& copy, const Sanitizer_CallbackData* data) {
    const auto* given = static_cast<void* const*>(data->functionParams);  // each of 8 bytes
    if (!copy.is_of_array(given)) return;
    auto stream = copy.stream > 0 ? static_cast<CUstream>(given[copy.stream]) : nullptr;
    if (copy.is_of_thread) stream = own(stream);
    if (is_captured(stream)) return;
    note_opaque(COPY_OF_ARRAY, data->context, handle_of(data->context, stream));
}

template <class Parameters>
void note_call(const Parameters* given, unsigned dynamic_shared, void** extra) {
    call = {dynamic_shared, given->kernelParams, extra};
}

bool has_succeeded(const Sanitizer_CallbackData* data) {
    const auto* result = static_cast<const CUresult*>(data->functionReturnValue);
    return result != nullptr && *result == CUDA_SUCCESS;
}

// Note what calls have done that have succeeded.
void on_done(Sanitizer_CallbackId id, const Sanitizer_CallbackData* data) {
    switch (id) {
    case SANITIZER_CBID_DRIVER_API_cuEventQuery: {
        const auto* given = static_cast<const EventQuery*>(data->functionParams);
        say_order("event", data->context, field("id", number_of_event(given->event)));
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuGraphInstantiate:
    case SANITIZER_CBID_DRIVER_API_cuGraphInstantiate_v2:
    case SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithFlags:
    case SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams:
    case SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams_ptsz: {
        const auto* given = static_cast<const Instantiate*>(data->functionParams);
        note_graph(*given->made, given->from);
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc:
#ifndef DEPGRAPH_NO_TILES
    case SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_v2:
#endif
        note_host_function(data->context, static_cast<const LaunchHostFunction*>(data->functionParams)->stream);
        break;
    case SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_ptsz:
#ifndef DEPGRAPH_NO_TILES
    case SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_v2_ptsz:
#endif
        note_host_function(
            data->context, own(static_cast<const LaunchHostFunction*>(data->functionParams)->stream));
        break;
    default: {
        const auto copy = COPIES.find(id);
        if (copy != COPIES.end()) note_copy_of_array(copy->second, data);
    }
    }
}

void on_driver(Sanitizer_CallbackId id, const Sanitizer_CallbackData* data) {
    if (data->callbackSite != SANITIZER_API_ENTER) {
        if (!current.launches.empty() || is_graph_launched) settle_unended();  // a launch that failed
        call = Call();
        if (has_succeeded(data)) on_done(id, data);
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
    case SANITIZER_CBID_DRIVER_API_cuMulticastBindMem:
    case SANITIZER_CBID_DRIVER_API_cuMulticastBindAddr:
#ifndef DEPGRAPH_NO_TILES
    case SANITIZER_CBID_DRIVER_API_cuMulticastBindMem_v2:
    case SANITIZER_CBID_DRIVER_API_cuMulticastBindAddr_v2:
#endif
    {
        const auto* given = static_cast<const MulticastBind*>(data->functionParams);
        say("\"event\": \"multicast\"" + field("memory", given->multicast));
        break;
    }
    case SANITIZER_CBID_DRIVER_API_cuProfilerStart: note_region(true); break;
    case SANITIZER_CBID_DRIVER_API_cuProfilerStop: note_region(false); break;
    default: break;
    }
}

void SANITIZERAPI on_event(
    void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    if (is_forked) return;
    switch (domain) {
    case SANITIZER_CB_DOMAIN_RESOURCE: on_resource(id, data); break;
    case SANITIZER_CB_DOMAIN_LAUNCH: on_launch(id, data); break;
    case SANITIZER_CB_DOMAIN_GRAPHS: on_graph(id, data); break;
    case SANITIZER_CB_DOMAIN_SYNCHRONIZE:
        note_wait(id, static_cast<const Sanitizer_SynchronizeData*>(data));
        read_late();
        break;
    case SANITIZER_CB_DOMAIN_EVENTS:
        note_event(id, static_cast<const Sanitizer_EventData*>(data));
        break;
    case SANITIZER_CB_DOMAIN_MEMCPY:
        if (id == SANITIZER_CBID_MEMCPY_STARTING || id == BATCHED_COPY) {
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
    options.times_blocks = *setting("DEPGRAPH_RECORD_BLOCKS") != 0;
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
    if (!open_files() || !read_names()) return 1;
    pthread_atfork(nullptr, nullptr, forget);
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY);
    const auto find = [&](auto& function, const char* name) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(driver, name));
    };
    find(get_attribute, "cuFuncGetAttribute");
    find(get_device_attribute, "cuDeviceGetAttribute");
    find(get_parameter, "cuFuncGetParamInfo");
    find(query, "cuStreamQuery");
    find(get_flags, "cuStreamGetFlags");
    find(get_capture, "cuStreamIsCapturing");
    find(push_context, "cuCtxPushCurrent_v2");
    find(pop_context, "cuCtxPopCurrent_v2");
    find(exchange_mode, "cuThreadExchangeStreamCaptureMode");
    find(get_nodes, "cuGraphGetNodes");
    find(get_edges, "cuGraphGetEdges_v2");
    find(get_dependencies, "cuGraphNodeGetDependencies_v2");
    find(get_node_type, "cuGraphNodeGetType");
    find(get_child, "cuGraphChildGraphNodeGetGraph");
    find(get_copy, "cuGraphMemcpyNodeGetParams");
    find(error_name, "cuGetErrorName");
    if (query == nullptr || push_context == nullptr || pop_context == nullptr) return 1;
    Sanitizer_SubscriberHandle subscriber;
    if (!worked(sanitizerSubscribe(&subscriber, on_event, nullptr), "subscribing")) return 1;
    for (const auto domain : {SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CB_DOMAIN_LAUNCH,
                              SANITIZER_CB_DOMAIN_MEMCPY, SANITIZER_CB_DOMAIN_MEMSET,
                              SANITIZER_CB_DOMAIN_GRAPHS, SANITIZER_CB_DOMAIN_SYNCHRONIZE,
                              SANITIZER_CB_DOMAIN_BATCH_MEMOP, SANITIZER_CB_DOMAIN_EVENTS}) {
        worked(sanitizerEnableDomain(1, subscriber, domain), "listening");
    }
    const auto listen = [&](Sanitizer_CallbackId id) {
        worked(sanitizerEnableCallback(1, subscriber, SANITIZER_CB_DOMAIN_DRIVER_API, id), "listening");
    };
    for (const auto id :
         {SANITIZER_CBID_DRIVER_API_cuLaunchKernel, SANITIZER_CBID_DRIVER_API_cuLaunchKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx,
          SANITIZER_CBID_DRIVER_API_cuLaunchKernelEx_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel,
          SANITIZER_CBID_DRIVER_API_cuLaunchCooperativeKernel_ptsz,
          SANITIZER_CBID_DRIVER_API_cuGraphLaunch, SANITIZER_CBID_DRIVER_API_cuGraphLaunch_ptsz,
          SANITIZER_CBID_DRIVER_API_cuMemMap, SANITIZER_CBID_DRIVER_API_cuMemUnmap,
          SANITIZER_CBID_DRIVER_API_cuMulticastBindMem, SANITIZER_CBID_DRIVER_API_cuMulticastBindAddr,
#ifndef DEPGRAPH_NO_TILES
          SANITIZER_CBID_DRIVER_API_cuMulticastBindMem_v2, SANITIZER_CBID_DRIVER_API_cuMulticastBindAddr_v2,
          SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_v2, SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_v2_ptsz,
#endif
          SANITIZER_CBID_DRIVER_API_cuEventQuery, SANITIZER_CBID_DRIVER_API_cuGraphInstantiate,
          SANITIZER_CBID_DRIVER_API_cuGraphInstantiate_v2,
          SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithFlags,
          SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams,
          SANITIZER_CBID_DRIVER_API_cuGraphInstantiateWithParams_ptsz,
          SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc, SANITIZER_CBID_DRIVER_API_cuLaunchHostFunc_ptsz,
          SANITIZER_CBID_DRIVER_API_cuProfilerStart, SANITIZER_CBID_DRIVER_API_cuProfilerStop}) {
        listen(id);
    }
    for (const auto& [id, copy] : COPIES) listen(id);
    return 1;
}
