// Narrow rows of floats side by side in one vector: kRows rows of kLanes values, row k in lanes k kLanes and on. What
// is done for one row is done for all of them; one row (kRows 1) is a plain vector, and a number of a row a plain
// number.
#pragma once

#include "ugnn/vec.h"

namespace ugnn {
namespace UGNN_ISA {

// how many rows of kLanes values a vector register holds
#if defined(__AVX512VL__)
template <int kLanes>
constexpr int kRowsAside = kLanes == 4   ? 4
                           : kLanes == 8 ? 2
                                         : 1;
#elif defined(__AVX2__)
template <int kLanes>
constexpr int kRowsAside = kLanes == 4 ? 2 : 1;
#else
template <int kLanes>
constexpr int kRowsAside = 1;
#endif

// lanes from[0], from[1] ... of v
template <int kWide>
UGNN_INLINE vec_t<float, kWide> permuted(vec_t<float, kWide> v, vec_t<int, kWide> from) {
#if defined(__AVX512F__)
  if constexpr (kWide == 16) return (vec_t<float, 16>)_mm512_permutexvar_ps((__m512i)from, (__m512)v);
#endif
#if defined(__AVX2__)
  if constexpr (kWide == 8) return (vec_t<float, 8>)_mm256_permutevar8x32_ps((__m256)v, (__m256i)from);
#endif
  return __builtin_shuffle(v, from);
}

// Two vectors in one. Through memory, as the compiler would join them, it takes ten times as long.
template <int kHalf>
UGNN_INLINE vec_t<float, 2 * kHalf> joined(vec_t<float, kHalf> low, vec_t<float, kHalf> high) {
#if defined(__AVX512DQ__)
  if constexpr (kHalf == 8)
    return (vec_t<float, 16>)_mm512_insertf32x8(_mm512_castps256_ps512((__m256)low), (__m256)high, 1);
#endif
#if defined(__AVX2__)
  if constexpr (kHalf == 4)
    return (vec_t<float, 8>)_mm256_insertf128_ps(_mm256_castps128_ps256((__m128)low), (__m128)high, 1);
#endif
  const vec_t<float, kHalf> halves[2] = {low, high};
  vec_t<float, 2 * kHalf> v;
  std::memcpy(&v, halves, sizeof(v));
  return v;
}

// the first kHalf lanes, or those behind them
template <int kHalf>
UGNN_INLINE vec_t<float, kHalf> half(vec_t<float, 2 * kHalf> v, bool upper) {
#if defined(__AVX512DQ__)
  if constexpr (kHalf == 8)
    return (vec_t<float, 8>)(upper ? _mm512_extractf32x8_ps((__m512)v, 1) : _mm512_castps512_ps256((__m512)v));
#endif
#if defined(__AVX2__)
  if constexpr (kHalf == 4)
    return (vec_t<float, 4>)(upper ? _mm256_extractf128_ps((__m256)v, 1) : _mm256_castps256_ps128((__m256)v));
#endif
  vec_t<float, kHalf> halves[2];
  std::memcpy(halves, &v, sizeof(v));
  return halves[upper];
}

// rows places[0][e], places[1][e] ... of a table [N, kLanes]
template <int kLanes, int kRows>
UGNN_INLINE vec_t<float, kLanes * kRows> load_rows(const float* table, const int32_t* const* places, int64_t e) {
  if constexpr (kRows == 1) {
    return load<kLanes>(table + int64_t(places[0][e]) * kLanes);
  } else {
    constexpr int kHalf = kRows / 2;
    return joined<kLanes * kHalf>(load_rows<kLanes, kHalf>(table, places, e),
                                  load_rows<kLanes, kHalf>(table, places + kHalf, e));
  }
}

// a row in place k, zeros beside it
template <int kLanes, int kRows>
UGNN_INLINE vec_t<float, kLanes * kRows> load_row_of(const float* row, int k) {
  if constexpr (kRows == 1) {
    return load<kLanes>(row);
  } else {
    constexpr int kHalf = kRows / 2;
    const vec_t<float, kLanes * kHalf> v = load_row_of<kLanes, kHalf>(row, k % kHalf), zero{};
    return k < kHalf ? joined<kLanes * kHalf>(v, zero) : joined<kLanes * kHalf>(zero, v);
  }
}

// row k of a vector
template <int kLanes, int kRows>
UGNN_INLINE vec_t<float, kLanes> row_of_vector(vec_t<float, kLanes * kRows> v, int k) {
  if constexpr (kRows == 1) {
    return v;
  } else {
    constexpr int kHalf = kRows / 2;
    return row_of_vector<kLanes, kHalf>(half<kLanes * kHalf>(v, k >= kHalf), k % kHalf);
  }
}

// n values, and anything behind them
template <int kWide, int n>
UGNN_INLINE vec_t<float, kWide> load_some(const float* p) {
  if constexpr (n == kWide) {
    return load<n>(p);
  } else if constexpr (kWide == 4) {
    static_assert(n == 2);
    double both;
    std::memcpy(&both, p, sizeof(both));
    return (vec_t<float, 4>)vec_t<double, 2>{both, both};
  } else {
    const vec_t<float, kWide / 2> low = load_some<kWide / 2, n>(p);
#if defined(__AVX512F__)
    if constexpr (kWide == 16) return (vec_t<float, 16>)_mm512_castps256_ps512((__m256)low);
#endif
#if defined(__AVX2__)
    if constexpr (kWide == 8) return (vec_t<float, 8>)_mm256_castps128_ps256((__m128)low);
#endif
    return joined<kWide / 2>(low, low);
  }
}

// For row k the number p[kFirst + k kStride], in all its lanes.
template <int kLanes, int kRows, int kFirst = 0, int kStride = 1, class A>
UGNN_INLINE auto for_each_row(const A* p) {
  if constexpr (kRows == 1) {
    return p[kFirst];
  } else {
    constexpr int kWide = kLanes * kRows;
    vec_t<int, kWide> from;
    for (int l = 0; l < kWide; ++l) from[l] = kFirst + l / kLanes * kStride;
    return permuted<kWide>(load_some<kWide, kRows * kStride>(p), from);
  }
}

// the last lane of each row in all its lanes
template <int kLanes, int kRows>
UGNN_INLINE vec_t<float, kLanes * kRows> last_of_rows(vec_t<float, kLanes * kRows> v) {
  constexpr int kWide = kLanes * kRows;
  vec_t<int, kWide> from;
  for (int l = 0; l < kWide; ++l) from[l] = l / kLanes * kLanes + kLanes - 1;
  if constexpr (kLanes == 4) return __builtin_shuffle(v, from);
  return permuted<kWide>(v, from);
}

// The sums of the lanes of four rows, each in the tree of sum_lanes.
template <class A, int kLanes, int kRows>
UGNN_INLINE vec_t<A, 4> sums_of_rows(const vec_t<A, kLanes * kRows> (&v)[4 / kRows]) {
  if constexpr (kRows == 1) {
    return sum_lanes_of_four<A, kLanes>(v[0], v[1], v[2], v[3]);
  } else {
    constexpr int kWide = kLanes * kRows;
    vec_t<float, kWide> all;
    if constexpr (kWide == 16) {
      vec_t<float, 16> fours = v[0];
      if constexpr (kLanes == 8) {
        using Index = vec_t<int, 16>;
        constexpr Index kLow = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
        fours = __builtin_shuffle(v[0], v[1], kLow) + __builtin_shuffle(v[0], v[1], kLow + 4);
      }
      fours += __builtin_shuffle(fours, vec_t<int, 16>{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
      fours += __builtin_shuffle(fours, vec_t<int, 16>{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
      all = permuted<16>(fours, vec_t<int, 16>{0, 4, 8, 12});
    } else {
      constexpr vec_t<int, 8> kLow = {0, 1, 8, 9, 4, 5, 12, 13};
      vec_t<float, 8> pairs = __builtin_shuffle(v[0], v[1], kLow) + __builtin_shuffle(v[0], v[1], kLow + 2);
      pairs += __builtin_shuffle(pairs, vec_t<int, 8>{1, 0, 3, 2, 5, 4, 7, 6});
      all = permuted<8>(pairs, vec_t<int, 8>{0, 4, 2, 6});
    }
    vec_t<float, 4> sums;
    std::memcpy(&sums, &all, sizeof(sums));
    return sums;
  }
}

// The first n lanes of every row: what Tail is for one.
template <int kLanes, int kRows>
struct TailOfRows {
  explicit TailOfRows(int n) {
    for (int l = 0; l < kLanes * kRows; ++l) mask[l] = l % kLanes < n ? -1 : 0;
  }
  vec_t<int, kLanes * kRows> mask;
};

template <int kLanes, int kRows>
using RowsTail = std::conditional_t<kRows == 1, Tail<kLanes>, TailOfRows<kLanes, kRows>>;

// all lanes are there to be read
template <int kWide, int kLanes, int kRows>
UGNN_INLINE vec_t<float, kWide> load_first(const float* p, const TailOfRows<kLanes, kRows>& tail) {
  return (vec_t<float, kWide>)((vec_t<int, kWide>)load<kWide>(p) & tail.mask);
}
template <class A, int kWide, int kLanes, int kRows>
UGNN_INLINE vec_t<float, kWide> first_or(vec_t<float, kWide> v, vec_t<float, kWide> other,
                                         const TailOfRows<kLanes, kRows>& tail) {
  return tail.mask ? v : other;
}

}  // namespace UGNN_ISA
}  // namespace ugnn
