// Instantiations of solve for one instruction set.
#include "ugnn/solve.h"

#include "ugnn/cpu_table.h"
#include "ugnn/drop_edges.h"

namespace ugnn {
namespace UGNN_ISA {

void solve_any(Solve& a) {
  with_kept(a, [](Solve& kept) {
    if (kept.dtype == DType::kDouble) return solve<double>(kept);
    solve<float>(kept);
  });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
