// Instantiations of neighbor_mean, neighbor_var and ada_c for one instruction set.
#include "ugnn/neighbor_var.h"

#include "ugnn/cpu_table.h"
#include "ugnn/drop_edges.h"

namespace ugnn {
namespace UGNN_ISA {

void neighbor_stat_any(const NeighborStat& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { neighbor_stat<decltype(t)>(kept); }); });
}

void neighbor_var_backward_any(const NeighborVarBackward& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { neighbor_var_backward<decltype(t)>(kept); }); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
