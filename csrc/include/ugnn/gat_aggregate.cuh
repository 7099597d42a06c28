// GAT's aggregation, docs/math.md (A1)-(A3): one pass over the rows forward, two backward, nothing kept per entry.
//
// A row of x [N, H, D] is H heads of D columns. The lanes of a slot have the columns of a block of whole heads, or of a
// part of one wide head, and every lane needs one weight of an entry, that of its head. Beside that it makes weights,
// so that each one is made once in a slot: the lane that looks up an entry draws the mask of all heads of the block,
// then the lanes take (entry, head) in turn, and in the end lanes get the weights of their heads from those that made
// them.
#pragma once

#include <cmath>
#include <limits>

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// The heads of a task, and what a lane has to do with them.
struct Heads {
  int first, count;  // heads of the block
  int own;           // of the columns of this lane: which of the block
  int position;      // of this lane among those of its head
  int offset;        // of its columns in a row
  bool active;       // whether it has any
  bool leads;        // whether it has the first ones of its head, or of the part
  int made;          // head whose weights it makes: which of the block
  int maker;         // which of the lanes that make weights of this head
  bool makes;        // whether it does
  int base;          // the first lane of the slot

  UGNN_DEVICE Heads(const HeadArgs& h, const Lanes& lanes, int kVec, int block, int part)
      : first(block * h.block_heads),
        count(h.H - first < h.block_heads ? h.H - first : h.block_heads),
        own(lanes.column / h.lanes),
        position(lanes.column % h.lanes),
        made(lanes.column % h.block_heads),
        maker(lanes.column / h.block_heads),
        base(lanes.lane - lanes.column) {
    const int column = (part * h.lanes + position) * kVec;
    active = own < count && column < h.D;
    leads = active && position == 0;
    makes = maker < h.makers && made < count;
    if (!active) own = 0;
    offset = (first + own) * h.D + column;
  }

  UGNN_DEVICE int head() const { return first + own; }
  UGNN_DEVICE int made_head() const { return first + (made < count ? made : 0); }
  UGNN_DEVICE Columns columns() const { return {0, offset, active}; }
  // the value of the first lane that makes weights of this lane's head
  template <class acc_t>
  UGNN_DEVICE acc_t from_maker(acc_t value) const {
    return __shfl_sync(kAllLanes, value, base + own);
  }
};

// Lane of the maker of the same head that is `step` away
UGNN_DEVICE int other_maker(const HeadArgs& h, const Lanes& lanes, const Heads& heads, int step) {
  return heads.makes ? heads.base + (heads.maker ^ step) * h.block_heads + heads.made : lanes.lane;
}

// Sum over the lanes that make weights of a head; all of them get it.
template <class acc_t>
UGNN_DEVICE acc_t sum_of_makers(const HeadArgs& h, const Lanes& lanes, const Heads& heads, acc_t value) {
  for (int step = 1; step < h.makers; step *= 2) {
    value += __shfl_sync(kAllLanes, value, other_maker(h, lanes, heads, step));
  }
  return value;
}

// Sum over the lanes that have columns of a head; the first of them gets it.
template <class acc_t>
UGNN_DEVICE acc_t sum_of_head(const HeadArgs& h, const Lanes& lanes, const Heads& heads, acc_t value) {
  for (int step = 1; step < h.lanes; step *= 2) {
    const acc_t other = __shfl_sync(kAllLanes, value, (lanes.lane + step) % kWarp);
    if (heads.position + step < h.lanes) value += other;
  }
  return value;
}

