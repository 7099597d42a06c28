// Step kernels: backward of ada_propagate, graphs without weights, for one instruction set.
#include "ugnn/step_kernel.h"

namespace ugnn {
namespace UGNN_ISA {

UGNN_STEP_KERNEL(float, Weighting::kNode, false, Epilogue::kBackward)
UGNN_STEP_KERNEL(float, Weighting::kNodeInRow, false, Epilogue::kBackward)
UGNN_STEP_KERNEL(bfloat16, Weighting::kNode, false, Epilogue::kBackward)
UGNN_STEP_KERNEL(bfloat16, Weighting::kNodeInRow, false, Epilogue::kBackward)

}  // namespace UGNN_ISA
}  // namespace ugnn
