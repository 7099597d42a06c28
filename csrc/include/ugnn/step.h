// One aggregation step over CSR rows, the kernel that everything else calls.
//
//   s_i = sum_j a_ij u_j,   p_i = sum_j a_ij c_j u_j,   y_i = s_i | c_i s_i + p_i | sum_j a_ij e_ij u_j
//
// u is a table of rows that are already scaled by their right factor, so that no edge weight is stored or rebuilt
// beyond c_j. A row is owned by one thread; its sums stay in registers until the epilogue has used them.
#pragma once

#include "ugnn/shape.h"
#include "ugnn/threads.h"
#include "ugnn/vec.h"

namespace ugnn {
namespace UGNN_ISA {

enum class Weighting { kUnit, kNode, kEdge };  // W = 1 | c_i + c_j | e_ij
enum class Epilogue { kForward, kGeneral, kBackward };
// rows that are no hubs | pieces of hubs, summed into memory | hubs, from the sums of their pieces
enum class Part { kRows, kPieces, kHubs };

// scale * values[i], or scale alone
template <class A>
struct Coef {
  const A* values = nullptr;
  A scale = 1;
  UGNN_INLINE A at(int64_t i) const { return values ? scale * values[i] : scale; }
};

// Two factors of a row that are read together.
template <class A>
struct Factors {
  A first, second;
};

// Tables are [N, padded(width)], with zeros behind the columns; other rows are at p + i * ld_p.
template <class T>
struct Step {
  using A = acc_t<T>;
  Csr g;
  bool sorted = false;  // rows in the order of g.order
  int prefetch = 0;     // entries ahead; 0: none
  int width = 0;        // columns of the rows that are not tables

  // gather
  const T* table = nullptr;
  const A* c = nullptr;              // [N], kNode
  const A* edge = nullptr;           // [E], kEdge
  const int64_t* reverse = nullptr;  // [E]: take e_ji in place of e_ij
  A* partial = nullptr;              // [pieces, 2, padded(width)], sums of the pieces of hub rows

  // [N]: kForward and kGeneral (scale of y, scale of x), kBackward (rho, b)
  const Factors<A>* factors = nullptr;

  // kForward, kGeneral: z = scale y + skip x (+ keep h + prev h_prev, clamped)
  const T* x = nullptr;  // null: no skip term
  int64_t ldx = 0;
  T* out = nullptr;  // z; kGeneral: null if not wanted
  int64_t ldo = 0;
  T* sums = nullptr;  // table of s_i, kept for backward; null: not wanted

  // kGeneral only
  Coef<A> right;  // next = right z
  Coef<A> keep, prev;
  const T* h = nullptr;
  int64_t ldh = 0;
  const T* h_prev = nullptr;
  int64_t ldp = 0;
  bool clamped = false;
  A lo = 0, hi = 0;
  A* total = nullptr;  // total_i += gamma z
  int64_t ldt = 0;
  A gamma = 0;

  T* next = nullptr;  // table of the next step, kGeneral and kBackward; null: last step

  // kBackward, one step of ada_propagate; table holds v = rho b G
  const T* u = nullptr;  // table of the forward step
  const T* s = nullptr;  // its s; null: gradient of c not wanted
  A* grad_x = nullptr;   // null: not wanted
  int64_t ldg = 0;
  A* grad_c = nullptr;  // [N]
  A* grad_b = nullptr;  // [N], e of docs/math.md (G3)
  bool first = false;   // the step that started from x
};

template <class T, int kLanes, int kVecs, Weighting kW, bool kWeighted, Epilogue kE>
struct StepKernel {
  using A = acc_t<T>;
  using V = vec_t<A, kLanes>;
  static constexpr bool kNode = kW == Weighting::kNode;
  static constexpr int64_t kLd = kLanes * kVecs;

  struct Sums {
    V s[kVecs];
    V p[kNode ? kVecs : 1];
  };

  static UGNN_INLINE void clear(Sums& sums) {
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sums.s[v] = V{};
      if constexpr (kNode) sums.p[v] = V{};
    }
  }

  static UGNN_INLINE void add_to(Sums& sums, const Sums& before) {
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sums.s[v] += before.s[v];
      if constexpr (kNode) sums.p[v] += before.p[v];
    }
  }

