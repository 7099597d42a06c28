// What a CPU kernel library offers, the same for every instruction set: plain structs of pointers and sizes.
// Pointers are void* where the type follows from dtype: T the stored type, A the type of sums and coefficients
// (float for float and bfloat16, double for double). Rows of x and of results are [N, R, D], contiguous.
#pragma once

#include <cstdint>

#include "ugnn/csr.h"

namespace ugnn {

// kHalf: CUDA alone
enum class DType : int { kFloat = 0, kDouble = 1, kBFloat16 = 2, kHalf = 3 };

// A coefficient of a step: scale * values[k * step_stride + i * row_stride], or scale alone.
struct CoefView {
  const void* values = nullptr;  // A
  int64_t row_stride = 0;
  int64_t step_stride = 0;
  double scale = 0;
};

struct AdaPropagateForward {
  Csr g;
  DType dtype;
  int threads;
  int64_t R, D, K;
  const void* x;  // T [N, R, D]
  const void* c;  // A [RC, N], RC = 1 or R; null: c_value everywhere
  double c_value;
  int64_t RC;
  bool check;          // look for c < 0, infinity and NaN
  void* h;             // T [N, R, D], result
  void* b;             // A [RC, N], kept for backward; null: not wanted
  void* u;             // T, tables of a slice, kept for backward; null: not wanted
  int64_t every = 1;   // of so many steps the first one's u is kept; without s not that of the very first
  void* s;             // T, K tables a slice, kept for backward; null: not wanted
  int64_t bad_c = -1;  // result: a node with such a value
};

struct AdaPropagateBackward {
  Csr g;
  DType dtype;
  int threads;
  int64_t R, D, K;
  const void* x;       // T [N, R, D], as in forward; null with s, and without grad_c
  const void* grad_h;  // T [N, R, D]
  const void* h;       // T [N, R, D], result of forward; null without grad_c
  const void* c;       // A [RC, N]
  int64_t RC;
  const void* b;      // A [RC, N], as kept by forward
  const void* u;      // T, as kept by forward; null without grad_c
  int64_t every = 1;  // as in forward; steps between are computed again
  const void* s;      // T, as kept by forward; null: gathered again from u
  void* grad_x;       // A [N, R, D], result; null: not wanted
  void* grad_c;       // A [RC, N], result; null: not wanted
};

enum class Norm : int { kNone = 0, kSym = 1, kRow = 2, kGiven = 3 };

struct PropagateForward {
  Csr g;
  DType dtype;
  int threads;
  int64_t R, D, K;
  const void* x;  // T [N, R, D]
  const void* c;  // A [RC, N], RC = 1 or R: W = c_i + c_j
  int64_t RC;
  const void* edge;        // A [E]: W = e_ij; with c null too: W = 1
  const int64_t* reverse;  // [E]: e_ji in place of e_ij
  Norm norm;
  const void* left;   // A [N], kGiven; null: 1
  const void* right;  // A [N], kGiven; null: 1
  CoefView agg, skip, keep, prev;
  bool clamped;
  double lo, hi;
  const void* gamma;  // A [K + 1], with total
  void* last;         // T [N, R, D]: H_K; null: not wanted
  void* all;          // T [K, N, R, D]: H_1 .. H_K; null: not wanted
  void* total;        // A [N, R, D]: sum_k gamma_k H_k; null: not wanted
};

// mean_i = sum_j a_ij x_j / d_i, var_i = sum_j a_ij (x_j - mean_i)^2 / d_i; 0 where d_i = 0
struct NeighborStat {
  Csr g;
  DType dtype;
  int threads;
  int64_t R, D;
  const void* x;       // T [N, R, D]
  void* mean;          // A [N, R, D]; null: not wanted
  void* var;           // T [N, R, D]; null: not wanted
  const void* weight;  // A [R, D]: c_i = s sigmoid(<stat_i, weight> + bias); null: no c
  const void* bias;    // A [R] or null
  bool of_mean;        // stat = mean in place of var
  double s;
  void* c;  // A [N, R]
};

// grad_x_j = 2 sum_i a_ij / d_i g_i (x_j - mean_i)
struct NeighborVarBackward {
  Csr g;
  DType dtype;
  int threads;
  int64_t R, D;
  const void* x;     // T [N, R, D]
  const void* mean;  // A [N, R, D]
  const void* grad;  // A [N, R, D]
  void* grad_x;      // T [N, R, D]
};

// y_i = sum_j mask_ij / (1 - q) alpha_ij x_j, alpha_ij the softmax over row i of LeakyReLU(dst_i + src_j), for each
// head
struct GatAggregateForward {
  Csr g;  // its weights are not used
  DType dtype;
  int threads;
  int64_t H, D;
  const void* x;    // T [N, H, D]
  const void* src;  // A [N, H]
  const void* dst;  // A [N, H]
  double slope;
  double drop;           // q; 0: no mask
  const int64_t* seeds;  // [R], H / R heads each
  int64_t R;
  void* y;    // T [N, H, D]
  void* lse;  // A [N, H]: log sum_j exp LeakyReLU(dst_i + src_j)
};

struct GatAggregateBackward {
  Csr g;
  DType dtype;
  int threads;
  int64_t H, D;
  const void* x;    // T [N, H, D]
  const void* src;  // A [N, H]
  const void* dst;  // A [N, H]
  const void* lse;  // A [N, H]
  double slope;
  double drop;
  const int64_t* seeds;
  int64_t R;
  const void* grad;  // T [N, H, D], of y
  void* grad_x;      // T [N, H, D]
  void* grad_src;    // A [N, H]
  void* grad_dst;    // A [N, H]
};

struct LocalSmoothness {
  Csr g;
  int threads;
  const int64_t* labels;  // [N], < 0: no label
  float* out;             // [N]
};

// degree_i = sum of the weights of the entries that g.drop_seed and g.keep_from leave
struct KeptDegree {
  Csr g;
  int threads;
  float* degree;  // [N]
};

// out_ir = sum_j a_ij |rho_i f_ir - rho_j f_jr|^2
struct DenoisingEnergy {
  Csr g;
  DType dtype;
  int threads;
  int64_t R, D;
  const void* f;  // T [N, R, D]
  void* out;      // A [N, R]
};

// out_e = <v_i, u_j> for every stored entry e = (i, j)
struct EdgeDot {
  Csr g;
  DType dtype;  // float or double
  int threads;
  int64_t D;
  const void* v;  // A [N, D]
  const void* u;  // A [N, D]
  void* out;      // A [E]
};

// out_d = sum_i values_id, in an order that does not depend on the number of threads
struct RowSum {
  DType dtype;  // float or double
  int threads;
  int64_t N, D;
  const void* values;  // A [N, D]
  void* out;           // A [D]
};

// M F = X by conjugate gradients, M = diag - N (A o W) N, N = diag(d^-1/2) if sym, else 1
struct Solve {
  Csr g;
  DType dtype;  // float or double
  int threads;
  int64_t R, D;
  const void* x;     // A [N, R, D]
  const void* diag;  // A [RD, N], RD = 1 or R; null: diag_value everywhere
  double diag_value;
  int64_t RD;
  const void* c;  // A [RC, N], RC = 1 or R: W = c_i + c_j
  int64_t RC;
  const void* edge;  // A [E]: W = e_ij = e_ji
  double scale;      // W, with c and edge null; else 1
  bool sym;
  double tol;  // of |X - M F| / |X|, for each column
  int64_t max_iter;
  void* f;                 // A [N, R, D], result
  int64_t iterations = 0;  // result: the most of any column
  double residual = 0;     // result: the largest |X - M F| / |X| of a column, NaN if one is not finite
  double curvature = 1;    // result: <p, M p> if that was not positive for some p, and nothing else was computed
};

// The stored entries of a matrix [N, M], no column twice in a row.
struct SparseRows {
  const int64_t* rowptr;  // [N + 1]
  const int32_t* col;     // [E]
  const void* values;     // T [E]
  int64_t N, M, E;
};

// out_ir = bias_r + sum_j keep_r(i, j) x_ij / (1 - drop) table_jr
struct SparseLinear {
  SparseRows x;
  bool transposed;  // for the mask, row i here is column i
  DType dtype;
  int threads;
  int64_t R, D;
  const void* table;  // T: row j of replica r is at j * table_row + r * table_replica
  int64_t table_row, table_replica;
  const void* bias;      // T [R, D] or null
  double drop;           // 0 <= drop < 1
  const int64_t* seeds;  // [R]; null: everything is kept
  void* out;             // T: row i of replica r is at i * out_row + r * out_replica
  int64_t out_row, out_replica;
};

// out_ij = keep(i, j) x_ij / (1 - drop)
struct SparseDense {
  SparseRows x;
  DType dtype;
  int threads;
  double drop;
  const int64_t* seed;  // null: everything is kept
  void* out;            // T [N, M]
};

// out_nrf = keep_r(n, f) x_nrf / (1 - drop)
struct Dropout {
  DType dtype;
  int threads;
  int64_t N, R, F;
  const void* x;         // T [N, R, F]
  double drop;           // 0 <= drop < 1
  const int64_t* seeds;  // [R]
  void* out;             // T [N, R, F]
};

// columns of the result that dropout_linear can have
constexpr int64_t kDropoutLinearWidth = 32;

// out_nr = bias_r + sum_f keep_r(n, f) act(x_nrf) / (1 - drop) weight_rf, or, where grad is given, its gradients
struct DropoutLinear {
  DType dtype;  // float or double
  int threads;
  int64_t N, R, F, D;
  const void* x;       // T [N, R, F]
  const void* weight;  // T [R, F, D]
  const void* bias;    // T [R, D] or null
  bool relu;           // act
  double drop;
  const int64_t* seeds;  // [R]; null: everything is kept
  const void* grad;      // T [N, R, D], gradient of the result; null: forward
  void* out;             // T [N, R, D]; backward: [N, R, F], gradient of x
  void* grad_weight;     // T [R, F, D]
  void* grad_bias;       // T [R, D]
};

struct KernelTable {
  const char* name;
  void (*ada_propagate_forward)(AdaPropagateForward&);
  void (*ada_propagate_backward)(const AdaPropagateBackward&);
  void (*propagate_forward)(const PropagateForward&);
  void (*neighbor_stat)(const NeighborStat&);
  void (*neighbor_var_backward)(const NeighborVarBackward&);
  void (*gat_aggregate_forward)(const GatAggregateForward&);
  void (*gat_aggregate_backward)(const GatAggregateBackward&);
  void (*local_smoothness)(const LocalSmoothness&);
  void (*kept_degree)(const KeptDegree&);
  void (*denoising_energy)(const DenoisingEnergy&);
  void (*edge_dot)(const EdgeDot&);
  void (*row_sum)(const RowSum&);
  void (*solve)(Solve&);
  void (*sparse_linear)(const SparseLinear&);
  void (*sparse_dense)(const SparseDense&);
  void (*dropout)(const Dropout&);
  void (*dropout_linear)(const DropoutLinear&);
  // values a row of D columns takes in kept tables; narrow: with u alone
  int64_t (*padded_width)(DType, int64_t D, bool narrow);
};

// The fastest table this CPU can run, or the one named (by the environment variable UGNN_ISA).
const KernelTable& kernels();

}  // namespace ugnn
