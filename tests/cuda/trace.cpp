// Every load and store of a kernel: bounds, races, sectors.
//
// The kernels are compiled with -fsanitize=thread, and the calls that this puts before every access come here, not to
// the library of that option. An access is fine if it lies in an argument of the launch or in shared memory, and if
// what others did to the same bytes was before it: by the same thread, before a collective of the warp, a barrier of
// the block, or one of the grid. Sectors are the aligned 32 bytes of memory that an instruction of a warp touches: what
// a GPU requests from its cache. The instructions are those of g++, so their number means nothing.
#include <pthread.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <set>
#include <unordered_map>

#include "fibers.h"

namespace py = pybind11;

namespace emulator {
namespace {

constexpr uintptr_t kSector = 32;
constexpr uintptr_t kGranule = 2;  // bytes that a race is noted for together
constexpr int kLanes = 32, kBanks = 32;

struct Buffer {
  uintptr_t begin, end;
  std::string name;
};

struct Access {
  int64_t block = -1;
  unsigned thread, barriers, grid_barriers, collectives;
};

struct Shadow {
  Access written, read;
};

// What the lanes of a warp did at one place of the code.
struct Instruction {
  bool store;
  int buffer;  // -1: shared memory
  std::vector<std::pair<uintptr_t, int>> accesses;
};

struct Traffic {
  int64_t instructions = 0, sectors = 0, bytes = 0;
};

class Tracer : public Observer {
 public:
  std::vector<Buffer> buffers;
  std::map<std::pair<std::string, bool>, Traffic> traffic;  // by buffer, and whether it was stored to
  std::vector<std::string> errors;
  int64_t num_errors = 0, shared_instructions = 0, shared_waves = 0;

  void launch_begins() override {
    shadow_.clear();
    warps_.clear();
    pthread_attr_t attributes;
    void* bottom;
    size_t size;
    pthread_getattr_np(pthread_self(), &attributes);
    pthread_attr_getstack(&attributes, &bottom, &size);
    pthread_attr_destroy(&attributes);
    host_stack_ = {uintptr_t(bottom), uintptr_t(bottom) + size, ""};
  }

  void collective(Block& block, unsigned warp) override { count(warps_[{block.index, warp}]); }

  void block_ends(Block& block) override {
    for (unsigned warp = 0; warp * kLanes < block.threads.size(); ++warp) count(warps_[{block.index, warp}]);
  }

  void access(const void* address, int bytes, bool store, const void* place) {
    const Thread* thread = current;
    if (!thread) return;
    const uintptr_t begin = uintptr_t(address), end = begin + uintptr_t(bytes);
    if (inside(uintptr_t(thread->stack), uintptr_t(thread->stack) + kStack, begin, end)) return;
    // arguments of the launch
    if (inside(host_stack_.begin, host_stack_.end, begin, end)) return;
    current = nullptr;
    const std::string outside = note(*thread, begin, end, store, place);
    current = const_cast<Thread*>(thread);
    // what lies there may be anything, even an address that does not exist
    if (!outside.empty()) abandon(outside);
  }

 private:
  static bool inside(uintptr_t low, uintptr_t high, uintptr_t begin, uintptr_t end) {
    return begin >= low && end <= high;
  }

  void error(const std::string& what, const Thread& thread) {
    if (num_errors++ < 10) {
      errors.push_back(what + ", thread " + std::to_string(thread.index) + " of block " +
                       std::to_string(thread.block->index));
    }
  }

  // What is wrong if the access is out of bounds.
  std::string note(const Thread& thread, uintptr_t begin, uintptr_t end, bool store, const void* place) {
    int buffer = -1;
    bool shared = false;
    for (size_t k = 0; k < buffers.size() && buffer < 0; ++k) {
      if (inside(buffers[k].begin, buffers[k].end, begin, end)) buffer = int(k);
    }
    for (const auto& [site, memory] : thread.block->shared) {
      const uintptr_t low = uintptr_t(memory.get());
      shared = shared || inside(low, low + thread.block->shared_bytes.at(site), begin, end);
    }
    const std::string what = store ? "store" : "load";
    if (buffer < 0 && !shared) return "out of bounds: " + what + near(begin);
    for (uintptr_t granule = begin / kGranule; granule <= (end - 1) / kGranule; ++granule) {
      Shadow& shadow = shadow_[granule];
      if (shared) forget_others(shadow, *thread.block);
      if (!before(shadow.written, thread) || (store && !before(shadow.read, thread))) {
        error("race: " + what + (shared ? " in shared memory" : " in " + buffers[buffer].name), thread);
      }
      Access& own = store ? shadow.written : shadow.read;
      own = {thread.block->index, thread.index, thread.barriers, thread.grid_barriers, thread.collectives};
    }
    Warp& warp = warps_[{thread.block->index, thread.index / kLanes}];
    const int lane = int(thread.index % kLanes), time = warp.times[place][lane]++;
    Instruction& instruction = warp.instructions[{place, time}];
    instruction.store = store;
    instruction.buffer = buffer;
    instruction.accesses.push_back({begin, int(end - begin)});
    return "";
  }