// Which heads of a block keep entry (i, j), a bit for each.
UGNN_DEVICE uint32_t mask_bits(const HeadArgs& h, const Heads& heads, int i, int j) {
  uint32_t bits = 0;
  for (int n = 0; n < heads.count;) {
    const int r = (heads.first + n) / h.replica_heads, head = (heads.first + n) % h.replica_heads;
    const PhiloxWords words = philox(uint64_t(__ldg(h.seeds + r)), uint32_t(i), uint32_t(j), uint32_t(head / 4),
                                     uint32_t(Stream::kAttention));
    uint32_t four = 0;
#pragma unroll
    for (int k = 0; k < 4; ++k) four |= uint32_t(words.word[k] >= h.mask_from) << k;
    bits |= four >> head % 4 << n;
    // heads that take these words, up to the last one of the replica
    const int left = h.replica_heads - head;
    n += 4 - head % 4 < left ? 4 - head % 4 : left;
    // bits of a replica that ends here are those of the next one
    if (n < kWarp) bits &= (uint32_t(1) << n) - 1;
  }
  return bits;
}

template <class acc_t>
UGNN_DEVICE acc_t leaky_relu(acc_t z, acc_t slope) {
  return z > 0 ? z : slope * z;
}

// For all entries of a task: look(j) gives the scores of neighbour j for the head that this lane makes weights of,
// weigh(scores, live, w) turns those of kTogether entries into weights, 0 where an entry is not live; w is then masked.
// add(row, w) adds the neighbour's row with the weight of the lane's own head. sends: row i of the task is that which
// sends, so that the masks are those of (j, i).
template <class T, int kVec, int kTogether, class Look, class Weigh, class Add>
UGNN_DEVICE void for_heads(const RowArgs& g, const HeadArgs& h, const ColumnArgs& c, const void* table,
                           const Lanes& lanes, const Task& task, const Heads& heads, bool sends, Look look, Weigh weigh,
                           Add add) {
  using acc_t = acc_of<T>;
  static_assert(kMinGroup % kTogether == 0);
  const Walk walk(lanes, task);
  const T* columns = static_cast<const T*>(table) + heads.offset;
  const int at_once = h.makers * kTogether;
  int own_entry = walk.own;
  for (int left = walk.rounds; left > 0; left -= lanes.group, own_entry += walk.step) {
    int own_j = -1;
    uint32_t own_bits = ~0u;
    if (own_entry < task.length) {
      const int j = __ldg(g.col + task.begin + own_entry);
      if (kept_entry(g, task.i, j)) {
        own_j = j;
        if (h.seeds) own_bits = mask_bits(h, heads, sends ? j : task.i, sends ? task.i : j);
      }
    }
    // lanes that looked up the entries whose weights are made, and whose rows are added, next
    int made_source = walk.source + (heads.makes ? heads.maker * kTogether * walk.turn : 0), row_source = walk.source;
    int rounds = left < lanes.group ? left : lanes.group;
#pragma unroll 1
    for (; rounds > 0; rounds -= at_once) {
      decltype(look(0)) scores[kTogether];
      acc_t w[kTogether];
      bool live[kTogether];
      uint32_t kept = 0;
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        const int j = __shfl_sync(kAllLanes, own_j, made_source + k * walk.turn);
        live[k] = heads.makes && j >= 0;
        if (live[k]) scores[k] = look(j);
        if (h.seeds) kept |= (__shfl_sync(kAllLanes, own_bits, made_source + k * walk.turn) >> heads.made & 1) << k;
      }
      made_source += at_once * walk.turn;
      weigh(scores, live, w);
      if (h.seeds) {
#pragma unroll
        for (int k = 0; k < kTogether; ++k) w[k] = kept >> k & 1 ? w[k] : acc_t(0);
      }
      int maker = heads.base + heads.own;
#pragma unroll 1
      for (int here = rounds < at_once ? rounds : at_once; here > 0; here -= kTogether, maker += h.block_heads) {
        Raw<T, kVec> rows[kTogether];
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          const int j = __shfl_sync(kAllLanes, own_j, row_source);
          if (j >= 0 && heads.active) rows[k].load(columns + int64_t(j) * c.width);
          row_source += walk.turn;
        }
#pragma unroll
        for (int k = 0; k < kTogether; ++k) {
          acc_t row[kVec];
          rows[k].get(row);
          add(row, __shfl_sync(kAllLanes, w[k], maker));
        }
      }
    }
  }
}

