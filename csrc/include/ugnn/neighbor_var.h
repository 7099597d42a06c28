// Mean and population variance over neighbours, and ADA-UGNN's C from them.
//
// Two passes over the neighbours of a row, the second one from cache: a large common offset in x must not cost digits.
#pragma once

#include <cmath>

#include "ugnn/ops.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

template <class A>
UGNN_INLINE A entry_weight(const Csr& g, int64_t e) {
  return g.weight ? A(g.weight[e]) : A(1);
}

template <class T, int kLanes, int kVecs>
struct NeighborVarKernel {
  using A = acc_t<T>;
  using V = vec_t<A, kLanes>;

  // lanes of vector v that are columns: all but in the last one
  static UGNN_INLINE Tail<kLanes> lanes(const Slice& slice, int v) {
    return Tail<kLanes>(v < kVecs - 1 ? kLanes : slice.width - (kVecs - 1) * kLanes);
  }

  // table [N, slice.ld]; logits [N, R] += <stat_i, weight>
  static void rows(const NeighborStat& a, const Slice& slice, const T* table, A* logits, int64_t begin, int64_t end) {
    const Csr& g = a.g;
    const int64_t ldx = a.R * a.D;
    V weight[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      weight[v] = a.weight
                      ? load_first<kLanes>(static_cast<const A*>(a.weight) + slice.first + v * kLanes, lanes(slice, v))
                      : V{};
    }
    const bool want_var = a.var || (a.weight && !a.of_mean);
    const Ahead ahead = ahead_of(g.N, slice.ld * sizeof(T));
    for (int64_t i = begin; i < end; ++i) {
      const A scale = g.degree[i] > 0 ? 1 / degree_of<A>(g, i) : A(0);
      V mean[kVecs], var[kVecs];
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) mean[v] = var[v] = V{};
      for_blocks(g, i, [&](int64_t first, int64_t last) {
        V sum[kVecs] = {};
        for (int64_t e = first; e < last; ++e) {
          if (ahead && e + ahead.entries < g.E)
            ahead.template fetch<kLanes * kVecs>(table + g.col[e + ahead.entries] * int64_t(slice.ld));
          const A w = entry_weight<A>(g, e);
          const T* row = table + g.col[e] * int64_t(slice.ld);
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) sum[v] += w * load<kLanes>(row + v * kLanes);
        }
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) mean[v] += scale * sum[v];
      });
      if (want_var) {
        for_blocks(g, i, [&](int64_t first, int64_t last) {
          V sum[kVecs] = {};
          for (int64_t e = first; e < last; ++e) {
            const A w = entry_weight<A>(g, e);
            const T* row = table + g.col[e] * int64_t(slice.ld);
            UGNN_UNROLL
            for (int v = 0; v < kVecs; ++v) {
              const V off = load<kLanes>(row + v * kLanes) - mean[v];
              sum[v] += w * (off * off);
            }
          }
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) var[v] += scale * sum[v];
        });
      }
      V dot{};
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const Tail<kLanes> n = lanes(slice, v);
        const int64_t at = i * ldx + slice.first + v * kLanes;
        if (a.mean) store_first<kLanes>(static_cast<A*>(a.mean) + at, mean[v], n);
        if (a.var) store_first<kLanes>(static_cast<T*>(a.var) + at, var[v], n);
        dot += weight[v] * (a.of_mean ? mean[v] : var[v]);
      }
      if (logits) logits[i * a.R + slice.r] += sum_lanes<A, kLanes>(dot);
    }
  }

  // grads [N, 2, ld]: g_i / d_i and mean_i side by side, so that a neighbour costs one row
  static void backward_rows(const NeighborVarBackward& a, const Slice& slice, const A* grads, int64_t begin,
                            int64_t end) {
    const Csr& g = a.g;
    const Ahead ahead = ahead_of(g.N, 2 * slice.ld * sizeof(A));
    for (int64_t j = begin; j < end; ++j) {
      const int64_t at = j * a.R * a.D + slice.first;
      V x[kVecs], sum[kVecs];
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        x[v] = load_first<kLanes>(static_cast<const T*>(a.x) + at + v * kLanes, lanes(slice, v));
        sum[v] = V{};
      }
      for (int64_t e = g.rowptr[j]; e < g.rowptr[j + 1]; ++e) {
        if (ahead && e + ahead.entries < g.E)
          ahead.template fetch<2 * kLanes * kVecs>(grads + g.col[e + ahead.entries] * int64_t(2 * slice.ld));
        const A w = entry_weight<A>(g, e);
        const A* row = grads + g.col[e] * int64_t(2 * slice.ld);
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const V off = x[v] - load<kLanes>(row + slice.ld + v * kLanes);
          sum[v] += w * (load<kLanes>(row + v * kLanes) * off);
        }
      }
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        store_first<kLanes>(static_cast<T*>(a.grad_x) + at + v * kLanes, 2 * sum[v], lanes(slice, v));
      }
    }
  }
};

