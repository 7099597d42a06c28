// A counting sort by row, then every row is sorted and its copies are merged in place, then the rows are copied
// to arrays of the exact size.
//
// Everything is checked before it is used as an index. Nothing inside a parallel region allocates or throws.
#include "ugnn/graph_build.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ugnn {
namespace {

constexpr int64_t kMaxNodes = (int64_t{1} << 31) - 2;
constexpr int64_t kRowChunk = 256;
constexpr int kMaxThreads = 1024;

// The smallest k in [0, count) with bad(k), or count.
template <typename F>
int64_t first_where(int64_t count, int threads, F bad) {
  int64_t first = count;
#pragma omp parallel for num_threads(threads) schedule(static) reduction(min : first)
  for (int64_t k = 0; k < count; ++k) {
    if (k < first && bad(k)) first = k;
  }
  return first;
}

std::string str(int64_t value) { return std::to_string(value); }

std::string str(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::string pair(int64_t i, int64_t j) { return "(" + str(i) + ", " + str(j) + ")"; }

[[noreturn]] void fail(const std::string& message) { throw std::invalid_argument(message); }

// The entry of (i, j), or -1.
int64_t find_entry(const int64_t* rowptr, const int32_t* col, int64_t i, int64_t j) {
  const int32_t* end = col + rowptr[i + 1];
  const int32_t* at = std::lower_bound(col + rowptr[i], end, j);
  return at != end && *at == j ? at - col : -1;
}

template <typename index_t>
void check_ids(const Strided<index_t>& ids, int64_t M, const char* name, const char* position,
               const BuildOptions& options) {
  const int64_t N = options.N;
  const int64_t e = first_where(M, options.threads, [=](int64_t e) { return ids[e] < 0 || ids[e] >= N; });
  if (e == M) return;
  fail(std::string(name) + " must be in [0, num_nodes) = [0, " + str(N) + "), got " + str(int64_t{ids[e]}) + " at " +
       position + str(e) + "]");
}

template <typename index_t>
void check_rows(const CooEdges<index_t>& edges, const BuildOptions& options) {
  check_ids(edges.row, edges.M, "edge_index", "edge_index[0, ", options);
}

template <typename index_t>
void check_rows(const CsrEdges<index_t>& edges, const BuildOptions& options) {
  const int64_t* rowptr = edges.rowptr;
  const int64_t N = options.N;
  if (rowptr[0] != 0) fail("rowptr must start at 0, got " + str(rowptr[0]) + " at rowptr[0]");
  const int64_t i = first_where(N, options.threads, [=](int64_t i) { return rowptr[i + 1] < rowptr[i]; });
  if (i < N) {
    fail("rowptr must not fall, got " + str(rowptr[i]) + " then " + str(rowptr[i + 1]) + " at rowptr[" + str(i + 1) +
         "]");
  }
  if (rowptr[N] == edges.M) return;
  fail("rowptr must end at len(col) = " + str(edges.M) + ", got " + str(rowptr[N]) + " at rowptr[" + str(N) + "]");
}

template <typename scalar_t>
void check_weight(const Strided<scalar_t>& weight, int64_t M, const char* name, int threads) {
  // in float32, as stored: 1e-60 and 1e60 do not pass
  const int64_t e = first_where(M, threads, [=](int64_t e) {
    const float w = static_cast<float>(weight[e]);
    return !(w > 0 && w <= std::numeric_limits<float>::max());
  });
  if (e == M) return;
  fail(std::string(name) + " must be finite and > 0 in float32, got " + str(double{weight[e]}) + " at " + name + "[" +
       str(e) + "]");
}

struct PlainEntry {
  int32_t col;

  static PlainEntry make(int64_t col, float, bool) { return {static_cast<int32_t>(col)}; }
  static bool less(const PlainEntry& a, const PlainEntry& b) { return a.col < b.col; }
  float value() const { return 1.0f; }

  static int32_t merge(PlainEntry* row, int64_t count) {
    auto same = [](const PlainEntry& a, const PlainEntry& b) { return a.col == b.col; };
    return static_cast<int32_t>(std::unique(row, row + count, same) - row);
  }
};

// A transposed copy made by symmetrize has its weight negated: weights are > 0, so the sign is free, and an entry
// of double stays at 12 bytes.
#pragma pack(push, 4)
template <typename T>
struct WeightedEntry {
  int32_t col;
  T weight;

  static WeightedEntry make(int64_t col, T weight, bool transposed) {
    return {static_cast<int32_t>(col), transposed ? -weight : weight};
  }
  // by |weight| at last, so that the sums of (i, j) and (j, i) add the same numbers in the same order
  static bool less(const WeightedEntry& a, const WeightedEntry& b) {
    if (a.col != b.col) return a.col < b.col;
    const bool a_transposed = a.weight < 0, b_transposed = b.weight < 0;
    if (a_transposed != b_transposed) return b_transposed;
    return std::abs(T{a.weight}) < std::abs(T{b.weight});
  }
  float value() const { return static_cast<float>(weight); }

  static int32_t merge(WeightedEntry* row, int64_t count) {
    int32_t length = 0;
    for (int64_t k = 0; k < count;) {
      const int32_t j = row[k].col;
      double given = 0, transposed = 0;
      for (; k < count && row[k].col == j; ++k) {
        (row[k].weight > 0 ? given : transposed) += std::abs(double{row[k].weight});
      }
      row[length++] = {j, static_cast<T>(std::max(given, transposed))};
    }
    return length;
  }
};
#pragma pack(pop)

// f(e, i, j, transposed) for every entry (i, j) of the result, loops left out. Part p of the threads has the rows
// bound[p] to bound[p + 1] - 1; it reads all edges and keeps its own. So nothing is shared, rows keep the order of
// the input, and the writes of a scatter overlap, which atomic cursors would not let them.
template <typename Edges, typename F>
void visit_by_rows(const Edges& edges, const std::vector<int64_t>& bound, const BuildOptions& options, F f) {
  const bool symmetrize = options.symmetrize;
#pragma omp parallel for num_threads(options.threads) schedule(static)
  for (int part = 0; part < options.threads; ++part) {
    const int64_t first = bound[part], last = bound[part + 1];
    edges.visit([=](int64_t e, int64_t i, int64_t j) {
      if (i == j) return;
      if (first <= i && i < last) f(e, i, j, false);
      if (symmetrize && first <= j && j < last) f(e, j, i, true);
    });
  }
}

// Entries sorted by row only: row i is entries start[i] to start[i + 1] - 1.
template <typename Entry, typename Edges, typename scalar_t>
Buffer<Entry> sort_by_row(const Edges& edges, Strided<scalar_t> weight, const BuildOptions& options, int64_t* start) {
  const int64_t N = options.N, parts = options.threads;
  std::vector<int64_t> bound(parts + 1);
  for (int64_t part = 0; part <= parts; ++part) bound[part] = N * part / parts;
  std::fill(start, start + N + 1, 0);
  visit_by_rows(edges, bound, options, [=](int64_t, int64_t i, int64_t, bool) { ++start[i + 1]; });

  // start[i + 1] becomes the cursor of row i: its first entry now, one past its last after the scatter
  int64_t total = 0;
  for (int64_t i = 0; i < N; ++i) total += std::exchange(start[i + 1], total);
  for (int64_t part = 1; part < parts; ++part) {
    bound[part] = std::lower_bound(start + 1, start + N + 1, total / parts * part) - (start + 1);
  }
  Buffer<Entry> entries(total);
  Entry* const out = entries.data.get();
  visit_by_rows(edges, bound, options, [=](int64_t e, int64_t i, int64_t j, bool transposed) {
    out[start[i + 1]++] = Entry::make(j, weight ? weight[e] : 1, transposed);
  });
  return entries;
}

void check_symmetric(const BuiltGraph& graph, const char* index_name, const char* weight_name, int64_t N, int threads) {
  const int64_t* rowptr = graph.rowptr.data.get();
  const int32_t* col = graph.col.data.get();
  const float* weight = graph.weight.data.get();
  auto bad_entry = [=](int64_t i, int64_t e) {
    const int64_t back = find_entry(rowptr, col, col[e], i);
    return back < 0 || (weight && weight[back] != weight[e]);
  };
  // if every entry above the diagonal has its mirror image, the matrix is symmetric iff there are as many below
  int64_t upper = 0, lower = 0, bad = 0;
#pragma omp parallel for num_threads(threads) schedule(dynamic, kRowChunk) reduction(+ : upper, lower, bad)
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e) {
      lower += col[e] < i;
      if (col[e] <= i) continue;
      ++upper;
      bad += bad_entry(i, e);
    }
  }
  if (bad == 0 && upper == lower) return;
  for (int64_t i = 0; i < N; ++i) {
    for (int64_t e = rowptr[i]; e < rowptr[i + 1]; ++e) {
      if (!bad_entry(i, e)) continue;
      const int64_t j = col[e], back = find_entry(rowptr, col, j, i);
      if (back < 0) {
        fail(std::string(index_name) + " must have every edge in both directions, got " + pair(i, j) + " without " +
             pair(j, i) + "; symmetrize=True adds what is missing");
      }
      fail(std::string(weight_name) + " must be the same in both directions, got " + str(double{weight[e]}) + " for " +
           pair(i, j) + " and " + str(double{weight[back]}) + " for " + pair(j, i) +
           "; symmetrize=True takes the larger");
    }
  }
}

