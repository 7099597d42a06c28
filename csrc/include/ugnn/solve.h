// Conjugate gradients for M F = X, M = diag - N (A o W) N; the labels are those of docs/math.md.
//
// As in ada_propagate.h a table holds u = N F, so that the matrix is D - A o W with D = diag / N^2, one step of the
// step kernel. Every column has its own step lengths. An iteration is two passes over blocks of rows: the step with the
// products of what it has just written, and one update of u, r and p, for which (C3) gives beta in advance. Every
// second update leaves u alone, which is a third of the bytes, and the next one makes up for it: p_k = z_k + beta_k-1
// p_k-1.
#pragma once

#include <cmath>

#include "ugnn/ops.h"
#include "ugnn/slices.h"
#include "ugnn/solve_kernel.h"

namespace ugnn {
namespace UGNN_ISA {

template <class A>
StepRun<A> matrix_kernel(const Solve& a, const Slice& slice) {
  if (a.edge) return step_kernel<A, Weighting::kEdge, true, Epilogue::kGeneral>(slice.ld);
  return forward_kernel<A>(a.g, a.c, slice.width, slice.ld);
}

// What the threads share, for slices of at most max_ld columns; rows in the order of the view.
template <class A>
struct SolveWork {
  const View view;
  int64_t rows;        // of a table: whole vectors
  int64_t block_rows;  // products are summed over so many rows
  int64_t blocks;
  InView<A> c;
  Buffer<A> entry_c;
  Buffer<A> tables;
  Buffer<Factors<A>> factors, norms;
  Buffer<A> inverse;         // 1 / N
  Buffer<double> even, odd;  // sums of every second pass: those of the pass before may still be read
  Buffer<A> partial;

  SolveWork(const Solve& a, int max_width, int max_ld)
      // tens of iterations
      : view(a.g, a.g.N * max_ld * int64_t(sizeof(A)), !a.edge, a.edge ? 0 : kNearWork),
        rows((a.g.N + kVectorLanes<A> - 1) / kVectorLanes<A> * kVectorLanes<A>),
        block_rows(view.ascending ? 512 : 256),
        blocks((a.g.N + block_rows - 1) / block_rows),
        c(view, static_cast<const A*>(a.c), a.RC),
        entry_c(entries_with_c<A>(view, a.c && !c_in_row<A>(a.g, max_width, max_ld), max_ld * sizeof(A), false)),
        tables(4 * rows * max_ld),
        factors(a.g.N),
        norms(rows + kVectorLanes<A>),
        inverse(a.g.N),
        even(2 * blocks * max_ld),
        odd(2 * blocks * max_ld),
        partial(kPieceRows * max_ld * HubPieces{view.g}.count()) {}
};

// One slice, as one of the threads sees it: all of them have the same sums and come to the same decisions.
template <class A>
class SolveSlice {
 public:
  int64_t iterations = 0;
  double curvature = 1;  // <p, M p>, if it was not positive

  SolveSlice(const Solve& a, SolveWork<A>& work, const Slice& slice, const Step<A>& step, RowSplit& split)
      : a_(a),
        work_(work),
        slice_(slice),
        x_(static_cast<const A*>(a.x) + slice.first),
        step_(step),
        split_(split),
        run_(matrix_kernel<A>(a, slice)),
        kernel_(solve_kernel<A>(slice.ld)) {
    A* tables = work.tables.get();
    const int64_t size = work.rows * ld_;
    t_ = {tables, tables + size, tables + 2 * size, tables + 3 * size, work.norms.get()};
    if (a.c) step_.c = work.c.get() + (a.RC > 1 ? slice.r * N_ : 0);
    step_.entry_c = work.entry_c.get();
    step_.factors = work.factors.get();
    step_.partial = work.partial.get();
    step_.columns = slice.width;
    step_.width = ld_;
    step_.ldx = step_.ldo = ld_;
    step_.out = t_.q;
  }

  // The recurrence for r drifts away from the residual, which is therefore computed when r is small enough: the columns
  // that have not arrived start again from there.
  void solve() {
    prepare();
    set_residual(true);
    do {
      while (any_active_ && iterations < a_.max_iter) {
        multiply(t_.p);
        if (!set_lengths()) return;
        update();
        ++iterations;
        any_active_ = false;
        for (int d = 0; d < slice_.width; ++d) {
          gamma_[d] = total_[d];
          active_[d] = active_[d] && total_[ld_ + d] > a_.tol * a_.tol * size_[d];
          any_active_ |= active_[d];
        }
      }
      pay();
      multiply(t_.u);
      finish();
      if (any_active_) set_residual(false);
    } while (any_active_ && iterations < a_.max_iter);
  }

