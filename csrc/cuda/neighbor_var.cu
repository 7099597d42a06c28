#include "ugnn/launch.cuh"
#include "ugnn/neighbor_var.cuh"

namespace ugnn::cuda {

int neighbor_stat(const Launch& launch, const NeighborStatArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        const NeighborStatArgs& a = calls[k];
        good = good && fits<T>(vec, a.columns, {a.x, a.var}, {a.partial, a.mean, a.w});
      }
      return good;
    };
    // 16 bytes of sums: those of 8 values would take more than 64 registers
    return for_vec<acc_of<T>>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return calls[0].is_var ? run_apart<NeighborStat<T, kVec, true>, kVec>(launch, calls, count)
                             : run_apart<NeighborStat<T, kVec, false>, kVec>(launch, calls, count);
    });
  });
}

int neighbor_var_bwd(const Launch& launch, const NeighborVarBwdArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        const NeighborVarBwdArgs& a = calls[k];
        good = good && fits<T>(vec, a.columns, {a.x, a.grad_x}, {a.partial, a.mean, a.grad});
      }
      return good;
    };
    // 16 bytes of the rows that neighbours have: these are in the type of sums
    return for_vec<acc_of<T>>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return run_apart<NeighborVarBwd<T, kVec>, kVec>(launch, calls, count);
    });
  });
}

}  // namespace ugnn::cuda
