// Requests to callgrind: count instructions between start and stop.
#include <valgrind/callgrind.h>

extern "C" void start() { CALLGRIND_START_INSTRUMENTATION; }
extern "C" void stop() { CALLGRIND_STOP_INSTRUMENTATION; }
