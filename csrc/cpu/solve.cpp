// Instantiations of solve for one instruction set.
#include "ugnn/solve.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void solve_any(Solve& a) {
  if (a.dtype == DType::kDouble) return solve<double>(a);
  solve<float>(a);
}

}  // namespace UGNN_ISA
}  // namespace ugnn
