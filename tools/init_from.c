// See init_from.h.
#include "tools/init_from.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "learner/checkpoint.h"
#include "run/checkpoints.h"
#include "run/trains.h"

// What a version of farm train without the key made is not scaled; another program's file has no say.
static enum farm_status take_scale(const struct farm_checkpoint_metadata *metadata, struct farm_recipe *recipe,
                                   struct farm_error *err) {
    const char *name = farm_recipe_key_at(recipe, FARM_KEY_scale_actions)->name;
    const char *head = farm_checkpoint_get(metadata, "head"),
               *held = farm_checkpoint_get(metadata, "recipe.scale_actions");
    const char *then = held ? held : farm_recipe_key_at(recipe, FARM_KEY_scale_actions)->before;
    if (!head || !strstr(head, "gaussian") || strcmp(then, recipe->scale_actions ? "true" : "false") == 0)
        return FARM_OK;
    if (farm_recipe_set_by(recipe, name, FARM_LAYER_FILE)) return FARM_OK;
    farm_log_info("--init-from: %s %s, with which it was trained", name, then);
    return farm_recipe_set(recipe, FARM_LAYER_SHIPPED, name, then, err);
}

enum farm_status farm_init_from_find(const char *what, struct farm_recipe *recipe, char *path, size_t path_bytes,
                                     struct farm_error *err) {
    struct farm_checkpoint_metadata metadata;
    struct farm_error other;
    enum farm_status status = farm_run_choose_checkpoint(what, true, path, path_bytes, err);
    if (status) return farm_fail_in(err, status, "--init-from");
    if (strcmp(path, what) != 0) farm_log_info("--init-from %s: %s", what, path);
    if (farm_checkpoint_read_metadata(path, &metadata, &other)) return FARM_OK; // farm_init_from_check says why
    status = take_scale(&metadata, recipe, err);
    farm_checkpoint_metadata_free(&metadata);
    return status;
}

enum farm_status farm_init_from_check(const struct farm_run_plan *plan, const char *path, struct farm_error *err) {
    struct farm_checkpoint_taken taken;
    struct farm_net net;
    struct farm_head head;
    char here[FARM_HEAD_TEXT_BYTES];
    enum farm_status status = farm_net_make(&plan->net, &plan->io, &net, err);
    if (!status) status = farm_head_make(&plan->env.spec, farm_run_head_options(&plan->recipe), &head, err);
    if (status) return status;
    float *scratch = calloc(net.parameter_count, sizeof *scratch);
    if (!scratch) return farm_fail(err, FARM_E_LIMIT, "no memory to read %s", path);
    farm_head_describe(&head, here);
    status = farm_checkpoint_take(path, &net, here, scratch, &taken, err);
    free(scratch);
    if (status) return farm_fail_in(err, status, "--init-from");
    const bool other = taken.head[0] && strcmp(taken.head, here) != 0;
    farm_log_info("--init-from: taken from %s: %s", path, taken.taken);
    if (taken.fresh[0])
        farm_log_info("--init-from: new, as no layer there has the name and shape: %s%s%.100s%s%.100s%s", taken.fresh,
                      other ? " (the policy there is " : "", other ? taken.head : "", other ? ", here " : "",
                      other ? here : "", other ? ")" : "");
    farm_log_info("--init-from: left: %s%sthe optimiser, schedules and counters, which begin afresh", taken.left,
                  taken.left[0] ? ", " : "");
    return FARM_OK;
}
