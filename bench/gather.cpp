// A bare gather: out_i = sum of the table rows that the entries of row i name, and nothing else. It is the bound that
// bench compares kernels with; bench/bound.py compiles it for this machine and finds the best prefetch.
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace {

template <int kLanes>
struct Lanes {
  typedef float Vector __attribute__((vector_size(4 * kLanes)));
  typedef uint32_t Word __attribute__((vector_size(4 * kLanes)));
  typedef uint16_t Half __attribute__((vector_size(2 * kLanes)));
};

template <class To, class From>
To bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <int kLanes>
typename Lanes<kLanes>::Vector load(const float* p) {
  typename Lanes<kLanes>::Vector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// bfloat16 is the upper half of a float
template <int kLanes>
typename Lanes<kLanes>::Vector load(const uint16_t* p) {
  typename Lanes<kLanes>::Half half;
  std::memcpy(&half, p, sizeof half);
  typename Lanes<kLanes>::Word word;
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) {
    // one instruction; the compiler takes half vectors
    word = bits<typename Lanes<kLanes>::Word>(_mm512_cvtepu16_epi32(bits<__m256i>(half)));
    return bits<typename Lanes<kLanes>::Vector>(word << 16);
  }
#endif
  word = __builtin_convertvector(half, typename Lanes<kLanes>::Word);
  return bits<typename Lanes<kLanes>::Vector>(word << 16);
}

template <int kLanes>
void store(float* p, typename Lanes<kLanes>::Vector v) {
  std::memcpy(p, &v, sizeof v);
}

template <int kLanes>
void store(uint16_t* p, typename Lanes<kLanes>::Vector v) {
  const auto half = __builtin_convertvector(bits<typename Lanes<kLanes>::Word>(v) >> 16, typename Lanes<kLanes>::Half);
  std::memcpy(p, &half, sizeof half);
}

struct Task {
  const int64_t* rowptr;  // [N + 1]
  const int32_t* col;     // [E]
  int64_t N;
  const void* table;  // [rows, width], width values of a row that are whole vectors
  void* out;          // [N, width]
  int64_t width;
  int hint;  // of prefetching: 0 none, 1 into all caches, 2 past the first one
  int64_t distance;
  int chains;  // sums of a row that do not wait for each other, 1 or 2
  int threads;
};

template <int kHint>
void fetch(const char* row, int64_t bytes) {
  if (kHint == 0) return;
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(row + at, 0, kHint == 1 ? 3 : 2);
}

// kVectors vectors from column `from` on, of the rows [first, last)
template <class T, int kLanes, int kVectors, int kHint, int kChains>
void rows(const Task& t, int64_t first, int64_t last, int64_t from) {
  typedef typename Lanes<kLanes>::Vector V;
  const T* table = static_cast<const T*>(t.table) + from;
  T* out = static_cast<T*>(t.out) + from;
  const int64_t E = t.rowptr[t.N], bytes = kVectors * kLanes * sizeof(T);
  for (int64_t i = first; i < last; ++i) {
    V sum[kChains][kVectors] = {};
    int64_t e = t.rowptr[i];
    const int64_t end = t.rowptr[i + 1];
    for (; e + kChains <= end; e += kChains) {
      for (int chain = 0; chain < kChains; ++chain) {
        if (kHint && e + chain + t.distance < E)
          fetch<kHint>(reinterpret_cast<const char*>(table + t.col[e + chain + t.distance] * t.width), bytes);
        const T* row = table + t.col[e + chain] * t.width;
        for (int v = 0; v < kVectors; ++v) sum[chain][v] += load<kLanes>(row + v * kLanes);
      }
    }
    for (; e < end; ++e)
      for (int v = 0; v < kVectors; ++v) sum[0][v] += load<kLanes>(table + t.col[e] * t.width + v * kLanes);
    for (int v = 0; v < kVectors; ++v) {
      for (int chain = 1; chain < kChains; ++chain) sum[0][v] += sum[chain][v];
      store<kLanes>(out + i * t.width + v * kLanes, sum[0][v]);
    }
  }
}

template <class T, int kLanes, int kVectors, int kHint, int kChains>
void gather(const Task& t, int64_t from) {
  // shares of equal numbers of entries and rows, eight for each thread
  const int64_t shares = t.threads == 1 ? 1 : 8 * t.threads;
  const int64_t total = t.rowptr[t.N] + 4 * t.N;
#pragma omp parallel for num_threads(t.threads) schedule(dynamic, 1)
  for (int64_t share = 0; share < shares; ++share) {
    int64_t ends[2];
    for (int side = 0; side < 2; ++side) {
      const int64_t wanted = total * (share + side) / shares;
      int64_t low = 0, high = t.N;
      while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (t.rowptr[middle] + 4 * middle < wanted) {
          low = middle + 1;
        } else {
          high = middle;
        }
      }
      ends[side] = low;
    }
    rows<T, kLanes, kVectors, kHint, kChains>(t, ends[0], ends[1], from);
  }
}

template <class T, int kLanes, int kVectors>
void choose(const Task& t, int64_t from) {
  if (t.chains == 1) {
    if (t.hint == 0) return gather<T, kLanes, kVectors, 0, 1>(t, from);
    if (t.hint == 1) return gather<T, kLanes, kVectors, 1, 1>(t, from);
    return gather<T, kLanes, kVectors, 2, 1>(t, from);
  }
  if (t.hint == 0) return gather<T, kLanes, kVectors, 0, 2>(t, from);
  if (t.hint == 1) return gather<T, kLanes, kVectors, 1, 2>(t, from);
  return gather<T, kLanes, kVectors, 2, 2>(t, from);
}

// columns in slices of at most 128
template <class T>
void run(const Task& t) {
  for (int64_t from = 0; from < t.width;) {
    const int64_t left = t.width - from;
    if (left >= 128) {
      choose<T, 16, 8>(t, from), from += 128;
    } else if (left >= 64) {
      choose<T, 16, 4>(t, from), from += 64;
    } else if (left >= 48) {
      choose<T, 16, 3>(t, from), from += 48;
    } else if (left >= 40) {
      choose<T, 8, 5>(t, from), from += 40;
    } else if (left >= 32) {
      choose<T, 16, 2>(t, from), from += 32;
    } else if (left >= 24) {
      choose<T, 8, 3>(t, from), from += 24;
    } else if (left >= 16) {
      choose<T, 16, 1>(t, from), from += 16;
    } else if (left >= 8) {
      choose<T, 8, 1>(t, from), from += 8;
    } else {
      choose<T, 4, 1>(t, from), from += 4;
    }
  }
}

}  // namespace

// passes > 1 need a square matrix: each reads what the one before has written.
extern "C" void bare_gather(const int64_t* rowptr, const int32_t* col, int64_t N, void* table, void* out, int64_t width,
                            int item_bytes, int64_t passes, int hint, int64_t distance, int chains, int threads) {
  for (int64_t pass = 0; pass < passes; ++pass) {
    const Task t{rowptr, col, N, table, out, width, hint, distance, chains, threads};
    item_bytes == 4 ? run<float>(t) : run<uint16_t>(t);
    void* const read = table;
    table = out;
    out = read;
  }
}
