// Instantiations of propagate for one instruction set.
#include "ugnn/propagate.h"

#include "ugnn/cpu_table.h"
#include "ugnn/drop_edges.h"

namespace ugnn {
namespace UGNN_ISA {

void propagate_forward_any(const PropagateForward& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { propagate_forward<decltype(t)>(kept); }); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
