// Submodule `cuda`: the CUDA kernels by address. A call is a tuple of the arguments of the Triton kernel of the same
// name, tensors as addresses and None for "none"; ugnn_fast/device/_cuda.py makes it. Shapes and types were checked
// before.
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "ugnn/cuda_ops.h"

namespace py = pybind11;
using namespace ugnn::cuda;

namespace {

// The values of a tuple, one after the other.
class Reader {
 public:
  explicit Reader(py::handle values) : values_(py::reinterpret_borrow<py::tuple>(values)) {}

  template <class T = void>
  T* pointer() {
    const py::handle value = take();
    return value.is_none() ? nullptr : reinterpret_cast<T*>(value.cast<uint64_t>());
  }
  template <class T = int32_t>
  T integer() {
    return T(take().cast<int64_t>());
  }
  double real() { return take().cast<double>(); }
  void end() const {
    if (at_ != values_.size()) throw std::invalid_argument("too many arguments for this kernel");
  }

 private:
  py::handle take() {
    if (at_ == values_.size()) throw std::invalid_argument("too few arguments for this kernel");
    return values_[at_++];
  }

  py::tuple values_;
  size_t at_ = 0;
};

// Members in braces are read in their order.
RowArgs rows(Reader& in) {
  return {in.pointer<int64_t>(),  in.pointer<int32_t>(), in.integer(),          in.integer(),
          in.integer(),           in.integer(),          in.pointer<int32_t>(), in.pointer<float>(),
          in.integer<uint64_t>(), in.integer<uint32_t>()};
}

ColumnArgs columns(Reader& in) { return {in.integer(), in.integer(), 0, 0}; }

CoefArgs coef(Reader& in) { return {in.pointer(), in.integer(), in.integer(), in.real()}; }

void read(Reader& in, StepArgs& a) {
  a = {rows(in),     in.pointer(), in.pointer(), in.integer(), in.integer(),     in.pointer(), in.pointer<int64_t>(),
       in.pointer(), in.pointer(), in.pointer(), coef(in),     coef(in),         coef(in),     coef(in),
       in.pointer(), in.pointer(), in.pointer(), in.real(),    in.real(),        in.pointer(), in.pointer(),
       in.pointer(), in.pointer(), in.pointer(), columns(in),  in.integer() != 0};
}

void read(Reader& in, AdaPropagateBwdArgs& a) {
  a = {rows(in),     in.pointer(), in.pointer(), in.integer(), in.integer(), in.pointer(), in.pointer(), in.pointer(),
       in.pointer(), in.pointer(), in.pointer(), in.pointer(), in.pointer(), in.pointer(), columns(in)};
}

void read(Reader& in, EdgeDotArgs& a) { a = {rows(in), in.pointer(), in.pointer(), in.pointer(), columns(in)}; }

// The rows of kernels that take no weights
RowArgs unweighted_rows(Reader& in) {
  return {in.pointer<int64_t>(), in.pointer<int32_t>(), in.integer(), in.integer(),           in.integer(),
          in.integer(),          in.pointer<int32_t>(), nullptr,      in.integer<uint64_t>(), in.integer<uint32_t>()};
}

// All of them, of a matrix that is no graph
RowArgs plain_rows(Reader& in) {
  return {in.pointer<int64_t>(),
          in.pointer<int32_t>(),
          in.integer(),
          in.integer(),
          in.integer(),
          in.integer(),
          in.pointer<int32_t>(),
          nullptr,
          0,
          0};
}

HeadArgs heads(Reader& in) {
  return {in.pointer<int64_t>(),
          in.integer<uint32_t>(),
          in.real(),
          in.real(),
          in.integer(),
          in.integer(),
          in.integer(),
          0,
          0,
          0,
          0};
}

ColumnArgs columns_of(const HeadArgs& heads) { return {heads.D, heads.H * heads.D, 0, 0}; }

void read(Reader& in, NeighborStatArgs& a) {
  a = {rows(in),     in.pointer(), in.pointer(), in.pointer(), in.pointer(),     in.pointer(),
       in.pointer(), in.real(),    in.pointer(), columns(in),  in.integer() != 0};
}

void read(Reader& in, NeighborVarBwdArgs& a) {
  a = {rows(in), in.pointer(), in.pointer(), in.pointer(), in.pointer(), in.pointer(), in.pointer(), columns(in)};
}

void read(Reader& in, EdgeEnergyArgs& a) {
  a = {rows(in), in.pointer(), in.pointer(), in.pointer(), in.pointer(), columns(in)};
}

void read(Reader& in, KeptDegreeArgs& a) { a = {rows(in), in.pointer<double>(), in.pointer(), {1, 1, 0, 0}}; }

void read(Reader& in, LocalSmoothnessArgs& a) {
  a = {unweighted_rows(in), in.pointer<int64_t>(), in.pointer<int32_t>(), in.pointer<float>(), {1, 1, 0, 0}};
}

void read(Reader& in, SparseLinearArgs& a) {
  a = {plain_rows(in),
       in.pointer(),
       in.pointer<int64_t>(),
       in.integer<uint32_t>(),
       in.real(),
       in.pointer(),
       in.integer<int64_t>(),
       in.pointer(),
       in.pointer(),
       in.pointer(),
       in.integer<int64_t>(),
       in.integer<int64_t>(),
       in.integer<int64_t>(),
       columns(in),
       in.integer() != 0};
}

void read(Reader& in, SparseDenseArgs& a) {
  a = {in.pointer<int64_t>(), in.pointer<int32_t>(),  in.pointer(),
       in.pointer<int64_t>(), in.integer<uint32_t>(), in.real(),
       in.pointer(),          in.integer<int64_t>(),  in.integer<int64_t>()};
}

void read(Reader& in, GatAggregateFwdArgs& a) {
  a = {unweighted_rows(in), heads(in),    in.pointer(), in.pointer(), in.pointer(),
       in.pointer(),        in.pointer(), in.pointer(), in.pointer(), {}};
  a.columns = columns_of(a.heads);
}

void read(Reader& in, GatAggregateBwdArgs& a) {
  a = {unweighted_rows(in), heads(in),    in.pointer(), in.pointer(),      in.pointer(),
       in.pointer(),        in.pointer(), in.pointer(), in.pointer(),      in.pointer(),
       in.pointer(),        in.pointer(), in.pointer(), in.integer() != 0, {}};
  a.columns = columns_of(a.heads);
}

void read(Reader& in, ResidualArgs& a) {
  a = {in.pointer(),         in.pointer(),          in.pointer(), in.pointer(), in.pointer(),
       in.pointer(),         in.pointer(),          in.integer(), in.integer(), in.pointer(),
       in.pointer<double>(), in.integer<int64_t>(), columns(in)};
}

void read(Reader& in, ProductsArgs& a) {
  a = {in.pointer(), in.pointer(),         in.pointer(),          in.integer(),
       in.integer(), in.pointer<double>(), in.integer<int64_t>(), columns(in)};
}

void read(Reader& in, UpdateArgs& a) {
  a = {in.pointer(), in.pointer(), in.pointer(), in.pointer(),         in.pointer(),          in.pointer(),
       in.integer(), in.integer(), in.pointer(), in.pointer<double>(), in.integer<int64_t>(), columns(in)};
}

void read(Reader& in, LengthsArgs& a) {
  a = {in.pointer<double>(), in.integer(),         in.pointer<double>(), in.pointer<int32_t>(),
       in.pointer(),         in.pointer<double>(), in.integer(),         in.integer() != 0};
}

template <class Args, int (*kRun)(const Launch&, const Args*, int, bool)>
void call(int dtype, int device, uint64_t stream, const py::list& calls, bool together) {
  std::vector<Args> read_calls(calls.size());
  for (size_t k = 0; k < calls.size(); ++k) {
    Reader in(calls[k]);
    read(in, read_calls[k]);
    in.end();
  }
  const Launch launch{ugnn::DType(dtype), device, reinterpret_cast<void*>(stream)};
  const int error = kRun(launch, read_calls.data(), int(read_calls.size()), together);
  if (error) throw std::runtime_error("CUDA error " + std::to_string(error) + ": " + error_text(error));
}

}  // namespace

