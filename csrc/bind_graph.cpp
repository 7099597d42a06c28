// Python bindings of graph building: numpy arrays in and out, the GIL released in between.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "ugnn/graph_build.h"

namespace py = pybind11;

namespace {

template <typename T>
bool has_type(const py::array& array) {
  return py::isinstance<py::array_t<T>>(array);
}

int64_t length_of(const py::array& array, const char* name) {
  if (array.ndim() == 1) return array.shape(0);
  throw std::invalid_argument(std::string(name) + " must have 1 dimension, got " + std::to_string(array.ndim()));
}

template <typename T>
ugnn::Strided<T> strided(const py::array& array) {
  // an array without elements may have no address, but a Strided without one means "not given"
  const void* data = array.size() ? array.data() : "";
  return {static_cast<const char*>(data), static_cast<int64_t>(array.strides(0))};
}

template <typename T>
py::array_t<T> to_numpy(ugnn::Buffer<T>&& buffer) {
  if (!buffer.data) return py::array_t<T>(0);
  T* data = buffer.data.release();
  py::capsule owner(data, [](void* p) { delete[] static_cast<T*>(p); });
  return py::array_t<T>(buffer.size, data, owner);
}

// f(index_t{}) for the integer type of col.
template <typename F>
auto with_index_type(const py::array& col, F f) {
  if (has_type<int32_t>(col)) return f(int32_t{});
  if (has_type<int64_t>(col)) return f(int64_t{});
  throw std::invalid_argument("col must be int32 or int64");
}

template <typename Edges>
py::tuple build(const Edges& edges, const py::object& weight, const ugnn::BuildOptions& options) {
  auto run = [&](auto values) {
    py::gil_scoped_release release;
    return ugnn::build_graph(edges, values, options);
  };
  ugnn::BuiltGraph graph;
  if (weight.is_none()) {
    graph = run(ugnn::Strided<float>{});
  } else {
    const auto values = py::cast<py::array>(weight);
    if (length_of(values, Edges::kWeight) != edges.M) {
      throw std::invalid_argument(std::string(Edges::kWeight) + " must be [" + std::to_string(edges.M) + "], got [" +
                                  std::to_string(values.shape(0)) + "]");
    }
    if (has_type<float>(values)) {
      graph = run(strided<float>(values));
    } else if (has_type<double>(values)) {
      graph = run(strided<double>(values));
    } else {
      throw std::invalid_argument(std::string(Edges::kWeight) + " must be float32 or float64");
    }
  }
  py::object out_weight = py::none();
  if (graph.weight.data) out_weight = to_numpy(std::move(graph.weight));
  return py::make_tuple(to_numpy(std::move(graph.rowptr)), to_numpy(std::move(graph.col)), out_weight,
                        to_numpy(std::move(graph.degree)));
}

template <typename index_t>
ugnn::CooEdges<index_t> coo_edges(const py::array& row, const py::array& col) {
  if (length_of(row, "row") != length_of(col, "col")) {
    throw std::invalid_argument("row and col must have the same length, got " + std::to_string(row.shape(0)) + " and " +
                                std::to_string(col.shape(0)));
  }
  if (!has_type<index_t>(row)) throw std::invalid_argument("row and col must have the same dtype");
  return {col.shape(0), strided<index_t>(row), strided<index_t>(col)};
}

py::tuple build_coo(const py::array& row, const py::array& col, const py::object& weight, int64_t num_nodes,
                    bool self_loops, bool symmetrize, int threads) {
  return with_index_type(col, [&](auto zero) {
    return build(coo_edges<decltype(zero)>(row, col), weight, {num_nodes, self_loops, symmetrize, threads});
  });
}

using RowPtr = py::array_t<int64_t, py::array::c_style>;
using Columns = py::array_t<int32_t, py::array::c_style>;
using Weights = py::array_t<float, py::array::c_style>;

// [N + 1] -> N
int64_t num_rows(const RowPtr& rowptr) {
  const int64_t length = length_of(rowptr, "rowptr");
  if (length == 0) throw std::invalid_argument("rowptr must be [N + 1], got [0]");
  return length - 1;
}

py::tuple build_csr(const RowPtr& rowptr, const py::array& col, const py::object& weight, bool self_loops,
                    bool symmetrize, int threads) {
  const int64_t N = num_rows(rowptr), M = length_of(col, "col");
  return with_index_type(col, [&](auto zero) {
    using index_t = decltype(zero);
    const ugnn::CsrEdges<index_t> edges{M, N, rowptr.data(), strided<index_t>(col)};
    return build(edges, weight, {N, self_loops, symmetrize, threads});
  });
}

// rowptr and col of a built graph: what they hold is trusted, their sizes are not.
int64_t check_built(const RowPtr& rowptr, const Columns& col) {
  const int64_t N = num_rows(rowptr);
  if (length_of(col, "col") != rowptr.at(N)) {
    throw std::invalid_argument("col must be [E] = [" + std::to_string(rowptr.at(N)) + "], got [" +
                                std::to_string(col.shape(0)) + "]");
  }
  return N;
}

// order, rowptr, col, weight or None
py::tuple near_arrays(ugnn::NearForm form) {
  py::object weight = py::none();
  if (form.weight.data) weight = to_numpy(std::move(form.weight));
  return py::make_tuple(to_numpy(std::move(form.order)), to_numpy(std::move(form.rowptr)),
                        to_numpy(std::move(form.col)), weight);
}

// make(weights, N) for the arrays of a built graph
template <class Make>
auto of_built(const RowPtr& rowptr, const Columns& col, const py::object& weight, Make make) {
  const int64_t N = check_built(rowptr, col);
  Weights weights;
  if (!weight.is_none()) weights = py::cast<Weights>(weight);
  const float* values = weight.is_none() ? nullptr : weights.data();
  py::gil_scoped_release release;
  return make(values, N);
}

py::tuple row_plan(const RowPtr& rowptr, const Columns& col, const py::object& weight, int threads) {
  ugnn::RowPlan plan = of_built(rowptr, col, weight, [&](const float* values, int64_t N) {
    return ugnn::row_plan(rowptr.data(), col.data(), values, N, threads);
  });
  return py::make_tuple(to_numpy(std::move(plan.hubs))) + near_arrays(std::move(plan.near));
}

py::tuple near_by_community(const RowPtr& rowptr, const Columns& col, const py::object& weight, int threads) {
  return near_arrays(of_built(rowptr, col, weight, [&](const float* values, int64_t N) {
    return ugnn::near_by_community(rowptr.data(), col.data(), values, N, threads);
  }));
}

py::array_t<int32_t> community_order(const RowPtr& rowptr, const Columns& col, int threads) {
  return to_numpy(of_built(rowptr, col, py::none(), [&](const float*, int64_t N) {
    return ugnn::community_order(rowptr.data(), col.data(), N, threads);
  }));
}

py::array_t<int64_t> reverse(const RowPtr& rowptr, const Columns& col) {
  const int64_t N = check_built(rowptr, col);
  ugnn::Buffer<int64_t> entries;
  {
    py::gil_scoped_release release;
    entries = ugnn::reverse_entries(rowptr.data(), col.data(), N);
  }
  return to_numpy(std::move(entries));
}

py::array_t<int64_t> find_entries(const RowPtr& rowptr, const Columns& col, const py::array& pair_row,
                                  const py::array& pair_col, int threads) {
  const int64_t N = check_built(rowptr, col);
  return with_index_type(pair_col, [&](auto zero) {
    const auto pairs = coo_edges<decltype(zero)>(pair_row, pair_col);
    ugnn::Buffer<int64_t> entries;
    {
      py::gil_scoped_release release;
      entries = ugnn::find_entries(rowptr.data(), col.data(), N, pairs, threads);
    }
    return to_numpy(std::move(entries));
  });
}

}  // namespace

