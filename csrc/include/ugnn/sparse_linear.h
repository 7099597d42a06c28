// Rows of a dense table summed by the rows of a sparse matrix, with the dropout of its entries decided on the way.
//
//   out_ir = bias_r + sum_j keep_r(i, j) x_ij / (1 - drop) table_jr
//
// Forward, x holds the features and the table their weight; backward, x is the transpose and the table the gradient of
// the result. A row is owned by one thread. The entries that a mask keeps are listed first, for as many rows as the
// list can hold, so that the sums have no branches.
#pragma once

#include <algorithm>

#include "ugnn/kept_entries.h"
#include "ugnn/ops.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// A table whose rows can be read in whole vectors.
template <class T>
struct PaddedTable {
  const T* data;
  int64_t row, replica;  // strides
  int ahead;             // rows to fetch ahead; 0: none
  int64_t block;         // rows that a cache holds, and that several sums take before they go on; 0: all
};

template <class T>
class SparseLinearKernel {
 public:
  using A = acc_t<T>;

  // total: [kRows, R, D], of this thread
  SparseLinearKernel(const SparseLinear& a, const PaddedTable<T>& table, A* total)
      : a_(a), table_(table), total_(total), kept_(a.x, a.transposed, a.drop) {}

  static constexpr int kRows = 64;  // rows that are listed together, or summed together by blocks, at most

  // rows [begin, end) that are no hubs
  void rows(int64_t begin, int64_t end) {
    const int64_t* rowptr = a_.x.rowptr;
    if (table_.block) {
      for (int64_t i = begin; i < end; i += kRows) blocked_rows(i, i + kRows < end ? i + kRows : end);
      return;
    }
    const int64_t longest = hub_length(a_.x.E);
    for (int64_t i = begin; i < end;) {
      const int64_t length = rowptr[i + 1] - rowptr[i];
      int64_t last = i + 1;
      if (length <= kBlockEntries) {
        while (last < end && last - i < kRows && rowptr[last + 1] - rowptr[i] <= kBlockEntries) ++last;
        short_rows(i, last);
      } else if (length <= longest) {
        start_row(total_);
        add_entries(i, rowptr[i], rowptr[i + 1], total_);
        store_row(i, total_);
      }
      i = last;
    }
  }

  // sum [R, D] of the entries [first, last) of row i
  void piece(int64_t i, int64_t first, int64_t last, A* sum) {
    for (int64_t k = 0; k < a_.R * a_.D; ++k) sum[k] = 0;
    add_entries(i, first, last, sum);
  }

