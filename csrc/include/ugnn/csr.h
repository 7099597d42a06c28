// The only way kernels see a graph.
#pragma once

#include <cstdint>

namespace ugnn {

// Symmetric adjacency of N nodes in CSR form, columns ascending in a row.
struct Csr {
  const int64_t* rowptr;  // [N + 1]
  const int32_t* col;     // [E]
  const float* weight;    // [E], or null: all 1
  const float* degree;    // [N]
  const int32_t* hubs;    // [H]: rows that are split into pieces, ascending
  // The same matrix once more, rows and columns renumbered: up to kNearNodes nodes so that row lengths ascend, beyond
  // by community, or null where that brings nothing.
  const int32_t* order;        // [N]: near row p is row order[p]
  const int64_t* near_rowptr;  // [N + 1]
  const int32_t* near_col;     // [E], entries of a row in the order of its columns above
  const float* near_weight;    // [E], or null: all 1
  int64_t N;
  int64_t E;
  int64_t H;
  // Entries that kernels shall not see (drop_edges.h)
  uint64_t drop_seed;
  uint32_t keep_from;  // 0: all are kept
};

// Tables of graphs with more nodes leave the caches near a core whatever their width.
constexpr int64_t kNearNodes = 1 << 16;
// Larger graphs are taken in near form for at least so many entries a row, in all steps of a call.
constexpr int64_t kNearWork = 48;
constexpr int64_t kPiece = 4096;        // entries of a hub row that are summed as one piece
constexpr int64_t kBlockEntries = 256;  // entries of a row that are added up in one go

// Rows with more entries than this are hubs. It depends on the graph alone, never on the number of threads:
// the order of summation, and so every bit of a result, must not change with it.
inline int64_t hub_length(int64_t E) { return E / 256 > 2 * kPiece ? E / 256 : 2 * kPiece; }

}  // namespace ugnn
