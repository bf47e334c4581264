// Whole updates of the CPU backend beside PyTorch's.
#include "../support/updates.h"
#include "nn/arithmetic.h"

TestSuite(updates, .timeout = 60);

Test(updates, fifty_of_each_kind_are_pytorchs) {
    updates_expect(&farm_backend_cpu, UPDATES);
}

// Has this CPU, or what ONEDNN_MAX_CPU_ISA leaves of it, bf16 arithmetic?
static bool has_bf16(void) {
    const struct farm_learner_config learner = test_learner_config(UPDATES_FLAT, UPDATES_ACTIONS, UPDATES_UNROLL);
    struct farm_form forms[FARM_FORMS_MAX];
    struct farm_net net;
    cr_assert_eq(farm_net_make(&learner.net, &learner.io, &net, NULL), FARM_OK);
    return farm_arithmetic_forms(&net, FARM_PRECISION_BF16, forms) > 0;
}

Test(updates, the_first_pass_is_on_policy) {
    updates_expect_on_policy(&farm_backend_cpu, FARM_PRECISION_F32, 4e-4);
}

Test(updates, the_first_pass_in_int16_is_on_policy_too) {
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1); // without bf16
    updates_expect_on_policy(&farm_backend_cpu, FARM_PRECISION_AUTO, 4e-4);
}

Test(updates, the_first_pass_in_bf16_is_on_policy_too) {
    if (!has_bf16()) cr_skip_test("this CPU, or ONEDNN_MAX_CPU_ISA, leaves no bf16 arithmetic");
    updates_expect_on_policy(&farm_backend_cpu, FARM_PRECISION_BF16, 0.25);
}

Test(updates, sets_of_the_plan_are_copies_until_the_next_copy) {
    updates_expect_sets(&farm_backend_cpu, FARM_PRECISION_F32);
}