void bind_cuda(py::module_& parent) {
  py::module_ m = parent.def_submodule("cuda", "CUDA kernels");
  m.attr("MAX_CALLS") = kMaxCalls;
  m.def("step", &call<StepArgs, &step>);
  m.def("ada_propagate_bwd", &call<AdaPropagateBwdArgs, &ada_propagate_bwd>);
  m.def("edge_dot", &call<EdgeDotArgs, &edge_dot>);
  m.def("neighbor_stat", &call<NeighborStatArgs, &neighbor_stat>);
  m.def("neighbor_var_bwd", &call<NeighborVarBwdArgs, &neighbor_var_bwd>);
  m.def("edge_energy", &call<EdgeEnergyArgs, &edge_energy>);
  m.def("kept_degree", &call<KeptDegreeArgs, &kept_degree>);
  m.def("local_smoothness", &call<LocalSmoothnessArgs, &local_smoothness>);
  m.def("sparse_linear", &call<SparseLinearArgs, &sparse_linear>);
  m.def("sparse_dense", &call<SparseDenseArgs, &sparse_dense>);
  m.def("gat_aggregate_fwd", &call<GatAggregateFwdArgs, &gat_aggregate_fwd>);
  m.def("gat_aggregate_bwd", &call<GatAggregateBwdArgs, &gat_aggregate_bwd>);
  m.def("residual", &call<ResidualArgs, &residual>);
  m.def("products", &call<ProductsArgs, &products>);
  m.def("update", &call<UpdateArgs, &update>);
  m.def("lengths", &call<LengthsArgs, &lengths>);
}
