// See backend.h.
#include "learner/backend.h"

#include <math.h>
#include <string.h>

#include "base/cuda_module.h"
#include "base/time.h"
#include "farm_build.h"

struct farm_backend_state farm_backend_state_of(float *params, float *first, float *second, uint64_t optimiser_step,
                                                uint64_t version) {
    struct farm_backend_state state = {.optimiser_step = optimiser_step, .version = version};
    const struct farm_backend_vector vectors[] = {
        {"", params}, {"optimiser.first", first}, {"optimiser.second", second}};
    for (size_t k = 0; k < sizeof vectors / sizeof *vectors; k++)
        if (vectors[k].values) state.vectors[state.vector_count++] = vectors[k];
    return state;
}

void farm_backend_state_add(struct farm_backend_state *state, const struct farm_algo_plan *plan, float *const *sets) {
    for (uint32_t k = 0; k < farm_algo_sets(plan); k++)
        state->vectors[state->vector_count++] = (struct farm_backend_vector){plan->sets[k].name, sets[k]};
}

float *farm_backend_vector(const struct farm_backend_state *state, const char *name) {
    for (uint32_t k = 0; k < state->vector_count; k++)
        if (strcmp(state->vectors[k].name, name) == 0) return state->vectors[k].values;
    return NULL;
}

const char *farm_backend_bad_tensor(const struct farm_net *net, const float *gradients) {
    for (int t = net->tensor_count - 1; t >= 0; t--)
        for (size_t i = 0; i < net->tensors[t].count; i++)
            if (!isfinite(gradients[net->tensors[t].offset + i])) return net->tensors[t].name;
    return NULL;
}

enum farm_status farm_backend_module_open(const char *path, const struct farm_backend_ops **ops,
                                          struct farm_error *err) {
    farm_backend_entry *entry;
    const struct farm_backend_host host = {.commit = FARM_COMMIT,
                                           .log_level = farm_log_level(),
                                           .log_role = farm_log_role(),
                                           .stopped_ns = farm_stopped_ns};
    const char *commit = "";
    const enum farm_status status = farm_cuda_module_open(path, "farm_cuda_backend", &entry, err);
    if (status) return status;
    *ops = entry(&host, &commit);
    return *ops ? FARM_OK : farm_cuda_module_foreign(path, commit, err);
}