  // row i from the sums of its pieces, [pieces, R, D]
  void hub(int64_t i, const A* sums, int64_t pieces) {
    start_row(total_);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      for (int64_t k = 0; k < a_.R * a_.D; ++k) total_[k] += sums[piece * a_.R * a_.D + k];
    }
    store_row(i, total_);
  }

 private:
  T* out(int64_t i, int64_t r) const { return static_cast<T*>(a_.out) + i * a_.out_row + r * a_.out_replica; }
  const T* values() const { return static_cast<const T*>(a_.x.values); }

  void start_row(A* total) const {
    for (int64_t k = 0; k < a_.R * a_.D; ++k) total[k] = a_.bias ? load<1>(static_cast<const T*>(a_.bias) + k) : A(0);
  }

  void store_row(int64_t i, const A* total) const {
    for (int64_t r = 0; r < a_.R; ++r) {
      for (int64_t d = 0; d < a_.D; ++d) store<1>(out(i, r) + d, total[r * a_.D + d]);
    }
  }

  // sums of the table rows of entries [begin, end)
  template <int kLanes, int kVecs, class E>
  UGNN_INLINE void sum(const Entries<E>& entries, int begin, int end, const T* table, vec_t<A, kLanes>* sums) const {
    vec_t<A, kLanes> total[kVecs] = {};
    for (int k = begin; k < end; ++k) {
      if (table_.ahead) {
        const int next = k + table_.ahead < entries.count ? k + table_.ahead : entries.count - 1;
        fetch<kLanes * kVecs>(table + entries.col[next] * table_.row);
      }
      const A value = load<1>(entries.value + k);
      const T* row = table + entries.col[k] * table_.row;
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) total[v] += value * load<kLanes>(row + v * kLanes);
    }
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) sums[v] = total[v];
  }

  // lanes of vector v that are columns: all but in the last one
  template <int kLanes, int kVecs>
  static UGNN_INLINE Tail<kLanes> lanes(const Slice& slice, int v) {
    return Tail<kLanes>(v < kVecs - 1 ? kLanes : slice.width - (kVecs - 1) * kLanes);
  }

  // body(shape, slice, its part of the table) for all slices of the columns of replica r
  template <class Body>
  UGNN_INLINE void for_slices(int64_t r, Body body) const {
    const Slices<T> slices{1, a_.D};
    const T* table = table_.data + r * table_.replica;
    for (int64_t number = 0; number < slices.count(); ++number) {
      const Slice slice = slices.at(number);
      for_shape<T>(slice.ld, [&](auto shape) { body(shape, slice, table); });
      table += slice.ld;
    }
  }

  // rows [begin, end), which together have no more entries than the list can hold
  void short_rows(int64_t begin, int64_t end) {
    const int64_t first = a_.x.rowptr[begin], last = a_.x.rowptr[end];
    int bound[kRows + 1];
    for (int64_t i = begin; i <= end; ++i) bound[i - begin] = int(a_.x.rowptr[i] - first);
    if (!a_.seeds) {
      const Entries<T> all{a_.x.col + first, values() + first, int(last - first)};
      for (int64_t r = 0; r < a_.R; ++r) finish_rows(begin, end, r, all, bound);
      return;
    }
    for (int64_t i = begin; i < end; ++i) kept_.note_row(i, bound[i - begin], bound[i - begin + 1]);
    for (int64_t r = 0; r < a_.R; ++r) {
      const Entries<A> kept = kept_.list(first, last, uint64_t(a_.seeds[r]));
      int kept_bound[kRows + 1];
      for (int64_t k = 0; k <= end - begin; ++k) kept_bound[k] = kept_.kept_before(bound[k]);
      finish_rows(begin, end, r, kept, kept_bound);
    }
  }

  // Long rows [begin, end), at most kRows, with ascending columns: all over one block of the table, then over the next.
  void blocked_rows(int64_t begin, int64_t end) {
    const int64_t *rowptr = a_.x.rowptr, width = a_.R * a_.D, longest = hub_length(a_.x.E);
    const int32_t* next[kRows];
    for (int64_t i = begin; i < end; ++i) {
      next[i - begin] = a_.x.col + rowptr[i];
      start_row(total_ + (i - begin) * width);
    }
    for (int64_t stop = 0; stop < a_.x.M;) {
      stop += table_.block;
      for (int64_t i = begin; i < end; ++i) {
        if (rowptr[i + 1] - rowptr[i] > longest) continue;
        const int32_t *from = next[i - begin], *row_end = a_.x.col + rowptr[i + 1];
        const int32_t* to = std::lower_bound(from, row_end, stop);
        add_entries(i, from - a_.x.col, to - a_.x.col, total_ + (i - begin) * width);
        next[i - begin] = to;
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      if (rowptr[i + 1] - rowptr[i] <= longest) store_row(i, total_ + (i - begin) * width);
    }
  }

  // rows [begin, end) of the result, each from the entries between its bounds
  template <class E>
  void finish_rows(int64_t begin, int64_t end, int64_t r, const Entries<E>& entries, const int* bound) const {
    for_slices(r, [&](auto shape, const Slice& slice, const T* table) {
      constexpr int kLanes = shape.kLanes, kVecs = shape.kVecs;
      vec_t<A, kLanes> bias[kVecs] = {}, sums[kVecs];
      for (int v = 0; v < kVecs && a_.bias; ++v) {
        bias[v] = load_first<kLanes>(static_cast<const T*>(a_.bias) + r * a_.D + slice.first + v * kLanes,
                                     lanes<kLanes, kVecs>(slice, v));
      }
      for (int64_t i = begin; i < end; ++i) {
        sum<kLanes, kVecs>(entries, bound[i - begin], bound[i - begin + 1], table, sums);
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          store_first<kLanes>(out(i, r) + slice.first + v * kLanes, bias[v] + sums[v], lanes<kLanes, kVecs>(slice, v));
        }
      }
    });
  }

  // total [R, D] += entries [first, last) of row i, a block at a time
  void add_entries(int64_t i, int64_t first, int64_t last, A* total) {
    kept_.note_row(i, 0, kBlockEntries);
    for (int64_t block = first; block < last; block += kBlockEntries) {
      const int64_t end = block + kBlockEntries < last ? block + kBlockEntries : last;
      for (int64_t r = 0; r < a_.R; ++r) {
        if (a_.seeds) {
          add_block(r, kept_.list(block, end, uint64_t(a_.seeds[r])), total + r * a_.D);
        } else {
          add_block(r, Entries<T>{a_.x.col + block, values() + block, int(end - block)}, total + r * a_.D);
        }
      }
    }
  }

  // total [D] += the sum over the entries
  template <class E>
  void add_block(int64_t r, const Entries<E>& entries, A* total) const {
    for_slices(r, [&](auto shape, const Slice& slice, const T* table) {
      constexpr int kLanes = shape.kLanes, kVecs = shape.kVecs;
      vec_t<A, kLanes> sums[kVecs];
      sum<kLanes, kVecs>(entries, 0, entries.count, table, sums);
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        A* to = total + slice.first + v * kLanes;
        const Tail<kLanes> columns = lanes<kLanes, kVecs>(slice, v);
        store_first<kLanes>(to, load_first<kLanes>(to, columns) + sums[v], columns);
      }
    });
  }

  const SparseLinear& a_;
  const PaddedTable<T> table_;
  A* total_;
  KeptEntries<T> kept_;
};

// entries of a row in a block from which blocks are worth finding their ends
inline constexpr int64_t kBlockedEntries = 32;