void bind_graph(py::module_& m) {
  using py::arg;
  m.def("build_coo", &build_coo, arg("row"), arg("col"), arg("weight").none(true), arg("num_nodes"), arg("self_loops"),
        arg("symmetrize"), arg("threads"), "-> rowptr, col, weight or None, degree");
  m.def("build_csr", &build_csr, arg("rowptr"), arg("col"), arg("weight").none(true), arg("self_loops"),
        arg("symmetrize"), arg("threads"), "-> rowptr, col, weight or None, degree");
  m.def("row_plan", &row_plan, arg("rowptr"), arg("col"), arg("weight").none(true), arg("threads") = 1,
        "-> hubs, order, near_rowptr, near_col, near_weight or None");
  m.def("near_by_community", &near_by_community, arg("rowptr"), arg("col"), arg("weight").none(true),
        arg("threads") = 1, "-> order, near_rowptr, near_col, near_weight or None; empty where it brings nothing");
  m.def("community_order", &community_order, arg("rowptr"), arg("col"), arg("threads") = 1,
        "nodes that know each other side by side");
  m.def("reverse", &reverse, arg("rowptr"), arg("col"), "entry of (j, i) for each entry (i, j)");
  m.def("find_entries", &find_entries, arg("rowptr"), arg("col"), arg("pair_row"), arg("pair_col"), arg("threads") = 1,
        "entry of each pair, -1 where there is none");
}
