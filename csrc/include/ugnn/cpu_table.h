// The functions that csrc/cpu/*.cpp define for one instruction set, and the table of them.
#pragma once

#include "ugnn/ops.h"
#include "ugnn/vec.h"

namespace ugnn {
namespace UGNN_ISA {

template <class Body>
void for_dtype(DType dtype, Body body) {
  if (dtype == DType::kFloat) return body(float{});
  if (dtype == DType::kDouble) return body(double{});
  return body(bfloat16{});
}

void ada_propagate_forward_any(AdaPropagateForward&);
void ada_propagate_backward_any(const AdaPropagateBackward&);
void propagate_forward_any(const PropagateForward&);
void neighbor_stat_any(const NeighborStat&);
void neighbor_var_backward_any(const NeighborVarBackward&);
void gat_aggregate_forward_any(const GatAggregateForward&);
void gat_aggregate_backward_any(const GatAggregateBackward&);
void local_smoothness_any(const LocalSmoothness&);
void kept_degree_any(const KeptDegree&);
void denoising_energy_any(const DenoisingEnergy&);
void edge_dot_any(const EdgeDot&);
void row_sum_any(const RowSum&);
void solve_any(Solve&);
void sparse_linear_any(const SparseLinear&);
void sparse_dense_any(const SparseDense&);
void dropout_any(const Dropout&);
void dropout_linear_any(const DropoutLinear&);
int64_t padded_width_any(DType, int64_t D, bool narrow);

}  // namespace UGNN_ISA
}  // namespace ugnn
