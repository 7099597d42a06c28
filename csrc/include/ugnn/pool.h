// Memory that is taken and given back with every call, kept between calls: fresh pages from the system cost more than
// the kernels that fill them. Blocks are aligned to 64 bytes; all functions may be called from any thread.
#pragma once

#include <cstddef>

namespace ugnn {

void* pool_take(size_t bytes);              // throws std::bad_alloc
void pool_give(void* block, size_t bytes);  // bytes as they were taken
void pool_clear();                          // gives everything back to the system
size_t pool_bytes();                        // kept and not in use

}  // namespace ugnn
