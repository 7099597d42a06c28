// Instantiations of dropout and dropout_linear for one instruction set.
#include "ugnn/dropout.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void dropout_any(const Dropout& a) {
  for_dtype(a.dtype, [&](auto t) { dropout<decltype(t)>(a); });
}

void dropout_linear_any(const DropoutLinear& a) {
  if (a.dtype == DType::kDouble) return dropout_linear<double>(a);
  dropout_linear<float>(a);
}

}  // namespace UGNN_ISA
}  // namespace ugnn
