// Columns never mix in a propagation, so [N, R, D] is cut into slices (one replica, at most kMaxWidth columns), and
// all K steps run on one slice before the next: its tables are compact and stay in cache longer.
#pragma once

#include <cmath>
#include <exception>

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

// The slices of [R, D] columns of type T. for_c: rows of tables have room for c where that costs nothing. most: columns
// of a slice.
template <class T>
struct Slices {
  int64_t R, D;
  bool for_c = false;
  int64_t most = kMaxWidth<T>;

  int64_t per_replica() const { return (D + most - 1) / most; }
  int64_t count() const { return R * per_replica(); }
  int ld(int width) const { return for_c ? padded_for_c<T>(width) : padded<T>(width); }
  int max_width() const { return int(D < most ? D : most); }
  int max_ld() const { return ld(max_width()); }

  // whether the values per node of a slice, of RC arrays, are not those of the slice before, of slices from `first` on
  bool starts_values(int64_t number, int64_t first, int64_t RC) const {
    return number == first || (RC > 1 && number % per_replica() == 0);
  }

  // whether they are not those of the slice after, of slices up to `end`
  bool ends_values(int64_t number, int64_t end, int64_t RC) const { return starts_values(number + 1, end, RC); }

  Slice at(int64_t number) const {
    const int64_t r = number / per_replica(), begin = number % per_replica() * most;
    const int width = int(D - begin < most ? D - begin : most);
    return Slice{r, r * D + begin, width, ld(width)};
  }

  // values a row takes in the tables of the slices before `end`
  int64_t padded_width(int64_t end) const {
    int64_t sum = 0;
    for (int64_t number = 0; number < end; ++number) sum += at(number).ld;
    return sum;
  }
  int64_t padded_width() const { return padded_width(count()); }
};

// Slices [first, end), by so many threads together.
struct SliceRange {
  int64_t first, end;
  int threads;
};

// body(range) for all slices: one after the other by all threads, or, where a slice is too small to be shared, ranges
// of them by one thread each. A range has whole groups of `together` slices. work: of a slice in one of `steps` steps.
template <class Body>
void for_slices(int threads, int64_t slices, int64_t together, int64_t work, int64_t steps, Body body) {
  const int shared = useful_threads(threads, work);
  if (slices == 0) return body(SliceRange{0, 0, shared});
  const int64_t groups = slices / together, wanted = useful_threads(threads, work * steps * slices);
  const int64_t ranges = shared > 1 ? 1 : groups < wanted ? groups : wanted;
  if (ranges <= 1) return body(SliceRange{0, slices, shared});
  std::exception_ptr failed;
#pragma omp parallel for num_threads(int(ranges)) schedule(static, 1)
  for (int64_t k = 0; k < ranges; ++k) {
    try {
      body(SliceRange{groups * k / ranges * together, groups * (k + 1) / ranges * together, 1});
    } catch (...) {
#pragma omp critical
      failed = std::current_exception();
    }
  }
  if (failed) std::rethrow_exception(failed);
}

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

// Tables of one size, each a block of its own: what one pass has given back another one can take, whatever the number.
template <class T>
class Tables {
 public:
  Tables(int64_t count, int64_t size) : Tables(count) {
    bytes_ = size > 0 ? size * sizeof(T) : 1;
    for (; count_ < count; ++count_) list_.get()[count_] = static_cast<T*>(pool_take(bytes_));
  }
  ~Tables() {
    while (count_) pool_give(list_.get()[--count_], bytes_);
  }
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;
  // counted round
  T* operator[](int64_t number) const { return list_.get()[number % count_]; }

 private:
  explicit Tables(int64_t most) : list_(most) {}
  Buffer<T*> list_;
  int64_t count_ = 0;
  size_t bytes_ = 0;
};

// Bytes of a core's second-level cache.
inline int64_t cache_bytes() {
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return 1 << 20;
}

// Whether rows can be fetched into the first-level cache: with 32 KB of it (Zen 4) few can be on their way at a time,
// with 48 KB (Zen 5, Intel) it pays.
inline bool has_large_first_level() {
#if defined(__x86_64__) && defined(_SC_LEVEL1_DCACHE_SIZE)
  static const bool found = sysconf(_SC_LEVEL1_DCACHE_SIZE) > (32 << 10);
  return found;
#else
  return false;
#endif
}
inline bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

