// The work of conjugate gradients on vectors; labels as in docs/math.md. The product with M is step.cuh.
//
// A block of threads has kSumRows rows and a block of columns: the slots of its warps take rows in turn, and leave two
// sums of every column. These are in float64, and their order is fixed: rows of a slot, slots, warps, and in
// lengths_kernel blocks.
#pragma once

#include "ugnn/step.cuh"

namespace ugnn::cuda {

// What a column is
enum ColumnState : int32_t { kArrived = 0, kActive = 1, kIndefinite = 2 };

// r = scale X / N - q, p = r / D, with <r, r / D> and <r, N^2 r>. With q = M u this is where (C2) starts, and starts
// again.
template <class T, int kVec>
struct Residual {
  using Args = ResidualArgs;
  static constexpr int kSums = 0;  // where they go
  T scale[kVec];

  UGNN_DEVICE Residual(const Args& a, int offset) { load<T>(scale, a.scale, offset); }

  UGNN_DEVICE void row(const Args& a, int64_t i, int64_t at, T inverse, T (&rz)[kVec], T (&rr)[kVec]) const {
    const T root = a.root ? number<T>(a.root, i) : T(1), square = a.square ? number<T>(a.square, i) : T(1);
    T r[kVec], q[kVec] = {}, z[kVec];
    load<T>(r, a.x, at);
    if (a.q) load<T>(q, a.q, at);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      r[k] = root * (scale[k] * r[k]) - q[k];
      z[k] = inverse * r[k];
      rz[k] += z[k] * r[k];
      rr[k] += square * r[k] * r[k];
    }
    store<T>(a.r, at, r);
    store<T>(a.p, at, z);
  }
};

// <p, q> and <q, q / D>
template <class T, int kVec>
struct Products {
  using Args = ProductsArgs;
  static constexpr int kSums = 2;

  UGNN_DEVICE Products(const Args&, int) {}

  UGNN_DEVICE void row(const Args& a, int64_t, int64_t at, T inverse, T (&pq)[kVec], T (&qq)[kVec]) const {
    T p[kVec], q[kVec];
    load<T>(p, a.p, at);
    load<T>(q, a.q, at);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      pq[k] += p[k] * q[k];
      qq[k] += inverse * q[k] * q[k];
    }
  }
};

// u += alpha p, r -= alpha q, p = r / D + beta p, with <r, r / D> and <r, N^2 r>
template <class T, int kVec>
struct Update {
  using Args = UpdateArgs;
  static constexpr int kSums = 0;
  T alpha[kVec], beta[kVec];

  UGNN_DEVICE Update(const Args& a, int offset) {
    load<T>(alpha, a.lengths, offset);
    load<T>(beta, a.lengths, a.columns.width + offset);
  }

  UGNN_DEVICE void row(const Args& a, int64_t i, int64_t at, T inverse, T (&rz)[kVec], T (&rr)[kVec]) const {
    const T square = a.square ? number<T>(a.square, i) : T(1);
    T u[kVec], r[kVec], p[kVec], q[kVec];
    load<T>(u, a.u, at);
    load<T>(r, a.r, at);
    load<T>(p, a.p, at);
    load<T>(q, a.q, at);
#pragma unroll
    for (int k = 0; k < kVec; ++k) {
      u[k] += alpha[k] * p[k];
      r[k] -= alpha[k] * q[k];
      const T z = inverse * r[k];
      p[k] = z + beta[k] * p[k];
      rz[k] += z * r[k];
      rr[k] += square * r[k] * r[k];
    }
    store<T>(a.u, at, u);
    store<T>(a.r, at, r);
    store<T>(a.p, at, p);
  }
};

UGNN_HOST_DEVICE inline int column_blocks(const ColumnArgs& c) { return c.width / c.D * c.blocks; }

