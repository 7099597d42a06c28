// Short vectors for the CPU kernels: types, loads, stores, sums. Intrinsics are here and in vec_rows.h only.
//
// Everything that is compiled once per instruction set lives in a namespace of that set (UGNN_ISA), and uses no
// standard-library template: the linker would keep one copy of those, perhaps the one for the newest CPU.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define UGNN_INLINE inline __attribute__((always_inline))
#define UGNN_UNROLL _Pragma("GCC unroll 16")

namespace ugnn {

struct bfloat16 {
  uint16_t bits;
};

// sums are kept in the accumulation type
template <class T>
struct acc_type {
  using type = T;
};
template <>
struct acc_type<bfloat16> {
  using type = float;
};
template <class T>
using acc_t = typename acc_type<T>::type;

namespace UGNN_ISA {

// A vector of kLanes values; a plain scalar for one lane, so that arithmetic is written once.
template <class A, int kLanes>
struct vec_type {
  typedef A type __attribute__((vector_size(sizeof(A) * kLanes)));
};
template <class A>
struct vec_type<A, 1> {
  using type = A;
};
template <class A, int kLanes>
using vec_t = typename vec_type<A, kLanes>::type;

// The value stays in its register: the compiler may not load it again from where it came.
template <class V>
UGNN_INLINE void keep(V& value) {
#if defined(__AVX512VL__)
  if constexpr (sizeof(V) <= 64) asm("" : "+v"(value));
#elif defined(__AVX2__)
  if constexpr (sizeof(V) <= 32) asm("" : "+x"(value));
#elif defined(__x86_64__)
  if constexpr (sizeof(V) <= 16) asm("" : "+x"(value));
#else
  (void)value;
#endif
}

// ---- 16-bit lanes to 32 bits and back, with one instruction where there is one: the compiler takes half vectors
template <int kLanes>
UGNN_INLINE vec_t<uint32_t, kLanes> to_words(vec_t<uint16_t, kLanes> half) {
#if defined(__AVX512F__)
  if constexpr (kLanes == 16) return (vec_t<uint32_t, 16>)_mm512_cvtepu16_epi32((__m256i)half);
#endif
#if defined(__AVX2__)
  if constexpr (kLanes == 8) return (vec_t<uint32_t, 8>)_mm256_cvtepu16_epi32((__m128i)half);
#endif
  if constexpr (kLanes == 1) {
    return half;
  } else {
    return __builtin_convertvector(half, vec_t<uint32_t, kLanes>);
  }
}

// the lower halves
template <int kLanes>
UGNN_INLINE vec_t<uint16_t, kLanes> to_halves(vec_t<uint32_t, kLanes> words) {
#if defined(__AVX512VL__)
  if constexpr (kLanes == 16) return (vec_t<uint16_t, 16>)_mm512_cvtepi32_epi16((__m512i)words);
  if constexpr (kLanes == 8) return (vec_t<uint16_t, 8>)_mm256_cvtepi32_epi16((__m256i)words);
#endif
  if constexpr (kLanes == 1) {
    return uint16_t(words);
  } else {
    return __builtin_convertvector(words, vec_t<uint16_t, kLanes>);
  }
}

// ---- bfloat16
template <int kLanes>
UGNN_INLINE vec_t<float, kLanes> widen(vec_t<uint16_t, kLanes> half) {
  const vec_t<uint32_t, kLanes> bits = to_words<kLanes>(half) << 16;
  vec_t<float, kLanes> v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}

// float to bfloat16, to nearest, ties to even; NaN stays NaN
template <int kLanes>
UGNN_INLINE vec_t<uint16_t, kLanes> narrow(vec_t<float, kLanes> v) {
  vec_t<uint32_t, kLanes> bits;
  std::memcpy(&bits, &v, sizeof(v));
  const auto rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const auto quiet_nan = (bits >> 16) | 0x40u;
  if constexpr (kLanes == 1) {
    return uint16_t(v != v ? quiet_nan : rounded);
  } else {
    const vec_t<uint32_t, kLanes> chosen = (v != v) ? quiet_nan : rounded;
    return to_halves<kLanes>(chosen);
  }
}

// ---- whole vectors
template <int kLanes, class T>
UGNN_INLINE vec_t<acc_t<T>, kLanes> load(const T* p) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    vec_t<uint16_t, kLanes> half;
    std::memcpy(&half, p, sizeof(half));
    return widen<kLanes>(half);
  } else {
    vec_t<T, kLanes> v;
    std::memcpy(&v, p, sizeof(v));
    return v;
  }
}

template <int kLanes, class T>
UGNN_INLINE void store(T* p, vec_t<acc_t<T>, kLanes> v) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    const auto half = narrow<kLanes>(v);
    std::memcpy(p, &half, sizeof(half));
  } else {
    std::memcpy(p, &v, sizeof(v));
  }
}

