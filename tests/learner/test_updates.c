// Whole updates of the CPU backend beside PyTorch's.
#include "../support/updates.h"

TestSuite(updates, .timeout = 60);

Test(updates, fifty_of_each_kind_are_pytorchs) {
    updates_expect(&farm_backend_cpu, UPDATES);
}

Test(updates, the_first_pass_is_on_policy) {
    updates_expect_on_policy(&farm_backend_cpu, FARM_PRECISION_F32, 4e-4);
    updates_expect_on_policy(&farm_backend_cpu, FARM_PRECISION_BF16, 0.25);
}
