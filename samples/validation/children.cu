// What launching child kernels from the device costs, and what it brings where the work of threads
// is uneven: nvcc -O3 -std=c++17 -rdc=true -arch=native children.cu -lcudadevrt -o children
// && ./children > OUT.jsonl
//
// One JSON object a line; "what" names the experiment, README.md the other columns. Work is time
// spent spinning, so that only launches, queues and slots can make a difference.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#define CHECK(call)                                                                       \
    do {                                                                                  \
        cudaError_t error = (call);                                                       \
        if (error != cudaSuccess) {                                                       \
            fprintf(stderr, "%s:%d %s\n", __FILE__, __LINE__, cudaGetErrorString(error)); \
            exit(1);                                                                      \
        }                                                                                 \
    } while (0)

constexpr int kThreads = 128;  // of a block, of parents and children
constexpr int kRuns = 7;
enum Stream { kFireAndForget, kOfBlock };

double median(std::vector<double> x) {
    if (x.empty()) return -1;
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

double quantile(std::vector<double> x, double q) {
    if (x.empty()) return -1;
    std::sort(x.begin(), x.end());
    return x[(size_t)(q * (x.size() - 1))];
}

// What a launch saw: clocks of the parent around it, and the GPU's time then and as the child began.
struct Seen {
    long long before, after;
    unsigned long long at, begun;
    int failed;
};

__device__ unsigned long long global_time() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

__device__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
}

__global__ void child(int items, long long cycles, unsigned long long *done, Seen *seen) {
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (seen && me == 0) seen->begun = global_time();
    if (me < items) spin(cycles);
    if (threadIdx.x == 0) atomicAdd(done, (unsigned long long)min(items - me, (int)blockDim.x));
}

__device__ void launch(int items, long long cycles, unsigned long long *done, Seen *seen, int stream) {
    int blocks = (items + kThreads - 1) / kThreads;
    if (seen) {
        seen->at = global_time();
        seen->before = clock64();
    }
    if (stream == kFireAndForget)
        child<<<blocks, kThreads, 0, cudaStreamFireAndForget>>>(items, cycles, done, seen);
    else
        child<<<blocks, kThreads>>>(items, cycles, done, seen);
    cudaError_t error = cudaGetLastError();
    if (seen) {
        seen->after = clock64();
        seen->failed = error;
    }
}

// Each thread has so many items: it launches a child for them from `threshold` on, else does them.
__global__ void parent(const int *items, int n, int threshold, long long before, long long after,
                       long long cycles, unsigned long long *done, Seen *seen, int stream) {
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= n) return;
    spin(before);
    int mine = items[me];
    if (mine >= threshold) {
        launch(mine, cycles, done, seen ? seen + me : nullptr, stream);
    } else if (mine > 0) {
        spin(cycles * mine);
        atomicAdd(done, (unsigned long long)mine);
    }
    spin(after);
}

// The first `lanes` lanes of one warp of each block launch `times` times.
__global__ void launcher(int lanes, int times, unsigned long long *done, Seen *seen, long long *stall,
                         int stream) {
    long long begin = clock64();
    if (threadIdx.x < lanes)
        for (int i = 0; i < times; i++)
            launch(1, 0, done, seen + (blockIdx.x * times + i) * 32 + threadIdx.x, stream);
    __syncwarp();
    if (threadIdx.x == 0) stall[blockIdx.x] = clock64() - begin;
}

__global__ void clocks(long long *cycles, unsigned long long *time) {
    unsigned long long t = global_time();
    long long c = clock64();
    spin(20000000);
    *cycles = clock64() - c;
    *time = global_time() - t;
}

// Memory of the GPU and what the host reads of it: no pages move while kernels are timed.
template <class T>
struct Array {
    T *device;
    std::vector<T> host;
    explicit Array(size_t n) : host(n) { CHECK(cudaMalloc(&device, n * sizeof(T))); }
    ~Array() { cudaFree(device); }
    void clear() { CHECK(cudaMemset(device, 0, host.size() * sizeof(T))); }
    void write() { CHECK(cudaMemcpy(device, host.data(), host.size() * sizeof(T), cudaMemcpyDefault)); }
    void read() { CHECK(cudaMemcpy(host.data(), device, host.size() * sizeof(T), cudaMemcpyDefault)); }
};

