#include "ugnn/pool.h"

#include <cstdlib>
#include <fstream>
#include <mutex>
#include <new>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace ugnn {
namespace {

constexpr size_t kSmall = size_t(64) << 10;  // below this malloc is as good
constexpr size_t kHuge = size_t(2) << 20;    // a huge page

size_t rounded(size_t bytes) {
  const size_t unit = bytes >= kSmall ? kSmall : 64;
  return (bytes + unit - 1) / unit * unit;
}

// At most a quarter of the machine's memory, or of what a container allows, stays with us.
size_t limit() {
#if defined(__linux__)
  static const size_t bytes = [] {
    const size_t machine = size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGESIZE));
    size_t allowed = machine;
    std::ifstream("/sys/fs/cgroup/memory.max") >> allowed;  // a word if there is no limit
    return (allowed && allowed < machine ? allowed : machine) / 4;
  }();
  return bytes;
#else
  return size_t(1) << 30;
#endif
}

void* from_system(size_t size) {
  void* block = nullptr;
  if (posix_memalign(&block, size >= 4 * kHuge ? kHuge : 64, size)) throw std::bad_alloc();
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  // random rows of a big table miss the TLB with small pages; what is left behind the last whole huge page has those
  if (size >= 4 * kHuge) madvise(block, size / kHuge * kHuge, MADV_HUGEPAGE);
#endif
  return block;
}

struct Block {
  void* data;
  size_t size;
};

struct Pool {
  std::mutex mutex;
  std::vector<Block> blocks;  // oldest first
  size_t total = 0;

  void drop(size_t index) {
    std::free(blocks[index].data);
    total -= blocks[index].size;
    blocks.erase(blocks.begin() + index);
  }
};

// never destroyed: tensors may give their block back while the process ends
Pool& pool() {
  static Pool* instance = new Pool;
  return *instance;
}

}  // namespace

void* pool_take(size_t bytes) {
  const size_t size = rounded(bytes);
  if (size < kSmall) return from_system(size);
  Pool& p = pool();
  {
    std::lock_guard<std::mutex> lock(p.mutex);
    for (size_t k = p.blocks.size(); k-- > 0;) {
      if (p.blocks[k].size != size) continue;
      void* data = p.blocks[k].data;
      p.total -= size;
      p.blocks.erase(p.blocks.begin() + k);
      return data;
    }
  }
  try {
    return from_system(size);
  } catch (const std::bad_alloc&) {
    pool_clear();
    return from_system(size);
  }
}

void pool_give(void* block, size_t bytes) {
  const size_t size = rounded(bytes);
  if (!block || size < kSmall || size > limit()) return std::free(block);
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  p.blocks.push_back({block, size});
  p.total += size;
  while (p.total > limit()) p.drop(0);
}

void pool_clear() {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  while (!p.blocks.empty()) p.drop(p.blocks.size() - 1);
}

size_t pool_bytes() {
  Pool& p = pool();
  std::lock_guard<std::mutex> lock(p.mutex);
  return p.total;
}

}  // namespace ugnn
