// A policy's text for one of the test samples' environments, behind a byte that names it. What is understood fits its
// rings' spec, is small enough, and gives the same text again.
#include "../policy/samples.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct farm_policy_description policy, again;
    struct farm_error err = {0};
    char written[FARM_POLICY_TEXT_BYTES];
    uint8_t which;
    fuzz_take(&input, &which, 1);
    const struct farm_env_spec *env = &samples[which % SAMPLES].env;
    char *text = fuzz_take_text(&input, input.left);
    const enum farm_status status = farm_policy_understand(text, env, &policy, &err);
    free(text);
    if (status) {
        fuzz_check_refusal(status, &err);
        return 0;
    }
    struct farm_ring_spec ring = {.lanes = 1, .width = 1, .steps = 32, .env = *env};
    farm_ring_spec_answers(&ring);
    if (policy.head.samples) farm_ring_spec_sample(&ring);
    if (policy.net.state) farm_ring_spec_state(&ring, (uint32_t)policy.net.state, 4);
    assert(!farm_policy_check_ring(&policy.net, &policy.head, &ring, &err));
    assert(policy.net.parameter_count <= FARM_NET_PARAMETERS_MAX && policy.refresh >= 1);
    if (farm_policy_describe(&policy, env, written, &err)) abort();
    assert(!farm_policy_understand(written, env, &again, &err));
    assert(again.net.parameter_count == policy.net.parameter_count && !again.plain &&
           memcmp(&again.sampler, &policy.sampler, sizeof again.sampler) == 0);
    return 0;
}