// y_i = sum_j w_ij x_j and lse_i, (A1): sums are relative to the largest e so far. A task has a block of heads, or a
// part of a wide one.
template <class T, int kVec>
struct GatAggregateFwd {
  using Args = GatAggregateFwdArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  static constexpr int kTogether = 2;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();
  static constexpr acc_t kLowest = std::numeric_limits<acc_t>::lowest(),
                         kNone = -std::numeric_limits<acc_t>::infinity();

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.blocks * a.heads.parts; }

  // exp(top - new), the factor of sums relative to top
  static UGNN_DEVICE acc_t factor(acc_t top, acc_t now) { return now == top ? acc_t(1) : std::exp(top - now); }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int column, bool hub) {
    const int part = column % a.heads.parts;
    const Heads heads(a.heads, lanes, kVec, column / a.heads.parts, part);
    // top: the largest e so far, kNone before the first one; total: sum of exp(e - top)
    acc_t acc[kVec] = {}, top = kNone, total = 0;
    if (hub) {
      sum_of_pieces(a, lanes, task, heads, acc, top, total);
    } else {
      sum_entries(a, lanes, task, heads, acc, top, total);
    }
    if (task.shared) slots_together(lanes, acc, top, total);
    if (!task.owner || !heads.active) return;
    if (task.piece >= 0) {
      store_piece(a.partial, 0, a.rows, a.columns, task, heads.columns(), acc);
      if (heads.leads && part == 0) {
        acc_t* to = static_cast<acc_t*>(a.partial_head) + int64_t(task.piece) * a.heads.H + heads.head();
        to[0] = top;
        to[int64_t(a.rows.num_pieces) * a.heads.H] = total;
      }
      return;
    }
    const bool some = top > kNone;  // a row without entries gives 0
    const acc_t inverse = some ? acc_t(a.heads.mask_scale) / total : acc_t(0);
#pragma unroll
    for (int k = 0; k < kVec; ++k) acc[k] *= inverse;
    store<T>(a.y, int64_t(task.i) * a.columns.width + heads.offset, acc);
    if (heads.leads && part == 0) {
      const acc_t lse[1] = {some ? top + std::log(total) : acc_t(0)};
      store<acc_t>(a.lse, int64_t(task.i) * a.heads.H + heads.head(), lse);
    }
  }

  static UGNN_DEVICE void sum_entries(const Args& a, const Lanes& lanes, const Task& task, const Heads& heads,
                                      acc_t (&acc)[kVec], acc_t& top, acc_t& total) {
    const int H = a.heads.H;
    const acc_t* src = static_cast<const acc_t*>(a.src) + heads.made_head();
    const acc_t dst = number<acc_t>(a.dst, int64_t(task.i) * H + heads.made_head());
    // top and total are here those of the weights that this lane makes; top is that of all who make weights of the head
    for_heads<T, kVec, kTogether>(
        a.rows, a.heads, a.columns, a.x, lanes, task, heads, false, [&](int j) { return __ldg(src + int64_t(j) * H); },
        [&](acc_t(&e)[kTogether], const bool (&live)[kTogether], acc_t(&w)[kTogether]) {
          acc_t now = top;
#pragma unroll
          for (int k = 0; k < kTogether; ++k) {
            // comparisons, not maximum: a NaN goes into the sum alone
            if (live[k]) {
              e[k] = leaky_relu(dst + e[k], acc_t(a.heads.slope));
              const acc_t e_or_lowest = e[k] > kLowest ? e[k] : kLowest;
              now = e_or_lowest > now ? e_or_lowest : now;
            }
          }
          for (int step = 1; step < a.heads.makers; step *= 2) {
            const acc_t other = __shfl_sync(kAllLanes, now, other_maker(a.heads, lanes, heads, step));
            now = other > now ? other : now;
          }
          const acc_t scale = factor(top, now);
          top = now;
          total *= scale;
#pragma unroll
          for (int k = 0; k < kTogether; ++k) {
            w[k] = live[k] ? std::exp(e[k] - now) : acc_t(0);
            total += w[k];
          }
          const acc_t own_scale = heads.from_maker(scale);
#pragma unroll
          for (int k = 0; k < kVec; ++k) acc[k] *= own_scale;
        },
        [&](const acc_t(&row)[kVec], acc_t w) { add_product(acc, w, row); });
    total = heads.from_maker(sum_of_makers(a.heads, lanes, heads, total));
    top = heads.from_maker(top);
  }

  static UGNN_DEVICE void sum_of_pieces(const Args& a, const Lanes& lanes, const Task& task, const Heads& heads,
                                        acc_t (&acc)[kVec], acc_t& top, acc_t& total) {
    const int H = a.heads.H;
    for (int piece = lanes.slot; piece < task.length && heads.active; piece += lanes.slots) {
      const int64_t n = task.begin + piece;
      const acc_t e = number<acc_t>(a.partial_head, n * H + heads.head());
      const acc_t now = e > top ? e : top, scale = factor(top, now);
      const acc_t power = e > kNone ? std::exp(e - now) : acc_t(0);
      top = now;
      total = total * scale + power * number<acc_t>(a.partial_head, (a.rows.num_pieces + n) * H + heads.head());
      acc_t sums[kVec];
      load<acc_t>(sums, a.partial, n * a.columns.width + heads.offset);
#pragma unroll
      for (int k = 0; k < kVec; ++k) acc[k] = acc[k] * scale + power * sums[k];
    }
  }

  // Sums of all slots relative to the largest top, in every slot
  static UGNN_DEVICE void slots_together(const Lanes& lanes, acc_t (&acc)[kVec], acc_t& top, acc_t& total) {
    acc_t largest = top;
    for (int step = lanes.group; step < kWarp; step *= 2) {
      const acc_t other = __shfl_xor_sync(kAllLanes, largest, step);
      largest = other > largest ? other : largest;
    }
    const acc_t scale = top > kNone ? std::exp(top - largest) : acc_t(0);
#pragma unroll
    for (int k = 0; k < kVec; ++k) acc[k] *= scale;
    acc_t totals[1] = {total * scale};
    sum_of_slots(lanes, acc);
    sum_of_slots(lanes, totals);
    top = largest;
    total = totals[0];
  }
};

