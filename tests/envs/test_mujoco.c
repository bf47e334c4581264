// Of the MuJoCo plug-in, what Gymnasium has no say in: options refused, broken simulations, shared models.
// tests/envs/test_mujoco_live.py holds every task and option against Gymnasium itself.
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/plugin.h"

enum { OBS_MAX = 512, ACTIONS_MAX = 32, WHY_BYTES = 256 };

typedef void set_state_function(void *env, const double *qpos, const double *qvel, void *const *obs);

static struct farm_plugin open_plugin(const char *name) {
    char path[4096];
    struct farm_plugin plugin;
    struct farm_error err = {0};
    const char *build = getenv("FARM_BUILD");
    snprintf(path, sizeof path, "%s/envs/mujoco.so", build ? build : "build");
    if (access(path, F_OK)) cr_skip_test("%s is not there: it needs MuJoCo in build/venv (make deps)", path);
    cr_assert_eq(farm_plugin_open(path, name, &plugin, &err), FARM_OK, "%s", err.message);
    return plugin;
}

#define with_plugin __attribute__((cleanup(farm_plugin_close))) struct farm_plugin // closed where its scope ends

// Option texts as "key=value key=value"; at most 8. `text` is changed and must outlive the answer.
static size_t split_options(char *text, struct farm_env_option options[8]) {
    size_t count = 0;
    char *rest = text;
    for (char *pair; (pair = strsep(&rest, " "));) {
        char *equals = strchr(pair, '=');
        if (!equals) continue;
        *equals = 0;
        options[count++] = (struct farm_env_option){pair, equals + 1};
    }
    return count;
}

static void *create(const struct farm_plugin *plugin, const char *texts, uint64_t seed, char why[WHY_BYTES]) {
    char copy[256];
    struct farm_env_option options[8];
    snprintf(copy, sizeof copy, "%s", texts);
    const struct farm_env_config config = {
        .seed = seed, .options = options, .option_count = split_options(copy, options)};
    why[0] = 0;
    return plugin->api->create(&config, why, WHY_BYTES);
}

static void *created(const struct farm_plugin *plugin, const char *texts, uint64_t seed) {
    char why[WHY_BYTES];
    void *env = create(plugin, texts, seed, why);
    cr_assert(env, "%s", why);
    return env;
}

static void refused(const char *name, const char *texts, const char *wanted) {
    with_plugin plugin = open_plugin(name);
    char why[WHY_BYTES];
    cr_assert_null(create(&plugin, texts, 0, why), "%s %s", name, texts);
    cr_assert(strstr(why, wanted), "%s %s: \"%s\" lacks \"%s\"", name, texts, why, wanted);
}

// ---- what it offers and refuses ----

Test(envs, mujoco_specs_can_be_believed) {
    with_plugin plugin = open_plugin(NULL);
    const struct farm_env_api *(*at)(size_t) = NULL;
    void *symbol = dlsym(plugin.handle, "farm_env_at");
    memcpy(&at, &symbol, sizeof at);
    size_t count = 0;
    for (const struct farm_env_api *api; (api = at(count)); count++) {
        struct farm_env_spec spec;
        struct farm_error err = {0};
        char why[WHY_BYTES] = "";
        cr_assert_eq(api->spec(&(struct farm_env_config){0}, &spec, why, sizeof why), 0, "%s", why);
        cr_assert_eq(farm_plugin_check_spec(&spec, &err), FARM_OK, "%s: %s", api->name, err.message);
        cr_assert_eq(strncmp(api->name, "mujoco/", 7), 0);
    }
    cr_assert_eq(count, 21);
}