// Sorts and merges every row in place, then copies to arrays of the exact size.
template <typename Entry>
BuiltGraph finish(Buffer<Entry> entries, const Buffer<int64_t>& start, bool weighted, const BuildOptions& options) {
  const int64_t N = options.N;
  Entry* const first = entries.data.get();
  Buffer<int32_t> length(N);  // without loops
#pragma omp parallel for num_threads(options.threads) schedule(dynamic, kRowChunk)
  for (int64_t i = 0; i < N; ++i) {
    Entry *row = first + start[i], *end = first + start[i + 1];
    if (!std::is_sorted(row, end, Entry::less)) std::sort(row, end, Entry::less);
    length[i] = Entry::merge(row, end - row);
  }

  BuiltGraph graph;
  graph.rowptr = Buffer<int64_t>(N + 1);
  graph.rowptr[0] = 0;
  for (int64_t i = 0; i < N; ++i) graph.rowptr[i + 1] = graph.rowptr[i] + length[i] + options.self_loops;
  graph.col = Buffer<int32_t>(graph.rowptr[N]);
  if (weighted) graph.weight = Buffer<float>(graph.rowptr[N]);
  graph.degree = Buffer<float>(N);
  int32_t* const col = graph.col.data.get();
  float* const weight = graph.weight.data.get();
#pragma omp parallel for num_threads(options.threads) schedule(dynamic, kRowChunk)
  for (int64_t i = 0; i < N; ++i) {
    int64_t at = graph.rowptr[i];
    double degree = 0;
    auto put = [&](int32_t j, float w) {
      col[at] = j;
      if (weight) weight[at] = w;
      degree += w;
      ++at;
    };
    const Entry *entry = first + start[i], *end = entry + length[i];
    for (; entry != end && entry->col < i; ++entry) put(entry->col, entry->value());
    if (options.self_loops) put(static_cast<int32_t>(i), 1.0f);
    for (; entry != end; ++entry) put(entry->col, entry->value());
    graph.degree[i] = static_cast<float>(degree);
  }
  return graph;
}