  std::string near(uintptr_t begin) const {
    const Buffer* nearest = nullptr;
    uintptr_t distance = 4096;
    for (const Buffer& buffer : buffers) {
      const uintptr_t to = begin < buffer.begin ? buffer.begin - begin : begin < buffer.end ? 0 : begin - buffer.end;
      if (to < distance) nearest = &buffer, distance = to;
    }
    if (!nearest) return " far from any argument";
    return " at byte " + std::to_string(int64_t(begin - nearest->begin)) + " of " + nearest->name + " of " +
           std::to_string(nearest->end - nearest->begin);
  }

  // Shared memory of a block that has ended may be that of another one now.
  static void forget_others(Shadow& shadow, const Block& block) {
    for (Access* access : {&shadow.written, &shadow.read}) {
      if (access->block != block.index) access->block = -1;
    }
  }

  static bool before(const Access& other, const Thread& thread) {
    if (other.block < 0) return true;
    if (other.block != thread.block->index) return other.grid_barriers < thread.grid_barriers;
    if (other.thread == thread.index || other.barriers < thread.barriers) return true;
    return other.thread / kLanes == thread.index / kLanes && other.collectives < thread.collectives;
  }

  struct Warp {
    std::map<const void*, std::array<int, kLanes>> times;  // that each lane was at a place since the last collective
    std::map<std::pair<const void*, int>, Instruction> instructions;
  };

  void count(Warp& warp) {
    for (const auto& [key, instruction] : warp.instructions) {
      if (instruction.buffer < 0) {
        std::array<std::set<uintptr_t>, kBanks> words;
        size_t waves = 0;
        for (const auto& [begin, bytes] : instruction.accesses) {
          for (uintptr_t word = begin / 4; word <= (begin + bytes - 1) / 4; ++word) words[word % kBanks].insert(word);
        }
        for (const auto& bank : words) waves = std::max(waves, bank.size());
        ++shared_instructions;
        shared_waves += int64_t(waves);
        continue;
      }
      std::set<uintptr_t> sectors, touched;
      for (const auto& [begin, bytes] : instruction.accesses) {
        for (uintptr_t k = begin; k < begin + bytes; k += kGranule) {
          touched.insert(k / kGranule);
          sectors.insert(k / kSector);
        }
      }
      Traffic& sum = traffic[{buffers[instruction.buffer].name, instruction.store}];
      ++sum.instructions;
      sum.sectors += int64_t(sectors.size());
      sum.bytes += int64_t(touched.size() * kGranule);
    }
    warp.times.clear();
    warp.instructions.clear();
  }

  Buffer host_stack_{};
  std::unordered_map<uintptr_t, Shadow> shadow_;
  std::map<std::pair<int64_t, unsigned>, Warp> warps_;
};

Tracer tracer;

}  // namespace
}  // namespace emulator

// What g++ calls.
extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_read(void**) {}
void __tsan_vptr_update(void**, void*) {}
#define UGNN_ACCESS(bytes)                                                                                    \
  void __tsan_read##bytes(void* p) { emulator::tracer.access(p, bytes, false, __builtin_return_address(0)); } \
  void __tsan_write##bytes(void* p) { emulator::tracer.access(p, bytes, true, __builtin_return_address(0)); } \
  void __tsan_unaligned_read##bytes(void* p) {                                                                \
    emulator::tracer.access(p, bytes, false, __builtin_return_address(0));                                    \
  }                                                                                                           \
  void __tsan_unaligned_write##bytes(void* p) { emulator::tracer.access(p, bytes, true, __builtin_return_address(0)); }
UGNN_ACCESS(1)
UGNN_ACCESS(2)
UGNN_ACCESS(4)
UGNN_ACCESS(8)
UGNN_ACCESS(16)
void __tsan_read_range(void* p, unsigned long bytes) {
  emulator::tracer.access(p, int(bytes), false, __builtin_return_address(0));
}
void __tsan_write_range(void* p, unsigned long bytes) {
  emulator::tracer.access(p, int(bytes), true, __builtin_return_address(0));
}
}

void bind_trace(py::module_& m) {
  using emulator::tracer;
  emulator::observer = &tracer;
  m.def("clear", [] {
    tracer.buffers.clear();
    tracer.traffic.clear();
    tracer.errors.clear();
    tracer.num_errors = tracer.shared_instructions = tracer.shared_waves = 0;
  });
  m.def("add_buffer", [](uint64_t begin, uint64_t bytes, const std::string& name) {
    tracer.buffers.push_back({begin, begin + bytes, name});
  });
  m.def("errors", [] { return tracer.errors; });
  m.def("shared_memory", [] { return py::make_tuple(tracer.shared_instructions, tracer.shared_waves); });
  m.def(
      "traffic",
      [] {
        py::list rows;
        for (const auto& [key, sum] : tracer.traffic) {
          rows.append(py::make_tuple(key.first, key.second, sum.instructions, sum.sectors, sum.bytes));
        }
        return rows;
      },
      "(argument, stored, instructions of warps, sectors, bytes asked for) of the launches since clear()");
}
