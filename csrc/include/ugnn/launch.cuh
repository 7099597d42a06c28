// Kernels out of tasks, and their launch: types and vectors chosen, grids computed, errors returned.
#pragma once

#include <initializer_list>
#include <type_traits>

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

template <class Op>
UGNN_HOST_DEVICE int64_t num_tasks(const typename Op::Args& a, bool hubs) {
  return int64_t(hubs ? num_hubs(a.rows) : row_tasks(a.rows, kWarp / a.columns.group)) * Op::columns(a);
}

template <class Op>
UGNN_DEVICE void run_task(const typename Op::Args& a, const Lanes& lanes, int64_t task, bool hubs) {
  const int columns = Op::columns(a), of_rows = int(columns == 1 ? task : task / columns);
  const Task own = hubs ? hub_task(a.rows, lanes, of_rows) : row_task(a.rows, lanes, of_rows);
  Op::run(a, lanes, own, int(task - int64_t(of_rows) * columns), hubs);
}

UGNN_DEVICE int64_t own_warp() { return int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp; }

// One call, a task for each warp.
template <class Op>
__global__ void __launch_bounds__(kThreads, Op::kBlocksPerSm)
    rows_kernel(const __grid_constant__ typename Op::Args a, bool hubs) {
  if (own_warp() < num_tasks<Op>(a, hubs)) run_task<Op>(a, Lanes(a.columns.group), own_warp(), hubs);
}

template <class Args>
struct Calls {
  Args call[kMaxCalls];
  int count;
};

// All calls in one launch, for graphs on which a launch takes longer than its work.
template <class Op>
__global__ void __launch_bounds__(kThreads, Op::kBlocksPerSm / 2)
    together_kernel(const __grid_constant__ Calls<typename Op::Args> calls) {
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  const int64_t warps = int64_t(gridDim.x) * kWarps;
  for (int k = 0; k < calls.count; ++k) {
    const typename Op::Args& a = calls.call[k];
    const Lanes lanes(a.columns.group);
    for (int hubs = 0; hubs <= int(Op::kHubs && num_hubs(a.rows) > 0); ++hubs) {
      if (k + hubs > 0) grid.sync();
      const int64_t tasks = num_tasks<Op>(a, hubs);
      for (int64_t task = own_warp(); task < tasks; task += warps) run_task<Op>(a, lanes, task, hubs);
    }
  }
}

#ifndef UGNN_EMULATED
// Makes a device current, for its lifetime.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    error = cudaGetDevice(&before_);
    changed_ = !error && before_ != device;
    if (changed_) error = cudaSetDevice(device);
  }
  ~OnDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;

  int error = 0;

 private:
  int before_ = 0;
  bool changed_ = false;
};

template <class... Parameters, class... Arguments>
int launch_grid(void (*kernel)(Parameters...), int64_t blocks, void* stream, const Arguments&... arguments) {
  kernel<<<unsigned(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(arguments...);
  return cudaGetLastError();
}

template <class Parameter>
int launch_together(void (*kernel)(Parameter), int64_t blocks, int device, void* stream, const Parameter& argument) {
  int per_sm = 0, sms = 0;
  int error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, kThreads, 0);
  if (!error) error = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
  if (error) return error;
  // all blocks of a cooperative launch must be there at once
  const int64_t resident = int64_t(per_sm) * sms;
  void* arguments[] = {const_cast<void*>(static_cast<const void*>(&argument))};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel),
                                     unsigned(blocks < resident ? blocks : resident), kThreads, arguments, 0,
                                     static_cast<cudaStream_t>(stream));
}
#endif

inline int64_t blocks_for(int64_t tasks) { return (tasks + kWarps - 1) / kWarps; }

// How lanes with kVec values each share the columns.
inline void share_columns(ColumnArgs& c, int kVec) {
  const int lanes = (c.D + kVec - 1) / kVec;
  c.group = kMinGroup;
  while (c.group < kWarp && c.group < lanes) c.group *= 2;
  c.blocks = (lanes + c.group - 1) / c.group;
}

// One call whose lanes know their columns.
template <class Op>
int run_call(const Launch& launch, const typename Op::Args& a) {
  for (const bool hubs : {false, true}) {
    const int64_t tasks = hubs && !Op::kHubs ? 0 : num_tasks<Op>(a, hubs);
    if (tasks == 0) continue;
    if (const int error = launch_grid(rows_kernel<Op>, blocks_for(tasks), launch.stream, a, hubs)) return error;
  }
  return 0;
}

// Runs the calls with kVec values a lane.
template <class Op, int kVec>
int run(const Launch& launch, const typename Op::Args* calls, int count, bool together) {
  const auto shaped = [&](int k) {
    typename Op::Args a = calls[k];
    share_columns(a.columns, kVec);
    return a;
  };
  const OnDevice on(launch.device);
  if (on.error) return on.error;
  if (together) {
    Calls<typename Op::Args> all{};
    all.count = count;
    for (int k = 0; k < count; ++k) all.call[k] = shaped(k);
    const int64_t rows = num_tasks<Op>(all.call[0], false), hubs = num_tasks<Op>(all.call[0], true);
    if (rows == 0) return 0;
    return launch_together(together_kernel<Op>, blocks_for(rows > hubs ? rows : hubs), launch.device, launch.stream,
                           all);
  }
  for (int k = 0; k < count; ++k) {
    if (const int error = run_call<Op>(launch, shaped(k))) return error;
  }
  return 0;
}

// Runs the calls one by one, with kVec values a lane: for kernels whose calls are never together.
template <class Op, int kVec>
int run_apart(const Launch& launch, const typename Op::Args* calls, int count) {
  const OnDevice on(launch.device);
  if (on.error) return on.error;
  for (int k = 0; k < count; ++k) {
    typename Op::Args a = calls[k];
    share_columns(a.columns, kVec);
    if (const int error = run_call<Op>(launch, a)) return error;
  }
  return 0;
}

// body(T{}) for the stored type
template <class Body>
int for_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat:
      return body(float{});
    case DType::kDouble:
      return body(double{});
    case DType::kBFloat16:
      return body(__nv_bfloat16{});
    case DType::kHalf:
      return body(__half{});
  }
  return cudaErrorInvalidValue;
}

// Whether rows can be read kVec values at a time: tables of T and of sums, all of them [N, width].
template <class T>
bool fits(int kVec, const ColumnArgs& c, std::initializer_list<const void*> of_values,
          std::initializer_list<const void*> of_sums) {
  const auto aligned = [](const void* p, int bytes) {
    return reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes < 16 ? bytes : 16) == 0;
  };
  bool good = c.D % kVec == 0 && c.width % kVec == 0;
  for (const void* p : of_values) good = good && aligned(p, kVec * int(sizeof(T)));
  for (const void* p : of_sums) good = good && aligned(p, kVec * int(sizeof(acc_of<T>)));
  return good;
}

// body(constant kVec) for the largest vector with fits(kVec): 16 bytes, 4 bytes, or one value
template <class T, class Fits, class Body>
int for_vec(Fits fits, Body body) {
  constexpr int kLong = 16 / int(sizeof(T)), kShort = sizeof(T) < 4 ? 4 / int(sizeof(T)) : 1;
  if (fits(kLong)) return body(std::integral_constant<int, kLong>{});
  if (kShort > 1 && fits(kShort)) return body(std::integral_constant<int, kShort>{});
  return body(std::integral_constant<int, 1>{});
}

}  // namespace ugnn::cuda
