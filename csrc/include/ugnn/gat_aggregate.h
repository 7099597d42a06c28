// GAT's aggregation: sums of neighbour rows under attention weights, forward and backward, docs/math.md (A1)-(A3).
//
// Three passes over the rows, one forward and two backward, differ in what the weights are and in what becomes of the
// sums. A row is owned by one thread; nothing is kept per entry.
#pragma once

#include "ugnn/gat_weights.h"

namespace ugnn {
namespace UGNN_ISA {

template <class T>
struct GatStep {
  using A = acc_t<T>;
  GatScores<A> scores;
  int64_t ld;      // H D, from one row to the next in all [N, H, D]
  const T* table;  // [N, H, D], the neighbour rows: x; kSource: grad
  A* partial;      // sums of the pieces of hub rows
  const T* own;    // [N, H, D], the row itself: kTarget: grad, kSource: x
  T* out;          // [N, H, D]: y; kSource: grad_x
  A* per_head;     // [N, H]: lse; kTarget: grad_dst; kSource: grad_src
  A* stats;        // [N, 3, H], written by kTarget: dst, lse, <grad, y>
};

template <class T, int kLanes, int kVecs, GatPass kPass>
class GatKernel {
 public:
  using A = acc_t<T>;
  using V = vec_t<A, kLanes>;
  using Weights = GatWeights<A, kPass>;
  static constexpr bool kForward = kPass == GatPass::kForward;
  // sum of w_ij times the neighbour row, and that over the entries with z > 0
  static constexpr int kSets = kForward ? 1 : 2;
  static constexpr int kLd = kLanes * kVecs;
  static constexpr int64_t kPartial = kSets * kLd + 2 * Weights::kMaxLanes;

  GatKernel(const GatStep<T>& step, const GatSlice& slice)
      : a_(step), slice_(slice), weights_(step.scores, slice), tail_(slice.width - (kVecs - 1) * kLanes) {
    for (int v = 0; v < kVecs; ++v) {
      base_[v] = lane_of(v * kLanes);
      for (int l = 0; l < kLanes; ++l) index_[v][l] = lane_of(v * kLanes + l) - base_[v];
    }
  }

  // Items [begin, end) of one part of a pass.
  __attribute__((noinline)) void run(Part part, int64_t begin, int64_t end) {
    const Csr& g = a_.scores.g;
    const int64_t hub_len = hub_length(g.E);
    const HubPieces pieces{g};
    Sums sums;
    for (int64_t item = begin; item < end; ++item) {
      if (part == Part::kRows) {
        if (g.rowptr[item + 1] - g.rowptr[item] > hub_len) continue;
        sum_entries(item, g.rowptr[item], g.rowptr[item + 1], sums);
        finish(item, sums);
      } else if (part == Part::kPieces) {
        int64_t first, last;
        pieces.find(item, first, last);
        sum_entries(row_of(first), first, last, sums);
        put_partial(item, sums);
      } else {
        sum_pieces(item, pieces, sums);
        finish(g.hubs[item], sums);
      }
    }
  }

 private:
  struct Sums {
    V of[kSets][kVecs];
  };
  using Index = vec_t<std::conditional_t<sizeof(A) == 8, int64_t, int32_t>, kLanes>;

  int lane_of(int column) const {
    const int last = slice_.width - 1;
    return slice_.offset + (column < last ? column : last) / slice_.columns;
  }

  int64_t row_of(int64_t entry) const {
    const Csr& g = a_.scores.g;
    int64_t hub = 0;
    while (g.rowptr[g.hubs[hub] + 1] <= entry) ++hub;
    return g.hubs[hub];
  }

  static UGNN_INLINE void clear(Sums& sums) {
    UGNN_UNROLL
    for (int s = 0; s < kSets; ++s) {
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) sums.of[s][v] = V{};
    }
  }

  // values of lanes, for the columns of vector v
  static UGNN_INLINE V to_columns(const A* lanes, int base, Index index) {
    return __builtin_shuffle(load<kLanes>(lanes + base), index);
  }

  template <class U>
  UGNN_INLINE V load_row(const U* row, int v) const {
    return v < kVecs - 1 ? load<kLanes>(row + v * kLanes) : load_first<kLanes>(row + v * kLanes, tail_);
  }

  UGNN_INLINE void store_row(T* row, int v, V value) const {
    if (v < kVecs - 1) {
      store<kLanes>(row + v * kLanes, value);
    } else {
      store_first<kLanes>(row + v * kLanes, value, tail_);
    }
  }

