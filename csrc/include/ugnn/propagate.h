// K steps of H <- clamp(keep H + agg left (A o W) right H + skip X + prev H_prev).
#pragma once

#include "ugnn/ops.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// The value of a coefficient at step k for node i.
template <class A>
struct StepCoef {
  const A* values;
  int64_t row_stride;
  A scale;

  StepCoef(const CoefView& view, int64_t k)
      : values(view.values ? static_cast<const A*>(view.values) + k * view.step_stride : nullptr),
        row_stride(view.row_stride),
        scale(A(view.scale)) {}
  UGNN_INLINE A at(int64_t i) const { return values ? scale * values[i * row_stride] : scale; }
  // the same for the step kernel, which wants one value a node or one for all
  Coef<A> coef() const {
    if (!values) return {nullptr, scale};
    if (row_stride == 0) return {nullptr, scale * values[0]};
    return {values, scale};
  }
};

inline bool is_zero(const CoefView& view) { return view.scale == 0; }

template <class T>
StepRun<T> propagate_kernel(const PropagateForward& a, bool general, const Slice& slice) {
  constexpr Epilogue kGeneral = Epilogue::kGeneral;
  if (!general) return forward_kernel<T>(a.g, a.c, slice.width, slice.ld);
  if (a.edge) return step_kernel<T, Weighting::kEdge, true, kGeneral>(slice.ld);
  return a.c ? step_kernel<T, Weighting::kNode, true, kGeneral>(slice.ld)
             : step_kernel<T, Weighting::kUnit, true, kGeneral>(slice.ld);
}