// v as it is stored in a table of T
template <class T, int kLanes>
UGNN_INLINE vec_t<acc_t<T>, kLanes> rounded(vec_t<acc_t<T>, kLanes> v) {
  if constexpr (std::is_same_v<T, bfloat16>) return widen<kLanes>(narrow<kLanes>(v));
  return v;
}

// A store past the caches, for what is not read again soon; p aligned like the vector.
template <int kLanes, class T>
UGNN_INLINE void stream(T* p, vec_t<acc_t<T>, kLanes> v) {
  [[maybe_unused]] constexpr int kBytes = kLanes * sizeof(T);
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<T, float> && kBytes == 64) return _mm512_stream_ps(p, (__m512)v);
#endif
#if defined(__AVX2__)
  if constexpr (std::is_same_v<T, float> && kBytes == 32) return _mm256_stream_ps(p, (__m256)v);
  if constexpr (std::is_same_v<T, bfloat16> && kBytes == 32)
    return _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)narrow<kLanes>(v));
#endif
  store<kLanes>(p, v);
}

// ---- the first n lanes of a vector; the others read as zero and are not written. A Tail is made once for many rows.
#if defined(__AVX512VL__)
template <int kLanes>
struct Tail {
  explicit Tail(int n) : n(n), mask((1u << n) - 1) {}
  int n;
  unsigned mask;
};
#elif defined(__AVX2__)
template <int kLanes>
struct Tail {
  explicit Tail(int n) : n(n), mask(vec_t<int, 8>{} + n > vec_t<int, 8>{0, 1, 2, 3, 4, 5, 6, 7}) {}
  int n;
  vec_t<int, 8> mask;
};
#else
template <int kLanes>
struct Tail {
  explicit Tail(int n) : n(n) {}
  int n;
};
#endif

template <int kLanes, class T>
UGNN_INLINE vec_t<acc_t<T>, kLanes> load_first(const T* p, const Tail<kLanes>& tail) {
#if defined(__AVX512VL__)
  if constexpr (std::is_same_v<T, float> && kLanes == 16)
    return (vec_t<float, 16>)_mm512_maskz_loadu_ps(__mmask16(tail.mask), p);
  if constexpr (std::is_same_v<T, float> && kLanes == 8)
    return (vec_t<float, 8>)_mm256_maskz_loadu_ps(__mmask8(tail.mask), p);
  if constexpr (std::is_same_v<T, float> && kLanes == 4)
    return (vec_t<float, 4>)_mm_maskz_loadu_ps(__mmask8(tail.mask), p);
  if constexpr (std::is_same_v<T, bfloat16> && kLanes == 16)
    return widen<16>((vec_t<uint16_t, 16>)_mm256_maskz_loadu_epi16(__mmask16(tail.mask), p));
  if constexpr (std::is_same_v<T, bfloat16> && kLanes == 8)
    return widen<8>((vec_t<uint16_t, 8>)_mm_maskz_loadu_epi16(__mmask8(tail.mask), p));
#endif
  if (tail.n == kLanes) return load<kLanes>(p);
#if defined(__AVX2__) && !defined(__AVX512VL__)
  if constexpr (std::is_same_v<T, float> && kLanes == 8)
    return (vec_t<float, 8>)_mm256_maskload_ps(p, (__m256i)tail.mask);
  if constexpr (std::is_same_v<T, float> && kLanes == 4)
    return (vec_t<float, 4>)_mm_maskload_ps(p, _mm256_castsi256_si128((__m256i)tail.mask));
#endif
  if constexpr (kLanes == 1) {
    return 0;
  } else {
    T lanes[kLanes] = {};
    for (int l = 0; l < tail.n; ++l) lanes[l] = p[l];
    return load<kLanes>(lanes);
  }
}

