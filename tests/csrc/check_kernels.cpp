// Builds a graph, propagates through the installed library and compares with dense loops; returns the number of errors.
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <vector>

#include "ugnn/graph_build.h"
#include "ugnn/ops.h"
#include "ugnn/pool.h"

namespace {

constexpr int64_t kN = 40, kD = 5, kSteps = 3;
int errors = 0;

void expect(bool right, const char* what) {
  if (right) return;
  std::printf("wrong: %s\n", what);
  ++errors;
}

// numbers in [0, 1)
struct Random {
  uint64_t state = 1;
  double operator()() {
    return double((state = state * 6364136223846793005u + 1442695040888963407u) >> 33) / (1u << 31);
  }
};

using Matrix = std::vector<std::vector<double>>;

// H <- 2 b X + b W H, W_ij = a_ij (c_i + c_j) / sqrt(d_i d_j), b_i = 1 / (2 + c_i + sum_j a_ij c_j / d_i)
Matrix dense_steps(const Matrix& a, const Matrix& x, const std::vector<double>& c) {
  std::vector<double> d(kN, 0), m(kN, 0);
  for (int64_t i = 0; i < kN; ++i) {
    for (int64_t j = 0; j < kN; ++j) d[i] += a[i][j], m[i] += a[i][j] * c[j];
  }
  Matrix h = x;
  for (int64_t k = 0; k < kSteps; ++k) {
    Matrix next(kN, std::vector<double>(kD));
    for (int64_t i = 0; i < kN; ++i) {
      const double b = 1 / (2 + c[i] + m[i] / d[i]);
      for (int64_t q = 0; q < kD; ++q) {
        double sum = 2 * x[i][q];
        for (int64_t j = 0; j < kN; ++j) sum += a[i][j] * (c[i] + c[j]) / std::sqrt(d[i] * d[j]) * h[j][q];
        next[i][q] = b * sum;
      }
    }
    h = next;
  }
  return h;
}

template <typename T>
double largest_error(int threads, ugnn::DType dtype, const ugnn::Csr& g, const Matrix& x, const std::vector<double>& c,
                     const Matrix& expected) {
  std::vector<T> flat(kN * kD), weights(c.begin(), c.end()), h(kN * kD), b(kN);
  for (int64_t i = 0; i < kN * kD; ++i) flat[i] = T(x[i / kD][i % kD]);
  ugnn::AdaPropagateForward a{};
  a.g = g;
  a.dtype = dtype;
  a.threads = threads;
  a.R = 1, a.D = kD, a.K = kSteps;
  a.x = flat.data();
  a.c = weights.data();
  a.RC = 1;
  a.check = true;
  a.h = h.data();
  a.b = b.data();
  ugnn::kernels().ada_propagate_forward(a);
  expect(a.bad_c == -1, "no value of c is bad");
  double error = 0;
  for (int64_t i = 0; i < kN * kD; ++i) error = std::max(error, std::abs(double(h[i]) - expected[i / kD][i % kD]));

  weights[7] = -1;
  ugnn::kernels().ada_propagate_forward(a);
  expect(a.bad_c == 7, "a negative c is found");
  return error;
}

}  // namespace

int main() {
  Random random;
  std::vector<int32_t> row, col;
  std::vector<double> weight;
  Matrix a(kN, std::vector<double>(kN, 0)), x(kN, std::vector<double>(kD));
  for (int64_t i = 0; i < kN; ++i) a[i][i] = 1;
  for (int32_t i = 0; i < kN; ++i) {
    for (int32_t j = 0; j < i; ++j) {
      if (random() > 0.15) continue;
      row.push_back(i), col.push_back(j), weight.push_back(float(0.5 + random()));
      a[i][j] = a[j][i] = weight.back();
    }
  }
  std::vector<double> c(kN);
  for (auto& value : c) value = 5 * random();
  for (auto& line : x) {
    for (auto& value : line) value = random() - 0.5;
  }

  const int64_t M = row.size();
  const auto bytes = [](const auto& values) { return reinterpret_cast<const char*>(values.data()); };
  const ugnn::CooEdges<int32_t> edges{M, {bytes(row), sizeof row[0]}, {bytes(col), sizeof col[0]}};
  const ugnn::Strided<double> weights{bytes(weight), sizeof weight[0]};
  const ugnn::BuiltGraph built = ugnn::build_graph(edges, weights, {kN, true, true, 2});
  const ugnn::RowPlan plan =
      ugnn::row_plan(built.rowptr.data.get(), built.col.data.get(), built.weight.data.get(), kN, 2);
  const ugnn::Csr g = ugnn::csr_of(built, plan);
  expect(g.E == 2 * M + kN, "both directions and loops are stored");

  const Matrix expected = dense_steps(a, x, c);
  for (const int threads : {1, 2}) {
    expect(largest_error<double>(threads, ugnn::DType::kDouble, g, x, c, expected) < 1e-13, "double");
    expect(largest_error<float>(threads, ugnn::DType::kFloat, g, x, c, expected) < 1e-5, "float");
  }

  col[0] = kN;
  bool thrown = false;
  try {
    ugnn::build_graph(edges, weights, {kN, true, true, 2});
  } catch (const std::invalid_argument&) {
    thrown = true;
  }
  expect(thrown, "an id beyond the nodes is refused");
  ugnn::pool_clear();
  expect(ugnn::pool_bytes() == 0, "the pool is empty");
  std::printf("%s: %d errors\n", ugnn::kernels().name, errors);
  return errors;
}
