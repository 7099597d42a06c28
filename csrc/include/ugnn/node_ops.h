// Small passes over a graph signal: label smoothness, the terms of the denoising energy, products per edge, sums.
#pragma once

#include <cmath>

#include "ugnn/ops.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// share of labelled neighbours, the node itself not counted, that carry the node's label
inline void local_smoothness(const LocalSmoothness& a) {
  RowSplit split;
  split_rows(useful_threads(a.threads, a.g.E), a.g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(a.g, split);
    const int thread = omp_get_thread_num();
    for (int64_t i = split.begin(thread); i < split.end(thread); ++i) {
      int64_t same = 0, labelled = 0;
      for (int64_t e = a.g.rowptr[i]; e < a.g.rowptr[i + 1]; ++e) {
        const int64_t j = a.g.col[e];
        if (j == i || a.labels[j] < 0) continue;
        ++labelled;
        same += a.labels[j] == a.labels[i];
      }
      a.out[i] = labelled && a.labels[i] >= 0 ? float(double(same) / double(labelled)) : NAN;
    }
  }
}

template <class T, int kLanes, int kVecs>
void denoising_energy_rows(const DenoisingEnergy& a, const Slice& slice, const T* table, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  using V = vec_t<A, kLanes>;
  A* out = static_cast<A*>(a.out) + slice.r;
  for (int64_t i = begin; i < end; ++i) {
    V own[kVecs];
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) own[v] = load<kLanes>(table + i * slice.ld + v * kLanes);
    A total = 0;
    for_blocks(a.g, i, [&](int64_t first, int64_t last) {
      V sum{};
      for (int64_t e = first; e < last; ++e) {
        const A w = a.g.weight ? A(a.g.weight[e]) : A(1);
        const T* row = table + a.g.col[e] * int64_t(slice.ld);
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const V off = own[v] - load<kLanes>(row + v * kLanes);
          sum += w * (off * off);
        }
      }
      total += sum_lanes<A, kLanes>(sum);
    });
    out[i * a.R] += total;
  }
}

template <class T>
void denoising_energy(const DenoisingEnergy& a) {
  using A = acc_t<T>;
  const Slices<T> all_slices{a.R, a.D};
  const int64_t N = a.g.N, slices = all_slices.count();
  const int max_ld = all_slices.max_ld();
  Buffer<A> rho(N);
  // rounding rho f to a 16-bit type would drown small differences
  Buffer<A> table(N * max_ld);
  RowSplit split;
  split_rows(useful_threads(a.threads, (a.g.E + kRowCost * N) * max_ld), a.g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(a.g, split);
    int64_t begin, end;
    even_share(N, begin, end);
    const int thread = omp_get_thread_num();
    for (int64_t i = begin; i < end; ++i) rho.get()[i] = rho_of<A>(a.g, i);
    for (int64_t k = begin * a.R; k < end * a.R; ++k) static_cast<A*>(a.out)[k] = 0;
    for (int64_t number = 0; number < slices; ++number) {
      const Slice slice = all_slices.at(number);
      for (int64_t i = begin; i < end; ++i) {
        const T* f = static_cast<const T*>(a.f) + i * a.R * a.D + slice.first;
        for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>& stored) {
          store_first<kBlock>(table.get() + i * slice.ld + d, rho.get()[i] * load_first<kBlock>(f + d, columns),
                              stored);
        });
      }
      split.wait();
      for_shape<T>(slice.ld, [&](auto shape) {
        denoising_energy_rows<A, shape.kLanes, shape.kVecs>(a, slice, table.get(), split.begin(thread),
                                                            split.end(thread));
      });
      split.wait();
    }
  }
}

template <class A>
void edge_dot(const EdgeDot& a) {
  constexpr int kLanes = 8;
  using V = vec_t<A, kLanes>;
  const A *v = static_cast<const A*>(a.v), *u = static_cast<const A*>(a.u);
  const int64_t whole = a.D / kLanes * kLanes;
  const Tail<kLanes> rest(int(a.D - whole));
  RowSplit split;
  split_rows(useful_threads(a.threads, a.g.E * a.D), a.g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(a.g, split);
    const int thread = omp_get_thread_num();
    for (int64_t i = split.begin(thread); i < split.end(thread); ++i) {
      for (int64_t e = a.g.rowptr[i]; e < a.g.rowptr[i + 1]; ++e) {
        const A *own = v + i * a.D, *other = u + a.g.col[e] * a.D;
        V sum{};
        for (int64_t d = 0; d < whole; d += kLanes) sum += load<kLanes>(own + d) * load<kLanes>(other + d);
        if (rest.n) sum += load_first<kLanes>(own + whole, rest) * load_first<kLanes>(other + whole, rest);
        static_cast<A*>(a.out)[e] = sum_lanes<A, kLanes>(sum);
      }
    }
  }
}

// Blocks of rows of one size are summed in double, then the blocks in their order.
template <class A>
void row_sum(const RowSum& a) {
  constexpr int64_t kRows = 1024;
  const int64_t blocks = (a.N + kRows - 1) / kRows;
  Buffer<double> sums(blocks * a.D);
  const A* values = static_cast<const A*>(a.values);
#pragma omp parallel for num_threads(useful_threads(a.threads, a.N* a.D))
  for (int64_t block = 0; block < blocks; ++block) {
    double* sum = sums.get() + block * a.D;
    for (int64_t d = 0; d < a.D; ++d) sum[d] = 0;
    const int64_t end = (block + 1) * kRows < a.N ? (block + 1) * kRows : a.N;
    for (int64_t i = block * kRows; i < end; ++i) {
      for (int64_t d = 0; d < a.D; ++d) sum[d] += double(values[i * a.D + d]);
    }
  }
  A* out = static_cast<A*>(a.out);
  for (int64_t d = 0; d < a.D; ++d) {
    double sum = 0;
    for (int64_t block = 0; block < blocks; ++block) sum += sums.get()[block * a.D + d];
    out[d] = A(sum);
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
