// Whole updates of the CPU backend beside PyTorch's.
#include "../support/updates.h"

TestSuite(updates, .timeout = 60);

Test(updates, fifty_of_each_kind_are_pytorchs) {
    updates_expect(&farm_backend_cpu, UPDATES);
}
