// How the warps of a launch share out rows, entries and columns; the one walk over the entries of rows.
//
// A warp is 32 / group slots of `group` lanes, and the lanes of a slot have the columns of one block, kVec each. A task
// of a warp is one of
//   short rows       every slot has a row of its own
//   a middle row, or a piece of a hub     the slots take its entries in turn, and their sums are added at the end
//   a hub            (after its pieces) the slots take the sums of its pieces in turn
// times a block of columns. Whatever the schedule, a sum is added up in the same order; there are no atomics.
#pragma once

#include "ugnn/cuda_ops.h"
#include "ugnn/philox.h"
#include "ugnn/vec.cuh"

namespace ugnn::cuda {

constexpr int kThreads = 128;  // of a block
constexpr int kWarps = kThreads / kWarp;

// Blocks that a multiprocessor has registers for at a time: 64 registers for a thread; more in float64, which is for
// checks.
template <class T>
constexpr int blocks_per_sm() {
  return sizeof(T) == 8 ? 4 : 8;
}

constexpr int kPieceEntries = 256;  // PIECE of ugnn_fast/_row_plan.py
constexpr int kMinGroup = 4;        // entries of a slot are looked up `group` at a time

struct Lanes {
  int lane, group, slots, slot, column;  // column: which lane of its slot

  UGNN_DEVICE explicit Lanes(int lanes_of_a_slot) : Lanes(int(threadIdx.x) % kWarp, lanes_of_a_slot) {}
  UGNN_DEVICE Lanes(int lane_, int lanes_of_a_slot)
      : lane(lane_),
        group(lanes_of_a_slot),
        slots(kWarp / lanes_of_a_slot),
        slot(lane / lanes_of_a_slot),
        column(lane % lanes_of_a_slot) {}

  // The same, computed again from what the compiler does not see through: nothing need be kept in registers till then.
  UGNN_DEVICE Lanes again() const { return Lanes(__shfl_sync(kAllLanes, lane, lane), group); }
};

// The columns of a lane.
struct Columns {
  int replica;
  int offset;   // of the first one in a row
  bool active;  // whether there are any

