// pybind11 module ugnn_fast._C: graph building on numpy arrays, and the kernels by address.
//
// Addresses arrive as integers from Tensor.data_ptr(), 0 for "none"; ugnn_fast/ops has checked shapes, dtypes and
// devices before. The GIL is released while a kernel runs.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "ugnn/ops.h"
#include "ugnn/pool.h"

namespace py = pybind11;
using namespace ugnn;

void bind_graph(py::module_& m);  // bind_graph.cpp
#ifdef UGNN_HAS_CUDA
void bind_cuda(py::module_& m);  // bind_cuda.cpp
#endif

namespace {

template <class T = void>
T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

Csr csr(uint64_t rowptr, uint64_t col, uint64_t weight, uint64_t degree, uint64_t hubs, uint64_t order,
        uint64_t near_rowptr, uint64_t near_col, uint64_t near_weight, int64_t N, int64_t E, int64_t H, int64_t near,
        int64_t drop_seed, int64_t keep_from) {
  return Csr{at<int64_t>(rowptr),
             at<int32_t>(col),
             at<float>(weight),
             at<float>(degree),
             at<int32_t>(hubs),
             near ? at<int32_t>(order) : nullptr,
             at<int64_t>(near_rowptr),
             at<int32_t>(near_col),
             at<float>(near_weight),
             N,
             E,
             H,
             uint64_t(drop_seed),
             uint32_t(keep_from)};
}

CoefView coef(uint64_t values, int64_t row_stride, int64_t step_stride, double scale) {
  return CoefView{at(values), row_stride, step_stride, scale};
}

int64_t ada_propagate_forward(const Csr& g, int dtype, int threads, int64_t R, int64_t D, int64_t K, uint64_t x,
                              uint64_t c, double c_value, int64_t RC, bool check, uint64_t h, uint64_t b, uint64_t u,
                              int64_t every, uint64_t s) {
  AdaPropagateForward a{g,       DType(dtype), threads, R,     D,     K,     at(x), at(c),
                        c_value, RC,           check,   at(h), at(b), at(u), every, at(s)};
  py::gil_scoped_release release;
  kernels().ada_propagate_forward(a);
  return a.bad_c;
}

void ada_propagate_backward(const Csr& g, int dtype, int threads, int64_t R, int64_t D, int64_t K, uint64_t x,
                            uint64_t grad_h, uint64_t h, uint64_t c, int64_t RC, uint64_t b, uint64_t u, int64_t every,
                            uint64_t s, uint64_t grad_x, uint64_t grad_c) {
  const AdaPropagateBackward a{g,     DType(dtype), threads, R,     D,     K,     at(x),      at(grad_h), at(h),
                               at(c), RC,           at(b),   at(u), every, at(s), at(grad_x), at(grad_c)};
  py::gil_scoped_release release;
  kernels().ada_propagate_backward(a);
}

void propagate_forward(const Csr& g, int dtype, int threads, int64_t R, int64_t D, int64_t K, uint64_t x, uint64_t c,
                       int64_t RC, uint64_t edge, uint64_t reverse, int norm, uint64_t left, uint64_t right,
                       const CoefView& agg, const CoefView& skip, const CoefView& keep, const CoefView& prev,
                       bool clamped, double lo, double hi, uint64_t gamma, uint64_t last, uint64_t all,
                       uint64_t total) {
  const PropagateForward a{
      g,          DType(dtype), threads,   R,   D,    K,    at(x), at(c),   RC, at(edge), at<int64_t>(reverse),
      Norm(norm), at(left),     at(right), agg, skip, keep, prev,  clamped, lo, hi,       at(gamma),
      at(last),   at(all),      at(total)};
  py::gil_scoped_release release;
  kernels().propagate_forward(a);
}

void neighbor_stat(const Csr& g, int dtype, int threads, int64_t R, int64_t D, uint64_t x, uint64_t mean, uint64_t var,
                   uint64_t weight, uint64_t bias, bool of_mean, double s, uint64_t c) {
  const NeighborStat a{g,       DType(dtype), threads,  R,       D, at(x), at(mean),
                       at(var), at(weight),   at(bias), of_mean, s, at(c)};
  py::gil_scoped_release release;
  kernels().neighbor_stat(a);
}

void neighbor_var_backward(const Csr& g, int dtype, int threads, int64_t R, int64_t D, uint64_t x, uint64_t mean,
                           uint64_t grad, uint64_t grad_x) {
  const NeighborVarBackward a{g, DType(dtype), threads, R, D, at(x), at(mean), at(grad), at(grad_x)};
  py::gil_scoped_release release;
  kernels().neighbor_var_backward(a);
}

void gat_aggregate_forward(const Csr& g, int dtype, int threads, int64_t H, int64_t D, uint64_t x, uint64_t src,
                           uint64_t dst, double slope, double drop, uint64_t seeds, int64_t R, uint64_t y,
                           uint64_t lse) {
  const GatAggregateForward a{g,    DType(dtype),       threads, H,     D,      at(x), at(src), at(dst), slope,
                              drop, at<int64_t>(seeds), R,       at(y), at(lse)};
  py::gil_scoped_release release;
  kernels().gat_aggregate_forward(a);
}

void gat_aggregate_backward(const Csr& g, int dtype, int threads, int64_t H, int64_t D, uint64_t x, uint64_t src,
                            uint64_t dst, uint64_t lse, double slope, double drop, uint64_t seeds, int64_t R,
                            uint64_t grad, uint64_t grad_x, uint64_t grad_src, uint64_t grad_dst) {
  const GatAggregateBackward a{
      g,    DType(dtype),       threads, H,        D,          at(x),        at(src),     at(dst), at(lse), slope,
      drop, at<int64_t>(seeds), R,       at(grad), at(grad_x), at(grad_src), at(grad_dst)};
  py::gil_scoped_release release;
  kernels().gat_aggregate_backward(a);
}

void local_smoothness(const Csr& g, int threads, uint64_t labels, uint64_t out) {
  const LocalSmoothness a{g, threads, at<int64_t>(labels), at<float>(out)};
  py::gil_scoped_release release;
  kernels().local_smoothness(a);
}

void kept_degree(const Csr& g, int threads, uint64_t degree) {
  const KeptDegree a{g, threads, at<float>(degree)};
  py::gil_scoped_release release;
  kernels().kept_degree(a);
}

void denoising_energy(const Csr& g, int dtype, int threads, int64_t R, int64_t D, uint64_t f, uint64_t out) {
  const DenoisingEnergy a{g, DType(dtype), threads, R, D, at(f), at(out)};
  py::gil_scoped_release release;
  kernels().denoising_energy(a);
}

void edge_dot(const Csr& g, int dtype, int threads, int64_t D, uint64_t v, uint64_t u, uint64_t out) {
  const EdgeDot a{g, DType(dtype), threads, D, at(v), at(u), at(out)};
  py::gil_scoped_release release;
  kernels().edge_dot(a);
}

void row_sum(int dtype, int threads, int64_t N, int64_t D, uint64_t values, uint64_t out) {
  const RowSum a{DType(dtype), threads, N, D, at(values), at(out)};
  py::gil_scoped_release release;
  kernels().row_sum(a);
}

py::tuple solve(const Csr& g, int dtype, int threads, int64_t R, int64_t D, uint64_t x, uint64_t diag,
                double diag_value, int64_t RD, uint64_t c, int64_t RC, uint64_t edge, double scale, bool sym,
                double tol, int64_t max_iter, uint64_t f) {
  Solve a{g,     DType(dtype), threads,  R,     D,   at(x), at(diag), diag_value, RD,
          at(c), RC,           at(edge), scale, sym, tol,   max_iter, at(f)};
  {
    py::gil_scoped_release release;
    kernels().solve(a);
  }
  return py::make_tuple(a.iterations, a.residual, a.curvature);
}

SparseRows sparse_rows(uint64_t rowptr, uint64_t col, uint64_t values, int64_t N, int64_t M, int64_t E) {
  return SparseRows{at<int64_t>(rowptr), at<int32_t>(col), at(values), N, M, E};
}

void sparse_linear(const SparseRows& x, bool transposed, int dtype, int threads, int64_t R, int64_t D, uint64_t table,
                   int64_t table_row, int64_t table_replica, uint64_t bias, double drop, uint64_t seeds, uint64_t out,
                   int64_t out_row, int64_t out_replica) {
  const SparseLinear a{x,    transposed,         DType(dtype), threads,       R,
                       D,    at(table),          table_row,    table_replica, at(bias),
                       drop, at<int64_t>(seeds), at(out),      out_row,       out_replica};
  py::gil_scoped_release release;
  kernels().sparse_linear(a);
}

void sparse_dense(const SparseRows& x, int dtype, int threads, double drop, uint64_t seed, uint64_t out) {
  const SparseDense a{x, DType(dtype), threads, drop, at<int64_t>(seed), at(out)};
  py::gil_scoped_release release;
  kernels().sparse_dense(a);
}

void dropout(int dtype, int threads, int64_t N, int64_t R, int64_t F, uint64_t x, double drop, uint64_t seeds,
             uint64_t out) {
  const Dropout a{DType(dtype), threads, N, R, F, at(x), drop, at<int64_t>(seeds), at(out)};
  py::gil_scoped_release release;
  kernels().dropout(a);
}

void dropout_linear(int dtype, int threads, int64_t N, int64_t R, int64_t F, int64_t D, uint64_t x, uint64_t weight,
                    uint64_t bias, bool relu, double drop, uint64_t seeds, uint64_t grad, uint64_t out,
                    uint64_t grad_weight, uint64_t grad_bias) {
  const DropoutLinear a{DType(dtype),
                        threads,
                        N,
                        R,
                        F,
                        D,
                        at(x),
                        at(weight),
                        at(bias),
                        relu,
                        drop,
                        at<int64_t>(seeds),
                        at(grad),
                        at(out),
                        at(grad_weight),
                        at(grad_bias)};
  py::gil_scoped_release release;
  kernels().dropout_linear(a);
}

// An array of bytes from the pool, which goes back there when nothing refers to it any more.
py::array_t<uint8_t> take(size_t bytes) {
  struct Owned {
    void* data;
    size_t bytes;
  };
  auto* owned = new Owned{pool_take(bytes), bytes};
  py::capsule owner(owned, [](void* p) {
    auto* block = static_cast<Owned*>(p);
    pool_give(block->data, block->bytes);
    delete block;
  });
  return py::array_t<uint8_t>(bytes, static_cast<uint8_t*>(owned->data), owner);
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native kernels of ugnn_fast; private, see ugnn_fast.functional.";
  py::class_<Csr>(m, "Csr").def(py::init(&csr));
  py::class_<CoefView>(m, "Coef").def(py::init(&coef));
  py::class_<SparseRows>(m, "SparseRows").def(py::init(&sparse_rows));
  m.def("isa", [] { return kernels().name; }, "instruction set of the kernels in use");
  m.def("padded_width",
        [](int dtype, int64_t D, bool narrow) { return kernels().padded_width(DType(dtype), D, narrow); });
  m.def("take", &take);
  m.def("pool_clear", &pool_clear);
  m.def("pool_bytes", &pool_bytes);
  m.def("ada_propagate_forward", &ada_propagate_forward);
  m.def("ada_propagate_backward", &ada_propagate_backward);
  m.def("propagate_forward", &propagate_forward);
  m.def("neighbor_stat", &neighbor_stat);
  m.def("neighbor_var_backward", &neighbor_var_backward);
  m.def("gat_aggregate_forward", &gat_aggregate_forward);
  m.def("gat_aggregate_backward", &gat_aggregate_backward);
  m.def("local_smoothness", &local_smoothness);
  m.def("kept_degree", &kept_degree);
  m.def("denoising_energy", &denoising_energy);
  m.def("edge_dot", &edge_dot);
  m.def("row_sum", &row_sum);
  m.def("solve", &solve);
  m.def("sparse_linear", &sparse_linear);
  m.def("sparse_dense", &sparse_dense);
  m.def("dropout", &dropout);
  m.def("dropout_linear", &dropout_linear);
  bind_graph(m);
#ifdef UGNN_HAS_CUDA
  bind_cuda(m);
#endif
}