  // sums over the n entries from `first` on whose weights were filled in
  UGNN_INLINE void gather(int64_t first, int n, Sums& sums) const {
    const int32_t* col = a_.scores.g.col + first;
    const int64_t ahead = a_.scores.prefetch, last = a_.scores.g.E - 1 - first, ld = a_.ld;
    const int stride = weights_.stride();
    const T* table = a_.table + slice_.first;
    const A* set[2] = {weights_.weights(), weights_.positive()};
    Index index[kVecs];
    int base[kVecs];
    Sums local;
    clear(local);
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      index[v] = index_[v];
      base[v] = base_[v];
    }
    for (int e = 0; e < n; ++e) {
      if (ahead) fetch<kLd>(table + col[e + ahead < last ? e + ahead : last] * ld);
      const T* row = table + col[e] * ld;
      UGNN_UNROLL
      for (int v = 0; v < kVecs; ++v) {
        const V u = load_row(row, v);
        UGNN_UNROLL
        for (int s = 0; s < kSets; ++s) local.of[s][v] += to_columns(set[s] + e * stride, base[v], index[v]) * u;
      }
    }
    sums = local;
  }

  void sum_entries(int64_t i, int64_t first, int64_t last, Sums& sums) {
    weights_.start(i);
    clear(sums);
    const int most = weights_.entries_at_once();
    for (bool more = false; first < last; more = true) {
      const int n = last - first < most ? int(last - first) : most;
      weights_.fill(first, n);
      if (__builtin_expect(!more, 1)) {
        gather(first, n, sums);
      } else {
        // long rows in blocks: one sum over thousands of neighbours would lose digits
        Sums block;
        gather(first, n, block);
        add_to(sums, weights_.scale(), block, nullptr);
      }
      first += n;
    }
  }

  // sums = scale sums + part_scale part, the factors per lane; only kForward has any
  void add_to(Sums& sums, const A* scale, const Sums& part, const A* part_scale) const {
    for (int s = 0; s < kSets; ++s) {
      for (int v = 0; v < kVecs; ++v) {
        V before = sums.of[s][v], more = part.of[s][v];
        if constexpr (kForward) {
          before *= to_columns(scale, base_[v], index_[v]);
          if (part_scale) more *= to_columns(part_scale, base_[v], index_[v]);
        }
        sums.of[s][v] = before + more;
      }
    }
  }

  void put_partial(int64_t number, const Sums& sums) {
    A* to = a_.partial + number * kPartial;
    std::memcpy(to, &sums, sizeof(sums));
    std::memcpy(to + kSets * kLd, weights_.sum(), sizeof(A) * Weights::kMaxLanes);
    std::memcpy(to + kSets * kLd + Weights::kMaxLanes, weights_.max(), sizeof(A) * Weights::kMaxLanes);
  }

  void sum_pieces(int64_t hub, const HubPieces& pieces, Sums& sums) {
    int64_t number, last;
    weights_.start(a_.scores.g.hubs[hub]);
    clear(sums);
    A part_scale[Weights::kMaxLanes + Weights::kPad];
    for (pieces.range(hub, number, last); number < last; ++number) {
      const A* from = a_.partial + number * kPartial;
      Sums part;
      std::memcpy(&part, from, sizeof(part));
      weights_.merge(from + kSets * kLd, from + kSets * kLd + Weights::kMaxLanes, part_scale);
      add_to(sums, weights_.scale(), part, part_scale);
    }
  }

  // values per head of the slice, some heads at a time; arrays of them have room for the last ones
  static constexpr int kHeads = 8, kHeadValues = Weights::kMaxLanes + Weights::kPad;
  using Heads = vec_t<A, kHeads>;
  template <class Body>
  UGNN_INLINE void for_heads(Body body) const {
    for (int h = 0; h < slice_.heads; h += kHeads) {
      const int left = slice_.heads - h;
      body(h, Tail<kHeads>(left < kHeads ? left : kHeads));
    }
  }

