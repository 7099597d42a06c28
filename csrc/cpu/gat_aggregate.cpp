// Instantiations of gat_aggregate for one instruction set.
#include "ugnn/gat_aggregate.h"

#include "ugnn/cpu_table.h"
#include "ugnn/drop_edges.h"

namespace ugnn {
namespace UGNN_ISA {

void gat_aggregate_forward_any(const GatAggregateForward& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { gat_aggregate_forward<decltype(t)>(kept); }); });
}

void gat_aggregate_backward_any(const GatAggregateBackward& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { gat_aggregate_backward<decltype(t)>(kept); }); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
