// Chooses among the kernel libraries of the instruction sets, once.
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "ugnn/ops.h"

namespace ugnn {
// one table per instruction set that was compiled (csrc/cpu/table.cpp)
namespace base {
extern const KernelTable table;
}
namespace avx2 {
extern const KernelTable table;
}
namespace avx512 {
extern const KernelTable table;
}

namespace {

const KernelTable& choose() {
  const char* wanted = std::getenv("UGNN_ISA");
  const bool any = !wanted || !*wanted;
#if defined(UGNN_HAS_avx512)
  const bool runs_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool runs_avx512 = runs_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  if (runs_avx512 && (any || !std::strcmp(wanted, "avx512"))) return avx512::table;
  if (runs_avx2 && (any || !std::strcmp(wanted, "avx2"))) return avx2::table;
#endif
  if (any || !std::strcmp(wanted, "base")) return base::table;
  throw std::runtime_error(std::string("UGNN_ISA must be base, avx2 or avx512 and run on this CPU, got ") + wanted);
}

}  // namespace

const KernelTable& kernels() {
  static const KernelTable& table = choose();
  return table;
}

}  // namespace ugnn
