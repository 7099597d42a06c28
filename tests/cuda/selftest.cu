// A kernel that tests the emulator: sums over blocks through shared memory, with or without the barrier that it needs.
#include "selftest.h"
#include "ugnn/device.cuh"

namespace {

// stride: of the threads' places in shared memory; 32 puts all of them into one bank
void block_sum_kernel(const float* in, float* out, int stride, bool barrier) {
  UGNN_SHARED(float, values, 128 * 32);
  values[threadIdx.x * stride] = in[blockIdx.x * blockDim.x + threadIdx.x];
  if (barrier) __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0;
    for (unsigned k = 0; k < blockDim.x; ++k) sum += values[k * stride];
    out[blockIdx.x] = sum;
  }
}

// Half of the threads wait.
void half_waits_kernel() {
  if (threadIdx.x < 64) __syncthreads();
}

}  // namespace

void block_sums(const float* in, float* out, int blocks, int stride, bool barrier) {
  emulator::run_grid([&] { block_sum_kernel(in, out, stride, barrier); }, blocks, 128, false);
}

void half_waits() {
  emulator::run_grid([] { half_waits_kernel(); }, 1, 128, false);
}