struct Timer {
    cudaEvent_t begin, end;
    Timer() {
        CHECK(cudaEventCreate(&begin));
        CHECK(cudaEventCreate(&end));
    }
    template <class F>
    double us(F run) {
        CHECK(cudaEventRecord(begin));
        run();
        CHECK(cudaGetLastError());
        CHECK(cudaEventRecord(end));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        return 1000.0 * ms;
    }
};

void print_list(const char *name, const std::vector<int> &values) {
    printf(",\"%s\":[", name);
    for (size_t i = 0; i < values.size(); i++) printf(i ? ",%d" : "%d", values[i]);
    printf("]");
}

void costs(Timer &timer) {
    Array<Seen> seen(528 * 4 * 32);
    Array<long long> stall(528);
    Array<unsigned long long> done(1);
    for (int stream : {kFireAndForget, kOfBlock})
        for (int blocks : {1, 8, 64, 132, 528})
            for (int lanes : {1, 2, 4, 8, 16, 32})
                for (int times : {1, 4}) {
                    int launches = blocks * lanes * times;
                    if (launches > 8192) continue;
                    std::vector<double> us, stalls, alone, delays;
                    int failed = 0;
                    for (int run = 0; run < kRuns; run++) {
                        done.clear();
                        seen.clear();
                        CHECK(cudaDeviceSynchronize());
                        double time = timer.us([&] {
                            launcher<<<blocks, 32>>>(lanes, times, done.device, seen.device,
                                                     stall.device, stream);
                        });
                        if (run < 2) continue;
                        done.read(), seen.read(), stall.read();
                        us.push_back(time);
                        for (int b = 0; b < blocks; b++) stalls.push_back(stall.host[b]);
                        for (int i = 0; i < blocks * times; i++)
                            for (int lane = 0; lane < lanes; lane++) {
                                const Seen &s = seen.host[i * 32 + lane];
                                failed += s.failed != 0;
                                alone.push_back(s.after - s.before);
                                if (s.begun) delays.push_back((double)s.begun - (double)s.at);
                            }
                        if (done.host[0] != (unsigned long long)launches) failed += 100000;
                    }
                    printf("{\"what\":\"cost\",\"stream\":%d,\"blocks\":%d,\"lanes\":%d,\"times\":%d,"
                           "\"us\":%.2f,\"stall_cycles\":%.0f,\"stall_p90\":%.0f,\"lane_cycles\":%.0f,"
                           "\"delay_ns\":%.0f,\"delay_p10\":%.0f,\"delay_p90\":%.0f,\"failed\":%d}\n",
                           stream, blocks, lanes, times, median(us), median(stalls),
                           quantile(stalls, 0.9), median(alone), median(delays),
                           quantile(delays, 0.1), quantile(delays, 0.9), failed);
                    fflush(stdout);
                }
}

struct Case {
    const char *name;
    int n;
    double exponent;  // items = least / u^exponent
    int least, most;
    long long before, after, cycles;
};

unsigned next(unsigned &state) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

void run_case(Timer &timer, const Case &c) {
    unsigned state = 12345;
    std::vector<int> items(c.n);
    long long total = 0;
    for (int &mine : items) {
        double u = (next(state) + 1) / 16777217.0;
        mine = std::min((double)c.most, std::floor(c.least / std::pow(u, c.exponent)));
        total += mine;
    }
    printf("{\"what\":\"case\",\"name\":\"%s\",\"before\":%lld,\"after\":%lld,\"cycles\":%lld,\"threads\":%d",
           c.name, c.before, c.after, c.cycles, kThreads);
    print_list("items", items);
    printf("}\n");
    std::vector<int> sorted(items), thresholds{0};
    std::sort(sorted.begin(), sorted.end());
    for (double q : {0.25, 0.5, 0.75, 0.9, 0.97, 0.99, 0.998})
        thresholds.push_back(sorted[(size_t)(q * (c.n - 1))] + 1);
    thresholds.push_back(c.most + 1);
    thresholds.erase(std::unique(thresholds.begin(), thresholds.end()), thresholds.end());
    Array<int> given(c.n);
    Array<unsigned long long> done(1);
    Array<Seen> seen(c.n);
    given.host = items;
    given.write();
    for (int stream : {kFireAndForget, kOfBlock})
        for (int threshold : thresholds) {
            int launches = 0, failed = 0;
            for (int mine : items) launches += mine >= threshold;
            std::vector<double> us, stalls, delays;
            for (int run = 0; run < kRuns + 1; run++) {
                done.clear();
                seen.clear();
                CHECK(cudaDeviceSynchronize());
                bool watched = run == kRuns;  // the last run, not timed
                int blocks = (c.n + kThreads - 1) / kThreads;
                double time = timer.us([&] {
                    parent<<<blocks, kThreads>>>(given.device, c.n, threshold, c.before, c.after,
                                                 c.cycles, done.device,
                                                 watched ? seen.device : nullptr, stream);
                });
                done.read();
                if (run >= 2 && !watched) us.push_back(time);
                if (done.host[0] != (unsigned long long)total) failed++;
            }
            seen.read();
            for (const Seen &s : seen.host)
                if (s.begun) {
                    stalls.push_back(s.after - s.before);
                    delays.push_back((double)s.begun - (double)s.at);
                    failed += s.failed != 0;
                }
            printf("{\"what\":\"run\",\"name\":\"%s\",\"stream\":%d,\"threshold\":%d,\"launches\":%d,"
                   "\"us\":%.2f,\"least\":%.2f,\"most\":%.2f,\"stall_cycles\":%.0f,\"delay_ns\":%.0f,"
                   "\"delay_p90\":%.0f,\"failed\":%d}\n",
                   c.name, stream, threshold, launches, median(us),
                   *std::min_element(us.begin(), us.end()), *std::max_element(us.begin(), us.end()),
                   median(stalls), median(delays), quantile(delays, 0.9), failed);
            fflush(stdout);
        }
}

