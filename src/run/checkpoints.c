// See checkpoints.h.
#include "run/checkpoints.h"

#include <stdlib.h>
#include <string.h>

#include "learner/backend.h"
#include "learner/checkpoint.h"

// Loads the file as the learner does, into temporary vectors.
static enum farm_status try_checkpoint(const struct farm_run_plan *plan, const char *path, struct farm_error *err) {
    struct farm_checkpoint_metadata metadata;
    struct farm_net net;
    bool has_optimiser, adam = strcmp(plan->recipe.optimiser, "adam") == 0;
    enum farm_status status = farm_net_make(&plan->net, &plan->io, &net, err);
    if (status) return status;
    float *scratch = calloc(3 * net.parameter_count, sizeof *scratch);
    if (!scratch) return farm_fail(err, FARM_E_LIMIT, "no memory to read %s", path);
    struct farm_backend_state state = farm_backend_state_of(scratch, adam ? scratch + net.parameter_count : NULL,
                                                            scratch + 2 * net.parameter_count, 0, 0);
    status = farm_checkpoint_load(path, &net, &state, &has_optimiser, &metadata, err);
    if (!status) farm_checkpoint_metadata_free(&metadata);
    free(scratch);
    return status;
}

static enum farm_status try_header(const char *path, struct farm_error *err) {
    struct farm_checkpoint_metadata metadata;
    enum farm_status status = farm_checkpoint_read_metadata(path, &metadata, err);
    if (!status) farm_checkpoint_metadata_free(&metadata);
    return status;
}

bool farm_run_find_checkpoint(const char *run_path, const struct farm_run_plan *plan,
                              const struct farm_run_caller *caller, char *path, size_t path_bytes) {
    struct farm_error err;
    for (size_t i = 0; farm_run_dir_checkpoint(run_path, i, path, path_bytes); i++) {
        if (!(plan ? try_checkpoint(plan, path, &err) : try_header(path, &err))) return true;
        farm_run_warn(caller, "skipped: %s", err.message);
    }
    return false;
}
