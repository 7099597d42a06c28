// Instantiations of local_smoothness, kept_degree, denoising_energy, edge_dot and row_sum for one instruction set.
#include "ugnn/node_ops.h"

#include "ugnn/cpu_table.h"
#include "ugnn/drop_edges.h"

namespace ugnn {
namespace UGNN_ISA {

void local_smoothness_any(const LocalSmoothness& a) {
  with_kept(a, [](auto& kept) { local_smoothness(kept); });
}

void kept_degree_any(const KeptDegree& a) { kept_degree(a.g, a.threads, a.degree); }

void denoising_energy_any(const DenoisingEnergy& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { denoising_energy<decltype(t)>(kept); }); });
}

void edge_dot_any(const EdgeDot& a) {
  if (a.dtype == DType::kDouble) return edge_dot<double>(a);
  edge_dot<float>(a);
}

void row_sum_any(const RowSum& a) {
  if (a.dtype == DType::kDouble) return row_sum<double>(a);
  row_sum<float>(a);
}

}  // namespace UGNN_ISA
}  // namespace ugnn