// A level of a breadth-first search: a thread has a vertex of the frontier, and goes through its
// edges or launches a child with a thread for each.
struct Graph {
    const int *first, *target;
    int *level;
    int *frontier, *size;  // the next one
};

__device__ void relax(const Graph &g, int edge, int depth) {
    int v = g.target[edge];
    if (g.level[v] < 0 && atomicCAS(&g.level[v], -1, depth) == -1) g.frontier[atomicAdd(g.size, 1)] = v;
}

__global__ void edges(Graph g, int low, int high, int depth) {
    int edge = low + blockIdx.x * blockDim.x + threadIdx.x;
    if (edge < high) relax(g, edge, depth);
}

__global__ void expand(Graph g, const int *frontier, int n, int threshold, int depth) {
    int me = blockIdx.x * blockDim.x + threadIdx.x;
    if (me >= n) return;
    int low = g.first[frontier[me]], high = g.first[frontier[me] + 1];
    if (high - low >= threshold && high > low)
        edges<<<(high - low + kThreads - 1) / kThreads, kThreads, 0, cudaStreamFireAndForget>>>(
            g, low, high, depth);
    else
        for (int edge = low; edge < high; edge++) relax(g, edge, depth);
}

void bfs(Timer &timer, const char *name, int scale, int degree) {
    int n = 1 << scale;
    unsigned state = 4711;
    std::vector<std::vector<int>> out(n);
    for (long long e = 0; e < (long long)n * degree / 2; e++) {  // R-MAT with 0.57, 0.19, 0.19, 0.05
        int a = 0, b = 0;
        for (int bit = 0; bit < scale; bit++) {
            unsigned r = next(state) % 100;
            a = 2 * a + (r >= 76), b = 2 * b + ((r >= 57 && r < 76) || r >= 95);
        }
        out[a].push_back(b), out[b].push_back(a);
    }
    Array<int> first(n + 1), level(n), here(n), there(n), size(1);
    std::vector<int> all;
    for (int v = 0; v < n; v++) {
        first.host[v] = all.size();
        all.insert(all.end(), out[v].begin(), out[v].end());
    }
    first.host[n] = all.size();
    first.write();
    Array<int> target(all.size());
    target.host = all;
    target.write();
    Graph g{first.device, target.device, level.device, there.device, size.device};
    int source = 0;
    for (int v = 0; v < n; v++)
        if (out[v].size() > out[source].size()) source = v;
    std::vector<std::vector<int>> levels{{source}};
    std::vector<int> depth_of(n, -1);
    depth_of[source] = 0;
    while (!levels.back().empty()) {
        std::vector<int> reached;
        for (int v : levels.back())
            for (int w : out[v])
                if (depth_of[w] < 0) depth_of[w] = levels.size(), reached.push_back(w);
        std::sort(reached.begin(), reached.end());
        levels.push_back(reached);
    }
    levels.pop_back();
    for (size_t d = 0; d < levels.size(); d++) {
        std::vector<int> items;
        for (int v : levels[d]) items.push_back(out[v].size());
        printf("{\"what\":\"level\",\"name\":\"%s\",\"level\":%zu,\"threads\":%d", name, d, kThreads);
        print_list("items", items);
        printf("}\n");
    }
    for (int threshold : {0, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 1 << 30})
        for (size_t d = 0; d < levels.size(); d++) {
            std::vector<double> us;
            int failed = 0, launches = 0, want = d + 1 < levels.size() ? levels[d + 1].size() : 0;
            for (int v : levels[d]) launches += (int)out[v].size() >= threshold && !out[v].empty();
            for (int run = 0; run < kRuns; run++) {
                for (int v = 0; v < n; v++)
                    level.host[v] = depth_of[v] <= (int)d ? depth_of[v] : -1;
                level.write();
                std::copy(levels[d].begin(), levels[d].end(), here.host.begin());
                here.write();
                size.clear();
                CHECK(cudaDeviceSynchronize());
                int blocks = (levels[d].size() + kThreads - 1) / kThreads;
                double time = timer.us([&] {
                    expand<<<blocks, kThreads>>>(g, here.device, levels[d].size(), threshold, d + 1);
                });
                size.read();
                failed += size.host[0] != want;
                if (run >= 2) us.push_back(time);
            }
            printf("{\"what\":\"bfs\",\"name\":\"%s\",\"level\":%zu,\"threshold\":%d,\"launches\":%d,"
                   "\"us\":%.2f,\"least\":%.2f,\"most\":%.2f,\"failed\":%d}\n",
                   name, d, threshold, launches, median(us), *std::min_element(us.begin(), us.end()),
                   *std::max_element(us.begin(), us.end()), failed);
            fflush(stdout);
        }
}