Test(envs, mujoco_refuses_options_that_make_no_sense) {
    refused("mujoco/Hopper-v4", "frame_skip=2",
            "mujoco/Hopper-v4 has no option \"frame_skip\"; it has max_episode_steps");
    refused("mujoco/Ant-v5", "gravity=9.81", "no option \"gravity\"");
    refused("mujoco/Ant-v5", "gravity=9.81", ", ..."); // more than fit
    refused("mujoco/Hopper-v5", "frame_skip=0", "\"frame_skip\" is a whole number from 1 to 1000000000, not \"0\"");
    refused("mujoco/Hopper-v5", "frame_skip=2.5", "a whole number");
    refused("mujoco/Hopper-v5", "max_episode_steps=-1", "a whole number");
    refused("mujoco/Hopper-v5", "ctrl_cost_weight=nan", "is a number, not \"nan\"");
    refused("mujoco/Hopper-v5", "ctrl_cost_weight=1x", "is a number, not \"1x\"");
    refused("mujoco/Hopper-v5", "ctrl_cost_weight=", "is a number, not \"\"");
    refused("mujoco/Hopper-v5", "healthy_z_range=1", "is two numbers \"low,high\", not \"1\"");
    refused("mujoco/Hopper-v5", "healthy_z_range=2,1", "two numbers");
    refused("mujoco/Hopper-v5", "healthy_z_range=1,2,3", "two numbers");
    refused("mujoco/Hopper-v5", "terminate_when_unhealthy=perhaps", "is true or false, not \"perhaps\"");
}

Test(envs, mujoco_refuses_models_that_do_not_suit) {
    refused("mujoco/Hopper-v5", "xml_file=nowhere.xml", "nowhere.xml (FARM_MUJOCO_ASSETS names the folder)");
    refused("mujoco/Hopper-v5", "xml_file=./tests/envs/test_mujoco.c", "cannot load the model ./tests/envs");
    refused("mujoco/Hopper-v5", "xml_file=inverted_pendulum.xml", "it needs 3 positions, 3 velocities");
    refused("mujoco/Pusher-v5", "xml_file=ant.xml", "the model ant.xml has no body \"tips_arm\"");
    refused("mujoco/Ant-v5", "main_body=head", "has no body \"head\"");
    refused("mujoco/Ant-v5", "main_body=14", "has no body \"14\"");
    refused("mujoco/Ant-v5", "main_body=-1", "has no body \"-1\"");
}

// ---- episodes ----

// The sum over a run of rewards and observations: two runs that differ anywhere differ in it.
static double run(const struct farm_plugin *plugin, void *env, uint32_t steps) {
    float out[OBS_MAX] = {0}, reward, action[ACTIONS_MAX] = {0.3f, -0.2f, 0.1f};
    void *obs[] = {out};
    double sum = 0;
    plugin->api->reset(env, obs);
    for (uint32_t n = 0; n < steps; n++) {
        const uint32_t flags = plugin->api->step(env, action, obs, &reward);
        sum = 1.1 * sum + (double)reward + (double)out[0] + (double)out[3];
        if (flags) plugin->api->reset(env, obs);
    }
    return sum;
}

Test(envs, mujoco_repeats_itself_under_a_seed) {
    with_plugin plugin = open_plugin("mujoco/Hopper-v4");
    void *first = created(&plugin, "", 7), *second = created(&plugin, "", 7), *other = created(&plugin, "", 8);
    const double sum = run(&plugin, first, 200);
    cr_assert(sum == run(&plugin, second, 200) && sum != run(&plugin, other, 200));
    cr_assert(run(&plugin, first, 200) != sum, "every episode starts alike");
    plugin.api->destroy(first);
    plugin.api->destroy(second);
    plugin.api->destroy(other);
}

Test(envs, mujoco_cuts_episodes_at_the_limit) {
    with_plugin plugin = open_plugin("mujoco/Reacher-v4");
    float out[OBS_MAX], reward, action[ACTIONS_MAX] = {0};
    void *obs[] = {out}, *env = created(&plugin, "", 0);
    for (int episode = 0; episode < 2; episode++) {
        plugin.api->reset(env, obs);
        for (int n = 1; n < 50; n++) cr_assert_eq(plugin.api->step(env, action, obs, &reward), 0);
        cr_assert_eq(plugin.api->step(env, action, obs, &reward), FARM_STEP_TRUNCATED | FARM_STEP_GAME_END);
    }
    plugin.api->destroy(env);
}

