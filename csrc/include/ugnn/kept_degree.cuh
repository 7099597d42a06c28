// The degrees of a graph, or of what DropEdge leaves of it.
#pragma once

#include "ugnn/rows.cuh"

namespace ugnn::cuda {

// degree_i = sum_j a_ij over the kept entries, added in float64
template <class T>
struct KeptDegree {
  using Args = KeptDegreeArgs;
  static constexpr bool kHubs = true;
  static constexpr int kBlocksPerSm = blocks_per_sm<float>();

  static UGNN_HOST_DEVICE int columns(const Args&) { return 1; }

  static UGNN_DEVICE void run(const Args& a, const Lanes& lanes, const Task& task, int, bool hub) {
    double sum = 0;
    if (hub) {
      sum = sum_of_pieces(a.partial, lanes, task);
    } else {
      for_own_entries(a.rows, lanes, task,
                      [&](int64_t at, int) { sum += a.rows.weight ? double(__ldg(a.rows.weight + at)) : 1.0; });
      sum = sum_of_lanes(lanes, task, sum);
    }
    if (!task.owner || lanes.column != 0) return;
    if (task.piece >= 0) {
      a.partial[task.piece] = sum;
    } else {
      static_cast<T*>(a.degree)[task.i] = T(sum);
    }
  }
};

}  // namespace ugnn::cuda
