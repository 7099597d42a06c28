// The scheduler of the emulator: fibers, barriers, collectives.
#include <sys/mman.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <utility>

#include "fibers.h"
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// Saves the registers that a call keeps, and goes on where `to` was saved.
extern "C" void emulator_switch(void** save, void* to);
asm(R"(.text
.local emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");

namespace emulator {

Thread* current = nullptr;
uint64_t seed = 1;
Observer* observer = nullptr;

namespace {

constexpr int kLanes = 32;

void* scheduler_stack = nullptr;
void (*body)(const void*) = nullptr;
const void* body_context = nullptr;
uint3 size_of_block{}, size_of_grid{};
#ifdef __SANITIZE_ADDRESS__
void* scheduler_fake = nullptr;
const void* scheduler_bottom = nullptr;
size_t scheduler_size = 0;
#endif

void leave(bool for_good) {
  Thread* own = current;
  (void)for_good;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(for_good ? nullptr : &own->fake_stack, scheduler_bottom, scheduler_size);
#endif
  emulator_switch(&own->stack_pointer, scheduler_stack);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(own->fake_stack, nullptr, nullptr);
#endif
}

void fiber() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_bottom, &scheduler_size);
#endif
  body(body_context);
  current->state = Wait::kDone;
  leave(true);
  abort();
}

std::string abandoned;

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error("emulator: " + what); }

void resume(Thread& thread) {
  current = &thread;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&scheduler_fake, thread.stack, kStack);
#endif
  emulator_switch(&scheduler_stack, thread.stack_pointer);
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(scheduler_fake, nullptr, nullptr);
#endif
  current = nullptr;
  if (!abandoned.empty()) fail(std::exchange(abandoned, ""));
}

// Stacks for the fibers of a launch, kept for the next one.
class Stacks {
 public:
  char* get(size_t count) {
    if (count > count_) {
      if (memory_) munmap(memory_, count_ * kStack);
      void* found =
          mmap(nullptr, count * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (found == MAP_FAILED) throw std::bad_alloc();
      memory_ = static_cast<char*>(found);
      count_ = count;
    }
    return memory_;
  }

 private:
  char* memory_ = nullptr;
  size_t count_ = 0;
};

void start(Block& block, int64_t index, int threads, char* stacks) {
  block = Block{};
  block.index = index;
  block.threads.resize(threads);
  for (int k = 0; k < threads; ++k) {
    Thread& thread = block.threads[k] = Thread{};
    thread.block = &block;
    thread.index = unsigned(k);
    thread.stack = stacks + k * kStack;
#ifdef __SANITIZE_ADDRESS__
    __asan_unpoison_memory_region(thread.stack, kStack);
#endif
    void** top = reinterpret_cast<void**>(thread.stack + kStack - 64);
    *top = reinterpret_cast<void*>(&fiber);
    thread.stack_pointer = top - 6;
    memset(thread.stack_pointer, 0, 6 * sizeof(void*));
  }
}

std::string name(const Thread& thread) {
  return "thread " + std::to_string(thread.index) + " of block " + std::to_string(thread.block->index);
}

// Completes a collective of these lanes, if all that it names are there.
bool complete_collective(Block& block, int warp, int lanes) {
  Thread* of_warp = &block.threads[warp * kLanes];
  for (int first = 0; first < lanes; ++first) {
    const Thread& asks = of_warp[first];
    if (asks.state != Wait::kWarp) continue;
    const unsigned mask = asks.mask;
    if (!(mask >> first & 1)) fail("a collective without the lane that calls it: " + name(asks));
    bool all = true;
    for (int k = 0; k < kLanes && all; ++k) {
      if (!(mask >> k & 1)) continue;
      if (k >= lanes || of_warp[k].state == Wait::kDone)
        fail("a collective waits for a lane that has left: " + name(asks));
      if (of_warp[k].state == Wait::kBlock || of_warp[k].state == Wait::kGrid) {
        fail("a collective waits for a lane at a barrier: " + name(asks));
      }
      all = of_warp[k].state == Wait::kWarp;
      if (all && (of_warp[k].site != asks.site || of_warp[k].mask != mask)) {
        fail("lanes meet in different collectives: " + name(asks) + ", " + name(of_warp[k]));
      }
    }
    if (!all) continue;
    for (int k = 0; k < kLanes; ++k) {
      if (!(mask >> k & 1)) continue;
      Thread& lane = of_warp[k];
      if (lane.source < 0 || lane.source >= lanes || !(mask >> lane.source & 1)) {
        fail("a shuffle from a lane outside its mask: " + name(lane));
      }
      lane.got = of_warp[lane.source].value;
    }
    for (int k = 0; k < lanes; ++k) {
      if (!(mask >> k & 1)) continue;
      of_warp[k].state = Wait::kNone;
      ++of_warp[k].collectives;
    }
    if (observer && (lanes == kLanes ? mask == ~0u : mask == (1u << lanes) - 1)) observer->collective(block, warp);
    return true;
  }
  return false;
}

// Lets a warp go on until it waits for others, or until chance stops it; whether anything moved.
bool run_warp(Block& block, int warp, std::mt19937_64& random) {
  const int threads = int(block.threads.size()), lanes = std::min(kLanes, threads - warp * kLanes);
  bool moved = false;
  for (;;) {
    const uint64_t chance = random();
    const unsigned first = unsigned(chance), stride = unsigned(chance >> 8) | 1;
    bool ran = false;
    for (unsigned k = 0; k < kLanes; ++k) {
      const int lane = int((first + k * stride) % kLanes);
      if (lane >= lanes) continue;
      Thread& thread = block.threads[warp * kLanes + lane];
      if (thread.state != Wait::kNone) continue;
      resume(thread);
      ran = true;
    }
    while (complete_collective(block, warp, lanes)) ran = true;
    moved = moved || ran;
    if (!ran || (chance >> 40) % 16 == 0) return moved;
  }
}

// Opens a barrier of the block or the grid that all these threads have reached; whether there was one.
bool open_barrier(std::vector<Thread*>& threads, Wait kind) {
  const Thread& first = *threads[0];
  for (const Thread* thread : threads) {
    if (thread->state != kind) return false;
    if (thread->site != first.site) fail("threads meet at different barriers: " + name(first) + ", " + name(*thread));
  }
  for (Thread* thread : threads) {
    thread->state = Wait::kNone;
    ++thread->barriers;
    thread->grid_barriers += kind == Wait::kGrid;
  }
  return true;
}

void run_blocks(std::vector<Block>& blocks, bool cooperative, std::mt19937_64& random) {
  std::vector<std::pair<Block*, int>> warps;
  std::vector<Thread*> all;
  for (Block& block : blocks) {
    for (size_t k = 0; k < block.threads.size(); k += kLanes) warps.push_back({&block, int(k / kLanes)});
    for (Thread& thread : block.threads) all.push_back(&thread);
  }
  for (;;) {
    std::shuffle(warps.begin(), warps.end(), random);
    bool moved = false;
    for (auto& [block, warp] : warps) moved = run_warp(*block, warp, random) || moved;
    if (moved) continue;
    size_t done = 0;
    for (const Thread* thread : all) done += thread->state == Wait::kDone;
    if (done == all.size()) break;
    bool opened = cooperative && open_barrier(all, Wait::kGrid);
    for (Block& block : blocks) {
      std::vector<Thread*> of_block;
      for (Thread& thread : block.threads) of_block.push_back(&thread);
      opened = open_barrier(of_block, Wait::kBlock) || opened;
    }
    if (opened) continue;
    for (const Thread* thread : all) {
      if (thread->state != Wait::kDone) fail("not all threads reach the barrier or collective of " + name(*thread));
    }
  }
  for (Block& block : blocks) {
    if (observer) observer->block_ends(block);
  }
}

}  // namespace

