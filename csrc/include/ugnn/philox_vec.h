// Philox of philox.h for several counters at once.
#pragma once

#include "ugnn/philox.h"
#include "ugnn/vec.h"

namespace ugnn {
namespace UGNN_ISA {

// lanes of one vector of 64-bit values
#if defined(UGNN_ISA_avx512)
constexpr int kPhiloxLanes = 8;
#elif defined(UGNN_ISA_avx2)
constexpr int kPhiloxLanes = 4;
#else
constexpr int kPhiloxLanes = 1;
#endif
using PhiloxVec = vec_t<uint64_t, kPhiloxLanes>;

// The keys of the ten rounds.
struct PhiloxKeys {
  uint64_t key[10][2];

  explicit PhiloxKeys(uint64_t seed) {
    uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += kPhiloxWeyl0, key1 += kPhiloxWeyl1) {
      key[round][0] = key0;
      key[round][1] = key1;
    }
  }
};

// The four words of philox(seed, c0, c1, c2, c3), in place, in the lower half of each lane. The upper halves become
// garbage that no multiplication reads.
template <int kLanes>
UGNN_INLINE void philox_rounds(const PhiloxKeys& keys, vec_t<uint64_t, kLanes>& c0, vec_t<uint64_t, kLanes>& c1,
                               vec_t<uint64_t, kLanes>& c2, vec_t<uint64_t, kLanes>& c3) {
  using V = vec_t<uint64_t, kLanes>;
  UGNN_UNROLL
  for (int round = 0; round < 10; ++round) {
    const V product0 = multiply_low<kLanes>(c0, kPhiloxMultiplier0);
    const V product1 = multiply_low<kLanes>(c2, kPhiloxMultiplier1);
    c0 = xor3<kLanes>(product1 >> 32, c1, V{} + keys.key[round][0]);
    c1 = product1;
    c2 = xor3<kLanes>(product0 >> 32, c3, V{} + keys.key[round][1]);
    c3 = product0;
  }
}

// the first word, all that a mask of one entry needs
UGNN_INLINE PhiloxVec philox_first_word(const PhiloxKeys& keys, PhiloxVec c0, PhiloxVec c1, PhiloxVec c2,
                                        PhiloxVec c3) {
  philox_rounds<kPhiloxLanes>(keys, c0, c1, c2, c3);
  return c0;
}

// all words of every lane, [kLanes, 4]
template <int kLanes>
UGNN_INLINE void philox_words(const PhiloxKeys& keys, vec_t<uint64_t, kLanes> c0, vec_t<uint64_t, kLanes> c1,
                              vec_t<uint64_t, kLanes> c2, vec_t<uint64_t, kLanes> c3, uint32_t* words) {
  using V = vec_t<uint64_t, kLanes>;
  philox_rounds<kLanes>(keys, c0, c1, c2, c3);
  V first = (c0 & 0xffffffffu) | c1 << 32, second = (c2 & 0xffffffffu) | c3 << 32;
  if constexpr (kLanes > 1) {
    V low, high;
    UGNN_UNROLL
    for (int l = 0; l < kLanes; ++l) {
      low[l] = l / 2 + l % 2 * kLanes;
      high[l] = low[l] + kLanes / 2;
    }
    const V before = first;
    first = __builtin_shuffle(before, second, low);
    second = __builtin_shuffle(before, second, high);
  }
  std::memcpy(words, &first, sizeof(first));
  std::memcpy(words + 2 * kLanes, &second, sizeof(second));
}

// p[0] .. p[kLanes - 1], one in each lane
template <int kLanes>
UGNN_INLINE vec_t<uint64_t, kLanes> widen_words(const uint32_t* p) {
  if constexpr (kLanes == 1) {
    return *p;
  } else {
    vec_t<uint32_t, kLanes> words;
    std::memcpy(&words, p, sizeof(words));
    return __builtin_convertvector(words, vec_t<uint64_t, kLanes>);
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
