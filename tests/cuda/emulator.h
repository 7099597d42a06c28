// CUDA on the CPU, for tests: the kernel files compile unchanged with g++.
//
// Every CUDA thread is a fiber that runs until it meets a barrier or a collective of its warp; which of the fibers that
// can go on does so is random, from a seed, and so is the order of blocks. The blocks of a cooperative launch are there
// all at once, those of another one after the other. Wrong use is an error: a collective whose lanes are not all there,
// a barrier that only some threads reach, a shuffle from a lane outside the mask. x86-64 only.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#ifndef __x86_64__
#error "the emulator switches stacks by instructions of x86-64"
#endif

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3 {
  unsigned x, y, z;
};
// words that are moved as one; with members of their own g++ would move these one by one
struct uint2 {
  uint64_t bits;
};
struct uint4 {
  unsigned __int128 bits;
};

// bits of the types of 16 bits, rounded to nearest even
struct __half {
  _Float16 value;
};
struct __nv_bfloat16 {
  uint16_t bits;
};
inline float __half2float(__half h) { return float(h.value); }
inline __half __float2half_rn(float f) { return {_Float16(f)}; }
inline float __bfloat162float(__nv_bfloat16 h) {
  const uint32_t bits = uint32_t(h.bits) << 16;
  float f;
  memcpy(&f, &bits, sizeof(f));
  return f;
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof(bits));
  if (f != f) return {0x7fff};
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9 };

namespace emulator {

// Of the thread that runs.
uint3 thread_index();
uint3 block_index();
uint3 block_size();
uint3 grid_size();

enum class Wait { kNone, kBlock, kGrid, kWarp, kDone };

// Waits at a barrier of the block or the grid. site: where in the source.
void barrier(Wait kind, int site);
// Waits for the lanes of `mask` at the same site, and returns what lane `source` brought.
uint64_t exchange(unsigned mask, uint64_t value, int source, int site);
// Memory that the threads of a block share: the same address in all of them for the same site.
void* shared_memory(size_t bytes, int site);

// Runs thread(context) in every thread of a grid; a cudaError_t.
int run_grid(void (*thread)(const void*), const void* context, int64_t blocks, int threads, bool cooperative);

// The same for a lambda, which stays on the stack of the caller: it is no memory of the kernel's.
template <class Body>
int run_grid(const Body& body, int64_t blocks, int threads, bool cooperative) {
  return run_grid([](const void* context) { (*static_cast<const Body*>(context))(); }, &body, blocks, threads,
                  cooperative);
}

// Blocks of a cooperative launch that the emulated device holds at a time.
constexpr int kResidentBlocks = 6;

template <class T>
T shuffle(unsigned mask, T value, int source, int site) {
  static_assert(sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof(T));
  bits = exchange(mask, bits, source, site);
  memcpy(&value, &bits, sizeof(T));
  return value;
}

inline int own_lane() { return int(thread_index().x % 32); }

}  // namespace emulator

#define threadIdx (emulator::thread_index())
#define blockIdx (emulator::block_index())
#define blockDim (emulator::block_size())
#define gridDim (emulator::grid_size())
// The counter tells calls apart that the preprocessor puts on one line.
#define __syncthreads() emulator::barrier(emulator::Wait::kBlock, __COUNTER__)
#define __syncwarp() ((void)emulator::exchange(~0u, 0, emulator::own_lane(), __COUNTER__))
#define __shfl_sync(mask, value, source) emulator::shuffle(mask, value, (source) % 32, __COUNTER__)
#define __shfl_xor_sync(mask, value, other) emulator::shuffle(mask, value, emulator::own_lane() ^ (other), __COUNTER__)
#define UGNN_SHARED(type, name, count) \
  type* name = static_cast<type*>(emulator::shared_memory((count) * sizeof(type), __COUNTER__))

template <class T>
inline T __ldg(const T* p) {
  return *p;
}

namespace cooperative_groups {
struct grid_group {
  void sync() const { emulator::barrier(emulator::Wait::kGrid, -1); }
};
inline grid_group this_grid() { return {}; }
}  // namespace cooperative_groups

namespace ugnn::cuda {

struct OnDevice {
  explicit OnDevice(int) {}
  int error = 0;
};

template <class... Parameters, class... Arguments>
int launch_grid(void (*kernel)(Parameters...), int64_t blocks, void*, const Arguments&... arguments) {
  return emulator::run_grid([&] { kernel(arguments...); }, blocks, 128, false);
}

template <class Parameter>
int launch_together(void (*kernel)(Parameter), int64_t blocks, int, void*, const Parameter& argument) {
  const int64_t resident = blocks < emulator::kResidentBlocks ? blocks : emulator::kResidentBlocks;
  return emulator::run_grid([&] { kernel(argument); }, resident, 128, true);
}

}  // namespace ugnn::cuda
