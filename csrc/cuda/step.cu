#include "ugnn/launch.cuh"
#include "ugnn/step.cuh"

namespace ugnn::cuda {

int step(const Launch& launch, const StepArgs* calls, int count, bool together) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        const StepArgs& a = calls[k];
        good = good && fits<T>(vec, a.columns, {a.table, a.x, a.h, a.before, a.out, a.next, a.s}, {a.partial, a.total});
      }
      return good;
    };
    return for_vec<T>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return calls[0].s ? run<Step<T, kVec, true>, kVec>(launch, calls, count, together)
                        : run<Step<T, kVec, false>, kVec>(launch, calls, count, together);
    });
  });
}

}  // namespace ugnn::cuda
