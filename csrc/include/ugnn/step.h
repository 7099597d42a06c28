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

// scale * values[i * stride], or scale alone
template <class A>
struct Coef {
  const A* values = nullptr;
  int64_t stride = 0;
  A scale = 1;
  UGNN_INLINE A at(int64_t i) const { return values ? scale * values[i * stride] : scale; }
};

template <class T>
struct Step {
  using A = acc_t<T>;
  Csr g;
  bool sorted = false;   // rows in the order of g.order
  int64_t prefetch = 0;  // entries ahead; 0: none
  int width = 0;         // columns; tables are padded to ld with zeros
  int64_t ld = 0;

  // gather
  const T* table = nullptr;  // [N, ld]
  Coef<A> c;                 // kNode
  const A* edge = nullptr;   // [E], kEdge
  const int64_t* reverse = nullptr;  // [E]: take e_ji in place of e_ij
  A* partial = nullptr;              // [pieces, 2, ld], sums of the pieces of hub rows

  // kForward, kGeneral: z = agg left right y + skip x (+ keep h + prev h_prev, clamped)
  Coef<A> agg, left, right, skip;
  const T* x = nullptr;  // row i at x + i * ldx; null: no skip term
  int64_t ldx = 0;
  T* out = nullptr;  // out_i = z (kForward), or h_{k+1} (kGeneral, null: not wanted)
  int64_t ldo = 0;
  T* sums = nullptr;  // [N, ld]: s_i, kept for backward; null: not wanted

  // kGeneral only; right is then applied to what goes into the next table, not to z
  Coef<A> keep, prev;
  const T* h = nullptr;
  int64_t ldh = 0;
  const T* h_prev = nullptr;
  int64_t ldp = 0;
  bool clamped = false;
  A lo = 0, hi = 0;
  T* next = nullptr;  // [N, ld]: right z, the table of the next step; null: last step
  A* total = nullptr;  // total_i += gamma z
  int64_t ldt = 0;
  A gamma = 0;

  // kBackward, one step of ada_propagate; table holds v = rho b G
  const T* u = nullptr;      // [N, ld]: table of the forward step
  const T* s = nullptr;      // [N, ld]: its s; null: gradient of c not wanted
  Coef<A> b, rho;
  A* grad_x = nullptr;       // row i at grad_x + i * ldg; null: not wanted
  int64_t ldg = 0;
  A* grad_c = nullptr;       // [N] with stride ldc
  A* grad_b = nullptr;       // e of docs/math.md (G3), [N] with stride ldc
  int64_t ldc = 0;
  bool first = false;        // the step that started from x
};

template <class T, int kLanes, int kVecs, Weighting kW, bool kWeighted, Epilogue kE>
struct StepKernel {
  using A = acc_t<T>;
  using V = vec_t<A, kLanes>;
  static constexpr bool kNode = kW == Weighting::kNode;

  struct Sums {
    V s[kVecs];
    V p[kNode ? kVecs : 1];
  };

