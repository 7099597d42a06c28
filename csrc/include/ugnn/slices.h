// Columns never mix in a propagation, so [N, R, D] is cut into slices (one replica, at most kMaxWidth columns), and
// all K steps run on one slice before the next: its tables are compact and stay in cache longer.
#pragma once

#include <cmath>

#if defined(__linux__)
#include <unistd.h>
#endif

#include "ugnn/pool.h"
#include "ugnn/step.h"

namespace ugnn {
namespace UGNN_ISA {

struct Slice {
  int64_t r;      // replica
  int64_t first;  // first column in [R * D]
  int width;
  int ld;
};

// The slices of [R, D] columns of type T.
template <class T>
struct Slices {
  int64_t R, D;

  int64_t per_replica() const { return (D + kMaxWidth<T> - 1) / kMaxWidth<T>; }
  int64_t count() const { return R * per_replica(); }
  int max_ld() const { return padded(int(D < kMaxWidth<T> ? D : kMaxWidth<T>)); }

  Slice at(int64_t number) const {
    const int64_t r = number / per_replica(), begin = number % per_replica() * kMaxWidth<T>;
    const int width = int(D - begin < kMaxWidth<T> ? D - begin : kMaxWidth<T>);
    return Slice{r, r * D + begin, width, padded(width)};
  }

  // values a row takes in tables
  int64_t padded_width() const {
    int64_t sum = 0;
    for (int64_t number = 0; number < count(); ++number) sum += at(number).ld;
    return sum;
  }
};

// Memory of one call; std::bad_alloc becomes a MemoryError in Python.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : bytes_(count > 0 ? size_t(count) * sizeof(T) : 0) {
    if (bytes_) data_ = static_cast<T*>(pool_take(bytes_));
  }
  ~Buffer() {
    if (bytes_) pool_give(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* get() const { return data_; }

 private:
  size_t bytes_;
  T* data_ = nullptr;
};

// Bytes of a core's second-level cache.
inline int64_t cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 1 << 20;
}

// Rows by length keep the branch predictor right while a table is in the second-level cache. Beyond that, natural
// order with neighbour rows fetched ahead wins (docs/performance.md).
template <class T>
void choose_order(Step<T>& step, int ld) {
  const bool cached = step.g.N * ld * int64_t(sizeof(T)) <= cache_bytes();
  step.sorted = cached;
  step.prefetch = cached ? 0 : 32;
}

// body(first, last) for blocks of the entries of a row: one sum over thousands of neighbours would lose digits
template <class Body>
UGNN_INLINE void for_blocks(const Csr& g, int64_t i, Body body) {
  const int64_t last = g.rowptr[i + 1];
  for (int64_t first = g.rowptr[i]; first < last; first += kBlockEntries) {
    body(first, first + kBlockEntries < last ? first + kBlockEntries : last);
  }
}

// d_i; in double it is summed again where it is not a whole number, as Csr::degree has it in float only
template <class A>
UGNN_INLINE A degree_of(const Csr& g, int64_t i) {
  if constexpr (std::is_same_v<A, double>) {
    if (g.weight) {
      double sum = 0;
      for (int64_t e = g.rowptr[i]; e < g.rowptr[i + 1]; ++e) sum += double(g.weight[e]);
      return sum;
    }
  }
  return A(g.degree[i]);
}

// rho_i = d_i^-1/2, 0 for a node without neighbours
template <class A>
UGNN_INLINE A rho_of(const Csr& g, int64_t i) {
  return g.degree[i] > 0 ? A(1) / std::sqrt(degree_of<A>(g, i)) : A(0);
}

// One step by all threads of the current parallel region; ends with a barrier.
template <class T>
void run_step(StepRun<T> run, const Step<T>& step, RowSplit& split) {
  const int thread = omp_get_thread_num();
  int64_t begin, end;
  if (step.g.H) {
    even_share(HubPieces{step.g}.count(), begin, end);
    run(step, Part::kPieces, begin, end);
  }
  split.for_rows(thread, [&](int64_t first, int64_t last) { run(step, Part::kRows, first, last); });
  if (step.g.H) {
    split.wait();
    even_share(step.g.H, begin, end);
    run(step, Part::kHubs, begin, end);
  }
  split.wait();
}

// Calls body(d, columns, stored) for blocks of kBlock columns of a row: which of them are columns of x, and which are
// stored in a table, zeros included.
constexpr int kBlock = 8;
template <class Body>
UGNN_INLINE void for_columns(const Slice& slice, Body body) {
  for (int d = 0; d < slice.ld; d += kBlock) {
    const int columns = slice.width - d, stored = slice.ld - d;
    body(d, Tail<kBlock>(columns < kBlock ? columns : kBlock), Tail<kBlock>(stored < kBlock ? stored : kBlock));
  }
}

// table_i = scale_i x_i for the columns of a slice, and behind them c_i, or zeros without c
template <class T>
void fill_table(T* table, const Slice& slice, const T* x, int64_t ldx, Coef<acc_t<T>> scale, const acc_t<T>* c,
                int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i) {
    const T* from = x + i * ldx + slice.first;
    T* to = table + i * slice.ld;
    const acc_t<T> factor = scale.at(i);
    for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>& stored) {
      const auto row = factor * load_first<kBlock>(from + d, columns);
      store_first<kBlock>(to + d, c ? first_or<acc_t<T>, kBlock>(row, c[i], columns) : row, stored);
    });
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