template <int kLanes, class T>
UGNN_INLINE void store_first(T* p, vec_t<acc_t<T>, kLanes> v, const Tail<kLanes>& tail) {
#if defined(__AVX512VL__)
  if constexpr (std::is_same_v<T, float> && kLanes == 16)
    return _mm512_mask_storeu_ps(p, __mmask16(tail.mask), (__m512)v);
  if constexpr (std::is_same_v<T, float> && kLanes == 8)
    return _mm256_mask_storeu_ps(p, __mmask8(tail.mask), (__m256)v);
  if constexpr (std::is_same_v<T, float> && kLanes == 4) return _mm_mask_storeu_ps(p, __mmask8(tail.mask), (__m128)v);
  if constexpr (std::is_same_v<T, bfloat16> && kLanes == 16)
    return _mm256_mask_storeu_epi16(p, __mmask16(tail.mask), (__m256i)narrow<16>(v));
  if constexpr (std::is_same_v<T, bfloat16> && kLanes == 8)
    return _mm_mask_storeu_epi16(p, __mmask8(tail.mask), (__m128i)narrow<8>(v));
#endif
  if (tail.n == kLanes) return store<kLanes>(p, v);
#if defined(__AVX2__) && !defined(__AVX512VL__)
  if constexpr (std::is_same_v<T, float> && kLanes == 8) return _mm256_maskstore_ps(p, (__m256i)tail.mask, (__m256)v);
  if constexpr (std::is_same_v<T, float> && kLanes == 4)
    return _mm_maskstore_ps(p, _mm256_castsi256_si128((__m256i)tail.mask), (__m128)v);
#endif
  if constexpr (kLanes > 1) {
    T lanes[kLanes];
    store<kLanes>(lanes, v);
    for (int l = 0; l < tail.n; ++l) p[l] = lanes[l];
  }
}

// the first n lanes of v, and `other` in the rest
template <class A, int kLanes>
UGNN_INLINE vec_t<A, kLanes> first_or(vec_t<A, kLanes> v, A other, const Tail<kLanes>& tail) {
  if constexpr (kLanes == 1) {
    return tail.n == 1 ? v : other;
  } else {
    using index_t = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
    vec_t<index_t, kLanes> lane;
    for (int l = 0; l < kLanes; ++l) lane[l] = l;
    return lane < index_t(tail.n) ? v : vec_t<A, kLanes>{} + other;
  }
}

// the last lane in all lanes
template <class A, int kLanes>
UGNN_INLINE vec_t<A, kLanes> last_lane(vec_t<A, kLanes> v) {
  // across the halves of a vector the compiler takes two shuffles where one is enough
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<A, float> && kLanes == 16)
    return (vec_t<A, kLanes>)_mm512_permutexvar_ps(_mm512_set1_epi32(15), (__m512)v);
#endif
#if defined(__AVX2__)
  if constexpr (std::is_same_v<A, float> && kLanes == 8)
    return (vec_t<A, kLanes>)_mm256_permutevar8x32_ps((__m256)v, _mm256_set1_epi32(7));
#endif
  if constexpr (kLanes == 1) {
    return v;
  } else {
    using index_t = std::conditional_t<sizeof(A) == 8, int64_t, int32_t>;
    return __builtin_shuffle(v, vec_t<index_t, kLanes>{} + index_t(kLanes - 1));
  }
}

// sum of the lanes, always in the same tree
template <class A, int kLanes>
UGNN_INLINE A sum_lanes(vec_t<A, kLanes> v) {
  if constexpr (kLanes == 1) {
    return v;
  } else {
    constexpr int kHalf = kLanes / 2;
    vec_t<A, kHalf> low, high;
    std::memcpy(&low, &v, sizeof(low));
    std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
    return sum_lanes<A, kHalf>(low + high);
  }
}

// the sums of the lanes of four vectors, each in the tree of sum_lanes
template <class A, int kLanes>
UGNN_INLINE vec_t<A, 4> sum_lanes_of_four(vec_t<A, kLanes> v0, vec_t<A, kLanes> v1, vec_t<A, kLanes> v2,
                                          vec_t<A, kLanes> v3) {
  if constexpr (kLanes == 4) {
    using Index = vec_t<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>, 4>;
    constexpr Index kFirst = {0, 4, 1, 5}, kSecond = {2, 6, 3, 7}, kLow = {0, 1, 4, 5}, kHigh = {2, 3, 6, 7};
    const vec_t<A, 4> pair01 = __builtin_shuffle(v0, v1, kFirst) + __builtin_shuffle(v0, v1, kSecond);
    const vec_t<A, 4> pair23 = __builtin_shuffle(v2, v3, kFirst) + __builtin_shuffle(v2, v3, kSecond);
    return __builtin_shuffle(pair01, pair23, kLow) + __builtin_shuffle(pair01, pair23, kHigh);
  } else {
    constexpr int kHalf = kLanes / 2;
    auto halved = [](vec_t<A, kLanes> v) {
      vec_t<A, kHalf> low, high;
      std::memcpy(&low, &v, sizeof(low));
      std::memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
      return low + high;
    };
    return sum_lanes_of_four<A, kHalf>(halved(v0), halved(v1), halved(v2), halved(v3));
  }
}

// ---- 64-bit lanes that hold 32-bit words
// the product of the lower half of each lane with a factor
template <int kLanes>
UGNN_INLINE vec_t<uint64_t, kLanes> multiply_low(vec_t<uint64_t, kLanes> v, uint32_t factor) {
#if defined(__AVX512F__)
  if constexpr (kLanes == 8) return (vec_t<uint64_t, 8>)_mm512_mul_epu32((__m512i)v, _mm512_set1_epi64(factor));
#endif
#if defined(__AVX2__)
  if constexpr (kLanes == 4) return (vec_t<uint64_t, 4>)_mm256_mul_epu32((__m256i)v, _mm256_set1_epi64x(factor));
#endif
  return (v & 0xffffffffu) * factor;
}

