#include <cuda_runtime.h>

#include "ugnn/cuda_ops.h"

namespace ugnn::cuda {

const char* error_text(int error) { return cudaGetErrorString(cudaError_t(error)); }

}  // namespace ugnn::cuda
