// Step kernels: Weighting::kEdge with every term of propagate, on any graph, for one instruction set.
#include "ugnn/step_kernel.h"

namespace ugnn {
namespace UGNN_ISA {

UGNN_STEP_KERNELS(Weighting::kEdge, Epilogue::kGeneral)

}  // namespace UGNN_ISA
}  // namespace ugnn