// a ^ b ^ c, one instruction where there is one: the compiler does not find it by itself
template <int kLanes>
UGNN_INLINE vec_t<uint64_t, kLanes> xor3(vec_t<uint64_t, kLanes> a, vec_t<uint64_t, kLanes> b,
                                         vec_t<uint64_t, kLanes> c) {
#if defined(__AVX512F__)
  if constexpr (kLanes == 8)
    return (vec_t<uint64_t, 8>)_mm512_ternarylogic_epi64((__m512i)a, (__m512i)b, (__m512i)c, 0x96);
#endif
  return a ^ b ^ c;
}

// p[0] .. p[n - 1], n <= kLanes, zeros behind them
template <int kLanes>
UGNN_INLINE vec_t<uint64_t, kLanes> load_words(const int32_t* p, [[maybe_unused]] int n) {
#if defined(__AVX512VL__)
  if constexpr (kLanes == 8)
    return (vec_t<uint64_t, 8>)_mm512_cvtepu32_epi64(_mm256_maskz_loadu_epi32(__mmask8((1u << n) - 1), p));
#endif
#if defined(__AVX2__)
  if constexpr (kLanes == 4) {
    const __m128i mask = _mm_cmpgt_epi32(_mm_set1_epi32(n), _mm_setr_epi32(0, 1, 2, 3));
    return (vec_t<uint64_t, 4>)_mm256_cvtepu32_epi64(_mm_maskload_epi32(p, mask));
  }
#endif
  static_assert(kLanes == 1 || kLanes == 4 || kLanes == 8);
  return vec_t<uint64_t, kLanes>{} + uint32_t(*p);
}

// the lower halves
template <int kLanes>
UGNN_INLINE vec_t<int32_t, kLanes> words_to_int(vec_t<uint64_t, kLanes> words) {
  if constexpr (kLanes == 1) {
    return int32_t(words);
  } else {
    return __builtin_convertvector(words, vec_t<int32_t, kLanes>);
  }
}

// bit l: whether l < n and the lower half of lane l is at least `from`
template <int kLanes>
UGNN_INLINE unsigned lanes_from(vec_t<uint64_t, kLanes> words, uint32_t from, int n) {
#if defined(__AVX512F__)
  if constexpr (kLanes == 8) {
    const __m512i lowest = _mm512_set1_epi64(int64_t(uint64_t(from) << 32));
    return _mm512_mask_cmpge_epu64_mask(__mmask8((1u << n) - 1), (__m512i)(words << 32), lowest);
  }
#endif
  unsigned mask = 0;
  if constexpr (kLanes == 1) {
    mask = uint32_t(words) >= from;
  } else {
    for (int l = 0; l < kLanes; ++l) mask |= unsigned(uint32_t(words[l]) >= from) << l;
  }
  return mask & ((1u << n) - 1);
}

// The lanes that have a bit in mask, next to each other. `to` has room for kLanes values.
template <int kLanes, class E>
UGNN_INLINE void compress(E* to, vec_t<E, kLanes> v, unsigned mask) {
  if constexpr (kLanes == 1) {
    *to = v;
  } else {
    // compressing straight into memory takes a hundred cycles on some CPUs
#if defined(__AVX512VL__)
    if constexpr (kLanes == 8 && sizeof(E) == 4) {
      const __m256i kept = _mm256_maskz_compress_epi32(__mmask8(mask), (__m256i)v);
      std::memcpy(to, &kept, sizeof(kept));
      return;
    }
    if constexpr (kLanes == 8 && sizeof(E) == 8) {
      const __m512i kept = _mm512_maskz_compress_epi64(__mmask8(mask), (__m512i)v);
      std::memcpy(to, &kept, sizeof(kept));
      return;
    }
#endif
    for (int l = 0; l < kLanes; ++l) {
      *to = v[l];
      to += mask >> l & 1;
    }
  }
}

// max(lo, min(v, hi)); NaN stays NaN
template <class A, int kLanes>
UGNN_INLINE vec_t<A, kLanes> clamp(vec_t<A, kLanes> v, A lo, A hi) {
  if constexpr (kLanes == 1) {
    return v < lo ? lo : (v > hi ? hi : v);
  } else {
    const vec_t<A, kLanes> low = vec_t<A, kLanes>{} + lo, high = vec_t<A, kLanes>{} + hi;
    v = (v < low) ? low : v;
    return (v > high) ? high : v;
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
