// Dropout of dense values, and a narrow linear layer behind it, for R models side by side.
//
//   dropout          out_nrf = keep_r(n, f) x_nrf / (1 - drop)
//   dropout_linear   out_nr  = bias_r + sum_f keep_r(n, f) act(x_nrf) / (1 - drop) weight_rf,   act = ReLU or nothing
//
// The mask of column f in row n is word f % 4 of the counter (n, f / 4, 0, kValues); it is made again in backward and
// never stored. A block of rows is owned by one thread, and sums over rows are sums of blocks of one size.
#pragma once

#include "ugnn/ops.h"
#include "ugnn/philox_vec.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// The words that decide about some rows of F values, [rows, 4 groups].
class RowWords {
 public:
  RowWords(int64_t max_rows, int64_t F)
      : groups_((F + 3) / 4),
        row_(counters(max_rows)),
        group_(counters(max_rows)),
        words_(4 * counters(max_rows) + 8) {  // read in whole vectors
    for (int64_t k = 0; k < counters(max_rows); ++k) group_.get()[k] = uint32_t(k % groups_);
  }
  // The rows to come are [first, first + rows).
  void rows(int64_t first, int64_t rows) {
    count_ = rows * groups_;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = i * groups_; k < (i + 1) * groups_; ++k) row_.get()[k] = uint32_t(first + i);
    }
    for (int64_t k = count_; k % kPhiloxLanes; ++k) row_.get()[k] = 0;
  }
  void fill(const PhiloxKeys& keys) {
    const PhiloxVec zero{}, stream = zero + uint32_t(Stream::kValues);
    for (int64_t k = 0; k < count_; k += kPhiloxLanes) {
      philox_words<kPhiloxLanes>(keys, widen_words<kPhiloxLanes>(row_.get() + k),
                                 widen_words<kPhiloxLanes>(group_.get() + k), zero, stream, words_.get() + 4 * k);
    }
  }
  const uint32_t* of(int64_t row) const { return words_.get() + 4 * groups_ * row; }

 private:
  int64_t counters(int64_t rows) const { return rows * groups_ + kPhiloxLanes; }

  const int64_t groups_;
  Buffer<uint32_t> row_, group_, words_;
  int64_t count_ = 0;
};

// `scale` where the word is at least `from`, 0 elsewhere, for 8 columns
template <class A>
UGNN_INLINE vec_t<A, 8> kept_scale(const uint32_t* words, uint32_t from, A scale) {
  vec_t<uint32_t, 8> word;
  std::memcpy(&word, words, sizeof(word));
  const vec_t<int32_t, 8> kept = word >= from;
  using V = vec_t<A, 8>;
  if constexpr (sizeof(A) == 8) {
    return __builtin_convertvector(kept, vec_t<int64_t, 8>) ? V{} + scale : V{};
  } else {
    return kept ? V{} + scale : V{};
  }
}

// rows whose words are made together: a few pages of them
inline int64_t rows_at_once(int64_t F) { return F > 1024 ? 4 : 4096 / ((F + 3) / 4 * 4); }

template <class T>
void dropout(const Dropout& a) {
  using A = acc_t<T>;
  const int64_t step = rows_at_once(a.F), blocks = (a.N + step - 1) / step;
  const uint32_t from = keep_from(a.drop);
  const A scale = A(1 / (1 - a.drop));
#pragma omp parallel num_threads(useful_threads(a.threads, 4 * a.N * a.R * a.F))
  {
    RowWords words(step, a.F);
    int64_t begin, end;
    even_share(blocks, begin, end);
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * step, rows = a.N - first < step ? a.N - first : step;
      words.rows(first, rows);
      for (int64_t r = 0; r < a.R; ++r) {
        words.fill(PhiloxKeys(uint64_t(a.seeds[r])));
        for (int64_t i = 0; i < rows; ++i) {
          const int64_t offset = ((first + i) * a.R + r) * a.F;
          const T* x = static_cast<const T*>(a.x) + offset;
          T* out = static_cast<T*>(a.out) + offset;
          const uint32_t* word = words.of(i);
          for (int64_t f = 0; f < a.F; f += 8) {
            const Tail<8> columns(int(a.F - f < 8 ? a.F - f : 8));
            const vec_t<A, 8> kept = kept_scale<A>(word + f, from, scale), value = load_first<8>(x + f, columns);
            store_first<8>(out + f, kept == vec_t<A, 8>{} ? vec_t<A, 8>{} : value * kept, columns);
          }
        }
      }
    }
  }
}

// dropout_linear for T = float or double, at most kDropoutLinearWidth columns of the result.
template <class T>
class DropoutLinearKernel {
 public:
  static constexpr int kLanes = 8, kRows = 4;
  static constexpr int64_t kSumRows = 1024;  // rows of one sum
  using V = vec_t<T, kLanes>;

