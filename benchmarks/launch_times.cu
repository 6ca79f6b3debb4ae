// What launches cost on a GPU: nvcc -O2 -std=c++17 -arch=native launch_times.cu && ./a.out
//
// host    a launch call while the GPU is busy, so that nothing waits for it
// stream  a kernel of no work in a stream, host and GPU together
// sync    the same with a synchronisation each
// queued  a kernel that was launched long before its turn, beside the work it does: the GPU's part
// graph   a chain of n kernels as one CUDA graph, launch and synchronisation included
//
// On an H100 80GB HBM3 (driver 580, CUDA 13.0): host 3.2 us, stream 3.4, sync 8.5, queued 1.8
// (2.4 with 1056 blocks), graph 6.5 us and 0.71 to 0.78 us a node.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

using Clock = std::chrono::steady_clock;

__global__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

double since(Clock::time_point begin) {
    return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

template <class F>
double median(F measure) {
    std::vector<double> times;
    for (int i = 0; i < 21; i++) times.push_back(measure());
    std::sort(times.begin(), times.end());
    return times[10];
}

int main() {
    const long long busy = 40000000;
    cudaStream_t stream;
    cudaEvent_t first, last;
    cudaStreamCreate(&stream);
    cudaEventCreate(&first);
    cudaEventCreate(&last);
    auto launch = [&](long long cycles, int blocks = 1) {
        spin<<<blocks, 128, 0, stream>>>(cycles);
    };
    auto queued = [&](long long cycles, int n, int blocks) {
        return median([&] {
            launch(busy);
            cudaEventRecord(first, stream);
            for (int i = 0; i < n; i++) launch(cycles, blocks);
            cudaEventRecord(last, stream);
            cudaDeviceSynchronize();
            float ms;
            cudaEventElapsedTime(&ms, first, last);
            return ms * 1e3 / n;
        });
    };
    launch(0);
    cudaDeviceSynchronize();
    double clock = 2000000 / (queued(4000000, 10, 1) - queued(2000000, 10, 1));
    printf("clock %.0f MHz\n", clock);
    printf("host %.2f us\n", median([&] {
        launch(busy);
        auto begin = Clock::now();
        for (int i = 0; i < 400; i++) launch(0);
        double time = since(begin) / 400;
        cudaDeviceSynchronize();
        return time;
    }));
    printf("stream %.2f us\n", median([&] {
        auto begin = Clock::now();
        for (int i = 0; i < 4000; i++) launch(0);
        cudaDeviceSynchronize();
        return since(begin) / 4000;
    }));
    printf("sync %.2f us\n", median([&] {
        auto begin = Clock::now();
        for (int i = 0; i < 300; i++) {
            launch(0);
            cudaDeviceSynchronize();
        }
        return since(begin) / 300;
    }));
    for (int blocks : {1, 132, 1056})
        for (long long cycles : {0, 2000, 20000})
            printf("queued, %d blocks of %lld cycles: %.2f us\n", blocks, cycles,
                   queued(cycles, 400, blocks) - cycles / clock);
    for (int n : {1, 10, 100, 1000}) {
        cudaGraph_t graph;
        cudaGraphExec_t instance;
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        for (int i = 0; i < n; i++) launch(2000);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphInstantiate(&instance, graph, 0);
        cudaGraphLaunch(instance, stream);
        cudaDeviceSynchronize();
        double time = median([&] {
            auto begin = Clock::now();
            cudaGraphLaunch(instance, stream);
            cudaDeviceSynchronize();
            return since(begin);
        });
        printf("graph of %d: %.2f us a node\n", n, time / n - 2000 / clock);
    }
}