int main(int count, char **words) {
    std::string only = count > 1 ? words[1] : "";  // costs, or the name of a case
    cudaDeviceProp gpu;
    CHECK(cudaGetDeviceProperties(&gpu, 0));
    cudaError_t limited = cudaDeviceSetLimit(cudaLimitDevRuntimePendingLaunchCount, 65536);
    if (limited != cudaSuccess) fprintf(stderr, "limit: %s\n", cudaGetErrorString(limited));
    cudaGetLastError();
    int driver, runtime, parents, children;
    CHECK(cudaDriverGetVersion(&driver));
    CHECK(cudaRuntimeGetVersion(&runtime));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&parents, parent, kThreads, 0));
    CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&children, child, kThreads, 0));
    cudaFuncAttributes of_parent, of_child;
    CHECK(cudaFuncGetAttributes(&of_parent, parent));
    CHECK(cudaFuncGetAttributes(&of_child, child));
    Array<long long> cycles(1);
    Array<unsigned long long> time(1);
    for (int run = 0; run < 3; run++) clocks<<<1, 1>>>(cycles.device, time.device);
    cycles.read(), time.read();
    printf("{\"what\":\"machine\",\"gpu\":\"%s\",\"sms\":%d,\"driver\":%d,\"runtime\":%d,\"mhz\":%.1f,"
           "\"parents_an_sm\":%d,\"children_an_sm\":%d,\"parent_registers\":%d,\"child_registers\":%d}\n",
           gpu.name, gpu.multiProcessorCount, driver, runtime, 1000.0 * cycles.host[0] / time.host[0], parents,
           children, of_parent.numRegs, of_child.numRegs);
    fflush(stdout);
    Timer timer;
    if (only.empty() || only == "costs") costs(timer);
    const Case cases[] = {
        // name, threads, exponent, least, most, before, after, cycles an item
        {"even", 4096, 0.0, 32, 32, 2000, 2000, 600},
        {"mild", 4096, 0.3, 8, 512, 2000, 2000, 600},
        {"power-law", 4096, 0.7, 4, 4096, 2000, 2000, 600},
        {"steep", 4096, 1.0, 2, 8192, 2000, 2000, 600},
        {"steep-small", 512, 1.0, 2, 4096, 2000, 2000, 600},
        {"long-items", 2048, 0.7, 4, 2048, 5000, 5000, 3000},
        {"full", 16896, 0.8, 2, 4096, 2000, 2000, 600},
        {"heavy", 256, 0.2, 512, 4096, 2000, 2000, 600},
    };
    for (const Case &c : cases)
        if (only.empty() || only == c.name) run_case(timer, c);
    if (only.empty() || only == "bfs-small") bfs(timer, "bfs-small", 12, 16);
    if (only.empty() || only == "bfs-large") bfs(timer, "bfs-large", 15, 16);
}
