// K steps of ADA-UGNN and their gradients; the labels are those of docs/math.md.
//
// Everything runs in the space of u = rho H: with u0 = rho x a step is u <- 2 b u0 + b rho^2 y(u), one table is read
// and one written, and only the last step leaves that space, H = 2 b x + b rho y(u).
#pragma once

#include "ugnn/ops.h"
#include "ugnn/slices.h"

namespace ugnn {
namespace UGNN_ISA {

// sum_j a_ij value(e), e the entry of a_ij; in double, since a hub may have very many neighbours with much the same
// value
template <class Value>
UGNN_INLINE double weighted_sum(const Csr& g, int64_t i, Value value) {
  const int64_t last = g.rowptr[i + 1];
  int64_t e = g.rowptr[i];
  double sum = 0;
  if (g.weight) {
    for (; e < last; ++e) sum += double(g.weight[e]) * double(value(e));
    return sum;
  }
  double sums[4] = {0, 0, 0, 0};
  for (; e + 4 <= last; e += 4) {
    UGNN_UNROLL
    for (int k = 0; k < 4; ++k) sums[k] += double(value(e + k));
  }
  sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  for (; e < last; ++e) sum += double(value(e));
  return sum;
}

// the first node of the user whose c is negative or not finite, among rows [begin, end) of a view, or -1
template <class A>
int64_t find_bad_c(const View& view, const A* c, int64_t begin, int64_t end) {
  int64_t bad = -1;
  for (int64_t p = begin; p < end; ++p) {
    if (c[p] >= 0 && c[p] < A(INFINITY)) continue;
    const int64_t i = view.user_row(p);
    if (bad < 0 || i < bad) bad = i;
  }
  return bad;
}

// (B) for rows [begin, end) of a view, c and b in its order
template <class A>
void node_step_sizes(const View& view, const A* rho, const A* c, A* b, int64_t begin, int64_t end) {
  auto c_at = [&](int64_t e) { return c[view.g.col[e]]; };
  for (int64_t p = begin; p < end; ++p) {
    const A mean = A(weighted_sum(view.g, p, c_at)) * rho[p] * rho[p];
    b[p] = rho[p] > 0 ? 1 / (2 + c[p] + mean) : A(0.5);
  }
}

// Values per node: those of all replicas [0, RC), or of the replicas of some slices.
template <class T>
void replicas_of(const Slices<T>& slices, const SliceRange& range, int64_t RC, int64_t& first, int64_t& end) {
  first = RC > 1 ? slices.at(range.first).r : 0;
  end = RC > 1 ? slices.at(range.end - 1).r + 1 : RC;
}

// narrow: where u alone is kept, memory counts. What a pass works in is as wide as a slice.
template <class T>
Slices<T> ada_propagate_slices(int64_t R, int64_t D, bool for_c, bool narrow) {
  return {R, D, for_c, narrow ? kNarrowWidth<T> : kMaxWidth<T>};
}
template <class Call>
bool is_narrow(const Call& a) {
  return a.u && !a.s;
}
// tables of a slice in u; that of the first step is x, times rho, and not kept where others are computed again
template <class Call>
int64_t kept_tables(const Call& a) {
  return is_narrow(a) ? a.K > 0 ? (a.K - 1) / a.every : 0 : a.K;
}

// Returns a node with a bad c, or -1.
template <class T>
int64_t ada_propagate_forward(const AdaPropagateForward& a, const SliceRange& range) {
  using A = acc_t<T>;
  const Slices<T> all_slices = ada_propagate_slices<T>(a.R, a.D, a.c != nullptr, is_narrow(a));
  const int64_t N = a.g.N, ldx = a.R * a.D;
  const int max_ld = all_slices.max_ld();
  int64_t bad_c = -1, first_r, end_r;
  replicas_of(all_slices, range, a.RC, first_r, end_r);
  const T* x = static_cast<const T*>(a.x);
  const View view(a.g, N * max_ld * int64_t(sizeof(T)), true, a.K);

  InView<A> c(view, static_cast<const A*>(a.c), a.RC);
  // of several ranges with one c, the first one writes b
  const bool keeps_b = a.b && (a.RC > 1 || range.first == 0);
  Buffer<A> rho(N), own_b(keeps_b ? 0 : a.RC * N);
  A* b = keeps_b ? static_cast<A*>(a.b) : own_b.get();
  Buffer<Factors<A>> middle(N), final(N);  // scales of y and of x in all steps but the last, and in that
  const bool looks_up = a.c && a.K > 1 && !c_in_row<T>(a.g, all_slices.max_width(), max_ld);
  Buffer<A> entry_c(entries_with_c<A>(view, looks_up, max_ld * sizeof(T), is_narrow(a)));
  // kForward finds b in its first step
  const bool b_in_step = a.c && !std::is_same_v<T, double> && !a.g.weight && a.K > 0 && range.first < range.end;
  // what is not kept: the first one, and two in turn, of which the result is one if its rows are those of a table
  T* const h = static_cast<T*>(a.h);
  const bool in_result = !a.u && all_slices.count() == 1 && max_ld == ldx && reinterpret_cast<uintptr_t>(h) % 64 == 0;
  const Tables<T> work(a.u && a.s ? 0 : a.u && a.every == 1 ? 1 : in_result ? 2 : 3, N * max_ld);
  Buffer<A> partial(kPieceRows * max_ld * HubPieces{view.g}.count());

  Step<T> step;
  step.g = view.g;
  step.prefetch = view.prefetch;
  step.ascending = view.ascending;
  step.partial = partial.get();
  step.entry_c = entry_c.get();
  RowSplit split;
  split_rows(range.threads, view.g, split);

#pragma omp parallel num_threads(split.threads) firstprivate(step)
  {
    check_team(view.g, split);
    const int thread = omp_get_thread_num();
    int64_t begin, end;
    even_share(N, begin, end);
    for_rho<A>(a.g, view, begin, end, [&](int64_t p, A value, A) { rho.get()[p] = value; });
    if (a.c) {
      c.fill(begin, end, first_r, end_r);
      for (int64_t r = first_r; a.check && r < end_r; ++r) {
        const int64_t bad = find_bad_c(view, c.get() + r * N, begin, end);
        if (bad < 0) continue;
#pragma omp critical
        bad_c = bad_c < 0 || bad < bad_c ? bad : bad_c;
      }
      if (!b_in_step) split.wait();
      for (int64_t r = first_r; !b_in_step && r < end_r; ++r) {
        node_step_sizes(view, rho.get(), c.get() + r * N, b + r * N, split.begin(thread), split.end(thread));
      }
    } else {
      const A b_connected = A(1 / (2 + 2 * a.c_value));
      for (int64_t p = begin; p < end; ++p) {
        const int64_t i = view.user_row(p);
        b[p] = a.g.degree[i] > 0 ? b_connected : A(0.5);
      }
    }
    split.wait();
    const int64_t before = N * all_slices.padded_width(range.first), kept = kept_tables(a);
    T* u = a.u ? static_cast<T*>(a.u) + kept * before : nullptr;
    T* s = a.s ? static_cast<T*>(a.s) + a.K * before : nullptr;
    for (int64_t number = range.first; number < range.end && bad_c < 0; ++number) {
      const Slice slice = all_slices.at(number);
      const int64_t table_size = N * slice.ld, replica = a.RC > 1 ? slice.r * N : 0;
      const StepRun<T> run = forward_kernel<T>(a.g, a.c, slice.width, slice.ld);
      if (a.c) step.c = c.get() + replica;
      const bool new_c = all_slices.starts_values(number, range.first, a.RC);
      step.fills_c = new_c;
      T* const first = u && s ? u : work[0];
      auto table = [&](int64_t k) {
        if (k == 0) return first;
        if (in_result) return (a.K - k) % 2 ? work[1] : h;
        if (!u || k % a.every) return work[1 + k % 2];
        return u + (s ? k : k / a.every - 1) * table_size;
      };
      auto scaled = [&](int64_t p) { return rho.get()[p]; };
      const A* in_row = a.c && c_in_row<T>(a.g, slice.width, slice.ld) ? step.c : nullptr;
      fill_table(first, slice, x, ldx, view.order, view.apart, view.far, scaled, in_row, begin, end);
      auto set_factors = [&] {
        for (int64_t p = begin; p < end; ++p) {
          const A rho_p = rho.get()[p], b_p = b[replica + p], agg = a.c ? b_p : A(2 * a.c_value) * b_p;
          middle.get()[p] = {agg * rho_p * rho_p, 2 * b_p};
          final.get()[p] = {agg * rho_p, 2 * b_p};
        }
        split.wait();
      };
      const bool makes_b = b_in_step && new_c;
      if (makes_b) {
        for (int64_t p = begin; p < end; ++p) {
          const A rho_p = rho.get()[p];
          (a.K == 1 ? final : middle).get()[p] = {a.K == 1 ? 1 : rho_p, rho_p};
        }
        split.wait();
      } else {
        set_factors();
      }
      for (int64_t k = 0; k < a.K; ++k) {
        const bool last = k == a.K - 1;
        step.table = table(k);
        step.sums = s ? s + k * table_size : nullptr;
        step.factors = last ? final.get() : middle.get();
        step.columns = slice.width;
        step.width = last ? slice.width : slice.ld;
        step.x = last ? x + slice.first : first;
        step.ldx = last ? ldx : slice.ld;
        step.out = last ? h + slice.first : table(k + 1);
        step.ldo = step.ldx;
        step.order = last ? view.order : nullptr;
        step.b = makes_b && k == 0 ? b + replica : nullptr;
        run_step(run, step, split);
        step.fills_c = false;
        if (step.b && !last) set_factors();
      }
      if (u) u += kept * table_size;
      if (s) s += a.K * table_size;
    }
  }
  return bad_c;
}

template <class T>
void ada_propagate_forward(AdaPropagateForward& a) {
  const Slices<T> slices = ada_propagate_slices<T>(a.R, a.D, false, is_narrow(a));
  for_slices(a.threads, slices.count(), slices.per_replica(), (a.g.E + kRowCost * a.g.N) * slices.max_ld(), a.K,
             [&](const SliceRange& range) {
               const int64_t bad = ada_propagate_forward<T>(a, range);
#pragma omp critical
               if (bad >= 0 && (a.bad_c < 0 || bad < a.bad_c)) a.bad_c = bad;
             });
}

// Where backward begins: what the last step's result, H_K, and its gradient G give for a slice.
template <class T>
struct LastTerms {
  using A = acc_t<T>;
  Slice slice;
  const int32_t* order;  // of the view
  bool apart, far;
  int64_t ldx;
  const T* grad_h;  // of the user, as h
  const T* h;
  const A* b;  // [N], in the order of the view, as all that follows
  const A* inverse;
  const A* c;           // to go behind the columns; null: it does not
  Factors<A>* factors;  // rho is there, b is put beside it
  T* table;             // v = rho b G
  A* grad_b;            // += b <G, H_K> = <v, H_K> / rho; null: not wanted
};

// By value, and not inlined: the compiler would read every pointer again after each store.
template <class T>
__attribute__((noinline)) void add_last_terms(const LastTerms<T> a, int64_t begin, int64_t end) {
  using A = acc_t<T>;
  using V = vec_t<A, kBlock>;
  const bool past = a.far && aligned_blocks(a.table, a.slice.ld);
  for (int64_t p = begin; p < end; ++p) {
    if (a.apart) {
      fetch_row<false>(a.grad_h + a.slice.first, a.ldx, a.slice.width, a.order, p, end);
      if (a.grad_b) fetch_row<false>(a.h + a.slice.first, a.ldx, a.slice.width, a.order, p, end);
    }
    const int64_t at = (a.order ? a.order[p] : p) * a.ldx + a.slice.first;
    const A b = a.b[p], to_v = a.factors[p].first * b;
    a.factors[p].second = b;
    T* row = a.table + p * a.slice.ld;
    V dot{};
    for_columns(a.slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>& stored) {
      const V g = load_first<kBlock>(a.grad_h + at + d, columns);
      const V v = rounded<T, kBlock>(to_v * g);
      put_block(past, row + d, a.c ? first_or<A, kBlock>(v, a.c[p], columns) : v, stored);
      if (a.grad_b) dot += v * load_first<kBlock>(a.h + at + d, columns);
    });
    if (a.c) put_c(row, a.slice.ld, a.c[p]);
    // without neighbours b is 1/2 whatever c is
    if (a.grad_b) a.grad_b[p] += sum_lanes<A, kBlock>(dot) * a.inverse[p];
  }
}

template <class T>
void ada_propagate_backward(const AdaPropagateBackward& a, const SliceRange& range) {
  using A = acc_t<T>;
  const Slices<T> all_slices = ada_propagate_slices<T>(a.R, a.D, true, is_narrow(a));
  const int64_t N = a.g.N, ldx = a.R * a.D;
  const int max_ld = all_slices.max_ld();
  int64_t first_r, end_r;
  replicas_of(all_slices, range, a.RC, first_r, end_r);
  const T *x = static_cast<const T*>(a.x), *grad_h = static_cast<const T*>(a.grad_h);
  A* user_grad_x = static_cast<A*>(a.grad_x);
  A* user_grad_c = static_cast<A*>(a.grad_c);
  const View view(a.g, N * max_ld * int64_t(sizeof(T)), true, a.K);

  InView<A> c(view, static_cast<const A*>(a.c), a.RC);
  const A* b = static_cast<const A*>(a.b);
  Buffer<Factors<A>> factors(N);  // rho, b
  Buffer<A> inverse(N);           // 1 / rho, 0 where rho is
  Buffer<A> near_grad_c(user_grad_c && view.order ? N * a.RC : 0), grad_b(user_grad_c ? N * a.RC : 0);
  A* grad_c = view.order ? near_grad_c.get() : user_grad_c;
  const bool gather_s = user_grad_c && !a.s;
  // the last sum of (G3) is found by the step from x, on the way
  const bool shares_in_step = user_grad_c && !std::is_same_v<T, double> && !a.g.weight && a.K > 0;
  // A step gathers u once more for s. From a step that was kept to the next one this finds the u between them, too: s
  // and u of so many steps are there at a time, beside v, which then takes the places of s row by row, and the first u.
  const int64_t run_length = gather_s ? std::min(a.every, a.K) : 1;
  Buffer<Factors<A>> ones(gather_s ? N : 0), middle(run_length > 1 ? N : 0);
  const bool looks_up = a.K > 1 && !c_in_row<T>(a.g, all_slices.max_width(), max_ld);
  Buffer<A> entry_c(entries_with_c<A>(view, looks_up, max_ld * sizeof(T), is_narrow(a)));
  const Tables<T> work(2 * run_length, N * max_ld), first_u(gather_s && a.K > 0 ? 1 : 0, N * max_ld);
  // in near form the gradient of x grows in a table and goes to its place at the end; on a large graph in the memory of
  // the result, if its rows are those of a table
  const bool in_result =
      view.order && !view.ascending && all_slices.count() == 1 && max_ld == ldx && sizeof(T) == sizeof(A);
  Buffer<A> near_grad_x(user_grad_x && view.order && !in_result ? N * max_ld : 0);
  Buffer<A> partial(kPieceRows * max_ld * HubPieces{view.g}.count());

  Step<T> step;
  step.g = view.g;
  step.prefetch = view.prefetch;
  step.ascending = view.ascending;
  step.partial = partial.get();
  step.entry_c = entry_c.get();
  RowSplit split;
  split_rows(range.threads, view.g, split);

#pragma omp parallel num_threads(split.threads) firstprivate(step)
  {
    check_team(view.g, split);
    const int thread = omp_get_thread_num();
    int64_t begin, end;
    even_share(N, begin, end);
    c.fill(begin, end, first_r, end_r);
    bool alone = false;  // nodes without neighbours are here
    for_rho<A>(a.g, view, begin, end, [&](int64_t p, A rho, A inverse_p) {
      factors.get()[p].first = rho;
      inverse.get()[p] = inverse_p;
      alone |= rho == 0;
    });
    for (int64_t p = begin; p < end; ++p) {
      if (gather_s) ones.get()[p] = {1, 0};
      for (int64_t r = first_r; grad_c && r < end_r; ++r) grad_c[r * N + p] = grad_b.get()[r * N + p] = 0;
    }
    const int64_t before = N * all_slices.padded_width(range.first), kept = kept_tables(a);
    const T* u = a.u ? static_cast<const T*>(a.u) + kept * before : nullptr;
    const T* s = a.s ? static_cast<const T*>(a.s) + a.K * before : nullptr;
    step.factors = factors.get();
    step.inverse = inverse.get();
    // grad_b is complete: it becomes e / d
    auto make_shares = [&](int64_t replica) {
      A* share = grad_b.get() + replica;
      for (int64_t p = begin; p < end; ++p) {
        const A rho = factors.get()[p].first;  // 0 without neighbours, and so is what it gave to share
        grad_c[replica + p] -= share[p];
        share[p] *= rho * rho;
      }
      split.wait();
    };
    for (int64_t number = range.first; number < range.end; ++number) {
      const Slice slice = all_slices.at(number);
      const int64_t table_size = N * slice.ld, replica = a.RC > 1 ? slice.r * N : 0;
      step.columns = slice.width;
      step.width = view.order ? slice.ld : slice.width;
      step.c = c.get() + replica;
      step.fills_c = all_slices.starts_values(number, range.first, a.RC);
      step.grad_c = grad_c ? grad_c + replica : nullptr;
      step.grad_b = grad_c ? grad_b.get() + replica : nullptr;
      A* grad_x = !user_grad_x ? nullptr : view.order && !in_result ? near_grad_x.get() : user_grad_x + slice.first;
      step.ldg = view.order ? slice.ld : ldx;

      LastTerms<T> last;
      last.slice = slice;
      last.order = view.order;
      last.apart = view.apart;
      last.far = view.far;
      last.ldx = ldx;
      last.grad_h = grad_h;
      last.h = static_cast<const T*>(a.h);
      last.b = b + replica;
      last.inverse = inverse.get();
      last.c = c_in_row<T>(a.g, slice.width, slice.ld) ? step.c : nullptr;
      last.factors = factors.get();
      last.table = work[0];
      last.grad_b = step.grad_b;
      add_last_terms(last, begin, end);
      for (int64_t p = begin; middle.get() && p < end; ++p) {
        const Factors<A> row = factors.get()[p];
        middle.get()[p] = {row.first * row.second * row.first, 2 * row.second};
      }
      if (gather_s && a.K > 0) {
        auto rho_at = [&](int64_t p) { return factors.get()[p].first; };
        fill_table(first_u[0], slice, x, ldx, view.order, view.apart, view.far, rho_at, last.c, begin, end);
      }
      split.wait();
      const StepRun<T> run = backward_kernel<T>(a.g, slice.width, slice.ld);
      int64_t now = 0, first = 0;  // tables with v: of this step, and where the run of steps began
      step.left = 1;
      step.begins = true;
      for (int64_t k = a.K - 1; k >= 0; --k) {
        const int64_t start = k - k % a.every;  // of the run, whose u was kept
        auto s_of = [&](int64_t j) { return work[first + 1 + j - start]; };
        auto u_of = [&](int64_t j) {
          if (j > start) return static_cast<const T*>(work[first + run_length + j - start]);
          return start == 0 ? static_cast<const T*>(first_u[0]) : u + (start / a.every - 1) * table_size;
        };
        for (int64_t j = start; gather_s && now == first && j <= k; ++j) {
          Step<T> again = step;
          again.width = again.ldx = again.ldo = slice.ld;
          again.table = u_of(j);
          again.next = nullptr;
          if (j < k) {
            again.factors = middle.get();
            again.x = first_u[0];
            again.out = work[first + run_length + j + 1 - start];
            again.sums = s_of(j);
          } else {
            again.factors = ones.get();
            again.out = s_of(j);
          }
          run_step(forward_kernel<T>(a.g, j < k, slice.width, slice.ld), again, split);
          if (j < k) step.fills_c = false;
        }
        const int64_t following = gather_s ? first + 1 + k - start : now + 1;
        step.table = work[now];
        step.next = k > 0 ? work[following] : nullptr;
        step.u = !grad_c ? nullptr : gather_s ? u_of(k) : u + k * table_size;
        step.s = !grad_c ? nullptr : gather_s ? s_of(k) : s + k * table_size;
        step.kept_far = step.s && 2 * a.K * table_size * int64_t(sizeof(T)) > 4 * cache_bytes();
        step.first = k == 0;
        step.share = nullptr;
        // every third step adds to the gradient of x, for itself and two before: their v are still there
        step.before = gather_s ? nullptr : work[now + 1];
        if (step.first && shares_in_step && all_slices.ends_values(number, range.end, a.RC)) {
          make_shares(replica);
          step.share = grad_b.get() + replica;
        }
        step.grad_x = k == 0 || step.left == (step.before ? 2 : 1) ? grad_x : nullptr;
        run_step(run, step, split);
        step.fills_c = false;
        step.begins &= !step.grad_x;
        step.left = step.grad_x ? 0 : step.left + 1;
        now = following;
        if (k == start) first = now;
      }
      if (u) u += kept * table_size;
      if (s) s += a.K * table_size;
      // v is 0 there, and the gradient that of H = X
      for (int64_t p = begin; alone && grad_x && p < end; ++p) {
        if (factors.get()[p].first > 0) continue;
        const T* from = grad_h + view.user_row(p) * ldx + slice.first;
        for (int d = 0; d < slice.width; ++d) grad_x[p * step.ldg + d] = load<1>(from + d);
      }
      if (grad_x && in_result) {
        // through a table, which is done
        A* const copy = reinterpret_cast<A*>(work[0]);
        std::memcpy(copy + begin * ldx, grad_x + begin * ldx, (end - begin) * ldx * sizeof(A));
        split.wait();
        grad_x = copy;
      }
      if (grad_x && view.order) {
        for (int64_t p = begin; p < end; ++p) {
          if (view.prefetch) fetch_row<true>(user_grad_x + slice.first, ldx, slice.width, view.order, p, end);
          A* to = user_grad_x + view.order[p] * ldx + slice.first;
          for_columns(slice, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>&) {
            store_first<kBlock>(to + d, load_first<kBlock>(grad_x + p * slice.ld + d, columns), columns);
          });
        }
        split.wait();
      }
    }
    // (G3): dC_i -= e_i + sum_j a_ij e_j / d_j
    for (int64_t r = first_r; grad_c && !shares_in_step && r < end_r; ++r) {
      make_shares(r * N);
      auto share_at = [&](int64_t e) { return grad_b.get()[r * N + view.g.col[e]]; };
      for (int64_t p = split.begin(thread); p < split.end(thread); ++p) {
        grad_c[r * N + p] -= A(weighted_sum(view.g, p, share_at));
      }
      split.wait();
    }
    for (int64_t r = first_r; grad_c && view.order && r < end_r; ++r) {
      for (int64_t p = begin; p < end; ++p) user_grad_c[r * N + view.order[p]] = grad_c[r * N + p];
    }
  }
}

template <class T>
void ada_propagate_backward(const AdaPropagateBackward& a) {
  const Slices<T> slices = ada_propagate_slices<T>(a.R, a.D, true, is_narrow(a));
  // the gradient of one c is a sum over all slices
  const int64_t together = a.grad_c && a.RC == 1 ? slices.count() : slices.per_replica();
  for_slices(a.threads, slices.count(), together, (a.g.E + kRowCost * a.g.N) * slices.max_ld(), a.K,
             [&](const SliceRange& range) { ada_propagate_backward<T>(a, range); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