  // <own row, sums> for each head of the slice
  void dots(const T* own, const V* sums, A* out) const {
    constexpr int kSum = 8;
    alignas(64) A products[kLd + kSum];
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) store<kLanes>(products + v * kLanes, load_row(own, v) * sums[v]);
    int h = 0;
    if (slice_.columns <= kSum) {
      const Tail<kSum> columns(slice_.columns);
      for (; h + 4 <= slice_.heads; h += 4) {
        vec_t<A, kSum> of[4];
        UGNN_UNROLL
        for (int k = 0; k < 4; ++k) of[k] = load_first<kSum>(products + (h + k) * slice_.columns, columns);
        store<4>(out + h, sum_lanes_of_four<A, kSum>(of[0], of[1], of[2], of[3]));
      }
    }
    const int whole = slice_.columns / kSum * kSum;
    const Tail<kSum> rest(slice_.columns - whole);
    for (; h < slice_.heads; ++h) {
      const A* from = products + h * slice_.columns;
      vec_t<A, kSum> sum = load_first<kSum>(from + whole, rest);
      for (int d = 0; d < whole; d += kSum) sum += load<kSum>(from + d);
      out[h] = sum_lanes<A, kSum>(sum);
    }
  }

  void finish(int64_t i, const Sums& sums) {
    if constexpr (kForward) finish_forward(i, sums);
    if constexpr (kPass == GatPass::kTarget) finish_target(i, sums);
    if constexpr (kPass == GatPass::kSource) finish_source(i, sums);
  }

  void finish_forward(int64_t i, const Sums& sums) {
    const bool any = a_.scores.g.rowptr[i] < a_.scores.g.rowptr[i + 1];
    const A *sum = weights_.sum(), *max = weights_.max();
    A inverse[kHeadValues], lse[kHeadValues];
    for (int k = 0; k < slice_.lanes; k += kHeads) {
      const Heads total = load<kHeads>(sum + k);
      store<kHeads>(inverse + k, any ? A(1) / total : Heads{});
      store<kHeads>(lse + k, any ? load<kHeads>(max + k) + log_of<A, kHeads>(total) : Heads{});
    }
    T* y = a_.out + i * a_.ld + slice_.first;
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) store_row(y, v, to_columns(inverse, base_[v], index_[v]) * sums.of[0][v]);
    if (!slice_.first_part) return;
    A* to = a_.per_head + i * a_.scores.H + slice_.head;
    for (int k = slice_.offset; k < slice_.lanes; ++k) to[k] = lse[k];
  }

  // (A2): sums are y and its part with z > 0
  void finish_target(int64_t i, const Sums& sums) {
    const int64_t H = a_.scores.H, first = slice_.head + slice_.offset;
    const T* grad = a_.own + i * a_.ld + slice_.first;
    A all[kHeadValues], positive[kHeadValues];
    dots(grad, sums.of[0], all);
    dots(grad, sums.of[1], positive);
    const A* share = weights_.sum() + slice_.offset;
    A *grad_dst = a_.per_head + i * H + first, *stats = a_.stats + i * 3 * H + first;
    for_heads([&](int h, const Tail<kHeads>& tail) {
      Heads own = load<kHeads>(all + h);
      Heads part = (1 - a_.scores.slope) * (load<kHeads>(positive + h) - own * load<kHeads>(share + h));
      if (slice_.first_part) {
        store_first<kHeads>(stats + h, load_first<kHeads>(a_.scores.own + i * H + first + h, tail), tail);
        store_first<kHeads>(stats + H + h, load_first<kHeads>(a_.scores.lse + i * H + first + h, tail), tail);
      } else {
        part += load_first<kHeads>(grad_dst + h, tail);
        own += load_first<kHeads>(stats + 2 * H + h, tail);
      }
      store_first<kHeads>(grad_dst + h, part, tail);
      store_first<kHeads>(stats + 2 * H + h, own, tail);
    });
  }

  // (A3): sums are the gradient of x and its part with z > 0
  void finish_source(int64_t j, const Sums& sums) {
    const int64_t first = slice_.head + slice_.offset;
    T* grad_x = a_.out + j * a_.ld + slice_.first;
    V both[kVecs];
    UGNN_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      store_row(grad_x, v, sums.of[0][v]);
      both[v] = a_.scores.slope * sums.of[0][v] + (1 - a_.scores.slope) * sums.of[1][v];
    }
    A dot[kHeadValues];
    dots(a_.own + j * a_.ld + slice_.first, both, dot);
    const A* less = weights_.sum() + slice_.offset;
    A* grad_src = a_.per_head + j * a_.scores.H + first;
    for_heads([&](int h, const Tail<kHeads>& tail) {
      const Heads more = slice_.first_part ? -load<kHeads>(less + h) : load_first<kHeads>(grad_src + h, tail);
      store_first<kHeads>(grad_src + h, load<kHeads>(dot + h) + more, tail);
    });
  }

  const GatStep<T> a_;
  const GatSlice slice_;
  Weights weights_;
  const Tail<kLanes> tail_;
  int base_[kVecs];       // lane of the first column of each vector
  Index index_[kVecs]{};  // lanes of its columns, counted from there
};

