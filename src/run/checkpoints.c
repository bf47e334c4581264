// See checkpoints.h.
#include "run/checkpoints.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/random.h"
#include "policy/describe.h"
#include "replay/store.h"
#include "shm/limits.h"

// A checkpoint's header has 10 to 30 KB, a sample of metrics 2 KB and 0.3 KB a node.
enum { HEADER_BYTES = 32 << 10, METRICS_SAMPLE_BYTES = 2560, DAY_S = 86400 };

enum farm_status farm_run_try_checkpoint(const struct farm_run_plan *plan, const char *path, struct farm_error *err) {
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

enum farm_status farm_run_read_replay(const struct farm_run_plan *plan, const char *checkpoint, bool chunks,
                                      struct farm_run_rings *rings, struct farm_error *err) {
    char run[FARM_RUN_PATH_MAX], folder[FARM_RUN_PATH_MAX + 64];
    const struct farm_replay_place place = {folder, plan->actors, &plan->ring_spec};
    struct farm_checkpoint_metadata metadata;
    if (!plan->passes.replay || !plan->recipe.replay_save || !farm_run_dir_of_checkpoint(checkpoint, run, sizeof run))
        return FARM_OK;
    enum farm_status status = farm_checkpoint_read_metadata(checkpoint, &metadata, err);
    if (status) return status;
    farm_run_dir_file(run, "replay", folder, sizeof folder);
    const char *name = farm_checkpoint_get(&metadata, "replay");
    if (name)
        status = farm_replay_load(&place, name, chunks, rings ? rings->ring : NULL, rings ? rings->stats : NULL, err);
    else if (rings)
        farm_log_info("%s has no replay: it begins empty", checkpoint);
    farm_checkpoint_metadata_free(&metadata);
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
        const enum farm_status status = plan ? farm_run_try_checkpoint(plan, path, &err) : try_header(path, &err);
        if (!status && (!plan || !farm_run_read_replay(plan, path, true, NULL, &err))) return true;
        farm_run_warn(caller, "skipped: %s", err.message);
    }
    return false;
}

enum farm_status farm_run_choose_checkpoint(const char *what, bool best, char *path, size_t path_bytes,
                                            struct farm_error *err) {
    struct farm_error unfit;
    struct stat info;
    if (stat(what, &info)) return farm_fail_errno(err, FARM_E_NOT_FOUND, "%s", what);
    const bool folder = S_ISDIR(info.st_mode);
    if (strlen(what) >= (folder ? FARM_RUN_PATH_MAX - 64 : path_bytes))
        return farm_fail(err, FARM_E_USAGE, "%.80s...: path too long", what);
    snprintf(path, path_bytes, "%s", what);
    if (!folder) return FARM_OK;
    if (best && !try_header(farm_run_dir_file(what, "checkpoints/" FARM_CHECKPOINT_BEST, path, path_bytes), &unfit))
        return FARM_OK;
    if (best && !access(path, F_OK)) farm_log_warn("skipped: %s", unfit.message);
    if (farm_run_find_checkpoint(what, NULL, NULL, path, path_bytes)) return FARM_OK;
    return farm_fail(err, FARM_E_NOT_FOUND,
                     "%s holds no checkpoint that can be read (a run's folder has them in checkpoints/)", what);
}

