// Kernels that end only once something else has happened: the host wrote, or another kernel ran.
#include <cuda_runtime.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#define OK(x) do { auto e = (x); if (e) { fprintf(stderr, "%s: %d\n", #x, int(e)); exit(1);} } while (0)
__global__ void wait_for(volatile int* flag, int* seen) { while (*flag == 0) {} seen[threadIdx.x] = *flag; }
__global__ void set(int* flag) { *flag = 7; }
__global__ void fill(int* to) { to[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
int main() {
    int *host, *flag, *seen;
    OK(cudaMallocHost(&host, 64)); OK(cudaMalloc(&flag, 64)); OK(cudaMalloc(&seen, 4096));
    cudaStream_t a, b; OK(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking)); OK(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    // Loading a kernel for the first time would wait for those that run.
    set<<<1, 1, 0, b>>>(flag); OK(cudaDeviceSynchronize());
    wait_for<<<1, 32, 0, a>>>(flag, seen); fill<<<2, 32, 0, a>>>(seen + 64); OK(cudaDeviceSynchronize());
    OK(cudaMemset(flag, 0, 64)); *host = 0; OK(cudaDeviceSynchronize());
    printf("{\"flag\": %llu, \"seen\": %llu, \"host\": %llu}\n", (unsigned long long)flag, (unsigned long long)seen, (unsigned long long)host); fflush(stdout);
    wait_for<<<1, 32, 0, a>>>(flag, seen);      // for another kernel
    set<<<1, 1, 0, b>>>(flag);
    OK(cudaDeviceSynchronize());
    wait_for<<<1, 32, 0, a>>>(host, seen + 32); // for the host
    *(volatile int*)host = 3;
    OK(cudaDeviceSynchronize());
    fill<<<2, 32, 0, a>>>(seen + 64);
    OK(cudaDeviceSynchronize());
    int values[128]; OK(cudaMemcpy(values, seen, sizeof(values), cudaMemcpyDeviceToHost));
    printf("%d %d %d\n", values[0], values[32], values[64]);
}
