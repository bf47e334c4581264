// Whole updates of the CUDA backend, over the emulator, beside PyTorch's.
#include "../../support/updates.h"

#include "learner/cuda/backend.h"
#include "vendor_emulator.h"

TestSuite(cuda_updates, .timeout = 120);

Test(cuda_updates, fifty_of_each_kind_are_pytorchs) {
    updates_expect(&farm_backend_cuda, UPDATES_FEW);
}

Test(cuda_updates, the_first_pass_is_on_policy) {
    updates_expect_on_policy(&farm_backend_cuda, FARM_PRECISION_F32, 4e-4);
    updates_expect_on_policy(&farm_backend_cuda, FARM_PRECISION_BF16, 0.25);
}

Test(cuda_updates, sets_of_the_plan_are_copies_until_the_next_copy) {
    updates_expect_sets(&farm_backend_cuda, FARM_PRECISION_F32);
    updates_expect_sets(&farm_backend_cuda, FARM_PRECISION_BF16);
}
