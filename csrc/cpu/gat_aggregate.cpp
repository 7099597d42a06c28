// Instantiations of gat_aggregate for one instruction set.
#include "ugnn/gat_aggregate.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void gat_aggregate_forward_any(const GatAggregateForward& a) {
  for_dtype(a.dtype, [&](auto t) { gat_aggregate_forward<decltype(t)>(a); });
}

void gat_aggregate_backward_any(const GatAggregateBackward& a) {
  for_dtype(a.dtype, [&](auto t) { gat_aggregate_backward<decltype(t)>(a); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
