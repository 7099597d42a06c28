// How rows are shared among threads: contiguous ranges of equal work, hub rows apart.
#pragma once

#include <omp.h>

#include "ugnn/csr.h"

namespace ugnn {
namespace UGNN_ISA {

constexpr int kMaxThreads = 512;
constexpr int64_t kRowCost = 4;  // an epilogue costs about as much as so many neighbours

// Rows in processing order: positions 0..N, of which thread t takes [bound[t], bound[t + 1]).
struct RowSplit {
  int64_t bound[kMaxThreads + 1];
  int threads;
};

// Fewer threads than asked for when the work (in neighbour values) would not pay for waking them.
inline int useful_threads(int asked, int64_t work) {
  constexpr int64_t kWorkPerThread = 1 << 14;
  int64_t threads = work / kWorkPerThread + 1;
  if (threads > asked) threads = asked;
  if (threads > kMaxThreads) threads = kMaxThreads;
  return int(threads < 1 ? 1 : threads);
}

// Items [begin, end) of the current thread in work that costs the same for each item.
inline void even_share(int64_t items, int64_t& begin, int64_t& end) {
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  begin = items * thread / threads;
  end = items * (thread + 1) / threads;
}

inline int64_t row_at(const Csr& g, bool sorted, int64_t position) {
  return sorted ? g.order[position] : position;
}

inline void split_rows_among(int threads, const Csr& g, bool sorted, RowSplit& split) {
  split.threads = threads;
  const int64_t hub_len = hub_length(g.E);
  int64_t hub_entries = 0;
  for (int64_t h = 0; h < g.H; ++h) hub_entries += g.rowptr[g.hubs[h] + 1] - g.rowptr[g.hubs[h]];
  const int64_t total = g.E - hub_entries + kRowCost * g.N;

  split.bound[0] = 0;
  int64_t done = 0, hub = 0;
  int t = 1;
  for (int64_t begin = 0; begin < g.N && t < threads; begin += kWindow) {
    const int64_t end = begin + kWindow < g.N ? begin + kWindow : g.N;
    int64_t cost = g.rowptr[end] - g.rowptr[begin] + kRowCost * (end - begin);
    for (; hub < g.H && g.hubs[hub] < end; ++hub)
      cost -= g.rowptr[g.hubs[hub] + 1] - g.rowptr[g.hubs[hub]];
    while (t < threads && done + cost >= total * t / threads) {
      int64_t position = begin, sum = done;
      for (; position < end && sum < total * t / threads; ++position) {
        const int64_t i = row_at(g, sorted, position);
        const int64_t length = g.rowptr[i + 1] - g.rowptr[i];
        sum += kRowCost + (length > hub_len ? 0 : length);
      }
      split.bound[t++] = position;
    }
    done += cost;
  }
  for (; t <= threads; ++t) split.bound[t] = g.N;
}

// Called by every thread of a parallel region: the team may be smaller than was asked for.
inline void split_rows(const Csr& g, bool sorted, RowSplit& split) {
#pragma omp single
  split_rows_among(omp_get_num_threads(), g, sorted, split);
}

// Pieces of hub rows, numbered through.
struct HubPieces {
  const Csr& g;

  int64_t pieces_of(int64_t hub) const {
    const int64_t i = g.hubs[hub];
    return (g.rowptr[i + 1] - g.rowptr[i] + kPiece - 1) / kPiece;
  }

  int64_t count() const {
    int64_t sum = 0;
    for (int64_t hub = 0; hub < g.H; ++hub) sum += pieces_of(hub);
    return sum;
  }

  // numbers [first, last) of the pieces of a hub
  void range(int64_t hub, int64_t& first, int64_t& last) const {
    first = 0;
    for (int64_t h = 0; h < hub; ++h) first += pieces_of(h);
    last = first + pieces_of(hub);
  }

  // entries [begin, end) of a piece
  void find(int64_t number, int64_t& begin, int64_t& end) const {
    int64_t hub = 0;
    for (; number >= pieces_of(hub); ++hub) number -= pieces_of(hub);
    const int64_t i = g.hubs[hub];
    begin = g.rowptr[i] + number * kPiece;
    end = begin + kPiece < g.rowptr[i + 1] ? begin + kPiece : g.rowptr[i + 1];
  }
};

}  // namespace UGNN_ISA

}  // namespace ugnn
