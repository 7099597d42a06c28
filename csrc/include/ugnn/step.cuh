// One step: sums of neighbours' rows with an epilogue, the aggregation behind propagate, ada_propagate and solve.
#pragma once

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

template <class acc_t>
UGNN_DEVICE acc_t coefficient(const CoefArgs& c, int i, int r) {
  const acc_t scale = acc_t(c.scale);
  return c.values ? scale * number<acc_t>(c.values, int64_t(i) * c.row_stride + int64_t(r) * c.replica_stride) : scale;
}

// H_{k+1} = clamp(keep H_k + agg left sum_j a_ij W_ij u_j + skip X + prev H_{k-1}), u = right H_k
//
// kPlain: s_i = sum_j a_ij u_j is wanted too. A task has one block of columns of one replica.
template <class T, int kVec, bool kPlain>
struct Step {
  using Args = StepArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  // as many as 64 registers allow
  static constexpr int kTogether = kPlain || kVec == 8 ? 2 : 4;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  struct Weights {
    acc_t w, a;  // a_ij W_ij; a_ij, with kPlain
    UGNN_DEVICE Weights from(int lane) const {
      return {__shfl_sync(kAllLanes, w, lane), kPlain ? __shfl_sync(kAllLanes, a, lane) : a};
    }
  };

  static UGNN_DEVICE acc_t c_of(const Args& a, int i, int r) {
    return number<acc_t>(a.c, int64_t(i) * a.c_row + int64_t(r) * a.c_replica);
  }

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.width / a.columns.D * a.columns.blocks; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int column, bool hub) {
    const int i = task.i, r = column / a.columns.blocks;
    const Columns columns(a.columns, lanes, kVec, r, column % a.columns.blocks);
    acc_t acc[kVec] = {}, plain[kVec] = {};
    if (hub) {
      sum_pieces(a.partial, 0, a.rows, a.columns, lanes, task, columns, acc);
      if (kPlain) sum_pieces(a.partial, 1, a.rows, a.columns, lanes, task, columns, plain);
    } else {
      const acc_t c_i = a.c ? c_of(a, i, r) : acc_t(0);
      const T* table = static_cast<const T*>(a.table) + columns.offset;
      for_entries<Weights, kTogether>(
          a.rows, lanes, task,
          [&](int64_t at, int j) -> Weights {
            const acc_t weight = a.rows.weight ? acc_t(__ldg(a.rows.weight + at)) : acc_t(1);
            acc_t w = weight;
            if (a.c) w *= c_i + c_of(a, j, r);
            if (a.edge) w *= number<acc_t>(a.edge, a.reverse ? __ldg(a.reverse + at) : at);
            return {w, weight};
          },
          [&](int j) {
            Raw<T, kVec> u;
            if (j >= 0 && columns.active) u.load(table + int64_t(j) * a.columns.width);
            return u;
          },
          [&](const Raw<T, kVec>& raw, const Weights& weights) {
            acc_t u[kVec];
            raw.get(u);
            add_product(acc, weights.w, u);
            if (kPlain) add_product(plain, weights.a, u);
          });
      if (task.shared) {
        sum_of_slots(lanes, acc);
        if (kPlain) sum_of_slots(lanes, plain);
      }
      if (task.piece >= 0) {
        store_piece(a.partial, 0, a.rows, a.columns, task, columns, acc);
        if (kPlain) store_piece(a.partial, 1, a.rows, a.columns, task, columns, plain);
        return;
      }
    }
    if (task.owner && columns.active) finish(a, i, r, int64_t(i) * a.columns.width + columns.offset, acc, plain);
  }

  static UGNN_DEVICE void finish(const Args& a, int i, int r, int64_t at, const acc_t (&acc)[kVec],
                                 const acc_t (&plain)[kVec]) {
    acc_t h[kVec] = {};
    add_product(h, coefficient<acc_t>(a.agg, i, r) * (a.left ? number<acc_t>(a.left, i) : acc_t(1)), acc);
    add_row(h, a.skip, a.x, i, r, at);
    add_row(h, a.keep, a.h, i, r, at);
    add_row(h, a.prev, a.before, i, r, at);
    if (a.clamp) {
      const acc_t lo = acc_t(a.lo), hi = acc_t(a.hi);
      // comparisons, so that NaN stays
#pragma unroll
      for (int k = 0; k < kVec; ++k) h[k] = h[k] < lo ? lo : h[k] > hi ? hi : h[k];
    }
    if (kPlain) store<T>(a.s, at, plain);
    if (a.out) store<T>(a.out, at, h);
    if (a.total) {
      acc_t total[kVec];
      load<acc_t>(total, a.total, at);
      add_product(total, number<acc_t>(a.gamma, 0), h);
      store<acc_t>(a.total, at, total);
    }
    if (a.next) {
      acc_t next[kVec] = {};
      add_product(next, number<acc_t>(a.right, i), h);
      store<T>(a.next, at, next);
    }
  }

  static UGNN_DEVICE void add_row(acc_t (&h)[kVec], const CoefArgs& coef, const void* table, int i, int r, int64_t at) {
    if (!table) return;
    acc_t row[kVec];
    load<T>(row, table, at);
    add_product(h, coefficient<acc_t>(coef, i, r), row);
  }
};

}  // namespace ugnn::cuda
