// The stored entries of a sparse matrix that a dropout mask keeps, listed next to each other.
#pragma once

#include "ugnn/csr.h"
#include "ugnn/ops.h"
#include "ugnn/philox_vec.h"

namespace ugnn {
namespace UGNN_ISA {

// Some consecutive entries, or what is left of them.
template <class E>
struct Entries {
  const int32_t* col;
  const E* value;
  int count;
};

// A list for at most kBlockEntries entries, of one row or of several. The mask of entry (row, column) of x is the first
// word of the counter (row, column, 0, kFeatures): neighbours in a row of a sparse matrix have columns far apart, so
// that counters for four columns each would share nothing.
template <class T>
class KeptEntries {
 public:
  using A = acc_t<T>;

  // transposed: the rows here are columns of x
  KeptEntries(const SparseRows& x, bool transposed, double drop)
      : x_(x), transposed_(transposed), keep_from_(keep_from(drop)), scale_(A(1 / (1 - drop))) {}

  // the places [first, last) of the list to come belong to row i
  void note_row(int64_t i, int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) row_[k] = int32_t(i);
  }

  // Lists those of the entries [first, last) that the mask of a seed keeps.
  Entries<A> list(int64_t first, int64_t last, uint64_t seed) {
    const PhiloxKeys keys(seed);
    const PhiloxVec zero{}, stream = zero + uint32_t(Stream::kFeatures);
    const T* values = static_cast<const T*>(x_.values);
    int listed = 0;
    for (int64_t e = first; e < last; e += kStep) {
      const int n = int(last - e < kStep ? last - e : kStep);
      const PhiloxVec row = load_words<kStep>(row_ + (e - first), n), col = load_words<kStep>(x_.col + e, n);
      const PhiloxVec words = philox_first_word(keys, transposed_ ? col : row, transposed_ ? row : col, zero, stream);
      const unsigned mask = lanes_from<kStep>(words, keep_from_, n);
      compress<kStep>(col_ + listed, words_to_int<kStep>(col), mask);
      compress<kStep>(value_ + listed, scale_ * load_first<kStep>(values + e, Tail<kStep>(n)), mask);
      before_[(e - first) / kStep] = listed;
      mask_[(e - first) / kStep] = uint8_t(mask);
      listed += __builtin_popcount(mask);
    }
    const int64_t steps = (last - first + kStep - 1) / kStep;
    before_[steps] = listed;
    mask_[steps] = 0;
    return {col_, value_, listed};
  }

  // how many of the first `places` places were kept
  UGNN_INLINE int kept_before(int64_t places) const {
    return before_[places / kStep] + __builtin_popcount(mask_[places / kStep] & ((1u << places % kStep) - 1));
  }

 private:
  static constexpr int kStep = kPhiloxLanes;

  const SparseRows x_;
  const bool transposed_;
  const uint32_t keep_from_;
  const A scale_;
  int32_t row_[kBlockEntries];
  int32_t col_[kBlockEntries + kStep];  // compress writes whole vectors
  A value_[kBlockEntries + kStep];
  // of every step: how many were kept before, and which are kept
  int32_t before_[kBlockEntries / kStep + 1];
  uint8_t mask_[kBlockEntries / kStep + 1];
};

}  // namespace UGNN_ISA
}  // namespace ugnn
