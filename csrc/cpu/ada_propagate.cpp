// Instantiations of ada_propagate for one instruction set.
#include "ugnn/ada_propagate.h"

#include "ugnn/cpu_table.h"
#include "ugnn/drop_edges.h"

namespace ugnn {
namespace UGNN_ISA {

void ada_propagate_forward_any(AdaPropagateForward& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { ada_propagate_forward<decltype(t)>(kept); }); });
}

void ada_propagate_backward_any(const AdaPropagateBackward& a) {
  with_kept(a, [](auto& kept) { for_dtype(kept.dtype, [&](auto t) { ada_propagate_backward<decltype(t)>(kept); }); });
}

int64_t padded_width_any(DType dtype, int64_t D, bool narrow) {
  int64_t width = 0;
  for_dtype(dtype, [&](auto t) { width = ada_propagate_slices<decltype(t)>(1, D, true, narrow).padded_width(); });
  return width;
}

}  // namespace UGNN_ISA
}  // namespace ugnn
