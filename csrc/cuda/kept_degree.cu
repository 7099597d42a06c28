#include "ugnn/kept_degree.cuh"
#include "ugnn/launch.cuh"

namespace ugnn::cuda {

int kept_degree(const Launch& launch, const KeptDegreeArgs* calls, int count, bool) {
  return launch.dtype == DType::kDouble ? run_apart<KeptDegree<double>, 1>(launch, calls, count)
                                        : run_apart<KeptDegree<float>, 1>(launch, calls, count);
}

}  // namespace ugnn::cuda
