// Step kernels: backward of ada_propagate on any graph, for one instruction set.
#include "ugnn/step_kernel.h"

namespace ugnn {
namespace UGNN_ISA {

UGNN_STEP_KERNELS(Weighting::kNode, Epilogue::kBackward)

}  // namespace UGNN_ISA
}  // namespace ugnn
