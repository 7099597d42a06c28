#include "ugnn/ada_propagate.cuh"
#include "ugnn/launch.cuh"

namespace ugnn::cuda {

int ada_propagate_bwd(const Launch& launch, const AdaPropagateBwdArgs* calls, int count, bool together) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        const AdaPropagateBwdArgs& a = calls[k];
        good = good && fits<T>(vec, a.columns, {a.table, a.u, a.s, a.next}, {a.partial, a.grad_x});
      }
      return good;
    };
    // 16 bytes of sums: those of 8 values would take more than 64 registers
    return for_vec<acc_of<T>>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return calls[0].s ? run<AdaPropagateBwd<T, kVec, false>, kVec>(launch, calls, count, together)
                        : run<AdaPropagateBwd<T, kVec, true>, kVec>(launch, calls, count, together);
    });
  });
}

}  // namespace ugnn::cuda
