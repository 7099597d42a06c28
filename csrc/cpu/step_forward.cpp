// Step kernels: the steps of ada_propagate and simple propagate, graphs without weights, for one instruction set.
#include "ugnn/step_kernel.h"

namespace ugnn {
namespace UGNN_ISA {

UGNN_STEP_KERNEL(float, Weighting::kUnit, false, Epilogue::kForward)
UGNN_STEP_KERNEL(float, Weighting::kNode, false, Epilogue::kForward)
UGNN_STEP_KERNEL(float, Weighting::kNodeInRow, false, Epilogue::kForward)
UGNN_STEP_KERNEL(bfloat16, Weighting::kUnit, false, Epilogue::kForward)
UGNN_STEP_KERNEL(bfloat16, Weighting::kNode, false, Epilogue::kForward)
UGNN_STEP_KERNEL(bfloat16, Weighting::kNodeInRow, false, Epilogue::kForward)

}  // namespace UGNN_ISA
}  // namespace ugnn
