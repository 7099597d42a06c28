#include "ugnn/launch.cuh"
#include "ugnn/local_smoothness.cuh"

namespace ugnn::cuda {

int local_smoothness(const Launch& launch, const LocalSmoothnessArgs* calls, int count, bool) {
  return run_apart<LocalSmoothness, 1>(launch, calls, count);
}

}  // namespace ugnn::cuda