// rows [begin, end) of a table of all replicas, [M, R, padded columns], zeros behind the columns of a slice
template <class T>
void pad_table(const SparseLinear& a, T* padded, int64_t begin, int64_t end) {
  const Slices<T> slices{1, a.D};
  for (int64_t j = begin; j < end; ++j) {
    for (int64_t r = 0; r < a.R; ++r) {
      const T* from = static_cast<const T*>(a.table) + j * a.table_row + r * a.table_replica;
      T* to = padded + (j * a.R + r) * slices.padded_width();
      for (int64_t number = 0; number < slices.count(); ++number) {
        const Slice slice = slices.at(number);
        for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>& stored) {
          store_first<kBlock>(to + d, load_first<kBlock>(from + slice.first + d, columns), stored);
        });
        to += slice.ld;
      }
    }
  }
}

template <class T>
void sparse_linear(const SparseLinear& a) {
  using A = acc_t<T>;
  const int64_t* rowptr = a.x.rowptr;
  const int64_t width = a.R * a.D, padded = Slices<T>{1, a.D}.padded_width();
  Csr g{};
  int32_t hubs[256];  // each has more than E / 256 entries
  g.rowptr = rowptr, g.col = a.x.col, g.hubs = hubs, g.N = a.x.N, g.E = a.x.E;
  for (int64_t i = 0; i < g.N; ++i) {
    if (rowptr[i + 1] - rowptr[i] > hub_length(g.E)) hubs[g.H++] = int32_t(i);
  }
  RowSplit split;
  split_rows(useful_threads(a.threads, (g.E + kRowCost * g.N) * width), g, split);
  const HubPieces pieces{g};
  const int64_t piece_count = pieces.count();
  Buffer<T> copy(padded == a.D ? 0 : a.x.M * a.R * padded);
  const int64_t total = SparseLinearKernel<T>::kRows * width;
  Buffer<A> sums(piece_count * width), totals(split.threads * total);
  PaddedTable<T> table{static_cast<const T*>(a.table), a.table_row, a.table_replica, 0, 0};
  if (copy.get()) table = {copy.get(), a.R * padded, padded, 0, 0};
  const int64_t row_bytes = std::max<int64_t>(1, a.R * padded * sizeof(T)), block = cache_bytes() / 2 / row_bytes;
  if (a.transposed && a.x.M > 2 * block && g.E * block > kBlockedEntries * g.N * a.x.M) {
    table.block = block;
  } else if (a.x.M * row_bytes > 4 * cache_bytes()) {
    // a core has enough loads under way to fetch from the cache behind its own; far beyond that they must start earlier
    table.ahead = 32;
  }
#pragma omp parallel num_threads(split.threads)
  {
    check_team(g, split);
    const int thread = omp_get_thread_num();
    int64_t begin, end;
    if (copy.get()) {
      even_share(a.x.M, begin, end);
      pad_table(a, copy.get(), begin, end);
      split.wait();
    }
    SparseLinearKernel<T> kernel(a, table, totals.get() + thread * total);
    even_share(piece_count, begin, end);
    for (int64_t number = begin; number < end; ++number) {
      int64_t hub = 0, first, last;
      pieces.find(number, first, last);
      while (rowptr[hubs[hub] + 1] <= first) ++hub;
      kernel.piece(hubs[hub], first, last, sums.get() + number * width);
    }
    split.for_rows(thread, [&](int64_t first, int64_t last) { kernel.rows(first, last); });
    if (g.H) {
      split.wait();
      even_share(g.H, begin, end);
      for (int64_t hub = begin; hub < end; ++hub) {
        int64_t first, last;
        pieces.range(hub, first, last);
        kernel.hub(hubs[hub], sums.get() + first * width, last - first);
      }
    }
  }
}

// out_ij = keep(i, j) x_ij / (1 - drop), zeros included
template <class T>
void sparse_dense(const SparseDense& a) {
  Csr g{};
  g.rowptr = a.x.rowptr, g.col = a.x.col, g.N = a.x.N, g.E = a.x.E;
  RowSplit split;
  split_rows(useful_threads(a.threads, g.E + g.N * a.x.M), g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(g, split);
    KeptEntries<T> kept(a.x, false, a.drop);
    split.for_rows(omp_get_thread_num(), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        T* out = static_cast<T*>(a.out) + i * a.x.M;
        std::memset(static_cast<void*>(out), 0, size_t(a.x.M) * sizeof(T));
        if (a.seed) kept.note_row(i, 0, kBlockEntries);
        for (int64_t first = a.x.rowptr[i]; first < a.x.rowptr[i + 1]; first += kBlockEntries) {
          const int64_t row_end = a.x.rowptr[i + 1];
          const int64_t last = first + kBlockEntries < row_end ? first + kBlockEntries : row_end;
          if (a.seed) {
            const auto entries = kept.list(first, last, uint64_t(*a.seed));
            for (int k = 0; k < entries.count; ++k) store<1>(out + entries.col[k], entries.value[k]);
          } else {
            for (int64_t e = first; e < last; ++e) out[a.x.col[e]] = static_cast<const T*>(a.x.values)[e];
          }
        }
      }
    });
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
