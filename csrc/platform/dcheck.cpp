#include "platform/dcheck.h"

#ifdef OCTAVO_DCHECKS

#include <cstdio>
#include <cstdlib>

namespace octavo {

void fail_check(const char* condition, const char* file, int line) {
    std::fprintf(stderr, "%s:%d: OCTAVO_DCHECK(%s) failed\n", file, line, condition);
    std::abort();
}

}  // namespace octavo

#endif