// Rows as receivers: t_i = <g_i, y_i> and dL/dl_i, (A2). kSends: rows as senders, dL/dx_j and dL/dr_j, (A3). A task has
// a block of heads, or all parts of a wide one, as t and the gradients of scores are sums over them. Receivers keep
// sums over entries with z > 0 and over the others apart, so that what cancels is not rounded first.
template <class T, int kVec, bool kSends>
struct GatAggregateBwd {
  using Args = GatAggregateBwdArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = true;
  static constexpr int kTogether = 2;
  // senders keep the sum of a row, and the row itself: too many for 64 registers, on sm_86 also in 16 bits
  static constexpr int kBlocksPerSm = kSends && kVec == 4 ? 7 : blocks_per_sm<T>();
  static constexpr int kSums = kSends ? 1 : 2;

  struct Scores {
    acc_t score, lse, t;  // lse and t with kSends
  };
  struct Sums {
    // mask alpha <own row, neighbour's row> and alpha, where z > 0 and elsewhere; kSends: e' times both, t times alpha
    acc_t dots[kSums] = {}, totals[kSums] = {};
    acc_t row[kVec] = {};  // kSends: mask alpha times the neighbour's row
  };

  static UGNN_HOST_DEVICE int columns(const Args& a) { return a.columns.blocks; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int block, bool hub) {
    for (int part = 0; part < a.heads.parts; ++part) run_part(a, lanes, task, block, part, hub);
  }