template <template <class, int> class Op, class T, int kVec>
__global__ void __launch_bounds__(kThreads, blocks_per_sm<T>())
    vectors_kernel(const __grid_constant__ typename Op<T, kVec>::Args a) {
  const ColumnArgs& c = a.columns;
  const Lanes lanes(c.group);
  const int blocks = column_blocks(c), column = int(blockIdx.x % unsigned(blocks));
  const int64_t block = blockIdx.x / unsigned(blocks), first = block * kSumRows;
  const Columns columns(c, lanes, kVec, column / c.blocks, column % c.blocks);
  const int warp = int(threadIdx.x) / kWarp, slots = kWarps * lanes.slots;
  T of_rows[2][kVec] = {};
  if (columns.active) {
    const Op<T, kVec> op(a, columns.offset);
    const int64_t end = a.N - first < kSumRows ? a.N : first + kSumRows;
    for (int64_t i = first + warp * lanes.slots + lanes.slot; i < end; i += slots) {
      const T inverse = number<T>(a.inverse, i * a.inverse_row + int64_t(columns.replica) * a.inverse_replica);
      op.row(a, i, i * c.width + columns.offset, inverse, of_rows[0], of_rows[1]);
    }
  }
  UGNN_SHARED(double, of_warps, kWarps * 2 * kWarp * kVec);
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    double sums[kVec];
#pragma unroll
    for (int k = 0; k < kVec; ++k) sums[k] = of_rows[n][k];
    sum_of_slots(lanes, sums);
    if (lanes.slot == 0) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) of_warps[((warp * 2 + n) * kVec + k) * kWarp + lanes.column] = sums[k];
    }
  }
  __syncthreads();
  if (warp > 0 || lanes.slot > 0 || !columns.active) return;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    double sums[kVec] = {};
    for (int w = 0; w < kWarps; ++w) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) sums[k] += of_warps[((w * 2 + n) * kVec + k) * kWarp + lanes.column];
    }
    store<double>(a.sums, (block * 4 + Op<T, kVec>::kSums + n) * c.width + columns.offset, sums);
  }
}

constexpr int kLengthsColumns = 4;  // of a block of threads: a sector of the sums
constexpr int kLengthsSlots = kThreads / kLengthsColumns;

// Which columns are active, and with lengths_too also (C2), (C3): alpha and beta, 0 for the others. The sums of a
// column are <r, r / D>, <r, N^2 r>, <p, q> and <q, q / D>, of each block of rows; kLengthsSlots threads take blocks in
// turn.
template <class T>
__global__ void __launch_bounds__(kThreads) lengths_kernel(const __grid_constant__ LengthsArgs a) {
  const int own = int(threadIdx.x) % kLengthsColumns, slot = int(threadIdx.x) / kLengthsColumns;
  const int64_t column = int64_t(blockIdx.x) * kLengthsColumns + own, width = a.width;
  double sums[4] = {};
  if (column < width) {
    for (int64_t block = slot; block < a.blocks; block += kLengthsSlots) {
      const double* of_block = a.sums + block * 4 * width + column;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n == 1 || a.lengths_too) sums[n] += of_block[n * width];
      }
    }
  }
  UGNN_SHARED(double, of_slots, 4 * kThreads);
#pragma unroll
  for (int n = 0; n < 4; ++n) of_slots[n * kThreads + threadIdx.x] = sums[n];
  __syncthreads();
  if (slot > 0 || column >= width) return;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    for (int other = 1; other < kLengthsSlots; ++other) {
      sums[n] += of_slots[n * kThreads + other * kLengthsColumns + own];
    }
  }
  const double rz = sums[0], rr = sums[1], pq = sums[2], qq = sums[3];
  int32_t kind = a.state[column];
  bool active = kind == kActive && rr > a.limit[column];
  if (kind == kActive && !active) kind = kArrived;
  if (a.lengths_too) {
    if (active && pq <= 0) {
      a.curvature[column] = pq;
      kind = kIndefinite;
      active = false;
    }
    const double alpha = active ? rz / pq : 0, beta = active ? alpha * (qq / pq) - 1 : 0;
    T* lengths = static_cast<T*>(a.lengths);
    lengths[column] = T(alpha);
    lengths[width + column] = T(beta > 0 ? beta : 0);
    a.state[width + column] += int32_t(active);
  }
  a.state[column] = kind;
}

}  // namespace ugnn::cuda
