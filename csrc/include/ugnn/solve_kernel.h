// Passes over the rows of the tables of solve.h: products, and the update of u, r and p.
#pragma once

#include "ugnn/step.h"

namespace ugnn {
namespace UGNN_ISA {

// Tables [N, ld] of one slice. Behind the columns of u and p lies c_i where the step kernel wants it.
template <class A>
struct SolveTables {
  A *u, *r, *p, *q;
  const Factors<A>* norms;  // [N]: 1 / D, N^2
};

// Step lengths of each column; behind the columns alpha is 0 and beta 1, which keeps what lies there. owed is alpha /
// beta of the iteration before, if u has not had its share. Where a vector has several rows they are there for each of
// them.
template <class A>
struct StepLengths {
  A alpha[kMaxWidth<A>], beta[kMaxWidth<A>], owed[kMaxWidth<A>];

  void repeat(int64_t ld) {
    for (int64_t d = ld; d < kVectorLanes<A>; ++d) {
      alpha[d] = alpha[d - ld];
      beta[d] = beta[d - ld];
      owed[d] = owed[d - ld];
    }
  }
};

// What an update does: a start has only p, and alpha = 0.
enum class Update { kStart, kWithoutU, kAll };

// Tables of narrow rows are read by whole vectors, of kRows rows each; behind the last row there is room for that.
template <class A, int kRowLanes, int kRowVecs>
struct SolveKernel {
  static constexpr int kLd = kRowLanes * kRowVecs;
  static constexpr int kRows = kVectorLanes<A> % kLd == 0 ? kVectorLanes<A> / kLd : 1;
  static constexpr int kLanes = kRows > 1 ? kVectorLanes<A> : kRowLanes;
  static constexpr int kVecs = kRows > 1 ? 1 : kRowVecs;
  using V = vec_t<A, kLanes>;

  // the two factors of the rows of a vector
  struct Norms {
    V first, second;
  };
  static UGNN_INLINE Norms norms_of(const Factors<A>* rows) {
    if constexpr (kRows == 1) {
      return {V{} + rows->first, V{} + rows->second};
    } else {
      using index_t = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
      vec_t<index_t, kLanes> first;
      for (int l = 0; l < kLanes; ++l) first[l] = l / kLd * 2;
      const A* values = &rows->first;
      const V low = load<kLanes>(values);
      if constexpr (kLd > 1) return {__builtin_shuffle(low, first), __builtin_shuffle(low, first + 1)};
      const V high = load<kLanes>(values + kLanes);
      return {__builtin_shuffle(low, high, first), __builtin_shuffle(low, high, first + 1)};
    }
  }

  // sums[d] += the values of column d of all rows of a vector
  static UGNN_INLINE void add_rows(double* sums, V vector) {
    constexpr int kPart = kRows > 1 ? kLd : kLanes;
    A values[kLanes];
    keep(vector);  // GCC would have summed up in memory
    store<kLanes>(values, vector);
    vec_t<A, kPart> sum = load<kPart>(values);
    UGNN_UNROLL
    for (int k = 1; k < kRows; ++k) sum += load<kPart>(values + k * kPart);
    if constexpr (kPart == 1) {
      *sums += double(sum);
    } else {
      store<kPart>(sums, load<kPart>(sums) + __builtin_convertvector(sum, vec_t<double, kPart>));
    }
  }

  // Adds two sums over rows for each column to sums[2][kLd]. rows(i, first, second) adds the terms of the rows of a
  // vector; those of a few rows are added up in A, then in double.
  template <class Rows>
  static UGNN_INLINE void sum_rows(int64_t begin, int64_t end, double* sums, Rows rows) {
    constexpr int64_t kFew = 32;
    for (int64_t first = begin; first < end; first += kFew) {
      const int64_t last = first + kFew < end ? first + kFew : end;
      V few[2][kVecs] = {};
      for (int64_t i = first; i < last; i += kRows) rows(i, few[0], few[1]);
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        add_rows(sums + v * kLanes, few[0][v]);
        add_rows(sums + kLd + v * kLanes, few[1][v]);
      }
    }
  }

  // <p, q> and <q, q / D> over rows [begin, end)
  static void products(const SolveTables<A>& tables, int64_t begin, int64_t end, double* sums) {
    const SolveTables<A> t = tables;
    sum_rows(begin, end, sums, [&](int64_t i, V* pq, V* qq) __attribute__((always_inline)) {
      const V inverse = norms_of(t.norms + i).first;
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = i * kLd + v * kLanes;
        const V q = load<kLanes>(t.q + at);
        pq[v] += load<kLanes>(t.p + at) * q;
        qq[v] += inverse * q * q;
      }
    });
  }

  // u += alpha p + owed (p - r / D), r -= alpha q, p = r / D + beta p; then <r, r / D> and <r, N^2 r>
  template <Update kUpdate>
  static void update(const SolveTables<A>& tables, const StepLengths<A>& lengths, int64_t begin, int64_t end,
                     double* sums) {
    const SolveTables<A> t = tables;
    sum_rows(begin, end, sums, [&](int64_t i, V* rz, V* rr) __attribute__((always_inline)) {
      const Norms norms = norms_of(t.norms + i);
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const int64_t at = i * kLd + v * kLanes;
        const V p = load<kLanes>(t.p + at);
        V r = load<kLanes>(t.r + at);
        if constexpr (kUpdate != Update::kStart) {
          const V alpha = load<kLanes>(lengths.alpha + v * kLanes);
          if constexpr (kUpdate == Update::kAll) {
            const V before = load<kLanes>(lengths.owed + v * kLanes) * (p - norms.first * r);
            store<kLanes>(t.u + at, load<kLanes>(t.u + at) + alpha * p + before);
          }
          r -= alpha * load<kLanes>(t.q + at);
          store<kLanes>(t.r + at, r);
        }
        const V z = norms.first * r;
        store<kLanes>(t.p + at, z + load<kLanes>(lengths.beta + v * kLanes) * p);
        rz[v] += z * r;
        rr[v] += norms.second * r * r;
      }
    });
  }
};

template <class A>
struct SolveRun {
  void (*products)(const SolveTables<A>&, int64_t begin, int64_t end, double* sums);
  void (*update[3])(const SolveTables<A>&, const StepLengths<A>&, int64_t begin, int64_t end,
                    double* sums);  // by Update
};

template <class A>
SolveRun<A> solve_kernel(int ld) {
  return for_shape<A>(ld, [](auto shape) -> SolveRun<A> {
    using Kernel = SolveKernel<A, decltype(shape)::kLanes, decltype(shape)::kVecs>;
    return {Kernel::products,
            {Kernel::template update<Update::kStart>, Kernel::template update<Update::kWithoutU>,
             Kernel::template update<Update::kAll>}};
  });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
