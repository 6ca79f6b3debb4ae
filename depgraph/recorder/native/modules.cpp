// The library that the CUDA driver loads into a program whose machine code is wanted: it writes every
// module that is not too large, as it is loaded, to module-PID-NUMBER.cubin.
#include <sanitizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <mutex>
#include <string>

namespace {

constexpr size_t MOST_BYTES = 16 << 20;  // a library's own are larger

auto& lock = *new std::mutex;
auto& folder = *new std::string;
int next_number = 0;

void SANITIZERAPI on_event(
    void*, Sanitizer_CallbackDomain domain, Sanitizer_CallbackId id, const void* data) {
    if (domain != SANITIZER_CB_DOMAIN_RESOURCE || id != SANITIZER_CBID_RESOURCE_MODULE_LOADED) return;
    const auto* module = static_cast<const Sanitizer_ResourceModuleData*>(data);
    if (module->pCubin == nullptr || module->cubinSize > MOST_BYTES) return;
    const std::lock_guard<std::mutex> guard(lock);
    const std::string path = folder + "/module-" + std::to_string(getpid()) + "-"
        + std::to_string(next_number++) + ".cubin";
    FILE* file = fopen(path.c_str(), "wb");
    if (file == nullptr) return;
    fwrite(module->pCubin, 1, module->cubinSize, file);
    fclose(file);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
    const char* value = getenv("DEPGRAPH_MODULES_FOLDER");
    if (value == nullptr) return 1;
    folder = value;
    Sanitizer_SubscriberHandle subscriber;
    if (sanitizerSubscribe(&subscriber, on_event, nullptr) != SANITIZER_SUCCESS) return 1;
    sanitizerEnableCallback(
        1, subscriber, SANITIZER_CB_DOMAIN_RESOURCE, SANITIZER_CBID_RESOURCE_MODULE_LOADED);
    return 1;
}
