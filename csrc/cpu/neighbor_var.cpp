// Instantiations of neighbor_mean, neighbor_var and ada_c for one instruction set.
#include "ugnn/neighbor_var.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void neighbor_stat_any(const NeighborStat& a) {
  for_dtype(a.dtype, [&](auto t) { neighbor_stat<decltype(t)>(a); });
}

void neighbor_var_backward_any(const NeighborVarBackward& a) {
  for_dtype(a.dtype, [&](auto t) { neighbor_var_backward<decltype(t)>(a); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