  explicit DropoutLinearKernel(const DropoutLinear& a)
      : a_(a),
        step_(rows_at_once(a.F) / kRows * kRows),
        ld_((a.F + kLanes - 1) / kLanes * kLanes),
        from_(keep_from(a.drop)),
        scale_(T(1 / (1 - a.drop))),
        words_(step_, a.F),
        z_(step_ * ld_),
        factor_(step_ * ld_) {}

  // values of a replica's weight with padded columns, and of its transpose with padded rows
  static int64_t padded_weight(const DropoutLinear& a) { return a.F * width(a); }
  static int64_t width(const DropoutLinear& a) { return (a.D + kLanes - 1) / kLanes * kLanes; }
  static int64_t sum_size(const DropoutLinear& a) { return a.R * (a.F + 1) * width(a); }

  template <int kVecs>
  void forward(int64_t begin, int64_t end, const T* weight, const T* bias) {
    for_blocks(begin, end, [&](int64_t first, int64_t rows, int64_t r) {
      const T* w = weight + r * a_.F * kVecs * kLanes;
      for (int64_t i = 0; i < rows; i += kRows) {
        V sum[kRows][kVecs];
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          const V start = load<kLanes>(bias + (r * kVecs + v) * kLanes);
          UGNN_UNROLL
          for (int k = 0; k < kRows; ++k) sum[k][v] = start;
        }
        const T* z = z_.get() + i * ld_;
        for (int64_t f = 0; f < a_.F; ++f) {
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            const V column = load<kLanes>(w + (f * kVecs + v) * kLanes);
            UGNN_UNROLL
            for (int k = 0; k < kRows; ++k) sum[k][v] += z[k * ld_ + f] * column;
          }
        }
        for (int k = 0; k < kRows && i + k < rows; ++k) {
          T* out = static_cast<T*>(a_.out) + ((first + i + k) * a_.R + r) * a_.D;
          for (int v = 0; v < kVecs; ++v) store_first<kLanes>(out + v * kLanes, sum[k][v], columns(v));
        }
      }
    });
  }

  // sums: [R, F + 1, width], the gradients of weight and, behind it, bias from the rows of one block
  template <int kVecs>
  void backward(int64_t begin, int64_t end, const T* transposed, T* sums) {
    for (int64_t k = 0; k < sum_size(a_); ++k) sums[k] = 0;
    for_blocks(begin, end, [&](int64_t first, int64_t rows, int64_t r) {
      T* sum = sums + r * (a_.F + 1) * kVecs * kLanes;
      T* bias = sum + a_.F * kVecs * kLanes;
      const T* w = transposed + r * a_.D * ld_;
      for (int64_t i = 0; i < rows; i += kRows) {
        V grad[kRows][kVecs] = {};
        for (int k = 0; k < kRows && i + k < rows; ++k) {
          for (int v = 0; v < kVecs; ++v)
            grad[k][v] = load_first<kLanes>(grad_row(first + i + k, r) + v * kLanes, columns(v));
        }
        const T* z = z_.get() + i * ld_;
        for (int64_t f = 0; f < a_.F; ++f) {
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            T* to = sum + (f * kVecs + v) * kLanes;
            V total = load<kLanes>(to);
            UGNN_UNROLL
            for (int k = 0; k < kRows; ++k) total += z[k * ld_ + f] * grad[k][v];
            store<kLanes>(to, total);
          }
        }
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          V total = load<kLanes>(bias + v * kLanes);
          UGNN_UNROLL
          for (int k = 0; k < kRows; ++k) total += grad[k][v];
          store<kLanes>(bias + v * kLanes, total);
        }
      }
      for (int64_t i = 0; i < rows; ++i) input_gradient(first + i, i, r, w);
    });
  }

 private:
  Tail<kLanes> columns(int v) const {
    const int64_t left = a_.D - v * kLanes;
    return Tail<kLanes>(int(left < kLanes ? left : kLanes));
  }
  const T* grad_row(int64_t n, int64_t r) const { return static_cast<const T*>(a_.grad) + (n * a_.R + r) * a_.D; }

  // body(first, rows, r) with z of these rows and replica
  template <class Body>
  void for_blocks(int64_t begin, int64_t end, Body body) {
    for (int64_t first = begin; first < end; first += step_) {
      const int64_t rows = end - first < step_ ? end - first : step_;
      if (a_.seeds) words_.rows(first, rows);
      for (int64_t r = 0; r < a_.R; ++r) {
        if (a_.seeds) words_.fill(PhiloxKeys(uint64_t(a_.seeds[r])));
        for (int64_t i = 0; i < rows; ++i) input(first + i, i, r);
        for (int64_t k = rows * ld_; k % (kRows * ld_); ++k) z_.get()[k] = 0;
        body(first, rows, r);
      }
    }
  }

  // z_f = keep(f) act(x_f) / (1 - drop), and its derivative; zeros behind the columns
  void input(int64_t n, int64_t i, int64_t r) {
    const T* x = static_cast<const T*>(a_.x) + (n * a_.R + r) * a_.F;
    T *z = z_.get() + i * ld_, *factor = factor_.get() + i * ld_;
    for (int64_t f = 0; f < ld_; f += kLanes) {
      const int64_t left = a_.F - f;
      const V value = load_first<kLanes>(x + f, Tail<kLanes>(int(left < kLanes ? left : kLanes)));
      V scale = V{} + T(1);
      if (a_.seeds) scale = kept_scale<T>(words_.of(i) + f, from_, scale_);
      if (a_.relu) scale = value <= V{} ? V{} : scale;  // a NaN stays one
      store<kLanes>(factor + f, scale);
      // what is dropped does not take part: 0 times infinity would
      store<kLanes>(z + f, scale == V{} ? V{} : value * scale);
    }
  }

  void input_gradient(int64_t n, int64_t i, int64_t r, const T* transposed) const {
    const T *grad = grad_row(n, r), *factor = factor_.get() + i * ld_;
    T* out = static_cast<T*>(a_.out) + (n * a_.R + r) * a_.F;
    for (int64_t f = 0; f < a_.F; f += kLanes) {
      V sum{};
      for (int64_t d = 0; d < a_.D; ++d) sum += grad[d] * load<kLanes>(transposed + d * ld_ + f);
      const V kept = load<kLanes>(factor + f);
      sum = kept == V{} ? V{} : sum * kept;
      const int64_t left = a_.F - f;
      store_first<kLanes>(out + f, sum, Tail<kLanes>(int(left < kLanes ? left : kLanes)));
    }
  }

  const DropoutLinear& a_;
  const int64_t step_, ld_;
  const uint32_t from_;
  const T scale_;
  RowWords words_;
  Buffer<T> z_, factor_;
};

