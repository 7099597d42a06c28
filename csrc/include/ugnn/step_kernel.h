// The step kernel of step.h, compiled for every width in csrc/cpu/step_*.cpp.
#pragma once

#include "ugnn/step.h"
#include "ugnn/vec_rows.h"

namespace ugnn {
namespace UGNN_ISA {

// kWeighted: the graph may have weights, looked up at run time; without it there are none.
template <class T, int kLanes, int kVecs, Weighting kW, bool kWeighted, Epilogue kE>
struct StepKernel {
  using A = acc_t<T>;
  using V = vec_t<A, kLanes>;
  static constexpr bool kInRow = kW == Weighting::kNodeInRow;
  static constexpr bool kNode = kW == Weighting::kNode || kInRow;
  static constexpr int64_t kLd = kLanes * kVecs;
#if defined(UGNN_ISA_base)
  static constexpr bool kTogether = false;
#else
  static constexpr bool kTogether = kVecs == 1 && !kWeighted && !std::is_same_v<T, double>;
#endif
  // rows in a vector where several are summed at a time; c_j out of an array is no part of a row
  static constexpr int kAside =
      kTogether && std::is_same_v<T, float> && kW != Weighting::kNode ? kRowsAside<kLanes> : 1;
  // where the sums of rows have that of c in their last lane
  static constexpr bool kSumsC = kInRow && kLanes > 1 && std::is_same_v<T, float>;
  // how far rows that are read in order are fetched ahead
  static constexpr int64_t kRowsAhead = 16;
  // a number of each neighbour is summed apart: c for b, in the step that finds it; in the last step of backward share
  static constexpr bool kForB = kNode && !kSumsC && !kWeighted && kE == Epilogue::kForward;
  static constexpr bool kShares = !kWeighted && kE == Epilogue::kBackward, kCounts = kForB || kShares;
  template <int kRows>
  using Rows = vec_t<A, kLanes * kRows>;

  template <int kRows>
  struct SumsOf {
    Rows<kRows> s[kVecs];
    Rows<kRows> p[kNode ? kVecs : 1];
    V counted[kRows];  // in all lanes, kCounts
  };
  using Sums = SumsOf<1>;

  template <int kRows>
  static UGNN_INLINE void clear(SumsOf<kRows>& sums) {
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sums.s[v] = Rows<kRows>{};
      if constexpr (kNode) sums.p[v] = Rows<kRows>{};
    }
    if constexpr (kCounts) {
      UGNN_UNROLL
      for (int r = 0; r < kRows; ++r) sums.counted[r] = V{};
    }
  }

  template <int kRows>
  static UGNN_INLINE Sums row_of(const SumsOf<kRows>& sums, int k) {
    if constexpr (kRows == 1) {
      return sums;
    } else {
      Sums one;
      one.s[0] = row_of_vector<kLanes, kRows>(sums.s[0], k);
      if constexpr (kNode) one.p[0] = row_of_vector<kLanes, kRows>(sums.p[0], k);
      if constexpr (kCounts) one.counted[0] = sums.counted[k];
      return one;
    }
  }

  static UGNN_INLINE void add_to(Sums& sums, const Sums& before) {
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      sums.s[v] += before.s[v];
      if constexpr (kNode) sums.p[v] += before.p[v];
    }
    if constexpr (kCounts) sums.counted[0] += before.counted[0];
  }

  // c behind the columns of a row, of which the last vector is given
  static UGNN_INLINE V c_behind([[maybe_unused]] const T* row, [[maybe_unused]] V last) {
    if constexpr (sizeof(T) == 2) {
      float c;
      std::memcpy(&c, row + kLd - kFloatPlaces<T>, sizeof(c));
      return c - V{};  // less zero, which costs nothing; plus zero is an addition
    } else {
      return last_lane<A, kLanes>(last);
    }
  }

  static UGNN_INLINE A first_lane(V v) {
    if constexpr (kLanes > 1) return v[0];
    if constexpr (kLanes == 1) return v;
  }

