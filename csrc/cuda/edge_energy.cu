#include "ugnn/edge_energy.cuh"
#include "ugnn/launch.cuh"

namespace ugnn::cuda {

int edge_energy(const Launch& launch, const EdgeEnergyArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) good = good && fits<T>(vec, calls[k].columns, {calls[k].f}, {calls[k].partial});
      return good;
    };
    return for_vec<T>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return run_apart<EdgeEnergy<T, kVec>, kVec>(launch, calls, count);
    });
  });
}

}  // namespace ugnn::cuda