enum farm_status farm_run_check_room(const char *run_path, const struct farm_run_plan *plan, double before_s,
                                     struct farm_error *err) {
    char file[FARM_RUN_PATH_MAX + 64];
    struct farm_net net;
    struct statvfs disk;
    const bool adam = strcmp(plan->recipe.optimiser, "adam") == 0;
    enum farm_status status = farm_net_make(&plan->net, &plan->io, &net, err);
    if (status) return status;
    const uint64_t each =
        ((adam ? 3 : 2) + farm_algo_sets(&plan->passes)) * net.parameter_count * sizeof(float) + HEADER_BYTES;
    if ((status = farm_limits_check_file("/", each, err)))
        return farm_fail_in(err, status, "a checkpoint of net %s", plan->recipe.net);
    if (statvfs(run_path, &disk)) return FARM_OK; // a file system that does not say
    const double seconds = plan->recipe.seconds > 0 ? plan->recipe.seconds - before_s : DAY_S,
                 metrics = seconds / plan->recipe.metrics_every * METRICS_SAMPLE_BYTES;
    const size_t keep = (size_t)plan->recipe.checkpoints_keep;
    size_t more = keep ? keep : (size_t)(seconds / plan->recipe.checkpoint_every) + 1;
    if (!keep && plan->recipe.eval_every) more += (size_t)(plan->recipe.frames / plan->recipe.eval_every);
    // Those from before a resume, which new ones replace.
    for (size_t i = 0; i < keep && farm_run_dir_checkpoint(run_path, i, file, sizeof file); i++) more--;
    more += 2; // the best, and one while it is written
    const double files = (double)more * (double)each, left = (double)disk.f_bavail * (double)disk.f_frsize;
    if (files + metrics <= left) return FARM_OK;
    farm_log_warn(
        "%s: the file system has %.1f MB left, this run needs %.1f MB: %zu checkpoints of %.1f MB (checkpoints_keep "
        "%zu, the best, and one while it is written), and %.1f MB of metrics%s. Free some space, or choose another "
        "folder with --run",
        run_path, left / 1e6, (files + metrics) / 1e6, more, (double)each / 1e6, keep, metrics / 1e6,
        plan->recipe.seconds > 0 ? "" : " a day");
    return FARM_OK;
}

enum farm_status farm_run_opponent_board(const struct farm_run_plan *plan, struct farm_board **out,
                                         struct farm_error *err) {
    const struct farm_env_spec *env = &plan->env.spec;
    const char *path = plan->recipe.opponent;
    struct farm_checkpoint_metadata metadata;
    struct farm_policy_description policy = {0};
    char text[FARM_POLICY_TEXT_BYTES];
    bool ignored;
    if (strcmp(path, "none") == 0) return FARM_OK;
    enum farm_status status = farm_checkpoint_read_metadata(path, &metadata, err);
    if (status) return farm_fail_in(err, status, "--opponent");
    const char *there = farm_checkpoint_get(&metadata, "spaces"), *written = farm_checkpoint_get(&metadata, "policy");
    char *here = farm_checkpoint_spaces(env);
    if (here && there && strcmp(here, there) != 0)
        status = farm_fail(err, FARM_E_USAGE, "%s plays %.200s; %s has %.200s", path, there, plan->env.name, here);
    else if (!written)
        status = farm_fail(err, FARM_E_FORMAT, "%s has no policy that farm train of this version wrote", path);
    free(here);
    if (!status) status = farm_policy_understand(written, env, &policy, err);
    farm_checkpoint_metadata_free(&metadata);
    policy.sampler.seed = farm_random_mix(~(uint64_t)plan->recipe.seed);
    policy.refresh = 1;
    const struct farm_board_request request = {.count = policy.net.parameter_count, .buffers = 3, .node = -1};
    if (!status) status = farm_policy_describe(&policy, env, text, err);
    if (!status) status = farm_board_create(&request, out, err);
    if (!status) {
        struct farm_backend_state state = farm_backend_state_of((*out)->buffer[0], NULL, NULL, 0, 0);
        state.vector_count = 1;
        (void)farm_board_describe(*out, text, 0, 0);
        status = farm_checkpoint_load(path, &policy.net, &state, &ignored, &metadata, err);
    }
    if (status) return farm_fail_in(err, status, "--opponent");
    farm_board_commit(*out, 0, farm_checkpoint_get_u64(&metadata, "version"));
    farm_checkpoint_metadata_free(&metadata);
    return FARM_OK;
}
