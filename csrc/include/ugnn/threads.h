// How rows are shared among threads: contiguous ranges of equal work, hub rows apart.
#pragma once

#include <omp.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

#include "ugnn/csr.h"

namespace ugnn {
namespace UGNN_ISA {

constexpr int kMaxThreads = 256;
constexpr int kMaxShares = 8;    // parts of a thread's rows that another thread may take over
constexpr int64_t kRowCost = 4;  // an epilogue costs about as much as so many neighbours

// A barrier for the steps of one call that soon goes to sleep. OpenMP's own spins for milliseconds, and does so at
// every step when another process keeps one of the threads from running.
class Barrier {
 public:
  // the last thread to arrive calls at_end() before the others go on
  template <class AtEnd>
  void wait(int threads, AtEnd at_end) {
    if (threads == 1) return at_end();
    const uint32_t phase = __atomic_load_n(&phase_, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&arrived_, 1, __ATOMIC_ACQ_REL) == threads) {
      at_end();
      __atomic_store_n(&arrived_, 0, __ATOMIC_RELAXED);
      __atomic_store_n(&phase_, phase + 1, __ATOMIC_SEQ_CST);
      if (__atomic_load_n(&sleepers_, __ATOMIC_SEQ_CST)) wake();
      return;
    }
    constexpr int kSpins = 1000;  // some 10 to 50 microseconds
    for (int spin = 0; spin < kSpins; ++spin) {
      if (__atomic_load_n(&phase_, __ATOMIC_ACQUIRE) != phase) return;
      relax();
    }
    __atomic_add_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&phase_, __ATOMIC_SEQ_CST) == phase) sleep(phase);
    __atomic_sub_fetch(&sleepers_, 1, __ATOMIC_SEQ_CST);
  }

 private:
  static void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  }
