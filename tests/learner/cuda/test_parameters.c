// Parameters in device memory and their copy in the host's, over the emulator.
#include "learner/cuda/parameters.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "emulator.h"
#include "nn/cuda/executor.h"

TestSuite(cuda_parameters, .timeout = 30);

// A download into pageable memory would go through the driver's own buffer, piece by piece, while training waits.
Test(cuda_parameters, are_downloaded_into_pinned_memory_and_come_back_the_same) {
    static const struct farm_net_io io = {.stack = 1, .flat = 5, .actions = 3};
    const struct farm_learner_config learner = {.seed = 4, .algo = {.optimiser = FARM_OPTIMISER_ADAM}};
    struct farm_error err = {0};
    struct farm_net net;
    struct farm_cuda_parameters parameters;
    farm_emulator_reset();
    cr_assert_eq(farm_net_make(farm_net_find("mlp", &err), &io, &net, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_cuda_parameters_make(&net, &learner, true, NULL, &parameters, &err), FARM_OK, "%s", err.message);
    float *before = malloc(net.parameter_count * sizeof *before);
    memcpy(before, parameters.host.params, net.parameter_count * sizeof *before);
    parameters.host.version = parameters.host.optimiser_step = 7;
    cr_assert_eq(farm_cuda_parameters_upload(&parameters, NULL, &err), FARM_OK, "%s", err.message);
    memset(parameters.host.params, 0, net.parameter_count * sizeof *before);
    parameters.host.version = parameters.host.optimiser_step = 0;
    cr_assert_eq(farm_cuda_parameters_download(&parameters, NULL, &err), FARM_OK, "%s", err.message);
    cr_assert_arr_eq(parameters.host.params, before, net.parameter_count * sizeof *before);
    cr_assert_eq(parameters.host.version, 7);
    cr_assert_eq(parameters.host.optimiser_step, 7);
    const struct farm_emulator_account account = farm_emulator_account();
    cr_assert_geq(account.device_to_host_bytes, 3 * net.parameter_count * sizeof *before);
    cr_assert_eq(account.device_to_pageable_bytes, 0);
    farm_cuda_parameters_free(&parameters);
    cr_assert_eq(farm_emulator_account().pinned + farm_emulator_account().allocations, 0);
    free(before);
}