  static UGNN_INLINE void add(const Step<T>& a, int64_t e, Sums& sums) {
    const int64_t j = a.g.col[e];
    const T* row = a.table + j * kLd;
    A w = 1;
    if constexpr (kE == Epilogue::kGeneral) {
      if (a.g.weight) w = A(a.g.weight[e]);
    } else if constexpr (kWeighted) {
      w = A(a.g.weight[e]);
    }
    if constexpr (kW == Weighting::kEdge) w *= a.edge[a.reverse ? a.reverse[e] : e];
    A wc = 0;
    if constexpr (kNode) {
      wc = a.c[j];
      if constexpr (kWeighted) wc *= w;
    }
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const V u = load<kLanes>(row + v * kLanes);
      if constexpr (kWeighted || kW == Weighting::kEdge) {
        sums.s[v] += w * u;
      } else {
        sums.s[v] += u;
      }
      if constexpr (kNode) sums.p[v] += wc * u;
    }
  }

  static UGNN_INLINE void gather(const Step<T>& a, int64_t begin, int64_t end, Sums& sums) {
    if (a.prefetch) {
      const int64_t last = a.g.E - 1;
      for (int64_t e = begin; e < end; ++e) {
        const int64_t ahead = e + a.prefetch < last ? e + a.prefetch : last;
        const char* row = reinterpret_cast<const char*>(a.table + a.g.col[ahead] * kLd);
        UGNN_UNROLL
        for (int byte = 0; byte < int(sizeof(T) * kLd); byte += 64) __builtin_prefetch(row + byte, 0, 2);
        add(a, e, sums);
      }
    } else {
      for (int64_t e = begin; e < end; ++e) add(a, e, sums);
    }
  }

  static UGNN_INLINE V y_of(const Sums& sums, A c_i, int v) {
    if constexpr (kNode) return c_i * sums.s[v] + sums.p[v];
    return sums.s[v];
  }

  // columns of vector v of a row that is not a table: all lanes but in the last one
  static UGNN_INLINE V load_columns(const T* row, int v, const Tail<kLanes>& tail) {
    return v < kVecs - 1 ? load<kLanes>(row + v * kLanes) : load_first<kLanes>(row + v * kLanes, tail);
  }
  template <class U>
  static UGNN_INLINE void store_columns(U* row, int v, V value, const Tail<kLanes>& tail) {
    if (v < kVecs - 1) {
      store<kLanes>(row + v * kLanes, value);
    } else {
      store_first<kLanes>(row + v * kLanes, value, tail);
    }
  }

  static UGNN_INLINE void finish(const Step<T>& a, int64_t i, const Sums& sums, const Tail<kLanes>& tail) {
    const Factors<A> factors = a.factors[i];
    A c_i = 0;
    if constexpr (kNode) c_i = a.c[i];
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      V z = factors.first * y_of(sums, c_i, v);
      if (a.x) z += factors.second * load_columns(a.x + i * a.ldx, v, tail);
      if constexpr (kE == Epilogue::kGeneral) {
        if (a.h) z += a.keep.at(i) * load_columns(a.h + i * a.ldh, v, tail);
        if (a.h_prev) z += a.prev.at(i) * load_columns(a.h_prev + i * a.ldp, v, tail);
        if (a.clamped) z = clamp<A, kLanes>(z, a.lo, a.hi);
        if (a.next) store<kLanes>(a.next + i * kLd + v * kLanes, a.right.at(i) * z);
        if (a.total) {
          A* total = a.total + i * a.ldt;
          V sum = a.gamma * z;
          sum += v < kVecs - 1 ? load<kLanes>(total + v * kLanes) : load_first<kLanes>(total + v * kLanes, tail);
          store_columns(total, v, sum, tail);
        }
      }
      if (kE == Epilogue::kForward || a.out) store_columns(a.out + i * a.ldo, v, z, tail);
      if (a.sums) store<kLanes>(a.sums + i * kLd + v * kLanes, sums.s[v]);
    }
  }

  // docs/math.md (G1)-(G3), with t = sums.s and G = rho y the gradient of the step's input
  static UGNN_INLINE void finish_backward(const Step<T>& a, int64_t i, const Sums& sums, const Tail<kLanes>& tail) {
    const A rho = a.factors[i].first, b = a.factors[i].second, c_i = a.c[i];
    const A to_x = a.first ? rho : 2 * b * rho, to_v = rho * b * rho;
    V dot_c{}, dot_b{};
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = i * kLd + v * kLanes;
      const V y = y_of(sums, c_i, v);
      if (a.s) {
        const V u = load<kLanes>(a.u + at);
        dot_c += load<kLanes>(a.table + at) * load<kLanes>(a.s + at) + u * sums.s[v];
        dot_b += y * u;
      }
      if (a.grad_x) {
        A* grad = a.grad_x + i * a.ldg;
        V sum = to_x * y;
        sum += v < kVecs - 1 ? load<kLanes>(grad + v * kLanes) : load_first<kLanes>(grad + v * kLanes, tail);
        store_columns(grad, v, sum, tail);
      }
      if (a.next) store<kLanes>(a.next + at, to_v * y);
    }
    if (a.s) {
      a.grad_c[i] += sum_lanes<A, kLanes>(dot_c);
      if (!a.first) a.grad_b[i] += b * sum_lanes<A, kLanes>(dot_b);
    }
  }

  // Items [begin, end) of one part of a step. One function, so that gather and epilogue are compiled once. The step
  // is a copy: stores go through pointers to anything, and the compiler would read its members again after each.
  static void run(const Step<T>& step, Part part, int64_t begin, int64_t end) {
    const Step<T> a = step;
    const int64_t hub_len = hub_length(a.g.E);
    const HubPieces pieces{a.g};
    const Tail<kLanes> tail(a.width - (kVecs - 1) * kLanes);
    for (int64_t item = begin; item < end; ++item) {
      Sums sums;
      int64_t i = 0;
      if (__builtin_expect(part != Part::kHubs, 1)) {
        int64_t first, last;
        if (__builtin_expect(part == Part::kRows, 1)) {
          i = row_at(a.g, a.sorted, item);
          first = a.g.rowptr[i];
          last = a.g.rowptr[i + 1];
          if (__builtin_expect(last - first > hub_len, 0)) continue;
        } else {
          pieces.find(item, first, last);
        }
        // long rows in blocks: one sum over thousands of neighbours would lose digits
        Sums before;
        bool more = false;
        do {
          const int64_t stop = last - first > kBlockEntries ? first + kBlockEntries : last;
          clear(sums);
          gather(a, first, stop, sums);
          if (__builtin_expect(more, 0)) add_to(sums, before);
          if (__builtin_expect(stop < last, 0)) before = sums;
          more = true;
          first = stop;
        } while (__builtin_expect(first < last, 0));
        if (__builtin_expect(part == Part::kPieces, 0)) {
          A* partial = a.partial + item * 2 * kLd;
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            store<kLanes>(partial + v * kLanes, sums.s[v]);
            if constexpr (kNode) store<kLanes>(partial + kLd + v * kLanes, sums.p[v]);
          }
          continue;
        }
      } else {
        i = a.g.hubs[item];
        int64_t number, last;
        clear(sums);
        for (pieces.range(item, number, last); number < last; ++number) {
          const A* partial = a.partial + number * 2 * kLd;
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            sums.s[v] += load<kLanes>(partial + v * kLanes);
            if constexpr (kNode) sums.p[v] += load<kLanes>(partial + kLd + v * kLanes);
          }
        }
      }
      if constexpr (kE == Epilogue::kBackward) {
        finish_backward(a, i, sums, tail);
      } else {
        finish(a, i, sums, tail);
      }
    }
  }
};