Test(envs, mujoco_tells_a_broken_simulation_as_nan_until_the_reset) {
    with_plugin plugin = open_plugin("mujoco/Hopper-v4"); // NaN is no healthy height either
    char folder[] = "/tmp/farm_mujoco_XXXXXX";
    set_state_function *set_state = NULL;
    void *symbol = dlsym(plugin.handle, "farm_mujoco_set_state");
    memcpy(&set_state, &symbol, sizeof set_state);
    const double qpos[6] = {0, 1.25}, qvel[6] = {0, 0, 1e12};
    float out[12], reward, action[3] = {0};
    void *obs[] = {out}, *env = created(&plugin, "", 0);
    cr_assert(mkdtemp(folder) && chdir(folder) == 0);
    set_state(env, qpos, qvel, obs);
    out[11] = 42; // behind the observation
    for (int n = 0; n < 3; n++) {
        cr_assert_eq(plugin.api->step(env, action, obs, &reward), 0);
        cr_assert(isnan(reward));
        for (int i = 0; i < 11; i++) cr_assert(isnan(out[i]));
    }
    plugin.api->reset(env, obs);
    cr_assert_eq(plugin.api->step(env, action, obs, &reward), 0);
    for (int i = 0; i < 11; i++) cr_assert(isfinite(out[i]));
    cr_assert(isfinite(reward) && out[11] == 42);
    plugin.api->destroy(env);
    cr_assert_eq(rmdir(folder), 0, "MuJoCo left a file in the working directory");
}

Test(envs, mujoco_steps_and_resets_allocate_nothing) {
    with_plugin plugin = open_plugin("mujoco/Humanoid-v5");
    int (*control)(const char *, void *, size_t *, void *, size_t) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "mallctl");
    memcpy(&control, &symbol, sizeof control);
    if (!control) cr_skip_test("only jemalloc counts allocations, and it is not linked here");
    void *env = created(&plugin, "", 0);
    uint64_t before, after;
    size_t bytes = sizeof before;
    run(&plugin, env, 2);
    cr_assert_eq(control("thread.allocated", &before, &bytes, NULL, 0), 0);
    run(&plugin, env, 200);
    cr_assert_eq(control("thread.allocated", &after, &bytes, NULL, 0), 0);
    cr_assert_eq(before, after, "%llu bytes", (unsigned long long)(after - before));
    plugin.api->destroy(env);
}

// ---- models ----

Test(envs, mujoco_loads_a_model_once_for_all_who_play_it) {
    static const char model[] =
        "<mujoco><worldbody><body><joint name='a' type='slide'/><geom size='1'/><body><joint name='b'/>"
        "<geom size='1'/></body></body></worldbody><actuator><motor joint='a' ctrlrange='-1 1'/></actuator></mujoco>";
    with_plugin plugin = open_plugin("mujoco/InvertedPendulum-v5");
    char folder[] = "/tmp/farm_mujoco_XXXXXX", path[64], why[WHY_BYTES];
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/own.xml", folder);
    FILE *file = fopen(path, "w");
    cr_assert(file && fputs(model, file) >= 0 && fclose(file) == 0);
    cr_assert_eq(setenv("FARM_MUJOCO_ASSETS", folder, 1), 0);
    void *first = created(&plugin, "xml_file=own.xml", 0);
    cr_assert(unlink(path) == 0 && rmdir(folder) == 0);
    void *second = created(&plugin, "xml_file=own.xml", 0);
    plugin.api->destroy(first);
    cr_assert(isfinite(run(&plugin, second, 10)), "its model went with the first");
    void *third = created(&plugin, "xml_file=own.xml", 0);
    plugin.api->destroy(second);
    plugin.api->destroy(third);
    cr_assert_null(create(&plugin, "xml_file=own.xml", 0, why), "the model outlived its users");
    cr_assert(strstr(why, path), "%s", why);
}
