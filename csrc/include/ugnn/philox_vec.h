// Philox of philox.h for several counters at once: the first word, which is all that a mask of one entry needs.
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

// philox(seed, c0, c1, c2, c3).word[0] in the lower half of each lane. The upper halves of all vectors are garbage that
// no multiplication reads.
UGNN_INLINE PhiloxVec philox_first_word(const PhiloxKeys& keys, PhiloxVec c0, PhiloxVec c1, PhiloxVec c2,
                                        PhiloxVec c3) {
  const PhiloxVec zero{};
  UGNN_UNROLL
  for (int round = 0; round < 10; ++round) {
    const PhiloxVec product0 = multiply_low<kPhiloxLanes>(c0, kPhiloxMultiplier0);
    const PhiloxVec product1 = multiply_low<kPhiloxLanes>(c2, kPhiloxMultiplier1);
    c0 = xor3<kPhiloxLanes>(product1 >> 32, c1, zero + keys.key[round][0]);
    c1 = product1;
    c2 = xor3<kPhiloxLanes>(product0 >> 32, c3, zero + keys.key[round][1]);
    c3 = product0;
  }
  return c0;
}

}  // namespace UGNN_ISA
}  // namespace ugnn