// How rows of a table are fetched ahead: as far as memory takes to answer, but no more of them than the first-level
// cache has room for. Intel's fills from there are too few for rows that come from memory itself.
inline Ahead ahead_of(int64_t rows, int64_t row_bytes) {
  const int64_t bytes = rows * row_bytes;
  if (bytes <= 2 * cache_bytes()) return {};
  const bool first_level = has_large_first_level() && !(is_intel() && bytes > (48 << 20));
  const int64_t most = first_level && is_intel() ? 64 : 160, room = (16 << 10) / row_bytes;
  return {int(room < most ? room : most), first_level};
}

// How a call sees its graph: as it is, or in near form. By length, while a table is about as large as the second-level
// cache: rows of one length after the other keep the branch predictor right, and narrow rows run four at a time. By
// community, in several steps on larger graphs: more of a row's neighbours are found in a cache. Beyond the caches
// neighbour rows are fetched ahead (docs/performance.md). Tables and values per node are in the order of the view.
struct View {
  Csr g;
  const int32_t* order = nullptr;  // row p of the view is row order[p] of the user; null: row p
  bool ascending = false;          // rows are sorted by length
  bool apart = false;              // rows of the user are not in the caches near the core
  bool far = false;                // what is written to a whole table is no longer in a cache when it is read
  Ahead prefetch;
  Buffer<int32_t> hubs;

  // steps: of one call, with all that they read in the order of the view; they have to make up for two changes of order
  View(const Csr& user, int64_t table_bytes, bool by_length, int64_t steps)
      : g(user), prefetch(ahead_of(user.N, table_bytes / (user.N > 0 ? user.N : 1))), hubs(user.H) {
    const bool small = user.N <= kNearNodes;
    apart = 2 * table_bytes > cache_bytes();
    far = table_bytes > (16 << 20);
    if (!user.order || !(small ? by_length && !prefetch : steps * user.E >= kNearWork * user.N)) return;
    order = user.order;
    ascending = small;
    g.rowptr = user.near_rowptr;
    g.col = user.near_col;
    g.weight = user.near_weight;
    g.hubs = hubs.get();
    for (int64_t p = 0, h = 0; h < g.H; ++p) {
      if (g.rowptr[p + 1] - g.rowptr[p] > hub_length(g.E)) hubs.get()[h++] = int32_t(p);
    }
  }
  UGNN_INLINE int64_t user_row(int64_t p) const { return order ? order[p] : p; }
};

// The values of the user's nodes in the order of a view; written once by all threads, or not copied at all.
template <class A>
class InView {
 public:
  InView(const View& view, const A* user, int64_t count)
      : view_(view), user_(user), own_(view.order && user ? count * view.g.N : 0) {}
  // rows [begin, end) of the arrays [first, last)
  void fill(int64_t begin, int64_t end, int64_t first, int64_t last) {
    if (!own_.get()) return;
    for (int64_t r = first; r < last; ++r) {
      const A* from = user_ + r * view_.g.N;
      A* to = own_.get() + r * view_.g.N;
      for (int64_t p = begin; p < end; ++p) to[p] = from[view_.order[p]];
    }
  }
  const A* get() const { return own_.get() ? own_.get() : user_; }

 private:
  const View& view_;
  const A* user_;
  Buffer<A> own_;
};

// How many entries have their c_j written out by the first step of a call, for those that follow: all, or none. wanted:
// by kernels that find no c in the rows of their tables and take more steps. The entries are read from first to last
// anyway; a look-up at a random place costs up to as much as a row, and little beside a wide one while c is in the
// second-level cache. sparing: memory counts more than time.
template <class A>
int64_t entries_with_c(const View& view, bool wanted, int64_t row_bytes, bool sparing) {
  const bool far = 2 * view.g.N * int64_t(sizeof(A)) > 3 * cache_bytes();
  return wanted && view.prefetch && (far || (row_bytes <= 128 && !sparing)) ? view.g.E : 0;
}