template <class T>
void neighbor_stat(const NeighborStat& a, const SliceRange& range) {
  using A = acc_t<T>;
  const Slices<T> all_slices{a.R, a.D};
  const int64_t N = a.g.N, ldx = a.R * a.D, slices = all_slices.count();
  const int64_t first_r = slices ? all_slices.at(range.first).r : 0;
  const int64_t end_r = slices ? all_slices.at(range.end - 1).r + 1 : a.R;
  const int max_ld = all_slices.max_ld();
  const T* x = static_cast<const T*>(a.x);
  A* logits = static_cast<A*>(a.c);
  const bool x_is_table = slices == 1 && padded<T>(int(a.D)) == a.D;
  Buffer<T> work(x_is_table ? 0 : N * max_ld);
  RowSplit split;
  split_rows(range.threads, a.g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(a.g, split);
    int64_t begin, end;
    even_share(N, begin, end);
    const int thread = omp_get_thread_num();
    const int64_t first = split.begin(thread), last = split.end(thread);
    auto for_logits = [&](auto body) {
      for (int64_t i = first; logits && i < last; ++i) {
        for (int64_t r = first_r; r < end_r; ++r) body(logits[i * a.R + r], r);
      }
    };
    for_logits([](A& logit, int64_t) { logit = 0; });
    for (int64_t number = range.first; number < range.end; ++number) {
      const Slice slice = all_slices.at(number);
      if (!x_is_table) {
        fill_table<T>(
            work.get(), slice, x, ldx, nullptr, false, false, [](int64_t) { return A(1); }, nullptr, begin, end);
        split.wait();
      }
      for_shape<T>(slice.ld, [&](auto shape) {
        NeighborVarKernel<T, shape.kLanes, shape.kVecs>::rows(a, slice, x_is_table ? x : work.get(), logits, first,
                                                              last);
      });
      split.wait();
    }
    for_logits([&](A& logit, int64_t r) {
      const A z = logit + (a.bias ? static_cast<const A*>(a.bias)[r] : A(0));
      logit = A(a.s) / (1 + std::exp(-z));
    });
  }
}

template <class T>
void neighbor_stat(const NeighborStat& a) {
  const Slices<T> slices{a.R, a.D};
  for_slices(a.threads, slices.count(), slices.per_replica(), (a.g.E + kRowCost * a.g.N) * slices.max_ld(), 1,
             [&](const SliceRange& range) { neighbor_stat<T>(a, range); });
}

template <class T>
void neighbor_var_backward(const NeighborVarBackward& a, const SliceRange& range) {
  using A = acc_t<T>;
  const Slices<T> all_slices{a.R, a.D};
  const int64_t N = a.g.N, ldx = a.R * a.D;
  const int max_ld = all_slices.max_ld();
  Buffer<A> work(2 * N * max_ld);
  RowSplit split;
  split_rows(range.threads, a.g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(a.g, split);
    int64_t begin, end;
    even_share(N, begin, end);
    const int thread = omp_get_thread_num();
    for (int64_t number = range.first; number < range.end; ++number) {
      const Slice slice = all_slices.at(number);
      for (int64_t i = begin; i < end; ++i) {
        const A scale = a.g.degree[i] > 0 ? 1 / degree_of<A>(a.g, i) : A(0);
        const A* grad = static_cast<const A*>(a.grad) + i * ldx + slice.first;
        const A* mean = static_cast<const A*>(a.mean) + i * ldx + slice.first;
        A* row = work.get() + i * 2 * slice.ld;
        for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>& stored) {
          store_first<kBlock>(row + d, scale * load_first<kBlock>(grad + d, columns), stored);
          store_first<kBlock>(row + slice.ld + d, load_first<kBlock>(mean + d, columns), stored);
        });
      }
      split.wait();
      for_shape<T>(slice.ld, [&](auto shape) {
        NeighborVarKernel<T, shape.kLanes, shape.kVecs>::backward_rows(a, slice, work.get(), split.begin(thread),
                                                                       split.end(thread));
      });
      split.wait();
    }
  }
}

template <class T>
void neighbor_var_backward(const NeighborVarBackward& a) {
  const Slices<T> slices{a.R, a.D};
  for_slices(a.threads, slices.count(), 1, (a.g.E + kRowCost * a.g.N) * slices.max_ld(), 1,
             [&](const SliceRange& range) { neighbor_var_backward<T>(a, range); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
