// Kernels that get at memory in different ways. kernels.sass is what nvdisasm -c prints of them:
//     nvcc -arch sm_90 -cubin kernels.cu && nvdisasm -c kernels.cubin > kernels.sass
struct alignas(64) Map { unsigned long long words[16]; };
struct Arguments { float* out; int shift; const float* in; };
__constant__ float constants[256];
__device__ float variable[256];

extern "C" __global__ void axpy(const float* x, float* y, const long* at, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[at[i]] += x[i];
}
extern "C" __global__ void sums(const float4* __restrict__ a, float4* b, int n, int stride) {
    float4 s = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < n; i += stride) { float4 v = a[i]; s.x += v.x; s.y += v.y; }
    b[blockIdx.x] = s;
    atomicAdd((float*)b, s.x);
}
extern "C" __global__ void of_a_struct(Arguments p) {
    p.out[threadIdx.x] = p.in[threadIdx.x + p.shift];
}
extern "C" __global__ void one_of_two(float* a, float* b, int n) {
    float* chosen = n > 3 ? a : b;
    chosen[threadIdx.x] = 1;
}
extern "C" __global__ void tile(const __grid_constant__ Map out, const float* from) {
    __shared__ alignas(128) float here[256];
    here[threadIdx.x] = from[blockIdx.x * 256 + threadIdx.x];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x) return;
    unsigned at = (unsigned)__cvta_generic_to_shared(here), first = blockIdx.x * 256;
    asm volatile(
        "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%0, {%1}], [%2];"
        :: "l"(&out), "r"(first), "r"(at) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
extern "C" __global__ void table(float** rows, int n) {
    for (int k = 0; k < n; ++k) rows[k][threadIdx.x] = threadIdx.x;
}
extern "C" __global__ void of_constants(float* y, int n) {
    y[threadIdx.x] = constants[n] + constants[threadIdx.x & n];
}
extern "C" __global__ void of_a_variable(float* y, int n) {
    variable[threadIdx.x] = n;
    y[threadIdx.x] = variable[n];
}
__device__ __noinline__ float doubled(const float* x, int i) { return x[i] * 2; }
extern "C" __global__ void calls(const float* x, float* y) {
    y[threadIdx.x] = doubled(x, threadIdx.x);
}
extern "C" __global__ void texture(cudaTextureObject_t t, float* y) {
    y[threadIdx.x] = tex1Dfetch<float>(t, threadIdx.x);
}
