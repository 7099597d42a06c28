// Attention weights of GAT for a few entries of a row at a time, rebuilt from node scores wherever they are needed.
//
//   z_ij = dst_i + src_j,   e_ij = LeakyReLU(z_ij),   alpha_ij = exp(e_ij - lse_i),   w_ij = mask_ij / (1 - q) alpha_ij
//
// Scores of the neighbours are copied into lanes, one per head, entry after entry; what follows runs over all of them
// as one array, so that one head is as good as eight.
#pragma once

#include <cmath>

#include "ugnn/exp.h"
#include "ugnn/ops.h"
#include "ugnn/philox_vec.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// y and lse | gradients summed over the row that receives: dst | those over the row that sends: x and src
enum class GatPass { kForward, kTarget, kSource };

// Columns of some heads of one replica, or of a part of one head.
struct GatSlice {
  int64_t replica;
  int64_t first;    // column in [H * D]
  int width;        // columns
  int columns;      // of each head
  int heads;        // that have columns here
  int64_t head;     // that has the first lane: the first of four that share their random words
  int lanes;        // heads that are computed
  int offset;       // lanes before those of the slice's heads
  bool first_part;  // of its heads
};

template <class T>
struct GatSlices {
  int64_t H, D, R;

  int64_t heads_at_once() const {
    const int64_t most = kMaxWidth<T> / D, own = H / R;
    return most >= own ? own : (most < 4 ? most : most / 4 * 4);
  }
  int64_t per_replica() const {
    if (D > kMaxWidth<T>) return H / R * parts();
    return (H / R + heads_at_once() - 1) / heads_at_once();
  }
  int64_t parts() const { return (D + kMaxWidth<T> - 1) / kMaxWidth<T>; }
  int64_t count() const { return R * per_replica(); }

  GatSlice at(int64_t number) const {
    GatSlice slice;
    slice.replica = number / per_replica();
    number %= per_replica();
    int64_t own = number, column = 0;  // first head of the slice within its replica, first column of that head
    if (D > kMaxWidth<T>) {
      own = number / parts();
      column = number % parts() * kMaxWidth<T>;
      slice.heads = 1;
      slice.columns = int(D - column < kMaxWidth<T> ? D - column : kMaxWidth<T>);
    } else {
      own = number * heads_at_once();
      slice.heads = int(H / R - own < heads_at_once() ? H / R - own : heads_at_once());
      slice.columns = int(D);
    }
    slice.width = slice.heads * slice.columns;
    slice.first_part = column == 0;
    slice.offset = int(own % 4);
    slice.lanes = slice.offset + slice.heads;
    slice.head = slice.replica * (H / R) + own - slice.offset;
    slice.first = (slice.head + slice.offset) * D + column;
    return slice;
  }
};

// What the weights are made of. Own: of the row, others: of its neighbours.
template <class A>
struct GatScores {
  Csr g;
  int64_t H, R;
  A slope;
  double drop;           // q
  const int64_t* seeds;  // [R]
  const A* own;          // [N, H]: dst; kSource: src
  const A* others;       // [N, H]: src; kSource: [N, 3, H], dst, lse and <grad, y>
  const A* lse;          // [N, H], kTarget
  int prefetch;          // entries ahead; 0: none
};

template <class A, GatPass kPass>
class GatWeights {
 public:
  static constexpr int kMaxLanes = 64, kPad = 16;  // vectors may be read past the last lane
  static constexpr bool kForward = kPass == GatPass::kForward;

  GatWeights(const GatScores<A>& scores, const GatSlice& slice)
      : a_(scores),
        slice_(slice),
        stride_(slice.lanes <= 4 ? 4 : (slice.lanes <= 8 ? 8 : (slice.lanes + 15) / 16 * 16)),
        length_(stride_ < kFlat ? kFlat : stride_),
        keys_(scores.drop > 0 ? uint64_t(scores.seeds[slice.replica]) : 0),
        keep_from_(keep_from(scores.drop)),
        keep_scale_(A(1 / (1 - scores.drop))) {
    const int64_t quad = slice.head % (scores.H / scores.R) / 4;
    for (int k = 0; k < kValues / 4 + kPad; ++k) quads_[k] = uint32_t(quad + k % (stride_ / 4));
    for (int k = 0; k < kMaxLanes + kPad; ++k) own_[k] = shift_[k] = 0;
  }

