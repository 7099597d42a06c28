// Mean and variance over neighbours, also as the adaptive weight that is made of them, and the variance's backward.
#pragma once

#include <cmath>

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

UGNN_DEVICE float sigmoid(float z) { return 1 / (1 + expf(-z)); }
UGNN_DEVICE double sigmoid(double z) { return 1 / (1 + exp(-z)); }

// A divisor for sums of this weight: 0, that of no neighbours, becomes 1.
template <class acc_t>
UGNN_DEVICE acc_t positive(acc_t weight) {
  return weight > 0 ? weight : acc_t(1);
}

// mean_i = sum_j a_ij x_j / d_i,   var_i = sum_j a_ij (x_j - mean_i)^2 / d_i,   c_i = s sigmoid(<stat_i, w> + bias)
//
// A task has one block of columns; with c all those of one replica, block after block. d_i is summed beside the mean. A
// piece of a hub does not know the mean m of its row. It takes squares about a centre of its own, the rounded mean z of
// the piece, and leaves z, its weight w, the residual e = sum a (x - z) and q = sum a (x - z)^2, so that
// sum a (x - m)^2 = q + (2 e + w (z - m)) (z - m).
template <class T, int kVec, bool kVar>
struct NeighborStat {
  using Args = NeighborStatArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  // as many as 64 registers allow
  static constexpr int kTogether = kVar && kVec > 1 ? 2 : 4;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  struct Weights {
    acc_t a;
    UGNN_DEVICE Weights from(int lane) const { return {__shfl_sync(kAllLanes, a, lane)}; }
  };

  static UGNN_HOST_DEVICE int columns(const Args& a) {
    return a.columns.width / a.columns.D * (a.c ? 1 : a.columns.blocks);
  }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int column, bool hub) {
    const int per_task = a.c ? a.columns.blocks : 1, of_replica = a.columns.blocks / per_task;
    const int r = column / of_replica;
    acc_t product = 0;
    for (int k = 0; k < per_task; ++k) {
      const Columns columns(a.columns, lanes, kVec, r, column % of_replica + k);
      acc_t mean[kVec] = {}, var[kVec] = {};
      if (hub) {
        of_pieces(a, lanes, task, columns, mean, var);
      } else if (!of_entries(a, lanes, task, columns, mean, var)) {
        continue;
      }
      if (task.owner && columns.active) {
        const int64_t at = int64_t(task.i) * a.columns.width + columns.offset;
        if (a.mean) store<acc_t>(a.mean, at, mean);
        if (a.var) store<T>(a.var, at, var);
        if (a.c) {
          acc_t w[kVec];
          load<acc_t>(w, a.w, columns.offset);
          product += kVar ? dot(var, w) : dot(mean, w);
        }
      }
    }
    if (!a.c || task.piece >= 0) return;
    product = sum_of_columns(lanes, product);
    if (task.owner && lanes.column == 0) {
      if (a.bias) product += number<acc_t>(a.bias, r);
      static_cast<acc_t*>(a.c)[int64_t(task.i) * (a.columns.width / a.columns.D) + r] = acc_t(a.s) * sigmoid(product);
    }
  }

  // add(a_ij, x_j) for all entries
  template <class Add>
  static UGNN_DEVICE void for_values(const Args& a, const Lanes& lanes, const Task& task, const Columns& columns,
                                     Add add) {
    const T* table = static_cast<const T*>(a.x) + columns.offset;
    for_entries<Weights, kTogether>(
        a.rows, lanes, task,
        [&](int64_t at, int) -> Weights { return {a.rows.weight ? acc_t(__ldg(a.rows.weight + at)) : acc_t(1)}; },
        [&](int j) {
          Raw<T, kVec> x;
          if (j >= 0 && columns.active) x.load(table + int64_t(j) * a.columns.width);
          return x;
        },
        [&](const Raw<T, kVec>& raw, const Weights& weights) {
          acc_t x[kVec];
          raw.get(x);
          add(weights.a, x);
        });
  }

  // Mean and variance of a row; false for a piece of a hub, which leaves its sums.
  static UGNN_DEVICE bool of_entries(const Args& a, const Lanes& lanes, const Task& task, const Columns& columns,
                                     acc_t (&mean)[kVec], acc_t (&var)[kVec]) {
    acc_t weight[1] = {};
    for_values(a, lanes, task, columns, [&](acc_t a_ij, const acc_t(&x)[kVec]) {
      add_product(mean, a_ij, x);
      weight[0] += a_ij;
    });
    if (task.shared) {
      sum_of_slots(lanes, mean);
      sum_of_slots(lanes, weight);
    }
    const acc_t divisor = positive(weight[0]);
#pragma unroll
    for (int k = 0; k < kVec; ++k) mean[k] /= divisor;
    acc_t residual[kVec] = {};
    if (kVar) {
      for_values(a, lanes, task, columns, [&](acc_t a_ij, const acc_t(&x)[kVec]) {
#pragma unroll
        for (int k = 0; k < kVec; ++k) {
          const acc_t off = x[k] - mean[k], scaled = a_ij * off;
          residual[k] += scaled;
          var[k] += scaled * off;
        }
      });
      if (task.shared) sum_of_slots(lanes, var);
    }
    if (task.piece < 0) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) var[k] /= divisor;
      return true;
    }
    store_piece(a.partial, 0, a.rows, a.columns, task, columns, mean);
    acc_t weights[kVec] = {};