  // the largest |X - M F| / |X| of a column, NaN if one is not finite
  double residual() const {
    double largest = 0;
    for (int d = 0; d < slice_.width && largest == largest; ++d) {
      const double relative = size_[d] == 0 ? 0 : std::sqrt(rr_[d] / size_[d]);
      if (!(relative <= largest)) largest = relative;
    }
    return largest;
  }

 private:
  using V = vec_t<A, kBlock>;
  static constexpr int kMax = kMaxWidth<A>;

  // body(begin, end, sums of this block) for all blocks of rows; then total_ has the sums of all. Returns those of the
  // blocks, which last until the pass after the next.
  template <class Body>
  const double* pass(Body body) {
    double* sums = (passes_++ % 2 ? work_.odd : work_.even).get();
    split_.for_rows(omp_get_thread_num(), [&](int64_t first, int64_t last) {
      // a block belongs to the share that has its first row
      const int64_t rows = work_.block_rows, stop = (last + rows - 1) / rows;
      for (int64_t block = (first + rows - 1) / rows; block < stop; ++block) {
        const int64_t begin = block * rows, end = begin + rows < N_ ? begin + rows : N_;
        double* of_block = sums + block * 2 * ld_;
        for (int d = 0; d < 2 * ld_; ++d) of_block[d] = 0;
        body(begin, end, of_block);
      }
    });
    split_.wait();
    for (int d = 0; d < 2 * ld_; ++d) total_[d] = 0;
    for (int64_t block = 0; block < work_.blocks; ++block) {
      for (int d = 0; d < 2 * ld_; ++d) total_[d] += sums[block * 2 * ld_ + d];
    }
    return sums;
  }

  // q = M table, and the products of a block while it is in cache. Hubs first, so that a block has all of its rows.
  void multiply(const A* table) {
    step_.table = step_.x = table;
    if (a_.g.H) {
      int64_t begin, end;
      even_share(HubPieces{work_.view.g}.count(), begin, end);
      run_(step_, Part::kPieces, begin, end);
      split_.wait();
      even_share(a_.g.H, begin, end);
      run_(step_, Part::kHubs, begin, end);
      split_.wait();
    }
    pass([&](int64_t begin, int64_t end, double* sums) {
      const int64_t rows = (1 << 11) / ld_;  // whose p and q are in the first-level cache
      for (; begin < end; begin += rows) {
        const int64_t stop = begin + rows < end ? begin + rows : end;
        run_(step_, Part::kRows, begin, stop);
        kernel_.products(t_, begin, stop, sums);
      }
    });
    step_.fills_c = false;
  }

  // (C2), (C3): the step lengths of the active columns, 0 for the others; false if M is not positive definite
  bool set_lengths() {
    for (int d = 0; d < slice_.width; ++d) {
      const double pq = total_[d], qq = total_[ld_ + d];
      lengths_.alpha[d] = lengths_.beta[d] = 0;
      if (!active_[d]) continue;
      if (pq <= 0) {
        curvature = pq;
        return false;
      }
      const double alpha = gamma_[d] / pq, beta = alpha * (qq / pq) - 1;
      lengths_.alpha[d] = A(alpha);
      lengths_.beta[d] = beta > 0 ? A(beta) : A(0);
    }
    lengths_.repeat(ld_);
    return true;
  }

  // u, r, p and their products; u only every second time, but for steps from which p_k-1 is not found again
  void update() {
    double least = 1;
    for (int d = 0; d < slice_.width; ++d) {
      if (active_[d] && double(lengths_.beta[d]) < least) least = double(lengths_.beta[d]);
    }
    const bool without_u = !owes_ && least > 0.1;
    run_update(without_u ? Update::kWithoutU : Update::kAll);
    owes_ = without_u;
    for (int d = 0; d < slice_.width; ++d) {
      lengths_.owed[d] = without_u && active_[d] ? lengths_.alpha[d] / lengths_.beta[d] : A(0);
    }
  }

  // what u has not had yet
  void pay() {
    if (!owes_) return;
    for (int d = 0; d < ld_; ++d) lengths_.alpha[d] = 0;
    lengths_.repeat(ld_);
    run_update(Update::kAll);
    owes_ = false;
  }

  void run_update(Update what) {
    pass([&](int64_t begin, int64_t end, double* sums) { kernel_.update[int(what)](t_, lengths_, begin, end, sums); });
  }

