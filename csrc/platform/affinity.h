// Which processors a thread may run on, and which it runs on. Only Linux tells this and allows a choice.
#pragma once

#include <vector>

namespace octavo {

// The processors that the calling thread may run on, in ascending order. Where the system does not say: as
// many as there are, and none of them can be chosen.
std::vector<int> allowed_processors();

// The processor that the calling thread is on; -1 where the system does not tell.
int current_processor();

// Keep the calling thread on `processor` from now on.
void pin_to(int processor);

// Move the calling thread to `processor`, which it may leave again. Nothing happens if it may not run there.
void move_to(int processor);

}  // namespace octavo