// One pass over all slices by all threads of the current parallel region; ends with a barrier.
template <GatPass kPass, class T>
void run_gat_pass(const GatStep<T>& step, const GatSlices<T>& slices, RowSplit& split) {
  const Csr& g = step.scores.g;
  for (int64_t number = 0; number < slices.count(); ++number) {
    const GatSlice slice = slices.at(number);
    for_vector_shape<T>(padded<T>(slice.width < 4 ? 4 : slice.width), [&](auto shape) {
      GatKernel<T, shape.kLanes, shape.kVecs, kPass> kernel(step, slice);
      int64_t begin, end;
      if (g.H) {
        even_share(HubPieces{g}.count(), begin, end);
        kernel.run(Part::kPieces, begin, end);
      }
      split.for_rows(omp_get_thread_num(), [&](int64_t first, int64_t last) { kernel.run(Part::kRows, first, last); });
      if (g.H) {
        split.wait();
        even_share(g.H, begin, end);
        kernel.run(Part::kHubs, begin, end);
      }
    });
    split.wait();
  }
}

// Calls body(split) in a parallel region whose threads share the rows.
template <class T, class Args, class Body>
void with_gat_threads(const Args& a, Body body) {
  RowSplit split;
  split_rows(useful_threads(a.threads, (a.g.E + kRowCost * a.g.N) * a.H * a.D), a.g, split);
#pragma omp parallel num_threads(split.threads)
  {
    check_team(a.g, split);
    body(split);
  }
}

// scores of a call, own and others as forward has them
template <class T, class Args>
GatStep<T> gat_step(const Args& a, acc_t<T>* partial) {
  using A = acc_t<T>;
  GatStep<T> step{};
  const bool cached = a.g.N * a.H * a.D * int64_t(sizeof(T)) <= cache_bytes();
  step.scores = {a.g,
                 a.H,
                 a.R,
                 A(a.slope),
                 a.drop,
                 a.seeds,
                 static_cast<const A*>(a.dst),
                 static_cast<const A*>(a.src),
                 nullptr,
                 cached ? 0 : 32};
  step.ld = a.H * a.D;
  step.table = static_cast<const T*>(a.x);
  step.partial = partial;
  return step;
}

// values that the pieces of hub rows take at most
template <class A>
int64_t gat_partial_size(const Csr& g) {
  constexpr int64_t kMost = 2 * kMaxWidth<A> + 2 * GatWeights<A, GatPass::kForward>::kMaxLanes;
  return g.H ? HubPieces{g}.count() * kMost : 0;
}

template <class T>
void gat_aggregate_forward(const GatAggregateForward& a) {
  using A = acc_t<T>;
  Buffer<A> partial(gat_partial_size<A>(a.g));
  GatStep<T> step = gat_step<T>(a, partial.get());
  step.out = static_cast<T*>(a.y);
  step.per_head = static_cast<A*>(a.lse);
  const GatSlices<T> slices{a.H, a.D, a.R};
  with_gat_threads<T>(a, [&](RowSplit& split) { run_gat_pass<GatPass::kForward>(step, slices, split); });
}

template <class T>
void gat_aggregate_backward(const GatAggregateBackward& a) {
  using A = acc_t<T>;
  Buffer<A> partial(gat_partial_size<A>(a.g)), stats(3 * a.g.N * a.H);
  GatStep<T> target = gat_step<T>(a, partial.get());
  target.scores.lse = static_cast<const A*>(a.lse);
  target.own = static_cast<const T*>(a.grad);
  target.per_head = static_cast<A*>(a.grad_dst);
  target.stats = stats.get();
  GatStep<T> source = gat_step<T>(a, partial.get());
  source.scores.own = static_cast<const A*>(a.src);
  source.scores.others = stats.get();
  source.table = target.own;
  source.own = target.table;
  source.out = static_cast<T*>(a.grad_x);
  source.per_head = static_cast<A*>(a.grad_src);
  const GatSlices<T> slices{a.H, a.D, a.R};
  with_gat_threads<T>(a, [&](RowSplit& split) {
    run_gat_pass<GatPass::kTarget>(target, slices, split);
    run_gat_pass<GatPass::kSource>(source, slices, split);
  });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