  static UGNN_DEVICE void run_part(const Args& a, const Lanes& before, const Task& task, int block, int part,
                                   bool hub) {
    Sums sums;
    if (!hub) sum_entries(a, before, task, Heads(a.heads, before, kVec, block, part), sums);
    const Lanes lanes = before.again();
    const Heads heads(a.heads, lanes, kVec, block, part);
    if (hub) {
      sum_of_pieces(a, lanes, task, heads, sums);
    } else {
      for (acc_t& total : sums.totals) total = heads.from_maker(sum_of_makers(a.heads, lanes, heads, total));
      if (task.shared) {
        if (kSends) sum_of_slots(lanes, sums.row);
        sum_of_slots(lanes, sums.dots);
        sum_of_slots(lanes, sums.totals);
      }
      for (acc_t& dot : sums.dots) dot = sum_of_head(a.heads, lanes, heads, dot);
      if (task.piece >= 0) {
        store_sums(a, task, heads, part, sums);
        return;
      }
    }
    if (!task.owner || !heads.active) return;
    const acc_t mask_scale = acc_t(a.heads.mask_scale), slope = acc_t(a.heads.slope);
    if (kSends) {
#pragma unroll
      for (int k = 0; k < kVec; ++k) sums.row[k] *= mask_scale;
      store<T>(a.grad_x, int64_t(task.i) * a.columns.width + heads.offset, sums.row);
    }
    if (!heads.leads) return;
    // sums over parts
    const int64_t at = int64_t(task.i) * a.heads.H + heads.head();
    const acc_t positive = mask_scale * sums.dots[0], negative = mask_scale * sums.dots[kSums - 1];
    if (kSends) {
      // behind the last part, as t is a sum over parts too
      add(a.grad_score, at, part, positive);
      if (part == a.heads.parts - 1) static_cast<acc_t*>(a.grad_score)[at] -= sums.totals[0];
    } else {
      // alpha as rebuilt from a rounded lse sums up to nearly 1; t, subtracted from its terms, shall be their mean
      const acc_t total = sums.totals[0] + sums.totals[kSums - 1];
      add(a.t, at, part, total == 0 ? acc_t(0) : (positive + negative) / total);
      add(a.grad_score, at, part, (1 - slope) * (positive * sums.totals[kSums - 1] - negative * sums.totals[0]));
    }
  }

  static UGNN_DEVICE void add(void* table, int64_t at, int part, acc_t value) {
    acc_t* to = static_cast<acc_t*>(table) + at;
    *to = part == 0 ? value : *to + value;
  }

  // Where the dots of a piece are: in the first column of the head, or of the part
  static UGNN_DEVICE int64_t dot_of(const Args& a, const Heads& heads, int k, int64_t piece) {
    return (int64_t(kSends + k) * a.rows.num_pieces + piece) * a.columns.width + heads.offset;
  }

  static UGNN_DEVICE void store_sums(const Args& a, const Task& task, const Heads& heads, int part, const Sums& sums) {
    if (kSends) store_piece(a.partial, 0, a.rows, a.columns, task, heads.columns(), sums.row);
    if (!task.owner || !heads.leads) return;
    acc_t* totals = static_cast<acc_t*>(a.partial_head) + int64_t(task.piece) * a.heads.H + heads.head();
    for (int k = 0; k < kSums; ++k) {
      static_cast<acc_t*>(a.partial)[dot_of(a, heads, k, task.piece)] = sums.dots[k];
      if (part == 0) totals[int64_t(k) * a.rows.num_pieces * a.heads.H] = sums.totals[k];
    }
  }

  static UGNN_DEVICE void sum_of_pieces(const Args& a, const Lanes& lanes, const Task& task, const Heads& heads,
                                        Sums& sums) {
    if (kSends) sum_pieces(a.partial, 0, a.rows, a.columns, lanes, task, heads.columns(), sums.row);
    for (int piece = lanes.slot; piece < task.length && heads.leads; piece += lanes.slots) {
      const int64_t n = task.begin + piece;
      for (int k = 0; k < kSums; ++k) {
        sums.dots[k] += number<acc_t>(a.partial, dot_of(a, heads, k, n));
        sums.totals[k] += number<acc_t>(a.partial_head, (k * a.rows.num_pieces + n) * a.heads.H + heads.head());
      }
    }
    sum_of_slots(lanes, sums.dots);
    sum_of_slots(lanes, sums.totals);
  }

