// Instantiations of sparse_linear for one instruction set.
#include "ugnn/sparse_linear.h"

#include "ugnn/cpu_table.h"

namespace ugnn {
namespace UGNN_ISA {

void sparse_linear_any(const SparseLinear& a) {
  for_dtype(a.dtype, [&](auto t) { sparse_linear<decltype(t)>(a); });
}

void sparse_dense_any(const SparseDense& a) {
  for_dtype(a.dtype, [&](auto t) { sparse_dense<decltype(t)>(a); });
}

}  // namespace UGNN_ISA
}  // namespace ugnn