  UGNN_DEVICE Columns(const ColumnArgs& c, const Lanes& lanes, int kVec, int replica_, int block) : replica(replica_) {
    const int own = (block * c.group + lanes.column) * kVec;
    offset = replica * c.D + own;
    active = own < c.D;
  }
  UGNN_DEVICE Columns(int replica_, int offset_, bool active_) : replica(replica_), offset(offset_), active(active_) {}
};

UGNN_HOST_DEVICE inline int short_tasks(const RowArgs& g, int slots) { return (g.num_short + slots - 1) / slots; }

UGNN_HOST_DEVICE inline int row_tasks(const RowArgs& g, int slots) {
  return short_tasks(g, slots) + (g.num_middle - g.num_short) + g.num_pieces;
}

UGNN_HOST_DEVICE inline int num_hubs(const RowArgs& g) { return g.num_rows - g.num_middle; }

// What a slot sums: entries of row i, or pieces of hub i.
struct Task {
  int i;
  int64_t begin;  // the first entry, or piece
  int length;     // how many of them
  int piece;      // whose sums these are, -1: whole rows
  bool shared;    // by all slots, in turn
  bool owner;     // whether this lane has a result in the end
};

// Behind the rows and their lengths: for each hub its first piece, and at the end the number of pieces.
UGNN_DEVICE const int32_t* first_pieces(const RowArgs& g) { return g.plan + 2 * int64_t(g.num_rows); }

UGNN_DEVICE Task row_task(const RowArgs& g, const Lanes& lanes, int task) {
  const int shorts = short_tasks(g, lanes.slots);
  const bool shared = task >= shorts;
  int position = shared ? g.num_short + task - shorts : task * lanes.slots + lanes.slot;
  int piece = -1, skipped = 0;
  if (!shared && position >= g.num_short) return {0, 0, 0, -1, false, false};
  if (position >= g.num_middle) {
    piece = position - g.num_middle;
    const int hub = __ldg(first_pieces(g) + num_hubs(g) + 1 + piece);
    position = g.num_middle + hub;
    skipped = (piece - __ldg(first_pieces(g) + hub)) * kPieceEntries;
  }
  const int i = __ldg(g.plan + position);
  // the length from the plan: half the bytes of the next row pointer
  const int left = __ldg(g.plan + g.num_rows + position) - skipped;
  // a row that is not cut has at most kPieceEntries
  const int length = left < kPieceEntries ? left : kPieceEntries;
  return {i, __ldg(g.rowptr + i) + skipped, length, piece, shared, !shared || lanes.slot == 0};
}

UGNN_DEVICE Task hub_task(const RowArgs& g, const Lanes& lanes, int hub) {
  const int32_t* first = first_pieces(g) + hub;
  const int begin = __ldg(first);
  return {__ldg(g.plan + g.num_middle + hub), begin, __ldg(first + 1) - begin, -1, true, lanes.slot == 0};
}

// Whether DropEdge leaves entry (i, j): loops, and a share on which both directions agree.
UGNN_DEVICE bool kept_entry(const RowArgs& g, int i, int j) {
  if (g.keep_from == 0 || i == j) return true;
  const uint32_t low = uint32_t(i < j ? i : j), high = uint32_t(i < j ? j : i);
  return philox(g.drop_seed, low, high, 0, uint32_t(Stream::kDropEdge)).word[0] >= g.keep_from;
}

// Sum over the lanes of a slot; every one of them gets it.
template <class acc_t>
UGNN_DEVICE acc_t sum_of_columns(const Lanes& lanes, acc_t value) {
  for (int step = 1; step < lanes.group; step *= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// The sums of all slots, in every slot.
template <class acc_t, int kVec>
UGNN_DEVICE void sum_of_slots(const Lanes& lanes, acc_t (&sums)[kVec]) {
  for (int step = lanes.group; step < kWarp; step *= 2) {
#pragma unroll
    for (int k = 0; k < kVec; ++k) sums[k] += __shfl_xor_sync(kAllLanes, sums[k], step);
  }
}

// How the slots of a warp walk over the entries of a task. Each lane looks up one entry (its column, its weights), then
// the slots get the entries that are theirs from each other: after `group` rounds the next entries are looked up.
struct Walk {
  int own;           // the entry of the task that this lane looks up first
  int rounds;        // until all slots are done; the same in all lanes
  int step;          // entries that are looked up at a time, by the slot or by the warp
  int source, turn;  // round e of a slot belongs to the entry of lane source + e turn

  UGNN_DEVICE Walk(const Lanes& lanes, const Task& task) {
    own = task.shared ? lanes.lane : lanes.column;
    step = task.shared ? kWarp : lanes.group;
    source = task.shared ? lanes.slot : lanes.slot * lanes.group;
    turn = task.shared ? lanes.slots : 1;
    rounds = (task.length + turn - 1) / turn;
    for (int other = lanes.group; other < kWarp; other *= 2) {
      const int theirs = __shfl_xor_sync(kAllLanes, rounds, other);
      rounds = theirs > rounds ? theirs : rounds;
    }
  }
};

// For all entries of a task with keep(j): weigh(at, j) gives the weights of entry `at` in column j, once per entry;
// fetch(j) the row of the table, add(row, weights) adds it. Weights have from(lane), the weights that another lane
// holds. kTogether: rows of the table that a lane waits for at a time.
template <class Weights, int kTogether, class Keep, class Weigh, class Fetch, class Add>
UGNN_DEVICE void for_entries_if(const RowArgs& g, const Lanes& lanes, const Task& task, Keep keep, Weigh weigh,
                                Fetch fetch, Add add) {
  static_assert(kMinGroup % kTogether == 0);
  const Walk walk(lanes, task);
  int own_entry = walk.own;
  for (int left = walk.rounds; left > 0; left -= lanes.group, own_entry += walk.step) {
    int own_j = -1;
    Weights own{};
    if (own_entry < task.length) {
      const int64_t at = task.begin + own_entry;
      const int j = __ldg(g.col + at);
      if (keep(j)) {
        own_j = j;
        own = weigh(at, j);
      }
    }
    const int rounds = left < lanes.group ? left : lanes.group;
    int source = walk.source;
#pragma unroll 1
    for (int e = 0; e < rounds; e += kTogether) {
      decltype(fetch(0)) rows[kTogether];
      Weights weights[kTogether];
#pragma unroll
      for (int k = 0; k < kTogether; ++k) {
        rows[k] = fetch(__shfl_sync(kAllLanes, own_j, source));
        weights[k] = own.from(source);
        source += walk.turn;
      }
#pragma unroll
      for (int k = 0; k < kTogether; ++k) add(rows[k], weights[k]);
    }
  }
}

// The same for the entries that DropEdge leaves.
template <class Weights, int kTogether, class Weigh, class Fetch, class Add>
UGNN_DEVICE void for_entries(const RowArgs& g, const Lanes& lanes, const Task& task, Weigh weigh, Fetch fetch,
                             Add add) {
  const auto keep = [&](int j) { return kept_entry(g, task.i, j); };
  for_entries_if<Weights, kTogether>(g, lanes, task, keep, weigh, fetch, add);
}

// Kernels without columns: lanes do not exchange entries, each one adds up those that it looks up.
//
// add(at, j) for the kept entries that are this lane's.
template <class Add>
UGNN_DEVICE void for_own_entries(const RowArgs& g, const Lanes& lanes, const Task& task, Add add) {
  const int step = task.shared ? kWarp : lanes.group;
  for (int entry = task.shared ? lanes.lane : lanes.column; entry < task.length; entry += step) {
    const int64_t at = task.begin + entry;
    const int j = __ldg(g.col + at);
    if (kept_entry(g, task.i, j)) add(at, j);
  }
}

// Sum over the lanes of a slot, or of the warp if its slots share the task; every one of them gets it.
template <class Number>
UGNN_DEVICE Number sum_of_lanes(const Lanes& lanes, const Task& task, Number value) {
  const int end = task.shared ? kWarp : lanes.group;
  for (int step = 1; step < end; step *= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// The number that the pieces of a hub left, added up in float64 or as integers.
template <class Number>
UGNN_DEVICE Number sum_of_pieces(const Number* partial, const Lanes& lanes, const Task& task) {
  Number sum = 0;
  for (int piece = lanes.lane; piece < task.length; piece += kWarp) sum += partial[task.begin + piece];
  return sum_of_lanes(lanes, task, sum);
}

// The sums [kVec] of the pieces of a hub, in every slot; `table` is one of partial[tables, num_pieces, width].
template <class acc_t, int kVec>
UGNN_DEVICE void sum_pieces(const void* partial, int table, const RowArgs& g, const ColumnArgs& c, const Lanes& lanes,
                            const Task& task, const Columns& columns, acc_t (&sums)[kVec]) {
  const int64_t start = int64_t(table) * g.num_pieces + task.begin;
  for (int piece = lanes.slot; piece < task.length && columns.active; piece += lanes.slots) {
    acc_t values[kVec];
    load<acc_t>(values, partial, (start + piece) * c.width + columns.offset);
    add_product(sums, acc_t(1), values);
  }
  sum_of_slots(lanes, sums);
}

template <class acc_t, int kVec>
UGNN_DEVICE void store_piece(void* partial, int table, const RowArgs& g, const ColumnArgs& c, const Task& task,
                             const Columns& columns, const acc_t (&sums)[kVec]) {
  if (task.owner && columns.active) {
    store<acc_t>(partial, (int64_t(table) * g.num_pieces + task.piece) * c.width + columns.offset, sums);
  }
}

}  // namespace ugnn::cuda