  // The matrix, and for each column a power of two that brings x near 1, as squares of very small or large values would
  // leave the range of numbers; NaN for a column that is not finite, which makes all of its result NaN.
  void prepare() {
    const A* diag = a_.diag ? static_cast<const A*>(a_.diag) + (a_.RD > 1 ? slice_.r * N_ : 0) : nullptr;
    const double* sums = pass([&](int64_t begin, int64_t end, double* of_block) {
      if (end == N_) clear_behind();
      V largest[(kMax + kBlock - 1) / kBlock] = {}, zero[(kMax + kBlock - 1) / kBlock] = {};
      for (int64_t p = begin; p < end; ++p) {
        const int64_t i = work_.view.user_row(p);
        const A degree = a_.sym && a_.g.degree[i] > 0 ? degree_of<A>(a_.g, i) : A(1);
        const A scaled = (diag ? diag[i] : A(a_.diag_value)) * degree;
        work_.factors.get()[p] = {-A(a_.scale), scaled};
        work_.norms.get()[p] = {1 / scaled, 1 / degree};
        work_.inverse.get()[p] = std::sqrt(degree);
        for_columns(slice_, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>&) {
          const V value = load_first<kBlock>(x_ + i * ldx_ + d, columns), size = value < 0 ? -value : value;
          largest[d / kBlock] = size > largest[d / kBlock] ? size : largest[d / kBlock];
          zero[d / kBlock] += 0 * value;
        });
      }
      for (int d = 0; d < ld_; ++d) {
        of_block[d] = double(largest[d / kBlock][d % kBlock]);
        of_block[ld_ + d] = double(zero[d / kBlock][d % kBlock]);
      }
    });
    for (int d = 0; d < slice_.width; ++d) {
      double largest = 0;
      for (int64_t block = 0; block < work_.blocks; ++block) {
        const double of_block = sums[block * 2 * ld_ + d];
        largest = of_block > largest ? of_block : largest;
      }
      constexpr int kMost = sizeof(A) == 4 ? 120 : 1000;
      int exponent = 0;
      std::frexp(largest, &exponent);
      exponent = exponent > kMost ? kMost : exponent < -kMost ? -kMost : exponent;
      scale_[d] = total_[ld_ + d] == 0 ? A(std::ldexp(1.0, -exponent)) : A(NAN);
    }
  }

  // nothing comes from the rows that fill up the last vector
  void clear_behind() {
    A* const tables[] = {t_.u, t_.r, t_.p, t_.q};
    for (A* table : tables) {
      for (int64_t at = N_ * ld_; at < work_.rows * ld_; ++at) table[at] = 0;
    }
    for (int64_t i = N_; i < work_.rows; ++i) work_.norms.get()[i] = {0, 0};
  }

  // r = X / N - M u, p = r / D. At first u is 0; later q must be M u.
  void set_residual(bool first) {
    for (int d = 0; d < ld_; ++d) {
      lengths_.alpha[d] = lengths_.owed[d] = 0;
      lengths_.beta[d] = d < slice_.width ? 0 : 1;
    }
    lengths_.repeat(ld_);
    const A* c_behind = a_.c && c_in_row<A>(a_.g, slice_.width, slice_.ld) ? step_.c : nullptr;
    pass([&](int64_t begin, int64_t end, double* sums) {
      for (int64_t i = begin; i < end; ++i) {
        for_columns(slice_, [&](int d, const Tail<kBlock>& columns,
                                const Tail<kBlock>& stored) __attribute__((always_inline)) {
          const int64_t at = i * ld_ + d;
          if (first) {
            const V u = c_behind ? first_or<A, kBlock>(V{}, c_behind[i], columns) : V{};
            store_first<kBlock>(t_.u + at, u, stored);
            store_first<kBlock>(t_.p + at, u, stored);
          }
          const V x = load_first<kBlock>(x_ + work_.view.user_row(i) * ldx_ + d, columns) * load<kBlock>(scale_ + d);
          V r = work_.inverse.get()[i] * x;
          if (!first) r -= load_first<kBlock>(t_.q + at, stored);
          store_first<kBlock>(t_.r + at, first_or<A, kBlock>(r, A(0), columns), stored);
        });
      }
      kernel_.update[int(Update::kStart)](t_, lengths_, begin, end, sums);
    });
    for (int d = 0; d < slice_.width; ++d) {
      gamma_[d] = total_[d];
      if (first) size_[d] = total_[ld_ + d];
    }
    if (first) set_active(true);
  }

  // Which columns have not arrived, by the residuals of total_. One that was not halved from start to start has met the
  // limit of rounding.
  void set_active(bool first) {
    any_active_ = false;
    for (int d = 0; d < slice_.width; ++d) {
      const double before = first ? INFINITY : rr_[d];
      rr_[d] = total_[ld_ + d];
      active_[d] = rr_[d] > a_.tol * a_.tol * size_[d] && rr_[d] < before / 4;
      any_active_ |= active_[d];
    }
  }

