// Random numbers without a state: Philox4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3").
// A counter and a key give four 32-bit words, so that a mask is computed where it is needed, is the same on every
// backend, for any number of threads, and in backward. ugnn_fast/_random.py is the same in torch.
#pragma once

#include <cstdint>

namespace ugnn {

// Fourth word of the counter: what the numbers are for.
enum class Stream : uint32_t { kDropEdge = 0, kAttention = 1, kFeatures = 2, kValues = 3 };

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u, kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;

struct PhiloxWords {
  uint32_t word[4];
};

inline PhiloxWords philox(uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  uint32_t key0 = uint32_t(seed), key1 = uint32_t(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t(kPhiloxMultiplier0) * c0, product1 = uint64_t(kPhiloxMultiplier1) * c2;
    c0 = uint32_t(product1 >> 32) ^ c1 ^ key0;
    c1 = uint32_t(product1);
    c2 = uint32_t(product0 >> 32) ^ c3 ^ key1;
    c3 = uint32_t(product0);
    key0 += kPhiloxWeyl0;
    key1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// A value is kept if its word is at least this; drop is the probability of losing it, 0 <= drop < 1.
inline uint32_t keep_from(double drop) { return uint32_t(drop * 4294967296.0); }

}  // namespace ugnn
