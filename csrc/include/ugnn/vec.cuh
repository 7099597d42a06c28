// Values in memory, kVec at a time, as numbers in the type of sums.
#pragma once

#include "ugnn/device.cuh"

namespace ugnn::cuda {

// Type of sums and coefficients for values stored as T.
template <class T>
struct Acc {
  using type = float;
};
template <>
struct Acc<double> {
  using type = double;
};
template <class T>
using acc_of = typename Acc<T>::type;

UGNN_DEVICE float to_acc(float value) { return value; }
UGNN_DEVICE double to_acc(double value) { return value; }
UGNN_DEVICE float to_acc(__half value) { return __half2float(value); }
UGNN_DEVICE float to_acc(__nv_bfloat16 value) { return __bfloat162float(value); }

UGNN_DEVICE void from_acc(float& to, float value) { to = value; }
UGNN_DEVICE void from_acc(double& to, double value) { to = value; }
UGNN_DEVICE void from_acc(__half& to, float value) { to = __float2half_rn(value); }
UGNN_DEVICE void from_acc(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

template <int kBytes>
struct Word;
template <>
struct Word<16> {
  using type = uint4;
};
template <>
struct Word<8> {
  using type = uint2;
};
template <>
struct Word<4> {
  using type = unsigned;
};
template <>
struct Word<2> {
  using type = unsigned short;
};

// kVec values as they lie in memory, moved in words of up to 16 bytes; the address is a multiple of the word.
template <class T, int kVec>
struct Raw {
  static constexpr int kBytes = kVec * int(sizeof(T)), kWordBytes = kBytes < 16 ? kBytes : 16;
  using word_t = typename Word<kWordBytes>::type;
  word_t words[kBytes / kWordBytes] = {};

  UGNN_DEVICE void load(const T* from) {
#pragma unroll
    for (int k = 0; k < kBytes / kWordBytes; ++k) words[k] = reinterpret_cast<const word_t*>(from)[k];
  }
  UGNN_DEVICE void store(T* to) const {
#pragma unroll
    for (int k = 0; k < kBytes / kWordBytes; ++k) reinterpret_cast<word_t*>(to)[k] = words[k];
  }
  UGNN_DEVICE void get(acc_of<T> (&to)[kVec]) const {
    T values[kVec];
    memcpy(values, words, kBytes);
#pragma unroll
    for (int k = 0; k < kVec; ++k) to[k] = to_acc(values[k]);
  }
  UGNN_DEVICE void set(const acc_of<T> (&from)[kVec]) {
    T values[kVec];
#pragma unroll
    for (int k = 0; k < kVec; ++k) from_acc(values[k], from[k]);
    memcpy(words, values, kBytes);
  }
};

template <class T, int kVec>
UGNN_DEVICE void load(acc_of<T> (&to)[kVec], const void* table, int64_t at) {
  Raw<T, kVec> raw;
  raw.load(static_cast<const T*>(table) + at);
  raw.get(to);
}

template <class T, int kVec>
UGNN_DEVICE void store(void* table, int64_t at, const acc_of<T> (&from)[kVec]) {
  Raw<T, kVec> raw;
  raw.set(from);
  raw.store(static_cast<T*>(table) + at);
}

// One number of a table of sums or coefficients
template <class acc_t>
UGNN_DEVICE acc_t number(const void* table, int64_t at) {
  return static_cast<const acc_t*>(table)[at];
}

template <class acc_t, int kVec>
UGNN_DEVICE void add_product(acc_t (&to)[kVec], acc_t factor, const acc_t (&values)[kVec]) {
#pragma unroll
  for (int k = 0; k < kVec; ++k) to[k] += factor * values[k];
}

template <class acc_t, int kVec>
UGNN_DEVICE acc_t dot(const acc_t (&p)[kVec], const acc_t (&q)[kVec]) {
  acc_t sum = 0;
#pragma unroll
  for (int k = 0; k < kVec; ++k) sum += p[k] * q[k];
  return sum;
}

}  // namespace ugnn::cuda
