// <v_i, u_j> for every stored entry (i, j).
#pragma once

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// out_ij = sum_d v_id u_jd, 0 for a dropped entry. A task has all columns; of `group` entries that a slot works on in
// turn, lane e of the slot keeps the sum of the e-th.
template <class T, int kVec>
struct EdgeDot {
  using Args = EdgeDotArgs;
  using acc_t = acc_of<T>;
  static constexpr bool kHubs = false;
  static constexpr int kTogether = 4;
  static constexpr int kBlocksPerSm = blocks_per_sm<T>();

  static UGNN_HOST_DEVICE int columns(const Args&) { return 1; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int, bool) {
    const Walk walk(lanes, task);
    acc_t v[kVec] = {};
    load_row(a, lanes, task, 0, v);
    int own_entry = walk.own;
    // of the entries that are looked up at a time
    const int kept_entry = task.shared ? lanes.column * lanes.slots + lanes.slot : lanes.column;
    for (int left = walk.rounds; left > 0; left -= lanes.group, own_entry += walk.step) {
      int own_j = -1;
      if (own_entry < task.length) {
        own_j = __ldg(a.rows.col + task.begin + own_entry);
        if (!cuda::kept_entry(a.rows, task.i, own_j)) own_j = -1;
      }
      const int rounds = left < lanes.group ? left : lanes.group;
      acc_t kept = 0;
      for (int block = 0; block < a.columns.blocks; ++block) {
        if (a.columns.blocks > 1) load_row(a, lanes, task, block, v);
        const Columns columns(a.columns, lanes, kVec, 0, block);
        const T* table = static_cast<const T*>(a.u) + columns.offset;
        int source = walk.source;
#pragma unroll 1
        for (int e = 0; e < rounds; e += kTogether) {
          Raw<T, kVec> rows[kTogether];
#pragma unroll
          for (int k = 0; k < kTogether; ++k) {
            const int j = __shfl_sync(kAllLanes, own_j, source);
            if (j >= 0 && columns.active) rows[k].load(table + int64_t(j) * a.columns.width);
            source += walk.turn;
          }
#pragma unroll
          for (int k = 0; k < kTogether; ++k) {
            acc_t u[kVec];
            rows[k].get(u);
            const acc_t sum = sum_of_columns(lanes, dot(v, u));
            if (lanes.column == e + k) kept += sum;
          }
        }
      }
      const int entry = own_entry - walk.own + kept_entry;
      if (entry < task.length) {
        const acc_t values[1] = {kept};
        store<T>(a.out, task.begin + entry, values);
      }
    }
  }

  static UGNN_DEVICE void load_row(const Args& a, const Lanes& lanes, const Task& task, int block, acc_t (&v)[kVec]) {
    const Columns columns(a.columns, lanes, kVec, 0, block);
    Raw<T, kVec> raw;
    if (task.length > 0 && columns.active) {
      raw.load(static_cast<const T*>(a.v) + int64_t(task.i) * a.columns.width + columns.offset);
    }
    raw.get(v);
  }
};

}  // namespace ugnn::cuda