template <typename Entry, typename Edges, typename scalar_t>
BuiltGraph build(const Edges& edges, Strided<scalar_t> weight, const BuildOptions& options) {
  Buffer<int64_t> start(options.N + 1);
  Buffer<Entry> entries = sort_by_row<Entry>(edges, weight, options, start.data.get());
  return finish(std::move(entries), start, static_cast<bool>(weight), options);
}

}  // namespace

template <typename Edges, typename scalar_t>
BuiltGraph build_graph(const Edges& edges, Strided<scalar_t> weight, const BuildOptions& given) {
  BuildOptions options = given;
  options.threads = std::clamp(options.threads, 1, kMaxThreads);
  const int64_t N = options.N;
  if (N < 0 || N > kMaxNodes) fail("num_nodes must be in [0, 2^31 - 2], got " + str(N));
  check_rows(edges, options);
  check_ids(edges.col, edges.M, Edges::kIndex, Edges::kCol, options);
  if (weight) check_weight(weight, edges.M, Edges::kWeight, options.threads);

  BuiltGraph graph = weight ? build<WeightedEntry<scalar_t>>(edges, weight, options)
                            : build<PlainEntry>(edges, Strided<float>{}, options);
  if (!options.symmetrize) check_symmetric(graph, Edges::kIndex, Edges::kWeight, N, options.threads);
  const int64_t i = first_where(N, options.threads, [&](int64_t i) { return !std::isfinite(graph.degree[i]); });
  if (i < N) {
    fail(std::string(Edges::kWeight) + " must have finite sums in float32, got inf for the edges of node " + str(i));
  }
  return graph;
}

