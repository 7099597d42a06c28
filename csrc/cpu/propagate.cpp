// Instantiations of propagate for one instruction set.
#include "ugnn/propagate.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void propagate_forward_any(const PropagateForward& a) {
  for_dtype(a.dtype, [&](auto t) { propagate_forward<decltype(t)>(a); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