#if defined(__linux__)
  void sleep(uint32_t phase) { syscall(SYS_futex, &phase_, FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0); }
  void wake() { syscall(SYS_futex, &phase_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
  void sleep(uint32_t) { sched_yield(); }
  void wake() {}
#endif

  uint32_t phase_ = 0;
  int arrived_ = 0;
  int sleepers_ = 0;
};

// The threads of one call. The rows are cut into shares of equal work, some for each thread. A thread that is done
// takes over shares of others: cores are not equally fast on every machine. Who computes a row changes nothing in it.
struct RowSplit {
  int64_t bound[kMaxThreads * kMaxShares + 1];
  struct alignas(64) Counter {
    int taken;  // shares of a thread in this step
  };
  Counter next[kMaxThreads];
  int threads = 1;
  int shares = 1;      // of each thread
  bool dealt = false;  // in for_rows a thread has every n-th share, in place of neighbouring ones
  Barrier barrier;

  int64_t begin(int thread) const { return bound[thread * shares]; }
  int64_t end(int thread) const { return bound[(thread + 1) * shares]; }

  void reset() {
    for (int t = 0; t < threads; ++t) next[t].taken = 0;
  }

  void wait() {
    barrier.wait(threads, [this] { reset(); });
  }

  // body(begin, end) for shares of rows, by all threads together; once between two waits
  template <class Body>
  void for_rows(int thread, Body body) {
    for (int k = 0; k < threads; ++k) {
      const int owner = (thread + k) % threads;
      for (;;) {
        const int share = __atomic_fetch_add(&next[owner].taken, 1, __ATOMIC_RELAXED);
        if (share >= shares) break;
        const int number = dealt ? share * threads + owner : owner * shares + share;
        body(bound[number], bound[number + 1]);
      }
    }
  }
};

// Fewer threads than asked for when the work (in neighbour values) would not pay for waking them.
inline int useful_threads(int asked, int64_t work) {
  constexpr int64_t kWorkPerThread = 1 << 18;
  int64_t threads = work / kWorkPerThread + 1;
  if (threads > asked) threads = asked;
  if (threads > kMaxThreads) threads = kMaxThreads;
  return int(threads < 1 ? 1 : threads);
}

// Items [begin, end) of the current thread in work that costs the same for each item.
inline void even_share(int64_t items, int64_t& begin, int64_t& end) {
  const int64_t thread = omp_get_thread_num(), threads = omp_get_num_threads();
  begin = items * thread / threads;
  end = items * (thread + 1) / threads;
}

inline void split_rows(int threads, const Csr& g, RowSplit& split) {
  split.threads = threads;
  split.reset();
  // a share that takes no longer than to hand it out is none
  constexpr int64_t kShareEntries = 1 << 14;
  const int64_t shares = (g.E + kRowCost * g.N) / (kShareEntries * threads);
  split.shares = threads == 1 || shares < 1 ? 1 : int(shares < kMaxShares ? shares : kMaxShares);
  const int parts = threads * split.shares;
  const int64_t hub_len = hub_length(g.E);
  int64_t hub_entries = 0;
  for (int64_t h = 0; h < g.H; ++h) hub_entries += g.rowptr[g.hubs[h] + 1] - g.rowptr[g.hubs[h]];
  const int64_t total = g.E - hub_entries + kRowCost * g.N;

  split.bound[0] = 0;
  constexpr int64_t kRowsAtOnce = 1024;
  int64_t done = 0, hub = 0;
  int t = 1;
  for (int64_t begin = 0; begin < g.N && t < parts; begin += kRowsAtOnce) {
    const int64_t end = begin + kRowsAtOnce < g.N ? begin + kRowsAtOnce : g.N;
    int64_t cost = g.rowptr[end] - g.rowptr[begin] + kRowCost * (end - begin);
    for (; hub < g.H && g.hubs[hub] < end; ++hub) cost -= g.rowptr[g.hubs[hub] + 1] - g.rowptr[g.hubs[hub]];
    while (t < parts && done + cost >= total * t / parts) {
      int64_t i = begin, sum = done;
      for (; i < end && sum < total * t / parts; ++i) {
        const int64_t length = g.rowptr[i + 1] - g.rowptr[i];
        sum += kRowCost + (length > hub_len ? 0 : length);
      }
      // kernels that take four rows at a time round otherwise than for one row: it must be the same four for any split
      const int64_t whole = (i + 3) / 4 * 4;
      split.bound[t++] = whole < g.N ? whole : g.N;
    }
    done += cost;
  }
  for (; t <= parts; ++t) split.bound[t] = g.N;
}

// At the start of a parallel region: splits again if the team is smaller than was asked for.
inline void check_team(const Csr& g, RowSplit& split) {
  const int team = omp_get_num_threads();
  if (team == split.threads) return;
#pragma omp barrier
#pragma omp single
  split_rows(team, g, split);
}

// Pieces of hub rows, numbered through.
struct HubPieces {
  const Csr& g;

  int64_t pieces_of(int64_t hub) const {
    const int64_t i = g.hubs[hub];
    return (g.rowptr[i + 1] - g.rowptr[i] + kPiece - 1) / kPiece;
  }

  int64_t count() const {
    int64_t sum = 0;
    for (int64_t hub = 0; hub < g.H; ++hub) sum += pieces_of(hub);
    return sum;
  }

  // numbers [first, last) of the pieces of a hub
  void range(int64_t hub, int64_t& first, int64_t& last) const {
    first = 0;
    for (int64_t h = 0; h < hub; ++h) first += pieces_of(h);
    last = first + pieces_of(hub);
  }

  // entries [begin, end) of a piece
  void find(int64_t number, int64_t& begin, int64_t& end) const {
    int64_t hub = 0;
    for (; number >= pieces_of(hub); ++hub) number -= pieces_of(hub);
    const int64_t i = g.hubs[hub];
    begin = g.rowptr[i] + number * kPiece;
    end = begin + kPiece < g.rowptr[i + 1] ? begin + kPiece : g.rowptr[i + 1];
  }
};

}  // namespace UGNN_ISA

}  // namespace ugnn
