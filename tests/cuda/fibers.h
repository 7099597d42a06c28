// What the emulator knows of the threads of a launch; for emulator.cpp and trace.cpp.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "emulator.h"

namespace emulator {

struct Block;

struct Thread {
  Block* block;
  unsigned index;  // in its block
  void* stack_pointer;
  char* stack;
  void* fake_stack;  // of AddressSanitizer
  Wait state;
  // what it waits for, and what a collective gave it
  int site;
  unsigned mask;
  uint64_t value, got;
  int source;
  // what it has passed: barriers of the block or the grid, barriers of the grid, collectives of its warp
  unsigned barriers, grid_barriers, collectives;
};

struct Block {
  int64_t index;
  std::vector<Thread> threads;
  std::map<int, std::unique_ptr<char[]>> shared;
  std::map<int, size_t> shared_bytes;
};

constexpr size_t kStack = 128 << 10;

// The thread that runs; null in the scheduler.
extern Thread* current;
extern uint64_t seed;

// Ends the launch with an error, from the thread that runs.
void abandon(const std::string& why);

// What happens, for whoever traces it.
struct Observer {
  virtual ~Observer() = default;
  virtual void launch_begins() {}
  virtual void collective(Block&, unsigned) {}  // of this warp, by all of its lanes
  virtual void block_ends(Block&) {}
};
extern Observer* observer;

}  // namespace emulator