  // F = u / N, and how far it is from the solution; q must be M u.
  void finish() {
    A* f = static_cast<A*>(a_.f) + slice_.first;
    A back[kMax + kBlock] = {};
    for (int d = 0; d < slice_.width; ++d) back[d] = 1 / scale_[d];
    pass([&](int64_t begin, int64_t end, double* sums) {
      constexpr int64_t kFew = 32;  // squares are added up in A, then in double
      V squares[(kMax + kBlock - 1) / kBlock] = {};
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = work_.view.user_row(i) * ldx_;
        const A inverse = work_.inverse.get()[i], squared = work_.norms.get()[i].second;
        for_columns(slice_, [&](int d, const Tail<kBlock>& columns, const Tail<kBlock>&) {
          const V u = load_first<kBlock>(t_.u + i * ld_ + d, columns),
                  q = load_first<kBlock>(t_.q + i * ld_ + d, columns);
          const V x = load_first<kBlock>(x_ + row + d, columns) * load<kBlock>(scale_ + d), r = inverse * x - q;
          store_first<kBlock>(f + row + d, inverse * u * load<kBlock>(back + d), columns);
          squares[d / kBlock] += squared * r * r;
        });
        if ((i + 1) % kFew && i + 1 < end) continue;
        for (int d = 0; d < ld_; ++d) {
          sums[ld_ + d] += double(squares[d / kBlock][d % kBlock]);
          squares[d / kBlock][d % kBlock] = 0;
        }
      }
    });
    set_active(false);
  }

  const Solve& a_;
  SolveWork<A>& work_;
  const Slice slice_;
  const int64_t N_ = a_.g.N, ld_ = slice_.ld, ldx_ = a_.R * a_.D;
  const A* const x_;
  Step<A> step_;
  RowSplit& split_;
  const StepRun<A> run_;
  const SolveRun<A> kernel_;
  SolveTables<A> t_;
  StepLengths<A> lengths_;
  double total_[2 * kMax];
  // of each column
  A scale_[kMax + kBlock] = {};
  double size_[kMax];   // |X|^2
  double gamma_[kMax];  // <r, r / D>
  double rr_[kMax];     // |r|^2 of the last true residual
  bool active_[kMax];   // has not arrived
  bool any_active_ = true;
  bool owes_ = false;  // whether u lacks the share of an iteration
  int64_t passes_ = 0;
};

template <class A>
void solve(Solve& a) {
  // one matrix for all replicas: their columns are as good as one replica's
  const bool one_matrix = a.RC == 1 && a.RD == 1;
  const Slices<A> slices = one_matrix ? Slices<A>{1, a.R * a.D} : Slices<A>{a.R, a.D};
  const int max_ld = slices.max_ld();
  SolveWork<A> work(a, slices.max_width(), max_ld);
  Step<A> step;
  step.g = work.view.g;
  step.prefetch = work.view.prefetch;
  step.ascending = work.view.ascending;
  step.edge = static_cast<const A*>(a.edge);
  RowSplit split;
  // where rows are sorted by length, a thread shall have as many as the others in the passes over rows too
  split.dealt = work.view.ascending;
  // the lines of p that other threads have read are slow to write: Pubmed is faster on one thread
  constexpr int64_t kSlower = 4;
  split_rows(useful_threads(a.threads, (a.g.E + kRowCost * a.g.N) * max_ld / kSlower), work.view.g, split);

#pragma omp parallel num_threads(split.threads) firstprivate(step)
  {
    check_team(work.view.g, split);
    int64_t begin, end;
    even_share(a.g.N, begin, end);
    work.c.fill(begin, end, 0, a.RC);
    split.wait();
    bool definite = true;
    for (int64_t number = 0; number < slices.count() && definite; ++number) {
      step.fills_c = slices.starts_values(number, 0, a.RC);
      SolveSlice<A> slice(a, work, slices.at(number), step, split);
      slice.solve();
      split.wait();  // the next one counts its passes anew
      definite = slice.curvature > 0;
      if (omp_get_thread_num() == 0) {
        a.iterations = slice.iterations > a.iterations ? slice.iterations : a.iterations;
        const double residual = slice.residual();
        if (a.residual == a.residual && !(residual <= a.residual)) a.residual = residual;
        a.curvature = slice.curvature;
      }
    }
  }
}

}  // namespace UGNN_ISA
}  // namespace ugnn