template <class T>
void propagate_forward(const PropagateForward& a, const SliceRange& range) {
  using A = acc_t<T>;
  const T* x = static_cast<const T*>(a.x);
  const bool has_skip = !is_zero(a.skip), has_keep = !is_zero(a.keep), has_prev = !is_zero(a.prev);
  // Without these H is wanted after the last step only, and u = right H takes its place until then.
  const bool general = has_keep || has_prev || a.clamped || a.all || a.total || a.edge;

  const Slices<T> all_slices{a.R, a.D, a.c && !general};
  const int64_t N = a.g.N, ldx = a.R * a.D, slices = all_slices.count();
  const int max_ld = all_slices.max_ld();
  Buffer<A> scale(a.norm == Norm::kSym || a.norm == Norm::kRow ? N : 0);
  Coef<A> left, right;
  if (a.norm == Norm::kGiven) {
    if (a.left) left = {static_cast<const A*>(a.left), 1};
    if (a.right) right = {static_cast<const A*>(a.right), 1};
  } else if (a.norm != Norm::kNone) {
    left = {scale.get(), 1};
    if (a.norm == Norm::kSym) right = left;
  }
  // values per edge are in the user's order, and so is all that a general step reads beside its table
  const View view(a.g, N * max_ld * int64_t(sizeof(T)), !a.edge, general ? 0 : a.K);
  // x itself is the first table when nothing has to be scaled, padded or put in another order
  const bool x_is_table = !right.values && a.R == 1 && slices == 1 && max_ld == a.D && !view.order;
  // [first table], two tables in turn, H of the last one or two steps
  const int own_h = !general || a.all ? 0 : has_prev ? 2 : has_keep ? 1 : 0;
  Buffer<T> work((a.K > 1 || !x_is_table ? 3 + own_h : 0) * N * max_ld);
  Buffer<Factors<A>> factors(N);
  const bool per_step = a.agg.step_stride || a.skip.step_stride;
  Buffer<A> partial(kPieceRows * max_ld * HubPieces{view.g}.count());
  InView<A> c(view, static_cast<const A*>(a.c), a.RC);
  const bool in_rows = a.c && !general && c_in_row<T>(a.g, all_slices.max_width(), max_ld);
  Buffer<A> entry_c(entries_with_c<A>(view, a.c && a.K > 1 && !in_rows, max_ld * sizeof(T), false));

  Step<T> step;
  step.g = view.g;
  step.prefetch = view.prefetch;
  step.ascending = view.ascending;
  step.partial = partial.get();
  step.entry_c = entry_c.get();
  step.factors = factors.get();
  step.edge = static_cast<const A*>(a.edge);
  step.reverse = a.reverse;
  step.clamped = a.clamped;
  step.lo = A(a.lo);
  step.hi = A(a.hi);
  RowSplit split;
  split_rows(range.threads, view.g, split);

#pragma omp parallel num_threads(split.threads) firstprivate(step)
  {
    check_team(view.g, split);
    int64_t begin, end;
    even_share(N, begin, end);
    if (scale.get()) {
      for_rho<A>(a.g, view, begin, end,
                 [&](int64_t p, A rho, A) { scale.get()[view.user_row(p)] = a.norm == Norm::kSym ? rho : rho * rho; });
    }
    c.fill(begin, end, 0, a.RC);
    split.wait();
    for (int64_t number = range.first; number < range.end; ++number) {
      const Slice slice = all_slices.at(number);
      const int64_t table_size = N * slice.ld, slab = N * ldx;
      if (a.c) step.c = c.get() + (a.RC > 1 ? slice.r * N : 0);
      step.fills_c = all_slices.starts_values(number, range.first, a.RC);
      const StepRun<T> run = propagate_kernel<T>(a, general, slice);
      T* tables = work.get() + table_size;
      T* own = work.get() + 3 * table_size;
      const T* first = x_is_table ? x : work.get();
      const bool in_row = a.c && !general && c_in_row<T>(a.g, slice.width, slice.ld);
      if (!x_is_table) {
        auto scaled = [&](int64_t p) { return right.at(view.user_row(p)); };
        fill_table(work.get(), slice, x, ldx, view.order, view.apart, view.far, scaled, in_row ? step.c : nullptr,
                   begin, end);
      }
      A* total = a.total ? static_cast<A*>(a.total) + slice.first : nullptr;
      if (total) {
        const A gamma = static_cast<const A*>(a.gamma)[0];
        for (int64_t i = begin; i < end; ++i) {
          for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>&) {
            store_first<kBlock>(total + i * ldx + d, gamma * load_first<kBlock>(x + i * ldx + slice.first + d, columns),
                                columns);
          });
        }
      }
      for (int64_t k = 0; k < a.K; ++k) {
        const bool last = k == a.K - 1;
        // they change with the step if a coefficient does, and when H is wanted in place of u = right H
        if (k == 0 || per_step || (last && !general)) {
          const StepCoef<A> agg(a.agg, k), skip(a.skip, k);
          for (int64_t p = begin; p < end; ++p) {
            const int64_t i = view.user_row(p);
            const A fold = general || last ? A(1) : right.at(i);
            factors.get()[p] = {agg.at(i) * left.at(i) * fold, skip.at(i)};
          }
          split.wait();
        }
        T* next = last ? nullptr : tables + k % 2 * table_size;
        step.table = k == 0 ? first : tables + (k - 1) % 2 * table_size;
        step.columns = slice.width;
        if (!general) {
          step.width = last ? slice.width : slice.ld;
          if (has_skip) step.x = last ? x + slice.first : first;
          step.ldx = last ? ldx : slice.ld;
          step.out = last ? static_cast<T*>(a.last) + slice.first : next;
          step.ldo = last ? ldx : slice.ld;
          step.order = last ? view.order : nullptr;
        } else {
          // H_k: x, then a slab of `all`, or own memory (H_{k+1} takes the place of H_{k-1}, or of H_k)
          T* all = a.all ? static_cast<T*>(a.all) + slice.first : nullptr;
          auto h_at = [&](int64_t m) -> T* {
            return all ? all + (m - 1) * slab : own + (own_h ? (m - 1) % own_h : 0) * table_size;
          };
          const int64_t ldh = all ? ldx : slice.ld;
          step.width = slice.width;
          step.order = view.order;
          step.x = has_skip ? x + slice.first : nullptr;
          step.ldx = ldx;
          step.right = right;
          step.keep = StepCoef<A>(a.keep, k).coef();
          step.h = !has_keep ? nullptr : k == 0 ? x + slice.first : h_at(k);
          step.ldh = k == 0 ? ldx : ldh;
          step.prev = StepCoef<A>(a.prev, k).coef();
          step.h_prev = !has_prev || k == 0 ? nullptr : k == 1 ? x + slice.first : h_at(k - 1);
          step.ldp = k == 1 ? ldx : ldh;
          step.out = all || (own_h && !last) ? h_at(k + 1) : nullptr;
          step.ldo = ldh;
          if (last && !all && a.last) {
            step.out = static_cast<T*>(a.last) + slice.first;
            step.ldo = ldx;
          }
          step.next = next;
          step.total = total;
          step.ldt = ldx;
          step.gamma = total ? static_cast<const A*>(a.gamma)[k + 1] : A(0);
        }
        run_step(run, step, split);
        step.fills_c = false;
      }
    }
  }
}

template <class T>
void propagate_forward(const PropagateForward& a) {
  const Slices<T> slices{a.R, a.D};
  for_slices(a.threads, slices.count(), 1, (a.g.E + kRowCost * a.g.N) * slices.max_ld(), a.K,
             [&](const SliceRange& range) { propagate_forward<T>(a, range); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