  static UGNN_INLINE void add(const Step<T>& a, int64_t e, Sums& sums) {
    const int64_t j = a.g.col[e];
    const T* row = a.table + j * a.ld;
    A w = 1;
    if constexpr (kE == Epilogue::kGeneral) {
      if (a.g.weight) w = A(a.g.weight[e]);
    } else if constexpr (kWeighted) {
      w = A(a.g.weight[e]);
    }
    if constexpr (kW == Weighting::kEdge) w *= a.edge[a.reverse ? a.reverse[e] : e];
    A wc = 0;
    if constexpr (kNode) {
      wc = a.c.values[j * a.c.stride];
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
    const int64_t last = a.g.E - 1;
    for (int64_t e = begin; e < end; ++e) {
      if (a.prefetch) {
        const int64_t ahead = e + a.prefetch < last ? e + a.prefetch : last;
        const char* row = reinterpret_cast<const char*>(a.table + a.g.col[ahead] * a.ld);
        UGNN_UNROLL
        for (int byte = 0; byte < int(sizeof(T)) * kVecs * kLanes; byte += 64) __builtin_prefetch(row + byte, 0, 2);
      }
      add(a, e, sums);
    }
  }

  // Lanes of vector v that are columns: all but in the last one.
  static UGNN_INLINE int lanes(const Step<T>& a, int v) {
    return v < kVecs - 1 ? kLanes : a.width - (kVecs - 1) * kLanes;
  }

  static UGNN_INLINE V y_of(const Sums& sums, A c_i, int v) {
    if constexpr (kNode) return c_i * sums.s[v] + sums.p[v];
    return sums.s[v];
  }

  static UGNN_INLINE void finish(const Step<T>& a, int64_t i, const Sums& sums) {
    A c_i = 0;
    if constexpr (kNode) c_i = a.c.values[i * a.c.stride];
    if constexpr (kE == Epilogue::kBackward) {
      finish_backward(a, i, sums, c_i);
    } else {
      const A right = a.right.at(i);
      const A scale = a.agg.at(i) * a.left.at(i) * (kE == Epilogue::kForward ? right : A(1));
      const A skip = a.x ? a.skip.at(i) : A(0);
  UGNN_UNROLL
  for (int v = 0; v < kVecs; ++v) {
        const int n = lanes(a, v);
        V z = scale * y_of(sums, c_i, v);
        if (a.x) z += skip * load_first<kLanes>(a.x + i * a.ldx + v * kLanes, n);
        if constexpr (kE == Epilogue::kGeneral) {
          if (a.h) z += a.keep.at(i) * load_first<kLanes>(a.h + i * a.ldh + v * kLanes, n);
          if (a.h_prev) z += a.prev.at(i) * load_first<kLanes>(a.h_prev + i * a.ldp + v * kLanes, n);
          if (a.clamped) z = clamp<A, kLanes>(z, a.lo, a.hi);
          if (a.next) store<kLanes>(a.next + i * a.ld + v * kLanes, right * z);
          if (a.total) {
            A* total = a.total + i * a.ldt + v * kLanes;
            store_first<kLanes>(total, load_first<kLanes>(total, n) + a.gamma * z, n);
          }
        }
        if (kE == Epilogue::kForward || a.out) store_first<kLanes>(a.out + i * a.ldo + v * kLanes, z, n);
        if (a.sums) store<kLanes>(a.sums + i * a.ld + v * kLanes, sums.s[v]);
      }
    }
  }

  // docs/math.md (G1)-(G3), with t = sums.s and G = rho y the gradient of the step's input
  static UGNN_INLINE void finish_backward(const Step<T>& a, int64_t i, const Sums& sums, A c_i) {
    const A rho = a.rho.at(i), b = a.b.at(i);
    const A to_x = a.first ? rho : 2 * b * rho, to_v = rho * b * rho;
    V dot_c{}, dot_b{};
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const V y = y_of(sums, c_i, v);
      if (a.s) {
        const V u = load<kLanes>(a.u + i * a.ld + v * kLanes);
        dot_c += load<kLanes>(a.table + i * a.ld + v * kLanes) * load<kLanes>(a.s + i * a.ld + v * kLanes) +
                 u * sums.s[v];
        dot_b += y * u;
      }
      if (a.grad_x) {
        A* grad = a.grad_x + i * a.ldg + v * kLanes;
        const int n = lanes(a, v);
        store_first<kLanes>(grad, load_first<kLanes>(grad, n) + to_x * y, n);
      }
      if (a.next) store<kLanes>(a.next + i * a.ld + v * kLanes, to_v * y);
    }
    if (a.s) {
      a.grad_c[i * a.ldc] += sum_lanes<A, kLanes>(dot_c);
      if (!a.first) a.grad_b[i * a.ldc] += b * sum_lanes<A, kLanes>(dot_b);
    }
  }

  // Items [begin, end) of one part of a step. One function, so that gather and epilogue are compiled once.
  static void run(const Step<T>& a, Part part, int64_t begin, int64_t end) {
    const int64_t hub_len = hub_length(a.g.E);
    HubPieces pieces{a.g};
    for (int64_t item = begin; item < end; ++item) {
      Sums sums;
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        sums.s[v] = V{};
        if constexpr (kNode) sums.p[v] = V{};
      }
      int64_t i;
      if (part == Part::kRows) {
        i = row_at(a.g, a.sorted, item);
        const int64_t first = a.g.rowptr[i], last = a.g.rowptr[i + 1];
        if (last - first > hub_len) continue;
        gather(a, first, last, sums);
      } else if (part == Part::kPieces) {
        int64_t first, last;
        pieces.find(item, first, last);
        gather(a, first, last, sums);
        A* partial = a.partial + item * 2 * a.ld;
        UGNN_UNROLL
        for (int v = 0; v < kVecs; ++v) {
          store<kLanes>(partial + v * kLanes, sums.s[v]);
          if constexpr (kNode) store<kLanes>(partial + a.ld + v * kLanes, sums.p[v]);
        }
        continue;
      } else {
        i = a.g.hubs[item];
        int64_t number, last;
        for (pieces.range(item, number, last); number < last; ++number) {
          const A* partial = a.partial + number * 2 * a.ld;
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            sums.s[v] += load<kLanes>(partial + v * kLanes);
            if constexpr (kNode) sums.p[v] += load<kLanes>(partial + a.ld + v * kLanes);
          }
        }
      }
      finish(a, i, sums);
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
#define UGNN_STEP_KERNEL(T, kW, kE)                                                    \
  template <>                                                                          \
  StepRun<T> step_kernel<T, kW, kE>(const Csr& g, int width) {                         \
    if constexpr (kE == Epilogue::kGeneral) return step_kernel_of<T, kW, kE, true>(width); \
    return g.weight ? step_kernel_of<T, kW, kE, true>(width) : step_kernel_of<T, kW, kE, false>(width); \
  }
#define UGNN_STEP_KERNELS(kW, kE)    \
  UGNN_STEP_KERNEL(float, kW, kE)    \
  UGNN_STEP_KERNEL(double, kW, kE)   \
  UGNN_STEP_KERNEL(bfloat16, kW, kE)

}  // namespace UGNN_ISA
}  // namespace ugnn
