// One aggregation step over CSR rows, the kernel that everything else calls: its arguments, and the choice of a
// version. The kernel itself is in step_kernel.h.
//
//   s_i = sum_j a_ij u_j,   p_i = sum_j a_ij c_j u_j,   y_i = s_i | c_i s_i + p_i | sum_j a_ij e_ij u_j
//
// u is a table of rows that are already scaled by their right factor, so that no edge weight is stored or rebuilt
// beyond c_j. A row is owned by one thread; its sums stay in registers until the epilogue has used them. What is read
// per neighbour decides the speed: where a table row has room behind its columns, c_j lies there.
#pragma once

#include "ugnn/shape.h"
#include "ugnn/threads.h"
#include "ugnn/vec.h"

namespace ugnn {
namespace UGNN_ISA {

// W = 1 | c_i + c_j, c in an array | the same, c_j behind the columns of row j | e_ij
enum class Weighting { kUnit, kNode, kNodeInRow, kEdge };
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

constexpr int kPieceRows = 3;  // s, p, and c in the first places of the third

// Two factors of a row that are read together.
template <class A>
struct Factors {
  A first, second;
};

// Fetches so many values, past the first-level cache unless kLocality is 3, as of __builtin_prefetch.
template <int kValues, int kLocality = 2, class T>
UGNN_INLINE void fetch(const T* row) {
  UGNN_UNROLL
  for (int at = 0; at < kValues; at += 64 / sizeof(T)) __builtin_prefetch(row + at, 0, kLocality);
}

// How far ahead rows of a table are fetched while entries are summed, and whether into the first-level cache.
struct Ahead {
  int entries = 0;  // 0: not at all, the table is in the caches near the core
  bool first_level = false;
  explicit operator bool() const { return entries; }

  template <int kValues, class T>
  UGNN_INLINE void fetch(const T* row) const {
    if (first_level) {
      UGNN_ISA::fetch<kValues, 3>(row);
    } else {
      UGNN_ISA::fetch<kValues, 2>(row);
    }
  }
};

// Fetches a row of the user that is wanted soon; kWrite: to be written. order: as in View; the reader of streams stops
// at the end of a page, so that rows in order are fetched too, further ahead.
template <bool kWrite, class T>
UGNN_INLINE void fetch_row(const T* first, int64_t ld, int64_t width, const int32_t* order, int64_t p, int64_t end) {
  const int64_t wanted = p + (order ? 8 : 32);
  if (wanted >= end) return;
  const char* row = reinterpret_cast<const char*>(first + (order ? order[wanted] : wanted) * ld);
  for (int64_t byte = 0; byte < width * int64_t(sizeof(T)); byte += 64) __builtin_prefetch(row + byte, kWrite, 3);
}

// Tables are [N, ld]; behind the columns of a row lie zeros, or for kNodeInRow anything and c_i at the end. Other rows
// are at p + i * ld_p.
template <class T>
struct Step {
  using A = acc_t<T>;
  Csr g;
  bool ascending = false;  // rows are sorted by length
  Ahead prefetch;
  int columns = 0;  // of the slice
  int width = 0;    // values to read and write of a row of x, out and grad_x: columns, or all if they are tables

  // gather
  const T* table = nullptr;
  const A* c = nullptr;              // [N], kNode and kNodeInRow
  A* entry_c = nullptr;              // [E], kNode: c_j of every entry; null: it is looked up
  bool fills_c = false;              // this step looks it up and writes it
  const A* edge = nullptr;           // [E], kEdge
  const int64_t* reverse = nullptr;  // [E]: take e_ji in place of e_ij
  A* partial = nullptr;              // [pieces, kPieceRows, ld], sums of the pieces of hub rows

  // [N]: kForward and kGeneral (scale of y, scale of x), kBackward (rho, b)
  const Factors<A>* factors = nullptr;

  // kNode and kNodeInRow, kForward: if not null, b of ada_propagate is found and written here; the scales of y and x
  // are then b times the product of both factors, of which the second is rho, and 2 b
  A* b = nullptr;

