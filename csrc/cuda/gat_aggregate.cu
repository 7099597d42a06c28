#include "ugnn/gat_aggregate.cuh"
#include "ugnn/launch.cuh"

namespace ugnn::cuda {
namespace {

template <class Op, int kVec>
int run_heads(const Launch& launch, const typename Op::Args* calls, int count) {
  const OnDevice on(launch.device);
  if (on.error) return on.error;
  for (int k = 0; k < count; ++k) {
    typename Op::Args a = calls[k];
    share_heads<Op>(a, kVec);
    if (const int error = run_call<Op>(launch, a)) return error;
  }
  return 0;
}

}  // namespace

int gat_aggregate_fwd(const Launch& launch, const GatAggregateFwdArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        good = good && fits<T>(vec, calls[k].columns, {calls[k].x, calls[k].y}, {calls[k].partial});
      }
      return good;
    };
    // 16 bytes of sums: those of 8 values would take more than 64 registers
    return for_vec<acc_of<T>>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return run_heads<GatAggregateFwd<T, kVec>, kVec>(launch, calls, count);
    });
  });
}

int gat_aggregate_bwd(const Launch& launch, const GatAggregateBwdArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        const GatAggregateBwdArgs& a = calls[k];
        good = good && fits<T>(vec, a.columns, {a.table, a.own, a.grad_x}, {a.partial});
      }
      return good;
    };
    // 16 bytes of sums: those of 8 values would take more than 64 registers
    return for_vec<acc_of<T>>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return calls[0].sends ? run_heads<GatAggregateBwd<T, kVec, true>, kVec>(launch, calls, count)
                            : run_heads<GatAggregateBwd<T, kVec, false>, kVec>(launch, calls, count);
    });
  });
}

}  // namespace ugnn::cuda
