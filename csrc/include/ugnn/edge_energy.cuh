// The graph part of the denoising energy, for every node.
#pragma once

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// out_i = sum_j a_ij |rho_i f_i - rho_j f_j|^2. A task has all columns of one replica, block after block.
template <class T, int kVec>
struct EdgeEnergy {
  using Args = EdgeEnergyArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  static constexpr int kTogether = kVec >= 4 ? 2 : 4;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  struct Weights {
    acc_t a, rho;  // a_ij, rho_j; a is 0 where there is no entry
    UGNN_DEVICE Weights from(int lane) const {
      return {__shfl_sync(kAllLanes, a, lane), __shfl_sync(kAllLanes, rho, lane)};
    }
  };

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.width / a.columns.D; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int r, bool hub) {
    acc_t sum = 0;
    for (int block = 0; block < a.columns.blocks; ++block) {
      const Columns columns(a.columns, lanes, kVec, r, block);
      acc_t acc[kVec] = {};
      if (hub) {
        sum_pieces(a.partial, 0, a.rows, a.columns, lanes, task, columns, acc);
      } else {
        sum_entries(a, lanes, task, columns, acc);
        if (task.piece >= 0) {
          store_piece(a.partial, 0, a.rows, a.columns, task, columns, acc);
          continue;
        }
      }
#pragma unroll
      for (int k = 0; k < kVec; ++k) sum += acc[k];
    }
    if (task.piece >= 0) return;
    sum = sum_of_columns(lanes, sum);
    if (task.owner && lanes.column == 0) static_cast<acc_t*>(a.out)[int64_t(task.i) * EdgeEnergy::columns(a) + r] = sum;
  }

  static UGNN_DEVICE void sum_entries(const Args& a, const Lanes& lanes, const Task& task, const Columns& columns,
                                      acc_t (&acc)[kVec]) {
    const T* table = static_cast<const T*>(a.f) + columns.offset;
    acc_t u[kVec] = {};
    if (task.length > 0 && columns.active) {
      acc_t f[kVec];
      load<T>(f, table, int64_t(task.i) * a.columns.width);
      add_product(u, number<acc_t>(a.rho, task.i), f);
    }
    for_entries<Weights, kTogether>(
        a.rows, lanes, task,
        [&](int64_t at, int j) -> Weights {
          return {a.rows.weight ? acc_t(__ldg(a.rows.weight + at)) : acc_t(1), number<acc_t>(a.rho, j)};
        },
        [&](int j) {
          Raw<T, kVec> f;
          if (j >= 0 && columns.active) f.load(table + int64_t(j) * a.columns.width);
          return f;
        },
        [&](const Raw<T, kVec>& raw, const Weights& weights) {
          acc_t f[kVec];
          raw.get(f);
#pragma unroll
          for (int k = 0; k < kVec; ++k) {
            // 0 times an infinite u would be NaN
            const acc_t off = weights.a > 0 ? u[k] - weights.rho * f[k] : acc_t(0);
            acc[k] += weights.a * off * off;
          }
        });
    if (task.shared) sum_of_slots(lanes, acc);
  }
};

}  // namespace ugnn::cuda
