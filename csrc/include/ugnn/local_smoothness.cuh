// The share of a node's labelled neighbours that carry its label.
#pragma once

#include <cmath>

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// out_i = #{j != i: label_j = label_i} / #{j != i: label_j >= 0}, nan if that is 0 or label_i < 0
struct LocalSmoothness {
  using Args = LocalSmoothnessArgs;
  static constexpr bool kHubs = true;
  static constexpr int kBlocksPerSm = blocks_per_sm<float>();

  static UGNN_HOST_DEVICE int columns(const Args&) { return 1; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int, bool hub) {
    int same = 0, known = 0;
    const int64_t label = task.owner || task.shared ? __ldg(a.labels + task.i) : -1;
    if (hub) {
      same = sum_of_pieces(a.partial, lanes, task);
      known = sum_of_pieces(a.partial + a.rows.num_pieces, lanes, task);
    } else {
      for_own_entries(a.rows, lanes, task, [&](int64_t, int j) {
        const int64_t theirs = j == task.i ? -1 : __ldg(a.labels + j);
        known += theirs >= 0;
        same += theirs >= 0 && theirs == label;
      });
      same = sum_of_lanes(lanes, task, same);
      known = sum_of_lanes(lanes, task, known);
    }
    if (!task.owner || lanes.column != 0) return;
    if (task.piece >= 0) {
      a.partial[task.piece] = same;
      a.partial[a.rows.num_pieces + task.piece] = known;
    } else {
      // in float64, as in Triton, which has no other quotient that is rounded right
      a.out[task.i] = label >= 0 && known > 0 ? float(double(same) / known) : NAN;
    }
  }
};

}  // namespace ugnn::cuda
