// Launches a kernel that does nothing for 5 us a few times: what its blocks take beyond that is what
// measuring takes. The driver compiles it, for whatever GPU there is.
#include <cuda.h>
#include <dlfcn.h>

namespace {

const char* KERNEL = R"(
.version 7.0
.target sm_70
.address_size 64
.visible .entry depgraph_pause() {
    .reg .u64 %begin, %now;
    .reg .pred %is_early;
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %is_early, %now, 5000;
    @%is_early bra again;
    ret;
}
)";

constexpr int LAUNCHES = 20, BLOCKS = 16, THREADS = 32;

void* driver = nullptr;

// Call a function of the driver.
template <class Function, class... Given>
bool is_done(const char* name, Given... given) {
    const auto found = reinterpret_cast<Function>(dlsym(driver, name));
    return found != nullptr && found(given...) == CUDA_SUCCESS;
}

#define DONE(name, ...) is_done<decltype(&name)>(#name, __VA_ARGS__)

}  // namespace

int main() {
    driver = dlopen("libcuda.so.1", RTLD_LAZY);
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction pause;
    if (driver == nullptr || !DONE(cuInit, 0) || !DONE(cuDeviceGet, &device, 0)
        || !DONE(cuDevicePrimaryCtxRetain, &context, device) || !DONE(cuCtxSetCurrent, context)
        || !DONE(cuModuleLoadData, &module, KERNEL)
        || !DONE(cuModuleGetFunction, &pause, module, "depgraph_pause")) {
        return 1;
    }
    for (int i = 0; i < LAUNCHES; ++i) {
        if (!DONE(cuLaunchKernel, pause, BLOCKS, 1, 1, THREADS, 1, 1, 0, nullptr, nullptr, nullptr)
            || !DONE(cuStreamSynchronize, nullptr)) {
            return 1;
        }
    }
    return 0;
}
