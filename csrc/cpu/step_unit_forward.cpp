// Step kernels: Weighting::kUnit with Epilogue::kForward, for one instruction set.
#include "ugnn/step.h"

namespace ugnn {
namespace UGNN_ISA {

UGNN_STEP_KERNELS(Weighting::kUnit, Epilogue::kForward)

}  // namespace UGNN_ISA
}  // namespace ugnn