template <class Body>
void for_vecs(int64_t width, Body body) {
  static_assert(kDropoutLinearWidth == 32);
  if (width == 8) return body(std::integral_constant<int, 1>{});
  if (width == 16) return body(std::integral_constant<int, 2>{});
  if (width == 24) return body(std::integral_constant<int, 3>{});
  return body(std::integral_constant<int, 4>{});
}

template <class T>
void dropout_linear(const DropoutLinear& a) {
  using Kernel = DropoutLinearKernel<T>;
  const int64_t width = Kernel::width(a), blocks = (a.N + Kernel::kSumRows - 1) / Kernel::kSumRows;
  const int64_t rows = (a.F + Kernel::kLanes - 1) / Kernel::kLanes * Kernel::kLanes;  // of a transposed weight
  const bool backward = a.grad;
  Buffer<T> weight(a.R * (backward ? a.D * rows : a.F * width)), bias(a.R * width);
  Buffer<T> sums(backward ? blocks * Kernel::sum_size(a) : 0);
  const T* given = static_cast<const T*>(a.weight);
  for (int64_t r = 0; r < a.R; ++r) {
    if (backward) {
      for (int64_t d = 0; d < a.D; ++d) {
        T* to = weight.get() + (r * a.D + d) * rows;
        for (int64_t f = 0; f < rows; ++f) to[f] = f < a.F ? given[(r * a.F + f) * a.D + d] : T(0);
      }
      continue;
    }
    for (int64_t f = 0; f < a.F; ++f) {
      T* to = weight.get() + (r * a.F + f) * width;
      for (int64_t d = 0; d < width; ++d) to[d] = d < a.D ? given[(r * a.F + f) * a.D + d] : T(0);
    }
    for (int64_t d = 0; d < width; ++d) {
      bias.get()[r * width + d] = a.bias && d < a.D ? static_cast<const T*>(a.bias)[r * a.D + d] : T(0);
    }
  }
#pragma omp parallel num_threads(useful_threads(a.threads, a.N* a.R* a.F*(width / 4)))
  {
    Kernel kernel(a);
    int64_t begin, end;
    even_share(blocks, begin, end);
    for_vecs(width, [&](auto vecs) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * Kernel::kSumRows;
        const int64_t last = first + Kernel::kSumRows < a.N ? first + Kernel::kSumRows : a.N;
        if (backward) {
          kernel.template backward<vecs.value>(first, last, weight.get(), sums.get() + block * Kernel::sum_size(a));
        } else {
          kernel.template forward<vecs.value>(first, last, weight.get(), bias.get());
        }
      }
    });
  }
  if (!backward) return;
  for (int64_t r = 0; r < a.R; ++r) {
    for (int64_t f = 0; f <= a.F; ++f) {
      T* to = f < a.F ? static_cast<T*>(a.grad_weight) + (r * a.F + f) * a.D : static_cast<T*>(a.grad_bias) + r * a.D;
      const T* from = sums.get() + (r * (a.F + 1) + f) * width;
      for (int64_t d = 0; d < a.D; ++d) {
        T sum = 0;
        for (int64_t block = 0; block < blocks; ++block) sum += from[block * Kernel::sum_size(a) + d];
        to[d] = sum;
      }
    }
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
