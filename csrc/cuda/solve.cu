#include "ugnn/launch.cuh"
#include "ugnn/solve.cuh"

namespace ugnn::cuda {
namespace {

// body(T{}) for the type of sums
template <class Body>
int for_sums(DType dtype, Body body) {
  switch (dtype) {
    case DType::kFloat:
      return body(float{});
    case DType::kDouble:
      return body(double{});
    default:
      return cudaErrorInvalidValue;
  }
}

// fits_call(T{}, vec, a): whether the tables of a call can be read in vectors
template <template <class, int> class Op, class Args, class Fits>
int run_vectors(const Launch& launch, const Args* calls, int count, Fits fits_call) {
  const OnDevice on(launch.device);
  if (on.error) return on.error;
  return for_sums(launch.dtype, [&](auto type) {
    using T = decltype(type);
    const auto all_fit = [&](int vec) {
      bool good = true;
      for (int k = 0; k < count; ++k) good = good && fits_call(type, vec, calls[k]);
      return good;
    };
    return for_vec<T>(all_fit, [&](auto vec) {
      constexpr int kVec = vec;
      for (int k = 0; k < count; ++k) {
        Args a = calls[k];
        share_columns(a.columns, kVec);
        const int64_t blocks = (a.N + kSumRows - 1) / kSumRows * column_blocks(a.columns);
        if (blocks == 0) continue;
        if (const int error = launch_grid(vectors_kernel<Op, T, kVec>, blocks, launch.stream, a)) return error;
      }
      return 0;
    });
  });
}

}  // namespace

int residual(const Launch& launch, const ResidualArgs* calls, int count, bool) {
  return run_vectors<Residual>(launch, calls, count, [](auto type, int vec, const ResidualArgs& a) {
    return fits<decltype(type)>(vec, a.columns, {a.x, a.scale, a.q, a.r, a.p}, {a.sums});
  });
}

int products(const Launch& launch, const ProductsArgs* calls, int count, bool) {
  return run_vectors<Products>(launch, calls, count, [](auto type, int vec, const ProductsArgs& a) {
    return fits<decltype(type)>(vec, a.columns, {a.p, a.q}, {a.sums});
  });
}

int update(const Launch& launch, const UpdateArgs* calls, int count, bool) {
  return run_vectors<Update>(launch, calls, count, [](auto type, int vec, const UpdateArgs& a) {
    return fits<decltype(type)>(vec, a.columns, {a.lengths, a.u, a.r, a.p, a.q}, {a.sums});
  });
}

int lengths(const Launch& launch, const LengthsArgs* calls, int count, bool) {
  const OnDevice on(launch.device);
  if (on.error) return on.error;
  return for_sums(launch.dtype, [&](auto type) {
    for (int k = 0; k < count; ++k) {
      const int64_t blocks = (calls[k].width + kLengthsColumns - 1) / kLengthsColumns;
      if (blocks == 0) continue;
      if (const int error = launch_grid(lengths_kernel<decltype(type)>, blocks, launch.stream, calls[k])) return error;
    }
    return 0;
  });
}

}  // namespace ugnn::cuda