template <class T>
using StepRun = void (*)(const Step<T>&, Part part, int64_t begin, int64_t end);

// The kernel for a slice of so many columns; compiled in csrc/cpu/step_*.cpp.
template <class T, Weighting kW, Epilogue kE>
StepRun<T> step_kernel(const Csr& g, int width);

template <class T, Weighting kW, Epilogue kE, bool kWeighted>
StepRun<T> step_kernel_of(int width) {
  return for_shape<T>(padded(width), [](auto shape) -> StepRun<T> {
    return StepKernel<T, shape.kLanes, shape.kVecs, kW, kWeighted, kE>::run;
  });
}

// in one source file for each pair of weighting and epilogue
#define UGNN_STEP_KERNEL(T, kW, kE)                                                                     \
  template <>                                                                                           \
  StepRun<T> step_kernel<T, kW, kE>(const Csr& g, int width) {                                          \
    if constexpr (kE == Epilogue::kGeneral) return step_kernel_of<T, kW, kE, true>(width);              \
    return g.weight ? step_kernel_of<T, kW, kE, true>(width) : step_kernel_of<T, kW, kE, false>(width); \
  }
#define UGNN_STEP_KERNELS(kW, kE)  \
  UGNN_STEP_KERNEL(float, kW, kE)  \
  UGNN_STEP_KERNEL(double, kW, kE) \
  UGNN_STEP_KERNEL(bfloat16, kW, kE)

}  // namespace UGNN_ISA
}  // namespace ugnn
