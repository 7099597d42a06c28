// An order of the nodes in which neighbours are near each other, and whether it is worth having.
//
// Nodes take the label that most of their neighbours have, some rounds long (label propagation, Raghavan et al. 2007);
// communities come one after the other, by where a breadth-first walk meets their nodes on average, and in them the
// nodes in the order of that walk. Nothing depends on the number of threads. ugnn_fast/_graph_build.py states the same.
#include <algorithm>
#include <utility>
#include <vector>

#include "ugnn/graph_build.h"

namespace ugnn {
namespace {

constexpr int kRounds = 8;
constexpr int kMaxThreads = 16;       // each counts the labels of all nodes
constexpr int64_t kWindow = 1 << 14;  // entries after which a row has left the caches near a core

// [N], from node 0, then from the first one that was not met
std::vector<int32_t> breadth_first(const int64_t* rowptr, const int32_t* col, int64_t N) {
  std::vector<int32_t> order(N);
  std::vector<char> met(N, 0);
  int64_t last = 0;
  auto meet = [&](int64_t i) {
    if (met[i]) return;
    met[i] = 1;
    order[last++] = static_cast<int32_t>(i);
  };
  int64_t next = 0;
  for (int64_t root = 0; root < N; ++root) {
    meet(root);
    for (; next < last; ++next) {
      const int64_t i = order[next];
      for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e) meet(col[e]);
    }
  }
  return order;
}

// Half of the nodes look at their neighbours in a round: all at once would take turns.
bool looks(int64_t i, int round) {
  uint64_t bits = static_cast<uint64_t>(i) * 0x9E3779B97F4A7C15u + static_cast<uint64_t>(round) * 0xBF58476D1CE4E5B9u;
  bits = (bits ^ (bits >> 31)) * 0x94D049BB133111EBu;
  return bits >> 63;
}

// of labels that are equally frequent, the one whose number here is the largest: it says nothing of its size
uint32_t rank_of(int32_t label) { return static_cast<uint32_t>(label) * 2654435761u; }

std::vector<int32_t> communities(const int64_t* rowptr, const int32_t* col, int64_t N, int threads) {
  threads = std::clamp(threads, 1, kMaxThreads);
  std::vector<int32_t> label(N), found(N);
  for (int64_t i = 0; i < N; ++i) label[i] = static_cast<int32_t>(i);
  std::vector<std::vector<int32_t>> counts(threads, std::vector<int32_t>(N, 0));
  // rows of much the same number of entries for each thread
  auto bound = [&](int t) {
    return t == threads ? N : std::lower_bound(rowptr, rowptr + N, rowptr[N] / threads * t) - rowptr;
  };
  for (int round = 0; round < kRounds; ++round) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; ++t) {
      int32_t* const count = counts[t].data();
      const int64_t end = bound(t + 1);
      for (int64_t i = bound(t); i < end; ++i) {
        found[i] = label[i];
        if (!looks(i, round)) continue;
        int32_t most = 0;
        for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e) {
          if (col[e] == i) continue;
          const int32_t other = label[col[e]], times = ++count[other];
          if (times < most || (times == most && rank_of(other) < rank_of(found[i]))) continue;
          most = times;
          found[i] = other;
        }
        for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e) count[label[col[e]]] = 0;
      }
    }
    label.swap(found);
  }
  return label;
}

// Reads of neighbour rows more than kWindow entries after the last read of the same row; rows in an order, or as they
// are.
int64_t far_reads(const int64_t* rowptr, const int32_t* col, int64_t N, const int32_t* order) {
  std::vector<int64_t> last(N, -kWindow - 1);
  int64_t now = 0, far = 0;
  for (int64_t p = 0; p < N; ++p) {
    const int64_t i = order ? order[p] : p;
    for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e, ++now) {
      far += now - last[col[e]] > kWindow;
      last[col[e]] = now;
    }
  }
  return far;
}

}  // namespace

Buffer<int32_t> community_order(const int64_t* rowptr, const int32_t* col, int64_t N, int threads) {
  const std::vector<int32_t> walk = breadth_first(rowptr, col, N), label = communities(rowptr, col, N, threads);
  std::vector<int64_t> count(N, 0);
  std::vector<double> mean(N, 0);  // place in the walk
  for (int64_t p = 0; p < N; ++p) {
    ++count[label[walk[p]]];
    mean[label[walk[p]]] += static_cast<double>(p);
  }
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < N; ++i) {
    if (count[i] == 0) continue;
    mean[i] /= static_cast<double>(count[i]);
    labels.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(labels.begin(), labels.end(), [&](int32_t a, int32_t b) { return mean[a] < mean[b]; });
  int64_t total = 0;
  for (const int32_t l : labels) total += std::exchange(count[l], total);
  Buffer<int32_t> order(N);
  for (int64_t p = 0; p < N; ++p) order[count[label[walk[p]]]++] = walk[p];
  return order;
}

NearForm near_by_community(const int64_t* rowptr, const int32_t* col, const float* weight, int64_t N, int threads) {
  Buffer<int32_t> order = community_order(rowptr, col, N, threads);
  if (2 * far_reads(rowptr, col, N, order.data.get()) > far_reads(rowptr, col, N, nullptr)) return {};
  return renumbered(rowptr, col, weight, N, std::move(order), threads);
}

}  // namespace ugnn
