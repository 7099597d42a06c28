// What the CUDA library offers: plain structs of device pointers and sizes, launchers that return a cudaError_t as int.
// No CUDA header is needed to call it. Arguments have the order of those of the Triton kernel of the same name
// (kernels/). Pointers are void* where the type follows from dtype: T the stored type, A that of sums and coefficients
// (float; double for double). Tables are [N, width], a row being R replicas of D columns; null stands for what is not
// there.
#pragma once

#include <cstdint>

#include "ugnn/ops.h"

namespace ugnn::cuda {

// The rows of a planned matrix (ugnn_fast/_row_plan.py), and which of its entries DropEdge leaves.
struct RowArgs {
  const int64_t* rowptr;  // [num_rows + 1]
  const int32_t* plan;
  int32_t num_rows;
  int32_t num_short;    // rows that share a warp
  int32_t num_middle;   // short ones, and rows with a warp of their own
  int32_t num_pieces;   // of hubs
  const int32_t* col;   // [E]
  const float* weight;  // [E], or null: all 1
  uint64_t drop_seed;
  uint32_t keep_from;  // 0: all entries are kept
};

// Columns: D that belong together (of one replica, if something differs between replicas) of the `width` of a row.
// The launcher fills in how lanes share them: `group` lanes of a warp have the columns of a block.
struct ColumnArgs {
  int32_t D;
  int32_t width;
  int32_t group;
  int32_t blocks;  // of a replica
};

// scale * values[i * row_stride + r * replica_stride], or scale alone
struct CoefArgs {
  const void* values;  // A
  int32_t row_stride;
  int32_t replica_stride;
  double scale;
};

// H_{k+1} = clamp(keep H_k + agg left sum_j a_ij W_ij u_j + skip X + prev H_{k-1}), u = right H_k; see step.cuh
struct StepArgs {
  RowArgs rows;
  const void* table;  // T: u
  const void* c;      // A: W = c_i + c_j
  int32_t c_row, c_replica;
  const void* edge;        // A [E]: W = e_ij
  const int64_t* reverse;  // [E]: e_ji in place of e_ij
  void* partial;           // A [1 or 2, num_pieces, width]
  const void* left;        // A [N]
  const void* right;       // A [N], with next
  CoefArgs agg, skip, keep, prev;
  const void* x;       // T
  const void* h;       // T: H_k
  const void* before;  // T: H_{k-1}
  double lo, hi;
  const void* gamma;  // A [1]
  void* out;          // T: H_{k+1}
  void* next;         // T: right H_{k+1}
  void* s;            // T: sum_j a_ij u_j
  void* total;        // A: gains gamma H_{k+1}
  ColumnArgs columns;
  bool clamp;
};

// Backward of one step of ada_propagate, (G1) to (G3); see ada_propagate.cuh
struct AdaPropagateBwdArgs {
  RowArgs rows;
  const void* table;  // T: v
  const void* c;      // A
  int32_t c_row, c_replica;
  void* partial;    // A [2 or 3, num_pieces, width]
  const void* rho;  // A [N]
  const void* b;    // A, like c
  const void* u;    // T
  const void* s;    // T; null: gathered again from u
  void* grad_x;     // A
  void* next;       // T; null in the first step
  void* grad_c;     // A [N, R]
  void* e;          // A [N, R]
  ColumnArgs columns;
};

// out_ij = <v_i, u_j>
struct EdgeDotArgs {
  RowArgs rows;
  const void* v;  // T
  const void* u;  // T
  void* out;      // T [E]
  ColumnArgs columns;
};

// Mean, variance and c_i = s sigmoid(<stat_i, w> + bias) of neighbours; see neighbor_var.cuh
struct NeighborStatArgs {
  RowArgs rows;
  const void* x;     // T
  void* partial;     // A [4, num_pieces, width]
  void* var;         // T
  void* mean;        // A
  const void* w;     // A [width], with c
  const void* bias;  // A [R]
  double s;
  void* c;  // A [N, R]
  ColumnArgs columns;
  bool is_var;  // which of them the stat is; the variance is computed only then
};

// dx_i = 2 sum_j a_ij / d_j g_j (x_i - mean_j)
struct NeighborVarBwdArgs {
  RowArgs rows;
  const void* degree;  // A [N]
  const void* x;       // T
  const void* mean;    // A
  const void* grad;    // A
  void* partial;       // A [1, num_pieces, width]
  void* grad_x;        // T
  ColumnArgs columns;
};

// out_i = sum_j a_ij |rho_i f_i - rho_j f_j|^2
struct EdgeEnergyArgs {
  RowArgs rows;
  const void* f;    // T
  const void* rho;  // A [N]
  void* partial;    // A [1, num_pieces, width]
  void* out;        // A [N, R]
  ColumnArgs columns;
};

// degree_i = sum_j a_ij
struct KeptDegreeArgs {
  RowArgs rows;
  double* partial;  // [num_pieces]
  void* degree;     // T [N], float or double
  ColumnArgs columns;
};

// Share of the labelled neighbours with the label of the node
struct LocalSmoothnessArgs {
  RowArgs rows;
  const int64_t* labels;  // [N]
  int32_t* partial;       // [2, num_pieces]
  float* out;             // [N]
  ColumnArgs columns;
};

// out_ir = bias_r + scale sum_j m_r(i, j) x_ij table_jr; see sparse_linear.cuh
struct SparseLinearArgs {
  RowArgs rows;
  const void* values;    // T [E]: x
  const int64_t* seeds;  // [R], or null: nothing is dropped
  uint32_t keep_from;
  double scale;
  const void* table;  // T
  int64_t table_replica;
  const void* bias;  // T [R, D]
  void* partial;     // A [1, num_pieces, R D]
  void* out;         // T
  int64_t out_replica;
  int64_t table_row, out_row;  // strides
  ColumnArgs columns;
  bool transposed;
};

// out_ij = scale m(i, j) x_ij for the stored entries
struct SparseDenseArgs {
  const int64_t* rowptr;  // [num_rows + 1]
  const int32_t* col;     // [E]
  const void* values;     // T [E]
  const int64_t* seed;    // [1], or null
  uint32_t keep_from;
  double scale;
  void* out;  // T [num_rows, columns]
  int64_t columns;
  int64_t num_rows;
};

// The heads of x [N, H, D], a table of H D columns, and what their weights are made of.
struct HeadArgs {
  const int64_t* seeds;  // [R] of the masks, one for `replica_heads` heads; null: no dropout
  uint32_t mask_from;
  double mask_scale;  // 1 / (1 - q)
  double slope;
  int32_t H;
  int32_t replica_heads;
  int32_t D;
  // The launcher fills in how lanes share them: a block of columns is block_heads heads of `lanes` lanes each, or one
  // of `parts` parts of a wide head; `makers` lanes make weights of a head.
  int32_t lanes;
  int32_t block_heads;
  int32_t parts;
  int32_t makers;
};

// y_i = sum_j w_ij x_j, (A1); see gat_aggregate.cuh
struct GatAggregateFwdArgs {
  RowArgs rows;
  HeadArgs heads;
  const void* x;       // T
  const void* src;     // A [N, H]
  const void* dst;     // A [N, H]
  void* partial;       // A [1, num_pieces, H D]
  void* partial_head;  // A [2, num_pieces, H]
  void* y;             // T
  void* lse;           // A [N, H]
  ColumnArgs columns;
};

// (A2); with `sends` (A3)
struct GatAggregateBwdArgs {
  RowArgs rows;
  HeadArgs heads;
  const void* table;   // T: x; sends: g
  const void* own;     // T: g; sends: x
  const void* src;     // A [N, H]
  const void* dst;     // A [N, H]
  const void* lse;     // A [N, H]
  const void* stats;   // A [N, H, 3]: dst, lse, t; with sends
  void* partial;       // A [2, num_pieces, H D]
  void* partial_head;  // A [2, num_pieces, H]
  void* grad_x;        // T, with sends
  void* t;             // A [N, H], without
  void* grad_score;    // A [N, H]
  bool sends;
  ColumnArgs columns;
};

// Work on the vectors of conjugate gradients; see solve.cuh. Sums are those of kSumRows rows.
constexpr int kSumRows = 256;  // ROWS of ugnn_fast/device/solve.py

// r = scale X / N - q, p = r / D
struct ResidualArgs {
  const void* x;        // T
  const void* scale;    // T [width]
  const void* root;     // T [N]: 1 / N
  const void* q;        // T
  void* r;              // T
  void* p;              // T
  const void* inverse;  // T: 1 / D
  int32_t inverse_row, inverse_replica;
  const void* square;  // T [N]: N^2
  double* sums;        // [blocks of rows, 4, width]
  int64_t N;
  ColumnArgs columns;
};

// <p, q> and <q, q / D>
struct ProductsArgs {
  const void* p;        // T
  const void* q;        // T
  const void* inverse;  // T: 1 / D
  int32_t inverse_row, inverse_replica;
  double* sums;
  int64_t N;
  ColumnArgs columns;
};

// u += alpha p, r -= alpha q, p = r / D + beta p
struct UpdateArgs {
  const void* lengths;  // T [2, width]: alpha and beta
  void* u;              // T
  void* r;              // T
  void* p;              // T
  const void* q;        // T
  const void* inverse;  // T: 1 / D
  int32_t inverse_row, inverse_replica;
  const void* square;  // T [N]: N^2
  double* sums;
  int64_t N;
  ColumnArgs columns;
};

// Which columns are active, and with `lengths_too` their alpha and beta.
struct LengthsArgs {
  const double* sums;  // [blocks, 4, width]
  int32_t blocks;
  const double* limit;  // [width]
  int32_t* state;       // [2, width]: what a column is, and its iterations
  void* lengths;        // T [2, width]
  double* curvature;    // [width]
  int32_t width;
  bool lengths_too;
};

// Where to launch. `stream` is a cudaStream_t.
struct Launch {
  DType dtype;
  int device;
  void* stream;
};

// Runs calls[0], calls[1], ... in this order: one launch each (two with hubs), or all of them in one cooperative
// launch. At most kMaxCalls then, and all alike but for their pointers and numbers: the same rows, columns, and null
// pointers.
constexpr int kMaxCalls = 32;
int step(const Launch& launch, const StepArgs* calls, int count, bool together);
int ada_propagate_bwd(const Launch& launch, const AdaPropagateBwdArgs* calls, int count, bool together);
int edge_dot(const Launch& launch, const EdgeDotArgs* calls, int count, bool together);
// One launch a call (two with hubs), whatever `together` says.
int neighbor_stat(const Launch& launch, const NeighborStatArgs* calls, int count, bool together);
int neighbor_var_bwd(const Launch& launch, const NeighborVarBwdArgs* calls, int count, bool together);
int edge_energy(const Launch& launch, const EdgeEnergyArgs* calls, int count, bool together);
int kept_degree(const Launch& launch, const KeptDegreeArgs* calls, int count, bool together);
int local_smoothness(const Launch& launch, const LocalSmoothnessArgs* calls, int count, bool together);
int sparse_linear(const Launch& launch, const SparseLinearArgs* calls, int count, bool together);
int sparse_dense(const Launch& launch, const SparseDenseArgs* calls, int count, bool together);
int gat_aggregate_fwd(const Launch& launch, const GatAggregateFwdArgs* calls, int count, bool together);
int gat_aggregate_bwd(const Launch& launch, const GatAggregateBwdArgs* calls, int count, bool together);
// float and double alone: solve computes in the type of sums
int residual(const Launch& launch, const ResidualArgs* calls, int count, bool together);
int products(const Launch& launch, const ProductsArgs* calls, int count, bool together);
int update(const Launch& launch, const UpdateArgs* calls, int count, bool together);
int lengths(const Launch& launch, const LengthsArgs* calls, int count, bool together);

const char* error_text(int error);

}  // namespace ugnn::cuda
