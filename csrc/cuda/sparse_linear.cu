#include "ugnn/launch.cuh"
#include "ugnn/sparse_linear.cuh"

namespace ugnn::cuda {

int sparse_linear(const Launch& launch, const SparseLinearArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) {
        const SparseLinearArgs& a = calls[k];
        good = good && fits<T>(vec, a.columns, {a.table, a.bias, a.out}, {a.partial});
        // strides that are not those of a row of R D columns are multiples of D
        good = good && a.table_row % vec == 0 && a.out_row % vec == 0;
      }
      return good;
    };
    return for_vec<T>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      return run_apart<SparseLinear<T, kVec>, kVec>(launch, calls, count);
    });
  });
}

int sparse_dense(const Launch& launch, const SparseDenseArgs* calls, int count, bool) {
  return for_type(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const OnDevice on(launch.device);
    if (on.error) return on.error;
    for (int k = 0; k < count; ++k) {
      const int64_t blocks = blocks_for(calls[k].num_rows);
      if (blocks == 0) continue;
      if (const int error = launch_grid(sparse_dense_kernel<T>, blocks, launch.stream, calls[k])) return error;
    }
    return 0;
  });
}

}  // namespace ugnn::cuda