  int entries_at_once() const { return kValues / stride_; }
  int stride() const { return stride_; }
  // of entry e of those that were filled in, a lane per head; `positive` where z > 0 and else 0
  const A* weights() const { return weights_; }
  const A* positive() const { return positive_; }
  // per lane, over the entries of the row so far: sum exp(e - max) | sum of alpha where z > 0 | sum e' alpha <grad, y>
  A* sum() { return sum_; }
  A* max() { return shift_; }            // kForward: largest e so far
  const A* scale() { return scale_; }    // kForward: what sums from before the last entries are multiplied by
  const A* own() const { return own_; }  // scores of the row

  void start(int64_t i) {
    row_ = i;
    first_ = true;
    spread(a_.own, own_);
    if constexpr (kPass == GatPass::kTarget) spread(a_.lse, shift_);
    for (int k = 0; k < stride_; ++k) {
      sum_[k] = 0;
      if constexpr (kForward) shift_[k] = kLowest;
    }
  }

  // The weights of entries [first, first + n) of the row, n <= entries_at_once(). kForward: relative to max().
  __attribute__((noinline)) void fill(int64_t first, int n) {
    if (stride_ == 4) {
      copy_others<4>(first, n);
    } else {
      copy_others<8>(first, n);
    }
    if (a_.drop > 0) draw(first, n);
    if constexpr (kForward) raise_max();
    first_ = false;
    const int values = n * stride_;
    alignas(64) A sums[kMaxLanes + kPad];
    for (int c = 0; c < length_; c += kFlat) {
      const V own = load<kFlat>(own_ + c), shift = load<kFlat>(shift_ + c);
      V sum{};
      int at = c;
      for (; at + kFlat <= values; at += length_) sum += weigh(at, own, shift);
      if (at < values) sum += first_or<A, kFlat>(weigh(at, own, shift), A(0), Tail<kFlat>(values - at));
      store<kFlat>(sums + c, sum);
    }
    for (int k = 0; k < stride_; ++k) {
      A total = kForward ? sum_[k] * scale_[k] : sum_[k];
      for (int c = k; c < length_; c += stride_) total += sums[c];
      sum_[k] = total;
    }
  }

  // Takes in the sums of another part of the same row; then scale() is for what was there, and the result for the part.
  __attribute__((noinline)) void merge(const A* sum, const A* max, A* part_scale) {
    for (int k = 0; k < stride_; ++k) {
      if constexpr (kForward) {
        const A before = shift_[k], both = max[k] > before ? max[k] : before;
        scale_[k] = std::exp(before - both);
        part_scale[k] = std::exp(max[k] - both);
        shift_[k] = both;
        sum_[k] = sum_[k] * scale_[k] + sum[k] * part_scale[k];
      } else {
        sum_[k] += sum[k];
      }
    }
  }

 private:
#if defined(UGNN_ISA_avx512)
  static constexpr int kFlat = std::is_same_v<A, float> ? 16 : 8;
#else
  static constexpr int kFlat = 8;
#endif
  static constexpr int kValues = 512;  // entries times lanes at once: buffers stay in the first-level cache
  static constexpr int kOthers = kPass == GatPass::kSource ? 3 : 1;
  static constexpr A kLowest = std::is_same_v<A, float> ? A(-3.4028234e38) : A(-1.7976931348623157e308);
  using V = vec_t<A, kFlat>;
  static_assert(kMaxWidth<A> <= kMaxLanes);

  // scores of the row, repeated until a vector is full
  void spread(const A* scores, A* to) {
    const A* from = scores + row_ * a_.H + slice_.head;
    for (int c = 0; c < length_; c += stride_) {
      for (int k = 0; k < slice_.lanes; ++k) to[c + k] = from[k];
    }
  }

  template <int kLanes>
  void copy_others(int64_t first, int n) {
    using L = vec_t<A, kLanes>;
    const int32_t* col = a_.g.col;
    const int64_t last = a_.g.E - 1, ld = kOthers * a_.H;
    if (a_.prefetch) {
      for (int64_t e = first; e < first + n; ++e) {
        const int64_t ahead = e + 2 * a_.prefetch < last ? e + 2 * a_.prefetch : last;
        const A* row = a_.others + col[ahead] * ld + slice_.head;
        for (int k = 0; k < kOthers; ++k) __builtin_prefetch(row + k * a_.H, 0, 2);
      }
    }
    for (int c = 0; c < stride_; c += kLanes) {
      const int left = slice_.lanes - c;
      const Tail<kLanes> tail(left < 0 ? 0 : (left < kLanes ? left : kLanes));
      L largest = L{} + kLowest;
      for (int e = 0; e < n; ++e) {
        const A* row = a_.others + col[first + e] * ld + slice_.head + c;
        UGNN_UNROLL
        for (int k = 0; k < kOthers; ++k) {
          const L values = load_first<kLanes>(row + k * a_.H, tail);
          store<kLanes>(others_[k] + e * stride_ + c, values);
          if constexpr (kForward) largest = values > largest ? values : largest;
        }
      }
      if constexpr (kForward) store<kLanes>(largest_ + c, largest);
    }
  }

