// pybind11 module: the CUDA kernels on the emulator, with the functions of ugnn_fast._C.cuda.
#include <pybind11/pybind11.h>

#include "fibers.h"
#include "selftest.h"
#include "ugnn/cuda_ops.h"

namespace py = pybind11;

void bind_cuda(py::module_& m);  // csrc/bind_cuda.cpp
#ifdef UGNN_TRACED
void bind_trace(py::module_& m);  // trace.cpp
#endif

namespace ugnn::cuda {

const char* error_text(int error) { return error == cudaErrorInvalidValue ? "invalid value" : "invalid configuration"; }

}  // namespace ugnn::cuda

PYBIND11_MODULE(UGNN_MODULE, m) {
  bind_cuda(m);
  m.def("set_seed", [](uint64_t seed) { emulator::seed = seed; }, "of the schedule of the next launches");
  m.def("block_sums", [](uint64_t in, uint64_t out, int blocks, int stride, bool barrier) {
    block_sums(reinterpret_cast<const float*>(in), reinterpret_cast<float*>(out), blocks, stride, barrier);
  });
  m.def("half_waits", &half_waits);
#ifdef UGNN_TRACED
  bind_trace(m);
#endif
}
