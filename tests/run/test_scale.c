// What a scale makes of recipes, and that a scaled recipe uses all CPUs of large machines.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../topo/machines.h"
#include "algo/registry.h"
#include "run/scale.h"
#include "topo/plan.h"

static struct farm_plan plan;

static struct farm_recipe pong_with(const char *key, const char *value) {
    static struct farm_recipe recipe;
    farm_recipe_defaults(&recipe, farm_algo_family_at);
    cr_assert_eq(farm_recipe_load(&recipe, FARM_LAYER_SHIPPED, "recipes/ale_Pong.yaml", &error), FARM_OK);
    cr_assert_eq(farm_recipe_set(&recipe, FARM_LAYER_FLAG, key, value, &error), FARM_OK);
    cr_assert_eq(farm_recipe_settle(&recipe, &error), FARM_OK, "%s", error.message);
    return recipe;
}

static void plan_actors(int actors, int gpus) {
    struct farm_plan_request request = {.actors = actors,
                                        .learner_device = gpus ? 0 : FARM_LEARNER_CPU,
                                        .learner_gpus = gpus,
                                        .synchronous = true,
                                        .pin = true,
                                        .numa = true};
    cr_assert_eq(farm_plan_make(&machine, &request, &plan, &error), FARM_OK, "%s", error.message);
}

static int idle_cpus(void) {
    struct farm_bitmap idle = machine.allowed;
    farm_bitmap_remove(&idle, &plan.inference_cpus);
    farm_bitmap_remove(&idle, &plan.training_cpus);
    for (int i = 0; i < plan.actor_count; i++)
        if (farm_bitmap_has(&idle, plan.actor[i].cpu)) farm_bitmap_clear(&idle, plan.actor[i].cpu);
    return farm_bitmap_count(&idle);
}

Test(scale, auto_leaves_no_more_than_three_percent_of_the_cpus_idle) {
    static const struct {
        const char *synthetic;
        int allowed, gpus; // CPUs, 0: all
    } cases[] = {{"pack:2 [numa(memory=256GB)] l3:4 core:8 pu:2", 0, 0},
                 {"pack:4 [numa(memory=512GB)] l3:8 core:8 pu:2", 0, 0},
                 {"pack:4 [numa(memory=512GB)] l3:8 core:8 pu:2", 0, 8},
                 {FOUR_NODES_A_SOCKET, 0, 0},
                 {FOUR_NODES_A_SOCKET, 0, 8},
                 {TWO_SOCKETS, 12, 0},
                 {SIXTEEN_CORES, 0, 0},
                 {TWO_CORES, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe = pong_with("scale", "auto");
        read_synthetic(cases[i].synthetic);
        machine.gpu_count = cases[i].gpus;
        for (int gpu = 0; gpu < machine.gpu_count; gpu++) machine.gpu[gpu].node = gpu * machine.node_count / 8;
        for (int cpu = cases[i].allowed; cases[i].allowed && cpu < machine.cpu_count; cpu++)
            farm_bitmap_clear(&machine.allowed, cpu);
        plan_actors(0, cases[i].gpus);
        const int planned = plan.actor_count;
        cr_assert_eq(farm_run_scale_apply(&recipe, planned, &error), FARM_OK, "%s", error.message);
        const int64_t total = recipe.envs_total;
        farm_run_scale_divide(&recipe, 0, planned, 1);
        cr_expect_eq(recipe.actors * recipe.envs_per_actor, total, "case %zu: parts are not equal", i);
        cr_expect(total >= 64 && fabs((double)total - 64 * recipe.scaled) < 1e-6);
        plan_actors((int)recipe.actors, cases[i].gpus);
        cr_expect_leq(idle_cpus(), 0.03 * farm_bitmap_count(&machine.allowed), "case %zu: %d idle, scale %s", i,
                      idle_cpus(), recipe.scale);
    }
}

Test(scale, multiplies_what_no_flag_has_set_and_only_once) {
    struct farm_recipe recipe = pong_with("lr", "0.001");
    char text[128];
    strcpy(recipe.scale, "16");
    for (int times = 0; times < 2; times++) {
        cr_assert_eq(farm_run_scale_apply(&recipe, 3, &error), FARM_OK, "%s", error.message);
        cr_expect(recipe.envs_total == 1024 && recipe.frames == 19200000 && recipe.lr == 0.001 && recipe.unroll == 32);
        cr_expect_str_eq(farm_run_scale_format(&recipe, 1024, text, sizeof text),
                         "scale 16: 1024 environments, minibatch 2048, lr 0.001, frames 19200000");
        cr_expect_str_eq(recipe.scale, "16");
        strcpy(recipe.scale, "auto"); // a resumed run keeps its number
    }
    strcpy(recipe.scale, "8");
    cr_expect_eq(farm_run_scale_apply(&recipe, 3, &error), FARM_E_USAGE);
    cr_expect(strstr(error.message, "already has scale 16"), "%s", error.message);
}

Test(scale, refuses_what_is_no_scale_and_a_recipe_that_fixes_no_environments) {
    static const char *const cases[][3] = {{"scale", "0.5", "must be auto"},
                                           {"scale", "many", "must be auto"},
                                           {"scale", "65536", "envs_total"},
                                           {"envs_total", "0", "set it"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_recipe recipe = pong_with(cases[i][0], cases[i][1]);
        if (recipe.envs_total == 0) strcpy(recipe.scale, "2");
        cr_expect_eq(farm_run_scale_apply(&recipe, 3, &error), FARM_E_USAGE);
        cr_expect(strstr(error.message, cases[i][2]), "%s", error.message);
    }
    struct farm_recipe recipe = pong_with("deterministic", "true");
    strcpy(recipe.scale, "auto");
    cr_expect_eq(farm_run_scale_apply(&recipe, 300, &error), FARM_OK);
    cr_expect_eq(recipe.scaled, 1);
}
