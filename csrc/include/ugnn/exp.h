// exp and log of a vector.
#pragma once

#include <cmath>

#include "ugnn/vec.h"

namespace ugnn {
namespace UGNN_ISA {

// e^x = 2^n e^r, |r| <= ln 2 / 2, with e^r = 1 + r + r^2 p(r), p of degree 4 fitted so that the largest relative error
// is smallest (3e-9 before rounding). Off by less than 2 units in the last place; 0 where the result would be below the
// normal numbers, and no larger than e^88. NaN stays NaN.
template <int kLanes>
UGNN_INLINE vec_t<float, kLanes> exp_float(vec_t<float, kLanes> x) {
  using V = vec_t<float, kLanes>;
  constexpr float kLowest = -87.3365f, kHighest = 88.0f;
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: adding it leaves a rounded integer in the lowest bits
  const V limited = clamp<float, kLanes>(x, kLowest, kHighest);
  const V shifted = limited * 1.44269504f + kMagic;
  const V n = shifted - kMagic;
  // ln 2 in two parts, of which n times the first is exact
  const V r = (limited - n * 0.693359375f) - n * -2.12194440e-4f;
  V p = r * 0.0013814539f + 0.008368745f;
  p = p * r + 0.04166839f;
  p = p * r + 0.16666521f;
  p = p * r + 0.49999994f;
  p = p * (r * r) + r + 1.0f;
  vec_t<uint32_t, kLanes> bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  bits = (bits + 127u) << 23;
  V power;
  std::memcpy(&power, &bits, sizeof(power));
  return x < kLowest ? V{} : p * power;
}

// log x = n ln 2 + log m, m from sqrt(1/2) to sqrt(2), with log m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172, of
// which five terms are left off by 1e-9. For normal positive numbers; NaN stays NaN.
template <int kLanes>
UGNN_INLINE vec_t<float, kLanes> log_float(vec_t<float, kLanes> x) {
  using V = vec_t<float, kLanes>;
  constexpr int32_t kRootHalf = 0x3f3504f3;  // bits of sqrt(1/2)
  vec_t<int32_t, kLanes> bits;
  std::memcpy(&bits, &x, sizeof(bits));
  const vec_t<int32_t, kLanes> n = (bits - kRootHalf) >> 23;
  bits -= n << 23;
  V m;
  std::memcpy(&m, &bits, sizeof(m));
  const V s = (m - 1.0f) / (m + 1.0f), s2 = s * s;
  V p = s2 * (1.0f / 9) + 1.0f / 7;
  p = p * s2 + 1.0f / 5;
  p = p * s2 + 1.0f / 3;
  const V log_m = 2.0f * s + 2.0f * s * s2 * p;
  const V result = __builtin_convertvector(n, V) * 0.693147181f + log_m;
  return x == x ? result : x;
}

template <class A, int kLanes>
UGNN_INLINE vec_t<A, kLanes> log_of(vec_t<A, kLanes> x) {
  if constexpr (std::is_same_v<A, float>) {
    return log_float<kLanes>(x);
  } else {
    for (int l = 0; l < kLanes; ++l) x[l] = std::log(x[l]);
    return x;
  }
}

template <class A, int kLanes>
UGNN_INLINE vec_t<A, kLanes> exp_of(vec_t<A, kLanes> x) {
  if constexpr (std::is_same_v<A, float>) {
    return exp_float<kLanes>(x);
  } else {
    for (int l = 0; l < kLanes; ++l) x[l] = std::exp(x[l]);
    return x;
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
