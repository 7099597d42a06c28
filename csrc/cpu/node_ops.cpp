// Instantiations of local_smoothness, denoising_energy, edge_dot and row_sum for one instruction set.
#include "ugnn/node_ops.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void local_smoothness_any(const LocalSmoothness& a) { local_smoothness(a); }

void denoising_energy_any(const DenoisingEnergy& a) {
  for_dtype(a.dtype, [&](auto t) { denoising_energy<decltype(t)>(a); });
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
