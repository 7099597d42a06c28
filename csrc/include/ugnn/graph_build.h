// Building the symmetric CSR matrix of a graph from an edge list or from another CSR matrix.
#pragma once

#include <cstdint>
#include <memory>

#include "ugnn/csr.h"

namespace ugnn {

// A read-only array with a stride in bytes: a view, such as a transposed edge list, needs no copy.
template <typename T>
struct Strided {
  const char* data = nullptr;
  int64_t stride = 0;

  T operator[](int64_t e) const { return *reinterpret_cast<const T*>(data + e * stride); }
  explicit operator bool() const { return data != nullptr; }
};

// M given edges as pairs (row[e], col[e]). visit calls f(e, i, j) for every edge. The names are those of the
// arguments in messages.
template <typename index_t>
struct CooEdges {
  static constexpr const char *kIndex = "edge_index", *kCol = "edge_index[1, ", *kWeight = "edge_weight";
  int64_t M;
  Strided<index_t> row;  // [M]
  Strided<index_t> col;  // [M]

  template <typename F>
  void visit(F f) const {
    for (int64_t e = 0; e < M; ++e) f(e, row[e], col[e]);
  }
};

// M given edges by rows: row i is entries rowptr[i] to rowptr[i + 1] - 1 of col.
template <typename index_t>
struct CsrEdges {
  static constexpr const char *kIndex = "col", *kCol = "col[", *kWeight = "weight";
  int64_t M;
  int64_t N;
  const int64_t* rowptr;  // [N + 1]
  Strided<index_t> col;   // [M]

  template <typename F>
  void visit(F f) const {
    for (int64_t i = 0; i < N; ++i) {
      for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e) f(e, i, col[e]);
    }
  }
};

struct BuildOptions {
  int64_t N;
  bool self_loops;  // exactly one loop of weight 1 per node, or none at all
  bool symmetrize;  // union of both directions, of two weights the larger
  int threads;      // the result does not depend on it
};

template <typename T>
struct Buffer {
  std::unique_ptr<T[]> data;
  int64_t size = 0;

  Buffer() = default;
  explicit Buffer(int64_t size) : data(new T[size]), size(size) {}  // not initialised
  T& operator[](int64_t k) { return data[k]; }
  const T& operator[](int64_t k) const { return data[k]; }
};

struct BuiltGraph {
  Buffer<int64_t> rowptr;  // [N + 1]
  Buffer<int32_t> col;     // [E], ascending in a row
  Buffer<float> weight;    // [E], or no data
  Buffer<float> degree;    // [N], sum of the weights of a row, its length without weights
};

// Edges is CooEdges or CsrEdges of int32_t or int64_t; scalar_t is float or double. `weight` may be empty.
// Copies of an edge become one, of the summed weight. Throws std::invalid_argument on bad input.
template <typename Edges, typename scalar_t>
BuiltGraph build_graph(const Edges& edges, Strided<scalar_t> weight, const BuildOptions& options);

// A matrix renumbered (csr.h), or nothing at all.
struct NearForm {
  Buffer<int32_t> order;   // [N]
  Buffer<int64_t> rowptr;  // [N + 1]
  Buffer<int32_t> col;     // [E]
  Buffer<float> weight;    // [E], or no data
};

// What kernels want of a built graph beside it: the near form by length, nothing for more than kNearNodes nodes, and
// the rows that are longer than max(kHubLength, E / kHubShare).
struct RowPlan {
  NearForm near;
  Buffer<int32_t> hubs;  // [H]
};

constexpr int64_t kHubLength = 8192;
constexpr int64_t kHubShare = 256;
RowPlan row_plan(const int64_t* rowptr, const int32_t* col, const float* weight, int64_t N, int threads);

// The form in which near row p is row order[p].
NearForm renumbered(const int64_t* rowptr, const int32_t* col, const float* weight, int64_t N, Buffer<int32_t> order,
                    int threads);

// Nodes that know each other side by side. [N]
Buffer<int32_t> community_order(const int64_t* rowptr, const int32_t* col, int64_t N, int threads);

// The form in that order, or nothing where the rows that kernels read in it are not found in a cache twice as often.
NearForm near_by_community(const int64_t* rowptr, const int32_t* col, const float* weight, int64_t N, int threads);

// The view of both that kernels take; it owns nothing.
inline Csr csr_of(const BuiltGraph& graph, const RowPlan& plan) {
  Csr g{};
  g.rowptr = graph.rowptr.data.get();
  g.col = graph.col.data.get();
  g.weight = graph.weight.data.get();
  g.degree = graph.degree.data.get();
  g.hubs = plan.hubs.data.get();
  g.order = plan.near.order.data.get();
  g.near_rowptr = plan.near.rowptr.data.get();
  g.near_col = plan.near.col.data.get();
  g.near_weight = plan.near.weight.data.get();
  g.N = graph.rowptr.size - 1;
  g.E = graph.col.size;
  g.H = plan.hubs.size;
  return g;
}

// The entry of (j, i) for each entry (i, j) of a symmetric matrix with ascending rows. [E]
Buffer<int64_t> reverse_entries(const int64_t* rowptr, const int32_t* col, int64_t N);

// The entry of each pair, -1 for a pair that is not an edge. [M]
template <typename index_t>
Buffer<int64_t> find_entries(const int64_t* rowptr, const int32_t* col, int64_t N, const CooEdges<index_t>& pairs,
                             int threads);

}  // namespace ugnn