  // kForward, kGeneral: z = scale y + skip x (+ keep h + prev h_prev, clamped)
  const T* x = nullptr;  // null: no skip term
  int64_t ldx = 0;
  T* out = nullptr;  // z; kGeneral: null if not wanted
  int64_t ldo = 0;
  const int32_t* order = nullptr;  // rows of x and out; null: i itself
  T* sums = nullptr;               // table of s_i, kept for backward; null: not wanted

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
  const T* u = nullptr;        // table of the forward step
  const T* s = nullptr;        // its s; null: gradient of c not wanted
  bool kept_far = false;       // u and s are beyond the caches near the core
  const A* inverse = nullptr;  // [N]: 1 / rho, 0 where rho is
  A* grad_x = nullptr;         // null: not wanted, or left to a step that follows
  int64_t ldg = 0;
  int left = 0;               // terms that were left to this step: of v in table, and of v in before
  const T* before = nullptr;  // where next will be, or would: v of the step before
  bool begins = false;        // nothing is there yet
  A* grad_c = nullptr;        // [N]
  A* grad_b = nullptr;        // [N], e of docs/math.md (G3)
  const A* share = nullptr;   // [N], e / d: their sum over the neighbours is taken off grad_c; null: not wanted
  bool first = false;         // the step that started from x
};

template <class T>
using StepRun = void (*)(const Step<T>&, Part part, int64_t begin, int64_t end);

// The kernel for tables with rows of ld values; compiled in csrc/cpu/step_*.cpp. kGeneral and kBackward serve any graph
// (kBackward has a second version for graphs without weights); kForward serves graphs without weights, in float and
// bfloat16, as does kNodeInRow.
template <class T, Weighting kW, bool kWeighted, Epilogue kE>
StepRun<T> step_kernel(int ld);

// values of a table that a float takes
template <class T>
constexpr int kFloatPlaces = sizeof(float) / sizeof(T);

// how c_j is read: in the row where there is room for it
template <class T>
bool c_in_row(const Csr& g, int columns, int ld) {
  return !std::is_same_v<T, double> && !g.weight && ld >= columns + kFloatPlaces<T>;
}

// c at the end of a 16-bit row; in a row of floats it is in every place behind the columns already
template <class T>
UGNN_INLINE void put_c(T* row, int ld, acc_t<T> c) {
  if constexpr (sizeof(T) == 2) std::memcpy(row + ld - kFloatPlaces<T>, &c, sizeof(c));
}

// columns, ld: of the slice; ld is what padded_for_c says
template <class T>
StepRun<T> forward_kernel(const Csr& g, bool has_c, int columns, int ld) {
  constexpr Weighting kUnit = Weighting::kUnit, kNode = Weighting::kNode;
  if constexpr (!std::is_same_v<T, double>) {
    constexpr Epilogue kForward = Epilogue::kForward;
    if (!g.weight && !has_c) return step_kernel<T, kUnit, false, kForward>(ld);
    if (has_c && c_in_row<T>(g, columns, ld)) return step_kernel<T, Weighting::kNodeInRow, false, kForward>(ld);
    if (!g.weight) return step_kernel<T, kNode, false, kForward>(ld);
  }
  return has_c ? step_kernel<T, kNode, true, Epilogue::kGeneral>(ld)
               : step_kernel<T, kUnit, true, Epilogue::kGeneral>(ld);
}

template <class T>
StepRun<T> backward_kernel(const Csr& g, int columns, int ld) {
  constexpr Epilogue kBackward = Epilogue::kBackward;
  if constexpr (!std::is_same_v<T, double>) {
    if (c_in_row<T>(g, columns, ld)) return step_kernel<T, Weighting::kNodeInRow, false, kBackward>(ld);
    if (!g.weight) return step_kernel<T, Weighting::kNode, false, kBackward>(ld);
  }
  return step_kernel<T, Weighting::kNode, true, kBackward>(ld);
}

}  // namespace UGNN_ISA
}  // namespace ugnn
