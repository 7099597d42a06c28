#include "ugnn/edge_dot.cuh"
#include "ugnn/launch.cuh"

namespace ugnn::cuda {

int edge_dot(const Launch& launch, const EdgeDotArgs* calls, int count, bool together) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) good = good && fits<T>(vec, calls[k].columns, {calls[k].v, calls[k].u}, {});
      return good;
    };
    return for_vec<T>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return run<EdgeDot<T, kVec>, kVec>(launch, calls, count, together);
    });
  });
}

}  // namespace ugnn::cuda
