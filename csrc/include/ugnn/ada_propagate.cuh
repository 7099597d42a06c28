// Backward of one adaptive step; forward is step.cuh.
#pragma once

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// (G1) to (G3): with v = rho b G, t = sum_j a_ij v_j and y = sum_j a_ij (c_i + c_j) v_j
//
//   dC += <v, s> + <u, t>,   v <- rho^2 b y,   dX += 2 b rho y and e += <v, u> for the step before
//
// In the first step, which has none before it, dX += rho y. kGatherS: s = sum_j a_ij u_j was not kept, and is summed
// again. A task has all columns of one replica, block after block, as dC and e are sums over them.
template <class T, int kVec, bool kGatherS>
struct AdaPropagateBwd {
  using Args = AdaPropagateBwdArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  // as many as 64 registers allow; with kGatherS an entry is two rows
  static constexpr int kTogether = kGatherS && sizeof(T) == 4 && kVec == 4 ? 1 : 2;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  struct Weights {
    acc_t w, a;  // a_ij (c_i + c_j), a_ij
    UGNN_DEVICE Weights from(int lane) const {
      return {__shfl_sync(kAllLanes, w, lane), __shfl_sync(kAllLanes, a, lane)};
    }
  };
  struct Fetched {
    Raw<T, kVec> v;
    Raw<T, kGatherS ? kVec : 1> u;
  };

  static UGNN_DEVICE acc_t per_node(const Args& a, const void* values, int i, int r) {
    return number<acc_t>(values, int64_t(i) * a.c_row + int64_t(r) * a.c_replica);
  }

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.width / a.columns.D; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int r, bool hub) {
    const int i = task.i;
    const acc_t c_i = per_node(a, a.c, i, r);
    for (int block = 0; block < a.columns.blocks; ++block) {
      const Columns columns(a.columns, lanes, kVec, r, block);
      acc_t y[kVec] = {}, t[kVec] = {}, s[kVec] = {};
      if (hub) {
        sum_pieces(a.partial, 0, a.rows, a.columns, lanes, task, columns, y);
        sum_pieces(a.partial, 1, a.rows, a.columns, lanes, task, columns, t);
        if (kGatherS) sum_pieces(a.partial, 2, a.rows, a.columns, lanes, task, columns, s);
      } else {
        sum_entries(a, lanes, task, columns, c_i, y, t, s);
        if (task.piece >= 0) {
          store_piece(a.partial, 0, a.rows, a.columns, task, columns, y);
          store_piece(a.partial, 1, a.rows, a.columns, task, columns, t);
          if (kGatherS) store_piece(a.partial, 2, a.rows, a.columns, task, columns, s);
          continue;
        }
      }
      acc_t grad_c = 0, e = 0;
      if (task.owner && columns.active) {
        const int64_t at = int64_t(i) * a.columns.width + columns.offset;
        acc_t u[kVec], v[kVec];
        load<T>(u, a.u, at);
        load<T>(v, a.table, at);
        if (!kGatherS) load<T>(s, a.s, at);
        grad_c = dot(v, s) + dot(u, t);
        e = finish(a, i, r, at, y, u);
      }
      grad_c = sum_of_columns(lanes, grad_c);
      e = sum_of_columns(lanes, e);
      if (task.owner && lanes.column == 0) {
        const int64_t at = int64_t(i) * AdaPropagateBwd::columns(a) + r;
        static_cast<acc_t*>(a.grad_c)[at] += grad_c;
        if (a.next) static_cast<acc_t*>(a.e)[at] += e;
      }
    }
  }

  static UGNN_DEVICE void sum_entries(const Args& a, const Lanes& lanes, const Task& task, const Columns& columns,
                                      acc_t c_i, acc_t (&y)[kVec], acc_t (&t)[kVec], acc_t (&s)[kVec]) {
    for_entries<Weights, kTogether>(
        a.rows, lanes, task,
        [&](int64_t at, int j) -> Weights {
          const acc_t weight = a.rows.weight ? acc_t(__ldg(a.rows.weight + at)) : acc_t(1);
          const acc_t c_j = per_node(a, a.c, j, columns.replica);
          return {weight * (c_i + c_j), weight};
        },
        [&](int j) {
          Fetched fetched;
          if (j >= 0 && columns.active) {
            const int64_t at = int64_t(j) * a.columns.width + columns.offset;
            fetched.v.load(static_cast<const T*>(a.table) + at);
            if constexpr (kGatherS) fetched.u.load(static_cast<const T*>(a.u) + at);
          }
          return fetched;
        },
        [&](const Fetched& fetched, const Weights& weights) {
          acc_t row[kVec];
          fetched.v.get(row);
          add_product(y, weights.w, row);
          add_product(t, weights.a, row);
          if constexpr (kGatherS) {
            fetched.u.get(row);
            add_product(s, weights.a, row);
          }
        });
    if (task.shared) {
      sum_of_slots(lanes, y);
      sum_of_slots(lanes, t);
      if (kGatherS) sum_of_slots(lanes, s);
    }
  }

  // <v, u> for the step before, with v as it is stored: docs/math.md says why
  static UGNN_DEVICE acc_t finish(const Args& a, int i, int r, int64_t at, const acc_t (&y)[kVec],
                                  const acc_t (&u)[kVec]) {
    const acc_t rho = number<acc_t>(a.rho, i);
    const acc_t q = a.next ? per_node(a, a.b, i, r) * rho : rho;
    acc_t e = 0;
    if (a.next) {
      acc_t next[kVec] = {};
      add_product(next, rho * q, y);
      Raw<T, kVec> stored;
      stored.set(next);
      stored.store(static_cast<T*>(a.next) + at);
      stored.get(next);
      e = dot(next, u);
    }
    acc_t grad_x[kVec];
    load<acc_t>(grad_x, a.grad_x, at);
    add_product(grad_x, a.next ? 2 * q : q, y);
    store<acc_t>(a.grad_x, at, grad_x);
    return e;
  }
};

}  // namespace ugnn::cuda