// body(first, last) for blocks of the entries of a row: one sum over thousands of neighbours would lose digits
template <class Body>
UGNN_INLINE void for_blocks(const Csr& g, int64_t i, Body body) {
  const int64_t last = g.rowptr[i + 1];
  for (int64_t first = g.rowptr[i]; first < last; first += kBlockEntries) {
    body(first, first + kBlockEntries < last ? first + kBlockEntries : last);
  }
}

// values that passes over rows take at a time
constexpr int kBlock = 8;

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

// rho of the rows [begin, end) of a view and 1 / rho, 0 where rho is, to put(p, rho, inverse)
template <class A, class Put>
UGNN_INLINE void for_rho(const Csr& user, const View& view, int64_t begin, int64_t end, Put put) {
  if constexpr (std::is_same_v<A, float>) {
    using V = vec_t<A, kBlock>;
    for (; !view.order && begin + kBlock <= end; begin += kBlock) {
      const V degree = load<kBlock>(user.degree + begin);
      V root;
      UGNN_UNROLL
      for (int k = 0; k < kBlock; ++k) root[k] = std::sqrt(degree[k]);
      const V rho = degree > 0 ? 1 / root : V{}, inverse = degree > 0 ? 1 / rho : V{};
      UGNN_UNROLL
      for (int k = 0; k < kBlock; ++k) put(begin + k, rho[k], inverse[k]);
    }
  }
  // rows of one length follow one another in near form: a root is taken for each length only
  A rho = 0, inverse = 0;
  int64_t last = -1;
  for (int64_t p = begin; p < end; ++p) {
    const int64_t length = view.g.rowptr[p + 1] - view.g.rowptr[p];
    if (user.weight || length != last) {
      last = length;
      rho = rho_of<A>(user, view.user_row(p));
      inverse = rho > 0 ? 1 / rho : A(0);
    }
    put(p, rho, inverse);
  }
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
template <class Body>
UGNN_INLINE void for_columns(const Slice& slice, Body body) {
  // narrow rows have one block: the same for all rows, so that its masks are made once
  if (slice.ld <= kBlock) return body(0, Tail<kBlock>(slice.width), Tail<kBlock>(slice.ld));
  for (int d = 0; d < slice.ld; d += kBlock) {
    const int columns = slice.width > d ? slice.width - d : 0, stored = slice.ld - d;
    body(d, Tail<kBlock>(columns < kBlock ? columns : kBlock), Tail<kBlock>(stored < kBlock ? stored : kBlock));
  }
}

// Stores the first values of a block of a table; past the caches, if it is whole and its place aligned like a vector.
template <class T>
UGNN_INLINE void put_block(bool past, T* to, vec_t<acc_t<T>, kBlock> row, const Tail<kBlock>& stored) {
  if (past && stored.n == kBlock) return stream<kBlock>(to, row);
  store_first<kBlock>(to, row, stored);
}
template <class T>
UGNN_INLINE bool aligned_blocks(const T* table, int ld) {
  return ld % kBlock == 0 && reinterpret_cast<uintptr_t>(table) % (kBlock * sizeof(T)) == 0;
}

// table_p = scale(p) x_p for the columns of a slice, and behind them c_p, or zeros without c; x_p is row
// order[p] of x. far: as of View
template <class T, class Scale>
void fill_table(T* table, const Slice slice, const T* x, int64_t ldx, const int32_t* order, bool apart, bool far,
                Scale scale, const acc_t<T>* c, int64_t begin, int64_t end) {
  const bool past = far && aligned_blocks(table, slice.ld);
  for (int64_t p = begin; p < end; ++p) {
    if (apart) fetch_row<false>(x + slice.first, ldx, slice.width, order, p, end);
    const T* from = x + (order ? order[p] : p) * ldx + slice.first;
    T* to = table + p * slice.ld;
    const acc_t<T> factor = scale(p);
    if (slice.ld == 1) {
      store<1>(to, factor * load<1>(from));
      continue;
    }
    for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>& stored) {
      const auto row = factor * load_first<kBlock>(from + d, columns);
      put_block(past, to + d, c ? first_or<acc_t<T>, kBlock>(row, c[p], columns) : row, stored);
    });
    if (c) put_c(to, slice.ld, c[p]);
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
