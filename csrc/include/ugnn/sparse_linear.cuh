// dropout(x) @ table + bias for the rows of a sparse x, or of its transpose; dropout(x) as a dense matrix.
#pragma once

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// Which places of x dropout leaves.
UGNN_DEVICE bool kept_feature(uint64_t seed, uint32_t keep_from, int row, int column) {
  return philox(seed, uint32_t(row), uint32_t(column), 0, uint32_t(Stream::kFeatures)).word[0] >= keep_from;
}

// out_ir = bias_r + scale sum_j m_r(i, j) x_ij table_jr, with m_r(j, i) if these are the rows of the transpose of x. A
// task has one block of columns of one replica.
template <class T, int kVec>
struct SparseLinear {
  using Args = SparseLinearArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  static constexpr int kTogether = kVec == 8 ? 2 : 4;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  struct Weights {
    acc_t x;
    UGNN_DEVICE Weights from(int lane) const { return {__shfl_sync(kAllLanes, x, lane)}; }
  };

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.width / a.columns.D * a.columns.blocks; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int column, bool hub) {
    const int i = task.i, r = column / a.columns.blocks;
    const Columns columns(a.columns, lanes, kVec, r, column % a.columns.blocks);
    const int own = columns.offset - r * a.columns.D;  // first column within the replica
    acc_t acc[kVec] = {};
    if (hub) {
      sum_pieces(a.partial, 0, a.rows, a.columns, lanes, task, columns, acc);
    } else {
      const T* table = static_cast<const T*>(a.table) + r * a.table_replica + own;
      const uint64_t seed = a.seeds ? uint64_t(__ldg(a.seeds + r)) : 0;
      for_entries_if<Weights, kTogether>(
          a.rows, lanes, task,
          [&](int j) {
            return !a.seeds ||
                   (a.transposed ? kept_feature(seed, a.keep_from, j, i) : kept_feature(seed, a.keep_from, i, j));
          },
          [&](int64_t at, int) -> Weights { return {to_acc(static_cast<const T*>(a.values)[at])}; },
          [&](int j) {
            Raw<T, kVec> row;
            if (j >= 0 && columns.active) row.load(table + int64_t(j) * a.table_row);
            return row;
          },
          [&](const Raw<T, kVec>& raw, const Weights& weights) {
            acc_t row[kVec];
            raw.get(row);
            add_product(acc, weights.x, row);
          });
      if (task.shared) sum_of_slots(lanes, acc);
      if (task.piece >= 0) {
        store_piece(a.partial, 0, a.rows, a.columns, task, columns, acc);
        return;
      }
    }
    if (task.owner && columns.active) {
      acc_t out[kVec] = {};
      if (a.bias) load<T>(out, a.bias, columns.offset);
      add_product(out, acc_t(a.scale), acc);
      store<T>(a.out, int64_t(i) * a.out_row + r * a.out_replica + own, out);
    }
  }
};

// out_ij = scale m(i, j) x_ij for the stored entries of row i, a warp for each row; out holds zeros elsewhere.
template <class T>
__global__ void __launch_bounds__(kThreads) sparse_dense_kernel(const __grid_constant__ SparseDenseArgs a) {
  const int64_t i = int64_t(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= a.num_rows) return;
  const int64_t end = __ldg(a.rowptr + i + 1);
  const uint64_t seed = a.seed ? uint64_t(__ldg(a.seed)) : 0;
  for (int64_t at = __ldg(a.rowptr + i) + threadIdx.x % kWarp; at < end; at += kWarp) {
    const int j = __ldg(a.col + at);
    if (a.seed && !kept_feature(seed, a.keep_from, int(i), j)) continue;
    const acc_of<T> value[1] = {acc_of<T>(a.scale) * to_acc(static_cast<const T*>(a.values)[at])};
    store<T>(a.out, i * a.columns + j, value);
  }
}

}  // namespace ugnn::cuda