  // In rows of one vector a sum waits for the one before it, and a product fused with it makes it wait for longer.
  static UGNN_INLINE void add_product(V& sum, V w, V u) {
    V product = w * u;
    if constexpr (kVecs == 1 && kW == Weighting::kNode) keep(product);
    sum += product;
  }

  // kNode: where c_j comes from, and goes
  enum class From { kNodes, kNodesToEntries, kEntries };

  template <bool kCount>
  static UGNN_INLINE void add_share([[maybe_unused]] const Step<T>& a, [[maybe_unused]] int64_t j, V& counted) {
    if constexpr (kCount && kShares) counted += a.share[j] - V{};
  }

  // entry e; kCount: with what is summed apart
  template <From kFrom, bool kCount>
  static UGNN_INLINE void add(const Step<T>& a, int64_t e, Sums& sums) {
    const int64_t j = a.g.col[e];
    const T* row = a.table + j * kLd;
    A w = 1;
    if constexpr (kWeighted) {
      if (a.g.weight) w = A(a.g.weight[e]);
    }
    if constexpr (kW == Weighting::kEdge) w *= a.edge[a.reverse ? a.reverse[e] : e];
    // Every row is loaded once and kept: a second load from a line that is still on its way costs as much as a miss.
    V u[kVecs];
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      u[v] = load<kLanes>(row + v * kLanes);
      keep(u[v]);
    }
    V wc{};
    if constexpr (kInRow) wc = c_behind(row, u[kVecs - 1]);
    if constexpr (kW == Weighting::kNode) {
      const A c_j = kFrom == From::kEntries ? a.entry_c[e] : a.c[j];
      if constexpr (kFrom == From::kNodesToEntries) a.entry_c[e] = c_j;
      wc = c_j - V{};
    }
    if constexpr (kNode && kWeighted) wc *= w;
    if constexpr (kCount && kForB) sums.counted[0] += wc;
    add_share<kCount>(a, j, sums.counted[0]);
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kWeighted || kW == Weighting::kEdge) {
        sums.s[v] += w * u[v];
      } else {
        sums.s[v] += u[v];
      }
      if constexpr (kNode) add_product(sums.p[v], wc, u[v]);
    }
  }

  // one entry of each of several rows
  template <int kRows>
  static UGNN_INLINE void add_rows(Rows<kRows> u, SumsOf<kRows>& sums) {
    sums.s[0] += u;
    if constexpr (kInRow) sums.p[0] += last_of_rows<kLanes, kRows>(u) * u;
  }

  template <From kFrom, bool kCount>
  static UGNN_INLINE void gather_from(const Step<T>& a, int64_t begin, int64_t end, Sums& sums) {
    int64_t e = begin;
    if (a.prefetch) {
      // entries with one so far ahead
      const int64_t ahead = a.prefetch.entries, stop = end + ahead <= a.g.E ? end : a.g.E - ahead;
      for (; e < stop; ++e) {
        const int64_t wanted = a.g.col[e + ahead];
        a.prefetch.template fetch<kLd>(a.table + wanted * kLd);
        if constexpr (kW == Weighting::kNode && kFrom != From::kEntries) a.prefetch.template fetch<1>(a.c + wanted);
        if constexpr (kCount && kShares) a.prefetch.template fetch<1>(a.share + wanted);
        add<kFrom, kCount>(a, e, sums);
      }
    }
    for (; e < end; ++e) add<kFrom, kCount>(a, e, sums);
  }
  template <bool kCount>
  static UGNN_INLINE void gather(const Step<T>& a, int64_t begin, int64_t end, Sums& sums) {
    if constexpr (kW == Weighting::kNode) {
      if (a.entry_c && a.fills_c) return gather_from<From::kNodesToEntries, kCount>(a, begin, end, sums);
      if (a.entry_c) return gather_from<From::kEntries, kCount>(a, begin, end, sums);
    }
    gather_from<From::kNodes, kCount>(a, begin, end, sums);
  }

  template <int kRows, class C>
  static UGNN_INLINE Rows<kRows> y_of(const SumsOf<kRows>& sums, C c_i, int v) {
    if constexpr (kNode) return c_i * sums.s[v] + sums.p[v];
    return sums.s[v];
  }

  // vector v of a row of which only the last vector may be partial
  template <int kRows, class U, class TailT>
  static UGNN_INLINE Rows<kRows> load_row(const U* row, int v, const TailT& tail) {
    constexpr int kWide = kLanes * kRows;
    return v < kVecs - 1 ? load<kWide>(row + v * kLanes) : load_first<kWide>(row + v * kLanes, tail);
  }
  // The columns of a table row, zeros behind them. The whole vector is loaded: a masked load may wait for the stores
  // before it.
  template <int kRows, class TailT>
  static UGNN_INLINE Rows<kRows> load_columns(const T* row, int v, const TailT& columns) {
    const Rows<kRows> whole = load<kLanes * kRows>(row + v * kLanes);
    if (v < kVecs - 1) return whole;
    if constexpr (kRows == 1) return first_or<A, kLanes>(whole, A(0), columns);
    if constexpr (kRows > 1) return first_or<A, kLanes * kRows>(whole, Rows<kRows>{}, columns);
  }
  template <class U>
  static UGNN_INLINE void store_row(U* row, int v, V value, const Tail<kLanes>& tail) {
    if (v < kVecs - 1) {
      store<kLanes>(row + v * kLanes, value);
    } else {
      store_first<kLanes>(row + v * kLanes, value, tail);
    }
  }
  // the value for a table row: with c_i behind the columns where it belongs there
  template <int kRows, class C, class TailT>
  static UGNN_INLINE Rows<kRows> with_c(Rows<kRows> value, C c_i, int v, const TailT& columns) {
    if constexpr (kInRow) return v < kVecs - 1 ? value : first_or<A, kLanes * kRows>(value, c_i, columns);
    return value;
  }

  // s is wanted in backward only: past the caches, unless everything stays near. Tables behind a slice of another width
  // need not be aligned.
  template <int kWide>
  static UGNN_INLINE void put_sums(const Step<T>& a, T* to, vec_t<A, kWide> s) {
    if constexpr (!std::is_same_v<T, double> && kLanes >= 8 && kWide == kLanes) {
      if (a.prefetch && reinterpret_cast<uintptr_t>(to) % (kLanes * sizeof(T)) == 0) return stream<kLanes>(to, s);
    }
    store<kWide>(to, s);
  }

  template <int kRows>
  struct TailsOf {
    RowsTail<kLanes, kRows> columns, width;
  };
  using Tails = TailsOf<1>;

  // docs/math.md (B): to memory, and in all lanes
  template <int kRows, class C>
  static UGNN_INLINE C put_step_size(A* to, C c_i, const SumsOf<kRows>& sums, C rho) {
    if constexpr (kRows == 1) {
      A sum_c;
      if constexpr (kSumsC) {
        sum_c = sums.s[kVecs - 1][kLanes - 1];
      } else {
        sum_c = first_lane(sums.counted[0]);
      }
      return *to = rho > 0 ? 1 / (2 + c_i + sum_c * rho * rho) : A(0.5);
    } else {
      const C sum_c = last_of_rows<kLanes, kRows>(sums.s[kVecs - 1]);
      const C half = C{} + A(0.5), b = rho > 0 ? 1 / (2 + c_i + sum_c * rho * rho) : half;
      UGNN_UNROLL
      for (int k = 0; k < kRows; ++k) to[k] = b[k * kLanes];
      return b;
    }
  }

  // kTable: x and out are tables in the order of the rows, as in all steps but the last
  template <bool kTable, int kRows>
  static UGNN_INLINE void finish(const Step<T>& a, int64_t i, const SumsOf<kRows>& sums, const TailsOf<kRows>& tails) {
    constexpr int kWide = kLanes * kRows;
    const A* const factors = &a.factors[i].first;
    auto first = for_each_row<kLanes, kRows, 0, 2>(factors), second = for_each_row<kLanes, kRows, 1, 2>(factors);
    decltype(for_each_row<kLanes, kRows>(a.c)) c_i{};
    if constexpr (kNode) c_i = for_each_row<kLanes, kRows>(a.c + i);
    if constexpr ((kSumsC || kForB) && kE == Epilogue::kForward) {
      if (a.b) {
        const auto b = put_step_size<kRows>(a.b + i, c_i, sums, second);
        first = b * second * first;
        second = 2 * b;
      }
    }
    const int64_t row = !kTable && a.order ? a.order[i] : i;
    if (!kTable && a.order && a.prefetch) {
      if (a.x) fetch_row<false>(a.x, a.ldx, kLd, a.order, i, a.g.N);
      if (a.out) fetch_row<true>(a.out, a.ldo, kLd, a.order, i, a.g.N);
    }
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      Rows<kRows> z = first * y_of(sums, c_i, v);
      keep(z);  // rounded before x is added, in all forms: else the compiler chooses which of two products is fused
      if constexpr (kTable) {
        // in order, but the reader of streams loses it among the rows of neighbours
        if (a.prefetch) __builtin_prefetch(a.x + (i + kRowsAhead) * kLd + v * kLanes);
        z += second * load<kWide>(a.x + i * kLd + v * kLanes);
      } else if (a.x) {
        z += second * load_row<kRows>(a.x + row * a.ldx, v, tails.width);
      }
      if constexpr (kE == Epilogue::kGeneral) {
        if (a.h) z += a.keep.at(row) * load_row<1>(a.h + row * a.ldh, v, tails.width);
        if (a.h_prev) z += a.prev.at(row) * load_row<1>(a.h_prev + row * a.ldp, v, tails.width);
        if (a.clamped) z = clamp<A, kWide>(z, a.lo, a.hi);
        if (a.next) store<kWide>(a.next + i * kLd + v * kLanes, a.right.at(row) * z);
        if (a.total) {
          A* total = a.total + row * a.ldt;
          store_row(total, v, load_row<1>(total, v, tails.width) + a.gamma * z, tails.width);
        }
      }
      if constexpr (kTable) {
        store<kWide>(a.out + i * kLd + v * kLanes, with_c<kRows>(z, c_i, v, tails.columns));
      } else if (kE == Epilogue::kForward || a.out) {
        store_row(a.out + row * a.ldo, v, with_c<kRows>(z, c_i, v, tails.columns), tails.width);
      }
      if (a.sums) put_sums<kWide>(a, a.sums + i * kLd + v * kLanes, sums.s[v]);
    }
    // a row that is as wide as a table is one
    if constexpr (kInRow && kRows == 1) {
      if (kTable || a.width == kLd) put_c(a.out + row * a.ldo, int(kLd), c_i);
    }
  }

  // What row i adds to grad_c and grad_b, before the sum over its columns.
  template <int kRows>
  struct Dots {
    Rows<kRows> c, b;
  };

  // What backward reads of row i beside the gather; v of row i was gathered, too, and is near more often than not.
  static UGNN_INLINE void fetch_streams(const Step<T>& a, int64_t i) {
    if (a.left > 1) fetch<kLd, 3>(a.before + i * kLd);
    if (a.s) {
      fetch<kLd, 3>(a.u + i * kLd);
      fetch<kLd, 3>(a.s + i * kLd);
    }
    if (a.grad_x) fetch<kLd, 3>(a.grad_x + i * a.ldg);
  }

  // docs/math.md (G1)-(G3), with t = sums.s and G = rho y the gradient of the step's input
  template <bool kTable, int kRows>
  static UGNN_INLINE Dots<kRows> finish_backward(const Step<T>& a, int64_t i, const SumsOf<kRows>& sums,
                                                 const TailsOf<kRows>& tails) {
    constexpr int kWide = kLanes * kRows;
    const A* const factors = &a.factors[i].first;
    const auto rho = for_each_row<kLanes, kRows, 0, 2>(factors), b = for_each_row<kLanes, kRows, 1, 2>(factors);
    const auto inverse = for_each_row<kLanes, kRows>(a.inverse + i), c_i = for_each_row<kLanes, kRows>(a.c + i);
    const auto to_v = rho * b * rho;
    // to the gradient of x: 2 b G = 2 v / rho
    const auto from_v = 2 * inverse;
    // v as it is stored, in (G3) as in (G2) of the step before
    const auto to_e = inverse * inverse;
    Dots<kRows> dots{};
    if (a.prefetch) fetch_streams(a, i + kRowsAhead);
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      const int64_t at = i * kLd + v * kLanes;
      const Rows<kRows> y = y_of(sums, c_i, v), next = rounded<T, kWide>(to_v * y);
      if (a.s) {
        // what lies behind the columns in one factor of a product is zero in the other
        const Rows<kRows> u = load_columns<kRows>(a.u + i * kLd, v, tails.columns);
        const Rows<kRows> s =
            sizeof(T) == 2 ? load_columns<kRows>(a.s + i * kLd, v, tails.columns) : load<kWide>(a.s + at);
        dots.c += load_columns<kRows>(a.table + i * kLd, v, tails.columns) * s;
        keep(dots.c);
        dots.c += u * sums.s[v];
        dots.b += next * u;
      }
      if (a.grad_x) {
        // Term by term, each from v as it is stored, and no product fused with its addition: the same bits whatever was
        // left to this step.
        A* grad = a.grad_x + i * (kTable ? kLd : a.ldg);
        Rows<kRows> sum{};
        if constexpr (kTable) {
          if (!a.begins) sum = load<kWide>(grad + v * kLanes);
        } else {
          if (!a.begins) sum = load_row<kRows>(grad, v, tails.width);
        }
        auto add_term = [&](Rows<kRows> term) {
          keep(term);
          sum += term;
        };
        if (a.left > 1) add_term(from_v * load_columns<kRows>(a.before + i * kLd, v, tails.columns));
        if (a.left > 0) add_term(from_v * load_columns<kRows>(a.table + i * kLd, v, tails.columns));
        add_term(a.first ? rho * y : from_v * next);
        if constexpr (kTable) {
          store<kWide>(grad + v * kLanes, sum);
        } else {
          store_row(grad, v, sum, tails.width);
        }
      }
      if (a.next) store<kWide>(a.next + at, with_c<kRows>(next, c_i, v, tails.columns));
    }
    if constexpr (kInRow && kRows == 1) {
      if (a.next) put_c(a.next + i * kLd, int(kLd), c_i);
    }
    dots.b *= to_e;
    keep(dots.b);
    return dots;
  }

  // The bits of c may look like an infinity or none of the numbers to 16-bit lanes, and a product with 0 is no way out.
  static UGNN_INLINE void drop_c(Sums& sums, const Tails& tails) {
    if constexpr (kInRow && sizeof(T) == 2) {
      sums.s[kVecs - 1] = first_or<A, kLanes>(sums.s[kVecs - 1], 0, tails.columns);
      sums.p[kVecs - 1] = first_or<A, kLanes>(sums.p[kVecs - 1], 0, tails.columns);
    }
  }

  template <bool kTable, bool kCount>
  static UGNN_INLINE void finish_any(const Step<T>& a, int64_t i, Sums& sums, const Tails& tails) {
    drop_c(sums, tails);
    if constexpr (kE == Epilogue::kBackward) {
      const Dots<1> dots = finish_backward<kTable, 1>(a, i, sums, tails);
      if (a.s) {
        a.grad_c[i] += sum_lanes<A, kLanes>(dots.c);
        if constexpr (kCount) a.grad_c[i] -= first_lane(sums.counted[0]);
        if (!a.first) a.grad_b[i] += sum_lanes<A, kLanes>(dots.b);
      }
    } else {
      finish<kTable, 1>(a, i, sums, tails);
    }
  }

  // rows i .. i + 3; the sums over columns are those of finish_any, four at a time
  template <bool kTable, int kRows, bool kCount>
  static UGNN_INLINE void finish_four(const Step<T>& a, int64_t i, SumsOf<kRows> (&sums)[4 / kRows],
                                      const TailsOf<kRows>& tails, const Tails& row_tails) {
    if constexpr (kE == Epilogue::kBackward && kLanes >= 4) {
      Rows<kRows> to_c[4 / kRows], to_b[4 / kRows];
      UGNN_UNROLL
      for (int k = 0; k < 4 / kRows; ++k) {
        if constexpr (kRows == 1) drop_c(sums[k], tails);
        const Dots<kRows> dots = finish_backward<kTable, kRows>(a, i + k * kRows, sums[k], tails);
        to_c[k] = dots.c;
        to_b[k] = dots.b;
      }
      if (!a.s) return;
      vec_t<A, 4> grad_c = load<4>(a.grad_c + i) + sums_of_rows<A, kLanes, kRows>(to_c);
      if constexpr (kCount) {
        UGNN_UNROLL
        for (int k = 0; k < 4; ++k) grad_c[k] -= first_lane(sums[k / kRows].counted[k % kRows]);
      }
      store<4>(a.grad_c + i, grad_c);
      if (a.first) return;
      store<4>(a.grad_b + i, load<4>(a.grad_b + i) + sums_of_rows<A, kLanes, kRows>(to_b));
    } else {
      UGNN_UNROLL
      for (int k = 0; k < 4 / kRows; ++k) {
        if constexpr (kTable && kRows > 1) {
          finish<true, kRows>(a, i + k * kRows, sums[k], tails);
        } else {
          UGNN_UNROLL
          for (int r = 0; r < kRows; ++r) {
            Sums of_row = row_of(sums[k], r);
            finish_any<kTable, kCount>(a, i + k * kRows + r, of_row, row_tails);
          }
        }
      }
    }
  }

  template <int kRows>
  static UGNN_INLINE TailsOf<kRows> tails_of(const Step<T>& a) {
    constexpr int kBefore = (kVecs - 1) * kLanes;
    using Some = RowsTail<kLanes, kRows>;
    return {Some(a.columns - kBefore), Some(a.width - kBefore)};
  }

  // Items [begin, end) of one part of a step.
  static void run(const Step<T>& a, Part part, int64_t begin, int64_t end) {
    if constexpr (kCounts) {
      if (kShares ? a.share != nullptr : a.b != nullptr) return run_part<true>(a, part, begin, end);
    }
    run_part<false>(a, part, begin, end);
  }

  // whether whole vectors may be read and written
  static UGNN_INLINE bool in_tables(const Step<T>& a) {
    if (kE == Epilogue::kBackward) return a.width == kLd && a.ldg == kLd;
    return a.x && a.width == kLd && a.ldx == kLd && a.ldo == kLd && !a.order;
  }

  template <bool kCount>
  static UGNN_INLINE void run_part(const Step<T>& a, Part part, int64_t begin, int64_t end) {
    if constexpr (kTogether) {
      if (part == Part::kRows && a.ascending) {
        if (in_tables(a)) return run_together<true, kAside, kCount>(a, begin, end);
        // in backward they are tables
        if constexpr (kE != Epilogue::kBackward) return run_together<false, kAside, kCount>(a, begin, end);
      }
    }
    run_items<kCount>(a, part, begin, end);
  }

  // Long rows, ascending, four at a time, in blocks as in run_items: a sum has to wait for the one before it, sums of
  // several rows do not wait for each other.
  template <bool kTable, bool kCount>
  static __attribute__((noinline)) void run_long(const Step<T>& step, int64_t begin, int64_t end) {
    const Step<T> a = step;
    const Tails tails = tails_of<1>(a);
    const int64_t hub_len = hub_length(a.g.E);
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      const int64_t* const start = a.g.rowptr + i;
      if (start[4] - start[3] > hub_len) break;
      if constexpr (kE == Epilogue::kBackward) fetch_kept(a, i + kRowsAhead);
      const int64_t shortest = start[1] - start[0];
      Sums total[4], sums[4];
      UGNN_UNROLL
      for (int k = 0; k < 4; ++k) clear(sums[k]);
      // blocks that all four have, and as much of the next one
      int64_t block = 0, e = 0;
      for (;;) {
        const int64_t stop = shortest - block < kBlockEntries ? shortest : block + kBlockEntries;
        for (; e < stop; ++e) {
          UGNN_UNROLL
          for (int k = 0; k < 4; ++k) add<From::kNodes, kCount>(a, start[k] + e, sums[k]);
        }
        if (e == shortest) break;
        UGNN_UNROLL
        for (int k = 0; k < 4; ++k) {
          if (block) add_to(sums[k], total[k]);
          total[k] = sums[k];
          clear(sums[k]);
        }
        block = e;
      }
      // what each has beyond that
      UGNN_UNROLL
      for (int k = 0; k < 4; ++k) {
        const int64_t last = start[k + 1];
        int64_t first = start[k] + block, next = start[k] + shortest;
        for (;;) {
          const int64_t stop = last - first < kBlockEntries ? last : first + kBlockEntries;
          for (; next < stop; ++next) add<From::kNodes, kCount>(a, next, sums[k]);
          if (first > start[k]) add_to(sums[k], total[k]);
          if (next == last) break;
          total[k] = sums[k];
          clear(sums[k]);
          first = next;
        }
      }
      finish_four<kTable, 1, kCount>(a, i, sums, tails, tails);
    }
    run_items<kCount>(step, Part::kRows, i, end);
  }

  // Rows i .. i + 3 of what forward kept: several megabytes in all, which nobody has read since.
  static UGNN_INLINE void fetch_kept(const Step<T>& a, int64_t i) {
    if (!a.kept_far) return;
    fetch<4 * kLd, 3>(a.u + i * kLd);
    fetch<4 * kLd, 3>(a.s + i * kLd);
  }

  // Narrow rows of much the same length, ascending, four at a time: several chains of sums, less to decide for each
  // row, and kRows rows in a vector. The order in which a row is summed stays the same. The step is a copy: stores go
  // through pointers to anything, and the compiler would read its members again after each.
  template <bool kTable, int kRows, bool kCount>
  static void run_together(const Step<T>& step, int64_t begin, int64_t end) {
    const Step<T> a = step;
    const TailsOf<kRows> tails = tails_of<kRows>(a);
    const Tails row_tails = tails_of<1>(a);
    const int32_t* const col = a.g.col;
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) {
      const int64_t* const start = a.g.rowptr + i;
      if (__builtin_expect(start[4] - start[3] > kBlockEntries, 0)) break;
      if constexpr (kE == Epilogue::kBackward) fetch_kept(a, i + kRowsAhead);
      const int64_t shortest = start[1] - start[0];
      SumsOf<kRows> sums[4 / kRows];
      UGNN_UNROLL
      for (int k = 0; k < 4 / kRows; ++k) clear(sums[k]);
      if constexpr (kRows == 1) {
        for (int64_t e = 0; e < shortest; ++e) {
          UGNN_UNROLL
          for (int k = 0; k < 4; ++k) add<From::kNodes, kCount>(a, start[k] + e, sums[k]);
        }
        UGNN_UNROLL
        for (int k = 1; k < 4; ++k) {
          for (int64_t e = start[k] + shortest; e < start[k + 1]; ++e) add<From::kNodes, kCount>(a, e, sums[k]);
        }
      } else {
        const int32_t* places[4 / kRows][kRows];
        UGNN_UNROLL
        for (int k = 0; k < 4; ++k) places[k / kRows][k % kRows] = col + start[k];
        for (int64_t e = 0; e < shortest; ++e) {
          UGNN_UNROLL
          for (int k = 0; k < 4 / kRows; ++k) {
            add_rows<kRows>(load_rows<kLanes, kRows>(a.table, places[k], e), sums[k]);
            UGNN_UNROLL
            for (int r = 0; r < kRows; ++r) add_share<kCount>(a, places[k][r][e], sums[k].counted[r]);
          }
        }
        UGNN_UNROLL
        for (int k = 1; k < 4; ++k) {
          for (int64_t e = start[k] + shortest; e < start[k + 1]; ++e) {
            add_rows<kRows>(load_row_of<kLanes, kRows>(a.table + int64_t(col[e]) * kLd, k % kRows), sums[k / kRows]);
            add_share<kCount>(a, col[e], sums[k / kRows].counted[k % kRows]);
          }
        }
      }
      finish_four<kTable, kRows, kCount>(a, i, sums, tails, row_tails);
    }
    if (i < end) run_long<kTable, kCount>(step, i, end);
  }

  // One function for all parts, so that gather and epilogue are compiled once.
  template <bool kCount>
  static __attribute__((noinline)) void run_items(const Step<T>& step, Part part, int64_t begin, int64_t end) {
    const Step<T> a = step;
    const int64_t hub_len = hub_length(a.g.E);
    const HubPieces pieces{a.g};
    const Tails tails = tails_of<1>(a);
    const bool tables = kE != Epilogue::kGeneral && in_tables(a);
    for (int64_t item = begin; item < end; ++item) {
      Sums sums;
      int64_t i = 0;
      if (__builtin_expect(part != Part::kHubs, 1)) {
        int64_t first, last;
        if (__builtin_expect(part == Part::kRows, 1)) {
          i = item;
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
          gather<kCount>(a, first, stop, sums);
          if (__builtin_expect(more, 0)) add_to(sums, before);
          if (__builtin_expect(stop < last, 0)) before = sums;
          more = true;
          first = stop;
        } while (__builtin_expect(first < last, 0));
        if (__builtin_expect(part == Part::kPieces, 0)) {
          A* partial = a.partial + item * kPieceRows * kLd;
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            store<kLanes>(partial + v * kLanes, sums.s[v]);
            if constexpr (kNode) store<kLanes>(partial + kLd + v * kLanes, sums.p[v]);
          }
          if constexpr (kCounts) store<kLanes>(partial + 2 * kLd, sums.counted[0]);
          continue;
        }
      } else {
        i = a.g.hubs[item];
        int64_t number, last;
        clear(sums);
        for (pieces.range(item, number, last); number < last; ++number) {
          const A* partial = a.partial + number * kPieceRows * kLd;
          UGNN_UNROLL
          for (int v = 0; v < kVecs; ++v) {
            sums.s[v] += load<kLanes>(partial + v * kLanes);
            if constexpr (kNode) sums.p[v] += load<kLanes>(partial + kLd + v * kLanes);
          }
          if constexpr (kCounts) sums.counted[0] += load<kLanes>(partial + 2 * kLd);
        }
      }
      if (tables) {
        finish_any<true, kCount>(a, i, sums, tails);
      } else {
        finish_any<false, kCount>(a, i, sums, tails);
      }
    }
  }
};

#define UGNN_STEP_KERNEL(T, kW, kWeighted, kE)                                                       \
  template <>                                                                                        \
  StepRun<T> step_kernel<T, kW, kWeighted, kE>(int ld) {                                             \
    return for_shape<T>(ld, [](auto shape) -> StepRun<T> {                                           \
      return StepKernel<T, decltype(shape)::kLanes, decltype(shape)::kVecs, kW, kWeighted, kE>::run; \
    });                                                                                              \
  }
// kernels that every type has
#define UGNN_STEP_KERNELS(kW, kE)        \
  UGNN_STEP_KERNEL(float, kW, true, kE)  \
  UGNN_STEP_KERNEL(double, kW, true, kE) \
  UGNN_STEP_KERNEL(bfloat16, kW, true, kE)

}  // namespace UGNN_ISA
}  // namespace ugnn