  static UGNN_DEVICE void sum_entries(const Args& a, const Lanes& lanes, const Task& task, const Heads& heads,
                                      Sums& sums) {
    const int H = a.heads.H;
    const acc_t slope = acc_t(a.heads.slope);
    const int64_t own = int64_t(task.i) * H + heads.made_head();
    const acc_t score = number<acc_t>(kSends ? a.src : a.dst, own);
    const acc_t lse_i = kSends ? acc_t(0) : number<acc_t>(a.lse, own);
    const acc_t* neighbours = static_cast<const acc_t*>(kSends ? a.stats : a.src);
    Raw<T, kVec> own_row;
    if (task.length > 0 && heads.active) {
      own_row.load(static_cast<const T*>(a.own) + int64_t(task.i) * a.columns.width + heads.offset);
    }
    for_heads<T, kVec, kTogether>(
        a.rows, a.heads, a.columns, a.table, lanes, task, heads, kSends,
        [&](int j) -> Scores {
          const int64_t at = int64_t(j) * H + heads.made_head();
          if (!kSends) return {__ldg(neighbours + at), lse_i, 0};
          return {__ldg(neighbours + 3 * at), __ldg(neighbours + 3 * at + 1), __ldg(neighbours + 3 * at + 2)};
        },
        [&](const Scores(&scores)[kTogether], const bool (&live)[kTogether], acc_t(&w)[kTogether]) {
#pragma unroll
          for (int k = 0; k < kTogether; ++k) {
            w[k] = 0;
            if (live[k]) {
              const acc_t z = score + scores[k].score;
              const acc_t alpha = std::exp(leaky_relu(z, slope) - scores[k].lse);
              if (kSends) {
                sums.totals[0] += (z > 0 ? alpha : slope * alpha) * scores[k].t;
              } else {
                sums.totals[0] += z > 0 ? alpha : acc_t(0);
                sums.totals[kSums - 1] += z > 0 ? acc_t(0) : alpha;
              }
              // the weight with the sign of z: it is not negative itself
              w[k] = z > 0 ? alpha : -alpha;
            }
          }
        },
        [&](const acc_t(&row)[kVec], acc_t w) {
          acc_t own_values[kVec];
          own_row.get(own_values);
          const acc_t weight = w > 0 ? w : -w, product = weight * dot(own_values, row);
          if (kSends) {
            sums.dots[0] += w > 0 ? product : slope * product;
            add_product(sums.row, weight, row);
          } else {
            sums.dots[0] += w > 0 ? product : acc_t(0);
            sums.dots[kSums - 1] += w > 0 ? acc_t(0) : product;
          }
        });
  }
};

// How lanes share the columns: see HeadArgs.
template <class Op, class Args>
void share_heads(Args& a, int kVec) {
  HeadArgs& h = a.heads;
  const int lanes = (h.D + kVec - 1) / kVec;
  h.lanes = lanes < kWarp ? lanes : kWarp;
  h.parts = (lanes + kWarp - 1) / kWarp;
  h.block_heads = kWarp / h.lanes < h.H ? kWarp / h.lanes : h.H;
  a.columns.blocks = (h.H + h.block_heads - 1) / h.block_heads;
  a.columns.group = kMinGroup;
  while (a.columns.group < h.block_heads * h.lanes) a.columns.group *= 2;
  // as many as there are lanes for, but a lane makes kTogether weights of `group` entries
  h.makers = 1;
  while (2 * h.makers * h.block_heads <= a.columns.group && 2 * h.makers * Op::kTogether <= a.columns.group) {
    h.makers *= 2;
  }
}

}  // namespace ugnn::cuda