uint3 thread_index() { return {current->index, 0, 0}; }
uint3 block_index() { return {unsigned(current->block->index), 0, 0}; }
uint3 block_size() { return size_of_block; }
uint3 grid_size() { return size_of_grid; }

void abandon(const std::string& why) {
  abandoned = why;
  leave(false);
}

void barrier(Wait kind, int site) {
  current->state = kind;
  current->site = site;
  leave(false);
}

uint64_t exchange(unsigned mask, uint64_t value, int source, int site) {
  Thread& own = *current;
  own.state = Wait::kWarp;
  own.site = site;
  own.mask = mask;
  own.value = value;
  own.source = source;
  leave(false);
  return own.got;
}

void* shared_memory(size_t bytes, int site) {
  Block& block = *current->block;
  auto& memory = block.shared[site];
  if (!memory) {
    // of its exact size, and NaN in all types, so that what was never written shows
    memory.reset(new char[bytes]);
    memset(memory.get(), 0xff, bytes);
    block.shared_bytes[site] = bytes;
  }
  return memory.get();
}

int run_grid(void (*thread)(const void*), const void* context, int64_t blocks, int threads, bool cooperative) {
  static std::mutex one_at_a_time;
  static Stacks stacks;
  const std::lock_guard<std::mutex> lock(one_at_a_time);
  if (blocks < 1 || threads < 1 || threads > 1024) return cudaErrorInvalidConfiguration;
  std::mt19937_64 random(seed);
  body = thread;
  body_context = context;
  size_of_block = {unsigned(threads), 1, 1};
  size_of_grid = {unsigned(blocks), 1, 1};
  if (observer) observer->launch_begins();
  std::vector<int64_t> order(blocks);
  for (int64_t k = 0; k < blocks; ++k) order[k] = k;
  std::shuffle(order.begin(), order.end(), random);
  std::vector<Block> resident(cooperative ? blocks : 1);
  char* memory = stacks.get(resident.size() * threads);
  for (size_t k = 0; k < order.size(); k += resident.size()) {
    for (size_t n = 0; n < resident.size(); ++n) {
      start(resident[n], order[k + n], threads, memory + n * threads * kStack);
    }
    run_blocks(resident, cooperative, random);
  }
  return 0;
}

}  // namespace emulator