RowPlan row_plan(const int64_t* rowptr, const int32_t* col, const float* weight, int64_t N, int threads) {
  RowPlan plan;
  auto length = [=](int64_t i) { return rowptr[i + 1] - rowptr[i]; };
  const int64_t longest = std::max(kHubLength, rowptr[N] / kHubShare);
  int64_t H = 0;
  for (int64_t i = 0; i < N; ++i) H += length(i) > longest;
  plan.hubs = Buffer<int32_t>(H);
  for (int64_t i = 0, k = 0; i < N; ++i) {
    if (length(i) > longest) plan.hubs[k++] = static_cast<int32_t>(i);
  }
  if (N > kNearNodes) return plan;

  // a row has at most N entries, so this is a counting sort
  std::vector<int64_t> start(N + 2);
  for (int64_t i = 0; i < N; ++i) ++start[length(i) + 1];
  for (int64_t n = 0; n <= N; ++n) start[n + 1] += start[n];
  Buffer<int32_t> order(N);
  for (int64_t i = 0; i < N; ++i) order[start[length(i)]++] = static_cast<int32_t>(i);
  plan.near = renumbered(rowptr, col, weight, N, std::move(order), threads);
  return plan;
}

NearForm renumbered(const int64_t* rowptr, const int32_t* col, const float* weight, int64_t N, Buffer<int32_t> order,
                    int threads) {
  NearForm form;
  form.order = std::move(order);
  Buffer<int32_t> place(N);
  form.rowptr = Buffer<int64_t>(N + 1);
  form.rowptr[0] = 0;
  for (int64_t p = 0; p < N; ++p) {
    const int64_t i = form.order[p];
    place[i] = static_cast<int32_t>(p);
    form.rowptr[p + 1] = form.rowptr[p] + rowptr[i + 1] - rowptr[i];
  }
  form.col = Buffer<int32_t>(rowptr[N]);
  if (weight) form.weight = Buffer<float>(rowptr[N]);
#pragma omp parallel for num_threads(std::max(threads, 1)) schedule(dynamic, kRowChunk)
  for (int64_t p = 0; p < N; ++p) {
    const int64_t from = rowptr[form.order[p]], to = form.rowptr[p], count = form.rowptr[p + 1] - to;
    for (int64_t k = 0; k < count; ++k) form.col[to + k] = place[col[from + k]];
    if (weight) std::copy(weight + from, weight + from + count, form.weight.data.get() + to);
  }
  return form;
}

Buffer<int64_t> reverse_entries(const int64_t* rowptr, const int32_t* col, int64_t N) {
  // rows ascend, so row j meets its columns i in the order in which it stores them
  Buffer<int64_t> cursor(N), reverse(rowptr[N]);
  std::copy(rowptr, rowptr + N, cursor.data.get());
  for (int64_t e = 0; e < rowptr[N]; ++e) reverse[e] = cursor[col[e]]++;
  return reverse;
}

template <typename index_t>
Buffer<int64_t> find_entries(const int64_t* rowptr, const int32_t* col, int64_t N, const CooEdges<index_t>& pairs,
                             int threads) {
  Buffer<int64_t> entry(pairs.M);
#pragma omp parallel for num_threads(std::max(threads, 1)) schedule(static)
  for (int64_t e = 0; e < pairs.M; ++e) {
    const int64_t i = pairs.row[e];
    entry[e] = i >= 0 && i < N ? find_entry(rowptr, col, i, pairs.col[e]) : -1;
  }
  return entry;
}

#define UGNN_INSTANTIATE_BUILD(EDGES)                                                 \
  template BuiltGraph build_graph(const EDGES&, Strided<float>, const BuildOptions&); \
  template BuiltGraph build_graph(const EDGES&, Strided<double>, const BuildOptions&);
UGNN_INSTANTIATE_BUILD(CooEdges<int32_t>)
UGNN_INSTANTIATE_BUILD(CooEdges<int64_t>)
UGNN_INSTANTIATE_BUILD(CsrEdges<int32_t>)
UGNN_INSTANTIATE_BUILD(CsrEdges<int64_t>)
#undef UGNN_INSTANTIATE_BUILD
template Buffer<int64_t> find_entries(const int64_t*, const int32_t*, int64_t, const CooEdges<int32_t>&, int);
template Buffer<int64_t> find_entries(const int64_t*, const int32_t*, int64_t, const CooEdges<int64_t>&, int);

}  // namespace ugnn
