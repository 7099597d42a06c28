// DropEdge: the stored entries that a random mask keeps, as a graph of their own for the time of one call.
//
// Entry (i, j) is kept if it is a loop, or if the first word of the counter (min(i, j), max(i, j), 0, kDropEdge) is
// large enough: both directions agree, and nothing random is stored between calls.
#pragma once

#include "ugnn/philox_vec.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// Bit k: whether entry k of the n <= 8 entries of row i with these columns is kept.
UGNN_INLINE unsigned kept_of_eight(const PhiloxKeys& keys, uint32_t from, int64_t i, const int32_t* col, int n) {
  const PhiloxVec zero{}, own = zero + uint64_t(i), stream = zero + uint32_t(Stream::kDropEdge);
  unsigned bits = 0;
  for (int k = 0; k < n; k += kPhiloxLanes) {
    const int lanes = n - k < kPhiloxLanes ? n - k : kPhiloxLanes;
    const PhiloxVec j = load_words<kPhiloxLanes>(col + k, lanes);
    const PhiloxVec low = j < own ? j : own, high = j < own ? own : j, all = zero + ~uint64_t(0);
    const PhiloxVec words = philox_first_word(keys, low, high, zero, stream);
    bits |= lanes_from<kPhiloxLanes>(j == own ? all : words, from, lanes) << k;
  }
  return bits;
}

// body(k, bits) for every eight entries k .. of row i
template <class Body>
UGNN_INLINE void for_kept(const Csr& g, const PhiloxKeys& keys, int64_t i, Body body) {
  for (int64_t e = g.rowptr[i]; e < g.rowptr[i + 1]; e += 8) {
    const int n = int(g.rowptr[i + 1] - e < 8 ? g.rowptr[i + 1] - e : 8);
    body(e, kept_of_eight(keys, g.keep_from, i, g.col + e, n));
  }
}

// degree_i = sum of the weights of the entries that are kept
inline void kept_degree(const Csr& g, int threads, float* degree) {
  const PhiloxKeys keys(g.drop_seed);
  RowSplit split;
  split_rows(useful_threads(threads, g.E), g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(g, split);
    const int thread = omp_get_thread_num();
    for (int64_t i = split.begin(thread); i < split.end(thread); ++i) {
      double sum = 0;
      for_kept(g, keys, i, [&](int64_t e, unsigned bits) {
        if (!g.weight) {
          sum += __builtin_popcount(bits);
          return;
        }
        for (; bits; bits &= bits - 1) sum += double(g.weight[e + __builtin_ctz(bits)]);
      });
      degree[i] = float(sum);
    }
  }
}

// The graph without the entries that are dropped. Its degrees are those that were given.
class KeptGraph {
 public:
  KeptGraph(const Csr& all, int threads)
      : g(all),
        bits_(all.E / 8 + all.N),
        rowptr_(all.N + 1),
        hubs_(all.N),
        col_(all.E),
        weight_(all.weight ? all.E : 0) {
    const PhiloxKeys keys(all.drop_seed);
    g.rowptr = rowptr_.get();
    g.col = col_.get();
    g.weight = weight_.get();
    g.hubs = hubs_.get();
    g.order = nullptr;
    g.keep_from = 0;
    RowSplit split;
    split_rows(useful_threads(threads, all.E), all, split);
#pragma omp parallel num_threads(split.threads)
    {
      check_team(all, split);
      const int thread = omp_get_thread_num();
      const int64_t begin = split.begin(thread), end = split.end(thread);
      for (int64_t i = begin; i < end; ++i) {
        uint8_t* bits = bits_.get() + all.rowptr[i] / 8 + i;
        int64_t count = 0;
        for_kept(all, keys, i, [&](int64_t, unsigned kept) {
          *bits++ = uint8_t(kept);
          count += __builtin_popcount(kept);
        });
        rowptr_.get()[i + 1] = count;
      }
#pragma omp barrier
#pragma omp single
      add_up();
      const int64_t limit = rowptr_.get()[end];
      for (int64_t i = begin; i < end; ++i) {
        const uint8_t* bits = bits_.get() + all.rowptr[i] / 8 + i;
        int64_t to = rowptr_.get()[i];
        for (int64_t e = all.rowptr[i]; e < all.rowptr[i + 1]; e += 8) {
          // whole vectors, unless they would reach into what another thread writes
          if (!all.weight && to + 8 <= limit && e + 8 <= all.E) {
            vec_t<int32_t, 8> columns;
            std::memcpy(&columns, all.col + e, sizeof(columns));
            compress<8>(col_.get() + to, columns, *bits);
            to += __builtin_popcount(*bits++);
            continue;
          }
          for (unsigned kept = *bits++; kept; kept &= kept - 1, ++to) {
            const int64_t from = e + __builtin_ctz(kept);
            col_.get()[to] = all.col[from];
            if (all.weight) weight_.get()[to] = all.weight[from];
          }
        }
      }
    }
  }

  Csr g;

 private:
  // lengths of rows to row pointers, and the hubs among them
  void add_up() {
    int64_t* rowptr = rowptr_.get();
    rowptr[0] = 0;
    for (int64_t i = 0; i < g.N; ++i) rowptr[i + 1] += rowptr[i];
    g.E = rowptr[g.N];
    g.H = 0;
    for (int64_t i = 0; i < g.N; ++i) {
      if (rowptr[i + 1] - rowptr[i] > hub_length(g.E)) hubs_.get()[g.H++] = int32_t(i);
    }
  }

  Buffer<uint8_t> bits_;  // of row i from byte rowptr[i] / 8 + i on
  Buffer<int64_t> rowptr_;
  Buffer<int32_t> hubs_, col_;
  Buffer<float> weight_;
};

// body(a) for an operator on a graph, with what is dropped taken out
template <class Op, class Body>
void with_kept(Op& a, Body body) {
  if (!a.g.keep_from) return body(a);
  const KeptGraph kept(a.g, a.threads);
  auto on_kept = a;
  on_kept.g = kept.g;
  body(on_kept);
  if constexpr (!std::is_const_v<Op>) {
    on_kept.g = a.g;
    a = on_kept;  // results
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
