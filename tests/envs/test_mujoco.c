// Steps and resets of the MuJoCo plug-in allocate nothing. tests/envs/test_mujoco.py shows everything else.
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "envs/plugin.h"

static void play(const struct farm_env_api *api, void *env, int steps) {
    static float observation[512], reward, action[32] = {0.3f, -0.2f, 0.1f};
    void *obs[] = {observation};
    api->reset(env, obs);
    for (int n = 0; n < steps; n++)
        if (api->step(env, action, obs, &reward)) api->reset(env, obs);
}

Test(envs, mujoco_steps_and_resets_allocate_nothing) {
    char path[4096], message[256] = "";
    struct farm_plugin plugin;
    struct farm_error err = {0};
    const char *build = getenv("FARM_BUILD");
    snprintf(path, sizeof path, "%s/envs/mujoco.so", build ? build : "build");
    if (access(path, F_OK)) cr_skip_test("%s does not exist: it needs MuJoCo in build/venv (make deps)", path);
    cr_assert_eq(farm_plugin_open(path, "mujoco/Humanoid-v5", &plugin, &err), FARM_OK, "%s", err.message);
    void *env = plugin.api->create(&(struct farm_env_config){0}, message, sizeof message);
    cr_assert(env, "%s", message);
    play(plugin.api, env, 2);
    int (*control)(const char *, void *, size_t *, void *, size_t) = NULL;
    void *symbol = dlsym(RTLD_DEFAULT, "mallctl");
    memcpy(&control, &symbol, sizeof control);
    uint64_t before = 0, after = 0;
    size_t bytes = sizeof before;
    if (control) cr_assert_eq(control("thread.allocated", &before, &bytes, NULL, 0), 0);
    play(plugin.api, env, 200);
    if (control) cr_assert_eq(control("thread.allocated", &after, &bytes, NULL, 0), 0);
    cr_assert_eq(before, after, "%llu bytes", (unsigned long long)(after - before));
    plugin.api->destroy(env);
    farm_plugin_close(&plugin);
    if (!control) cr_skip_test("not linked with jemalloc, which counts allocations");
}