  // LeakyReLU is monotone: the largest e belongs to the largest score of a neighbour
  void raise_max() {
    constexpr int kLanes = 4;
    using L = vec_t<A, kLanes>;
    for (int c = 0; c < stride_; c += kLanes) {
      const L z = load<kLanes>(own_ + c) + load<kLanes>(largest_ + c), before = load<kLanes>(shift_ + c);
      const L e = z > A(0) ? z : a_.slope * z, both = e > before ? e : before;
      store<kLanes>(scale_ + c, first_ ? L{} : exp_of<A, kLanes>(before - both));
      for (int at = c; at < length_; at += stride_) store<kLanes>(shift_ + at, both);
    }
  }

  // weights at [at, at + kFlat) of the lanes of all entries; returns what they add to sum()
  UGNN_INLINE V weigh(int at, V own, V shift) {
    const V z = own + load<kFlat>(others_[0] + at);
    if constexpr (kPass == GatPass::kSource) shift = load<kFlat>(others_[1] + at);
    const V alpha = exp_of<A, kFlat>((z > A(0) ? z : a_.slope * z) - shift);
    V weight = alpha;
    if (a_.drop > 0) {
      vec_t<uint32_t, kFlat> words;
      std::memcpy(&words, words_ + at, sizeof(words));
      const vec_t<int32_t, kFlat> kept = words >= keep_from_;
      using Mask = vec_t<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>, kFlat>;
      weight = __builtin_convertvector(kept, Mask) ? alpha * keep_scale_ : V{};
    }
    store<kFlat>(weights_ + at, weight);
    if constexpr (kForward) return alpha;
    store<kFlat>(positive_ + at, z > A(0) ? weight : V{});
    if constexpr (kPass == GatPass::kTarget) return z > A(0) ? alpha : V{};
    return (z > A(0) ? alpha : a_.slope * alpha) * load<kFlat>(others_[2] + at);
  }

  // the random words of the entries, four heads a counter (receiving row, sending row, head / 4)
  void draw(int64_t first, int n) {
    const int quads = stride_ / 4;
    for (int e = 0; e < n; ++e) {
      for (int q = 0; q < quads; ++q) nodes_[e * quads + q] = uint32_t(a_.g.col[first + e]);
    }
    const PhiloxVec own = PhiloxVec{} + uint64_t(row_), stream = PhiloxVec{} + uint64_t(Stream::kAttention);
    for (int k = 0; k < n * quads; k += kPhiloxLanes) {
      const PhiloxVec other = widen_words<kPhiloxLanes>(nodes_ + k), quad = widen_words<kPhiloxLanes>(quads_ + k);
      if constexpr (kPass == GatPass::kSource) {
        philox_words<kPhiloxLanes>(keys_, other, own, quad, stream, words_ + 4 * k);
      } else {
        philox_words<kPhiloxLanes>(keys_, own, other, quad, stream, words_ + 4 * k);
      }
    }
  }

  const GatScores<A> a_;
  const GatSlice slice_;
  const int stride_;  // lanes from one entry to the next
  const int length_;  // of the scores of the row, repeated
  const PhiloxKeys keys_;
  const uint32_t keep_from_;
  const A keep_scale_;
  int64_t row_ = 0;
  bool first_ = true;  // no entry of the row has been weighed
  alignas(64) A own_[kMaxLanes + kPad];
  alignas(64) A shift_[kMaxLanes + kPad];
  alignas(64) A scale_[kMaxLanes + kPad];
  alignas(64) A largest_[kMaxLanes + kPad];
  alignas(64) A sum_[kMaxLanes + kPad];
  alignas(64) A weights_[kValues + kPad];
  alignas(64) A positive_[kForward ? 1 : kValues + kPad];
  alignas(64) A others_[kOthers][kValues + kPad];
  alignas(64) uint32_t words_[kValues + 4 * kPad];
  alignas(64) uint32_t nodes_[kValues / 4 + kPad];
  alignas(64) uint32_t quads_[kValues / 4 + kPad];
};

}  // namespace UGNN_ISA
}  // namespace ugnn
