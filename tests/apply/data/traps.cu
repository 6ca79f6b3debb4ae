// Kernels that get at memory by ways that are easily overlooked. traps_ARCHITECTURE.sass is what
// nvdisasm -c prints of their sections, labels and instructions, but for NOPs at the end:
//     nvcc -arch sm_90 -cubin traps.cu && nvdisasm -c traps.cubin
#include <cassert>
#include <cstdio>
__device__ float* pointer;
__constant__ float* constant_pointer;
__constant__ float constants[16];
typedef void (*Function)(float*, int);
__device__ __noinline__ void one(float* p, int i) { p[i] = 1; }
__device__ __noinline__ void two(float* p, int i) { p[i] = 2; }
__device__ Function table[2] = {one, two};

extern "C" __global__ void by_variable(const float* x) { pointer[threadIdx.x] = x[threadIdx.x]; }
extern "C" __global__ void by_constant(const float* x) { constant_pointer[threadIdx.x] = x[0]; }
extern "C" __global__ void by_table(float* y, int n) { table[n](y, threadIdx.x); }
extern "C" __global__ void by_choice(float* y, int n) { (n > 3 ? one : two)(y, threadIdx.x); }
extern "C" __global__ void by_shared(float** rows) {
    __shared__ float* p[32];
    p[threadIdx.x] = rows[threadIdx.x];
    __syncthreads();
    p[threadIdx.x ^ 1][0] = 1;
}
extern "C" __global__ void by_shuffle(float** rows, float* y) {
    unsigned long long p = (unsigned long long)(threadIdx.x ? y : rows[0]);
    ((float*)__shfl_sync(~0u, p, 0))[threadIdx.x] = 1;
}
extern "C" __global__ void by_stack(float* y, float** rows, int n) {
    float* p[8];
    for (int i = 0; i < 8; ++i) p[i] = i & 1 ? rows[i] : y;
    p[n & 7][threadIdx.x] = 1;
}
extern "C" __global__ void by_pair(const ulonglong2* x) { *(float*)x[threadIdx.x].y = 1; }
extern "C" __global__ void by_xor(unsigned long long x, float* y) {
    ((float*)(x ^ (unsigned long long)y))[threadIdx.x] = 1;
}
// as between the memories of several GPUs: to the same place behind another beginning
extern "C" __global__ void by_distance(char* y, const char* begin, char** others) {
    others[1][y - begin + threadIdx.x] = 1;
}
extern "C" __global__ void by_exchange(unsigned long long* y, unsigned long long n) {
    *(float*)atomicExch(y, n) = 1;
}
__device__ __noinline__ float* chosen(float* a, float** b, int n) { return n ? a : b[n]; }
extern "C" __global__ void by_result(float* a, float** b, int n) {
    chosen(a, b, n)[threadIdx.x] = 1;
    chosen(a, b, n + 1)[threadIdx.x + 8] = 1;
}
extern "C" __global__ void by_jump(float* a, float* b, float* c, int n) {
    switch (n) {
        case 0: a[0] = 1; break;
        case 1: b[1] = 2; break;
        case 2: c[2] = sinf(c[1]); break;
        case 3: a[3] = expf(b[3]); break;
        case 4: a[4] = 5; break;
        case 5: b[5] = 6; break;
        case 6: c[7] = b[1]; break;
    }
}
extern "C" __global__ void prints(float* y) { printf("%f", y[0]); }
extern "C" __global__ void discards(float* y) {
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(y + 32 * threadIdx.x) : "memory");
}
#if __CUDA_ARCH__ >= 900
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void by_map(const __grid_constant__ Map one, Map** others, float* y) {
    __shared__ alignas(128) float here[256];
    __shared__ alignas(8) unsigned long long barrier;
    unsigned at = (unsigned)__cvta_generic_to_shared(here);
    unsigned ready = (unsigned)__cvta_generic_to_shared(&barrier);
    asm volatile(
        "cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2}], [%3];"
        :: "r"(at), "l"(others[1]), "r"(0), "r"(ready) : "memory");
    y[0] = here[1];
}
#endif

extern "C" __global__ void scaled(const float* x, float* y) { y[0] = x[0] * constants[1]; }
extern "C" __global__ void below(const float* x, float* y) { if (x[0] < constants[2]) y[0] = 1; }
extern "C" __global__ void asserts(float* y, const int* at, int n) {
    assert(at[threadIdx.x] < n);
    y[at[threadIdx.x]] = 1;
}
extern "C" __global__ void queue(float* y, int* count) {
    __shared__ int at;
    if (!threadIdx.x) at = atomicAdd(count, 1);
    __syncthreads();
    y[at * 32 + threadIdx.x] = at;
}
extern "C" __global__ void strided(const char* x, char* y, int n) {
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i];
}
extern "C" __global__ void staged(const float4* x, float* y) {
    __shared__ float4 here[32];
    unsigned at = (unsigned)__cvta_generic_to_shared(here + threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(at), "l"(x + threadIdx.x));
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    y[threadIdx.x] = here[31 - threadIdx.x].x;
}
extern "C" __global__ void diverging(float* y, int n) {
    float v = y[threadIdx.x];
    if (v > 3) v += __shfl_xor_sync(~0u, v, 1);
    else if (v < -2 && (v = __shfl_xor_sync(~0u, v, 2)) == 1) return;
    __syncwarp();
    for (int i = 0; i < n && !__any_sync(~0u, v > i); ++i) v += __shfl_down_sync(0xff, v, i);
    y[threadIdx.x] = sqrtf(v) / y[3];
}
extern "C" __global__ void of_doubles(const double* a, const double* b, double* c) {
    double d[4] = {c[0], c[1], c[2], c[3]};
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+d"(d[0]), "+d"(d[1]), "+d"(d[2]), "+d"(d[3])
        : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#endif
    for (int i = 0; i < 4; ++i) c[i] = d[i];
}
#if __CUDA_ARCH__ >= 1000
extern "C" __global__ void of_eight(const float* x, float* y) {
    float v[8];
    asm volatile(
        "ld.global.v8.f32 {%0, %1, %2, %3, %4, %5, %6, %7}, [%8];"
        : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]), "=f"(v[4]), "=f"(v[5]), "=f"(v[6]),
          "=f"(v[7]) : "l"(x + 8 * threadIdx.x));
    for (int i = 0; i < 8; ++i) y[i] = v[i];
}
#endif