#pragma unroll
    for (int k = 0; k < kVec; ++k) weights[k] = weight[0];
    store_piece(a.partial, 1, a.rows, a.columns, task, columns, weights);
    if (kVar) {
      sum_of_slots(lanes, residual);
      store_piece(a.partial, 2, a.rows, a.columns, task, columns, residual);
      store_piece(a.partial, 3, a.rows, a.columns, task, columns, var);
    }
    return false;
  }

  // The same of a hub, from what its pieces left.
  static UGNN_DEVICE void of_pieces(const Args& a, const Lanes& lanes, const Task& task, const Columns& columns,
                                    acc_t (&mean)[kVec], acc_t (&var)[kVec]) {
    const auto for_pieces = [&](auto add) {
      for (int piece = lanes.slot; piece < task.length && columns.active; piece += lanes.slots) {
        add((task.begin + piece) * a.columns.width + columns.offset);
      }
    };
    const int64_t size = int64_t(a.rows.num_pieces) * a.columns.width;
    acc_t weight[1] = {};  // the same in all columns
    for_pieces([&](int64_t at) {
      acc_t centre[kVec];
      load<acc_t>(centre, a.partial, at);
      const acc_t w = number<acc_t>(a.partial, at + size);
      add_product(mean, w, centre);
      weight[0] += w;
    });
    sum_of_slots(lanes, mean);
    sum_of_slots(lanes, weight);
    const acc_t divisor = positive(weight[0]);
#pragma unroll
    for (int k = 0; k < kVec; ++k) mean[k] /= divisor;
    if (!kVar) return;
    for_pieces([&](int64_t at) {
      acc_t centre[kVec], residual[kVec], squares[kVec];
      load<acc_t>(centre, a.partial, at);
      const acc_t w = number<acc_t>(a.partial, at + size);
      load<acc_t>(residual, a.partial, at + 2 * size);
      load<acc_t>(squares, a.partial, at + 3 * size);
#pragma unroll
      for (int k = 0; k < kVec; ++k) {
        const acc_t off = centre[k] - mean[k];
        var[k] += squares[k] + (2 * residual[k] + w * off) * off;
      }
    });
    sum_of_slots(lanes, var);
#pragma unroll
    for (int k = 0; k < kVec; ++k) var[k] /= divisor;
  }
};

// dx_i = 2 sum_j a_ij / d_j g_j (x_i - mean_j), the sum over the row of i as the matrix is its own transpose. A task
// has one block of columns.
template <class T, int kVec>
struct NeighborVarBwd {
  using Args = NeighborVarBwdArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  static constexpr int kTogether = 2;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  struct Weights {
    acc_t w;  // a_ij / d_j
    UGNN_DEVICE Weights from(int lane) const { return {__shfl_sync(kAllLanes, w, lane)}; }
  };
  struct Fetched {
    Raw<acc_t, kVec> grad, mean;
  };

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.width / a.columns.D * a.columns.blocks; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int column, bool hub) {
    const Columns columns(a.columns, lanes, kVec, column / a.columns.blocks, column % a.columns.blocks);
    const int64_t at = int64_t(task.i) * a.columns.width + columns.offset;
    acc_t acc[kVec] = {};
    if (hub) {
      sum_pieces(a.partial, 0, a.rows, a.columns, lanes, task, columns, acc);
    } else {
      Raw<T, kVec> raw;
      if (task.length > 0 && columns.active) raw.load(static_cast<const T*>(a.x) + at);
      acc_t x[kVec];
      raw.get(x);
      for_entries<Weights, kTogether>(
          a.rows, lanes, task,
          [&](int64_t entry, int j) -> Weights {
            const acc_t weight = a.rows.weight ? acc_t(__ldg(a.rows.weight + entry)) : acc_t(1);
            return {weight / number<acc_t>(a.degree, j)};
          },
          [&](int j) {
            Fetched fetched;
            if (j >= 0 && columns.active) {
              const int64_t at_j = int64_t(j) * a.columns.width + columns.offset;
              fetched.grad.load(static_cast<const acc_t*>(a.grad) + at_j);
              fetched.mean.load(static_cast<const acc_t*>(a.mean) + at_j);
            }
            return fetched;
          },
          [&](const Fetched& fetched, const Weights& weights) {
            acc_t grad[kVec], mean[kVec];
            fetched.grad.get(grad);
            fetched.mean.get(mean);
#pragma unroll
            for (int k = 0; k < kVec; ++k) acc[k] += weights.w * grad[k] * (x[k] - mean[k]);
          });
      if (task.shared) sum_of_slots(lanes, acc);
      if (task.piece >= 0) {
        store_piece(a.partial, 0, a.rows, a.columns, task, columns, acc);
        return;
      }
    }
    if (task.owner && columns.active) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) acc[k] *= 2;
      store<T>(a.grad_x, at, acc);
    }
  }
};

}  // namespace ugnn::cuda
