// What kernels need of CUDA, from the toolkit or, in tests, from an emulator on the CPU (tests/cuda/emulator.h).
#pragma once

#include <cstdint>
#include <cstring>

#ifdef UGNN_EMULATED
#include "emulator.h"
#else
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
// memory that the threads of a block share
#define UGNN_SHARED(type, name, count) __shared__ type name[count]
#endif

#define UGNN_DEVICE __device__ __forceinline__

namespace ugnn::cuda {

constexpr unsigned kAllLanes = 0xffffffffu;
constexpr int kWarp = 32;

}  // namespace ugnn::cuda
