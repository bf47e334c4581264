// A farm from a recipe to its end, without the program.
#include "run/run.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "algo/registry.h"
#include "run/checkpoints.h"
#include "run/settings.h"

static void fill_recipe(struct farm_recipe *recipe, const char *key, const char *value) {
    struct farm_error err;
    farm_recipe_defaults(recipe, farm_algo_family_at);
    const char *const keys[][2] = {{"env", "native/catch"}, {"device", "cpu"}, {"actors", "2"},
                                   {"envs_per_actor", "8"}, {"batch", "8"},    {key, value}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        cr_assert_eq(farm_recipe_set(recipe, FARM_LAYER_FLAG, keys[i][0], keys[i][1], &err), FARM_OK, "%s",
                     err.message);
    cr_assert_eq(farm_recipe_settle(recipe, &err), FARM_OK, "%s", err.message);
}

static struct farm_run *make_with(struct farm_run_request *request, struct farm_recipe *recipe, const char *key,
                                  const char *value) {
    struct farm_error err;
    struct farm_run *run = calloc(1, sizeof *run);
    fill_recipe(recipe, key, value);
    request->recipe = recipe;
    request->quiet = true;
    cr_assert_eq(farm_run_make(run, request, &err), FARM_OK, "%s", err.message);
    return run;
}

static void end(struct farm_run *run) {
    farm_run_free(run);
    free(run);
}

Test(run, choices_of_a_recipe_have_the_order_of_their_enums) {
    static const char *const choices[][2] = {{"mirror", "off"},     {"init", "uniform"},      {"precision", "f32"},
                                             {"regime", "async"},   {"optimiser", "rmsprop"}, {"wait", "sleep"},
                                             {"bad_values", "fail"}};
    struct farm_recipe recipe;
    struct farm_run_request request = {0};
    struct farm_run *run = make_with(&request, &recipe, "device", "cpu");
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        farm_recipe_set(&run->plan.recipe, FARM_LAYER_FLAG, choices[i][0], choices[i][1], NULL);
    cr_assert_eq(farm_algo_configure(&run->plan.recipe, &run->plan.algo, NULL), FARM_OK);
    const struct farm_learner_config learner = farm_run_learner_settings(&run->plan);
    cr_expect_eq(learner.device.mirror, FARM_MIRROR_OFF);
    cr_expect(learner.init == FARM_INIT_UNIFORM && learner.arithmetic.precision == FARM_PRECISION_F32);
    cr_expect(learner.algo.regime == FARM_REGIME_ASYNC && learner.algo.optimiser == FARM_OPTIMISER_RMSPROP);
    cr_expect(learner.inference.spin_ns == 0 &&
              farm_recipe_choice(&run->plan.recipe, FARM_KEY_bad_values) == FARM_BAD_FAIL);
    end(run);
}

static void train(const char *key, const char *value, struct farm_sample *sample) {
    struct farm_run_request request = {0};
    struct farm_recipe recipe;
    struct farm_error err;
    bool interrupted = true;
    struct farm_run *run = make_with(&request, &recipe, key, value);
    cr_assert_eq(run->plan.actors, 2);
    cr_assert_eq(run->plan.shards, strcmp(key, "infer_threads") == 0 ? 2 : 1);
    run->workers.learner.target.frames = 5000;
    cr_assert_eq(farm_run_build(run, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_run_execute(run, &interrupted, &err), FARM_OK, "%s", err.message);
    farm_run_sample(&run->sampler, run->events.end_ns, sample);
    cr_expect(!interrupted);
    cr_expect_geq(sample->total.frames, 5000);
    cr_expect_gt(sample->total.updates, 0);
    cr_expect_gt(sample->total.wall_s, 0);
    cr_expect_eq(sample->actors, 2);
    cr_expect_eq(sample->actor_restarts + sample->learner_restarts, 0);
    end(run);
}

Test(run, trains_from_a_recipe_until_its_frames) {
    struct farm_sample sample;
    train("regime", "auto", &sample);
    cr_expect_eq(sample.windows_dropped, 0);
}

Test(run, trains_by_synchronous_iterations_without_lag) {
    struct farm_sample sample;
    train("regime", "sync", &sample);
    cr_expect_eq(sample.policy_lag_updates, 0);
    cr_expect_eq(sample.windows_dropped, 0);
}

Test(run, trains_with_a_bounded_lag) {
    struct farm_sample sample;
    train("max_lag", "2", &sample);
    cr_expect_leq(sample.policy_lag_updates, 2); // a batch is two lanes: no window is in two updates
}

Test(run, trains_with_an_inference_thread_for_each_actor) {
    struct farm_sample sample;
    train("infer_threads", "2", &sample);
    train("infer_threads", "7", &sample); // more than actors
}

Test(run, trains_with_actors_that_infer) {
    struct farm_sample sample;
    train("inference", "local", &sample);
    cr_expect_eq(sample.versions_skipped, 0);
    cr_expect(sample.parameters_age_s >= 0 && sample.parameters_age_s < 60);
    cr_expect(isnan(sample.infer_batch_mean)); // the learner has none
}

Test(run, reports_an_actor_once_that_takes_up_no_newer_parameters) {
    struct farm_run_request request = {0};
    struct farm_recipe recipe;
    struct farm_error err;
    struct farm_run *run = make_with(&request, &recipe, "inference", "local");
    cr_assert_eq(farm_run_build(run, &err), FARM_OK, "%s", err.message);
    const struct { // at these moments, with these steps, and these versions in the lanes' newest answers
        double now_s;
        uint64_t publishes, produced, versions[2];
        double age_s; // NAN: unknown
        bool stale;
    } looks[] = {
        {1, 10, 4, {10, 10}, NAN, false}, // the learner has not published what a lane claims
        {2, 20, 4, {15, 16}, 1, false},       {22, 21, 9, {19, 20}, 20, false}, // old, and only one is newer
        {23, 121, 9, {21, 120}, 1, false},    {51, 140, 9, {21, 120}, 29, false},
        {53, 160, 20, {21, 159}, 2, false},                                         // one lane goes on
        {84, 160, 20, {139, 139}, 61, false}, {85, 160, 20, {139, 139}, 62, false}, // it waits
        {86, 160, 21, {139, 139}, 63, false},                                       // the answer may be from before
        {87, 160, 22, {139, 139}, 64, true},  {88, 160, 22, {159, 159}, 37, true},  // reported once a life
    };
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++) {
        farm_store_relaxed(&run->rings.stats->publishes, looks[i].publishes);
        for (uint32_t l = 0; l < 2; l++) {
            struct farm_lane *lane = &run->rings.ring[1].lanes[l];
            farm_store_release(&lane->up->produced, looks[i].produced);
            *farm_lane_version(lane, looks[i].produced - 2) = looks[i].versions[l];
        }
        const uint64_t now_ns = (uint64_t)(looks[i].now_s * 1e9);
        farm_run_watch_tick(&run->watch, now_ns);
        const double age_s = farm_run_watch_parameters(&run->watch, now_ns);
        cr_expect(isnan(looks[i].age_s) ? isnan(age_s) : fabs(age_s - looks[i].age_s) < 1e-3, "look %zu: %g s", i,
                  age_s);
        cr_expect_eq(run->watch.memory[1].stale, looks[i].stale, "look %zu", i);
        cr_expect(!run->watch.memory[0].stale);
    }
    end(run);
}

Test(run, refuses_boards_that_exceed_a_limit_before_it_starts_and_evaluates_without) {
    struct farm_recipe recipe;
    struct farm_error err;
    struct farm_run_plan plan;
    struct farm_run_request request = {0};
    struct farm_run *run = make_with(&request, &recipe, "inference", "local");
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20});
    cr_expect_eq(farm_run_build(run, &err), FARM_E_LIMIT);
    cr_expect(strstr(err.message, "parameter board of 4 buffers"), "%s", err.message);
    end(run);
    request.play.games = 10;
    cr_expect_eq(farm_run_plan_make(&plan, &request, &err), FARM_OK, "%s", err.message);
    cr_expect(!plan.board_parameters && plan.ring_spec.answers == FARM_ANSWERS_CENTRAL);
    farm_run_plan_free(&plan);
}

// A dish that its mask forbids would end the game with -1.
Test(run, never_chooses_what_a_mask_forbids) {
    struct farm_sample sample;
    train("env", "native/menu", &sample);
    cr_expect_eq(sample.length_mean, 10);
    cr_expect_geq(sample.return_mean, 0.1);
}

Test(run, refuses_inference_threads_without_a_part_of_an_update) {
    struct farm_recipe recipe;
    struct farm_error err;
    struct farm_run_plan plan;
    const struct farm_run_request request = {.recipe = &recipe, .quiet = true};
    fill_recipe(&recipe, "infer_threads", "2");
    recipe.batch = 1;
    cr_expect_eq(farm_run_plan_make(&plan, &request, &err), FARM_E_USAGE);
    cr_expect(strstr(err.message, "--batch 1 with --infer-threads 2"), "%s", err.message);
    farm_run_plan_free(&plan);
}

// Plans a replay with these keys, NULL ends them. 16 environments.
static enum farm_status plan_replay(struct farm_run_plan *plan, const char *const keys[][2], struct farm_error *err) {
    static struct farm_recipe recipe;
    const struct farm_run_request request = {.recipe = &recipe, .quiet = true};
    fill_recipe(&recipe, "algo", "dqn");
    recipe.batch = 0;
    for (size_t i = 0; keys[i][0]; i++)
        if (farm_recipe_set(&recipe, FARM_LAYER_FLAG, keys[i][0], keys[i][1], err)) return err->status;
    if (farm_recipe_settle(&recipe, err)) return err->status;
    return farm_run_plan_make(plan, &request, err);
}

Test(run, plans_a_replay_of_so_many_steps) {
    static const struct {
        const char *keys[5][2]; // NULL ends
        int64_t replay, start, batch;
        uint32_t steps;
        uint64_t windows, versions; // before training; until epsilon_end
    } cases[] = {
        {{{"replay_ratio", "8"}}, 100000, 5000, 64, 6250, 5000, 6250},
        {{{"replay", "33"}, {"batch", "2"}, {"n_step", "1"}, {"epsilon_steps", "1000"}}, 33, 4, 2, 3, 4, 4000},
        {{{"ring_steps", "2000"}, {"replay_start", "999"}}, 32000, 999, 64, 2000, 999, 6250},
        {{{"algo", "r2d2"}, {"unroll", "40"}, {"replay_ratio", "1"}, {"epsilon_steps", "128001"}},
         100000,
         5000,
         32,
         6250,
         125,
         101},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_run_plan plan;
        struct farm_error err;
        cr_assert_eq(plan_replay(&plan, cases[i].keys, &err), FARM_OK, "%zu: %s", i, err.message);
        const struct farm_learner_config learner = farm_run_learner_settings(&plan);
        cr_expect_eq(plan.recipe.replay, cases[i].replay, "case %zu: %lld", i, (long long)plan.recipe.replay);
        cr_expect_eq(plan.recipe.replay_start, cases[i].start);
        cr_expect_eq(plan.algo.batch, cases[i].batch);
        cr_expect_eq(plan.ring_spec.steps, cases[i].steps);
        cr_expect_eq(learner.replay.start, cases[i].windows);
        cr_expect_eq(learner.sampler.environments, 16);
        cr_expect_eq(learner.sampler.epsilon_versions, cases[i].versions, "case %zu: %llu versions", i,
                     (unsigned long long)learner.sampler.epsilon_versions);
        farm_run_plan_free(&plan);
    }
}

Test(run, refuses_a_replay_that_cannot_be) {
    static const struct {
        const char *keys[4][2], *says;
    } cases[] = {
        {{{"replay", "1000"}, {"replay_start", "1001"}}, "replay_start (1001) is larger than replay (1000)"},
        {{{"replay", "80"}, {"batch", "32"}}, "raise --replay or lower --batch"},
        {{{"replay_ratio", "0"}}, "replay_ratio: 0 is outside its range"},
        {{{"regime", "sync"}}, "--regime sync: dqn trains on its replay"},
        {{{"normalise_rewards", "true"}}, "normalise_rewards: dqn trains on rewards of different ages"},
        {{{"algo", "r2d2"}, {"unroll", "4"}, {"n_step", "4"}}, "n_step (4) must be less than unroll (4)"},
        {{{"lstm", "8"}}, "r2d2 trains on sequences"},
        {{{"replay", "1000M"}}, "--replay 1000000000: 62500000 steps a ring"},
        {{{"env", "native/breakout"}, {"replay", "260M"}}, "4 lanes x 4 environments x 16250000 steps x 7"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_run_plan plan = {0};
        struct farm_error err;
        const enum farm_status status = plan_replay(&plan, cases[i].keys, &err);
        cr_expect(status == FARM_E_USAGE || status == FARM_E_INVALID || status == FARM_E_LIMIT, "%s", cases[i].says);
        cr_expect(strstr(err.message, cases[i].says), "'%s' does not say '%s'", err.message, cases[i].says);
        farm_run_plan_free(&plan);
    }
}

// A process that claims and releases the CPU again and again, until the test ends it.
static pid_t start_restless_farm(int cpu) {
    const pid_t parent = getpid(), pid = fork();
    struct farm_claim claim;
    struct farm_bitmap cpus = {{0}};
    if (pid) return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) || getppid() != parent || farm_claim_open(&claim, NULL, NULL)) _exit(1);
    farm_bitmap_set(&cpus, cpu);
    for (;;) {
        (void)farm_claim_take(&claim, &cpus, NULL);
        usleep(2000);
        farm_claim_give(&claim, &cpus);
        usleep(2000);
    }
}

Test(run, plans_again_while_another_farm_claims_and_releases_cpus) {
    struct farm_recipe recipe;
    struct farm_run_plan plan;
    struct farm_error err;
    const struct farm_run_request request = {.recipe = &recipe, .quiet = true};
    fill_recipe(&recipe, "pin", "true");
    recipe.actors = 0;
    cr_assert_eq(farm_run_plan_make(&plan, &request, &err), FARM_OK, "%s", err.message);
    int cpu = -1;
    for (int next = 0; (next = farm_bitmap_next(&plan.placement->actor_cpus, next)) >= 0; next++) cpu = next;
    farm_run_plan_free(&plan);
    cr_assert_geq(cpu, 0);
    const pid_t pid = start_restless_farm(cpu);
    cr_assert_gt(pid, 0);
    for (int i = 0; i < 40; i++) {
        cr_expect_eq(farm_run_plan_make(&plan, &request, &err), FARM_OK, "%s", err.message);
        farm_run_plan_free(&plan);
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

Test(run, divides_a_total_of_environments_among_the_actors) {
    for (int requested = 0; requested <= 5; requested += 5) {
        struct farm_run_request request = {.quiet = true};
        struct farm_recipe recipe;
        struct farm_run_plan plan;
        struct farm_error err;
        fill_recipe(&recipe, "unroll", "4");
        recipe.actors = requested;
        recipe.envs_per_actor = 0;
        recipe.envs_total = 12;
        request.recipe = &recipe;
        cr_assert_eq(farm_run_plan_make(&plan, &request, &err), FARM_OK, "%s", err.message);
        cr_expect_eq(plan.actors * plan.lanes * plan.width, requested ? 20 : 12, "%u actors", plan.actors);
        farm_run_plan_free(&plan);
    }
}

Test(run, evaluates_with_one_inference_thread_unless_more_are_requested) {
    for (uint32_t shards = 1; shards <= 2; shards++) {
        struct farm_run_request request = {.play.games = 10};
        struct farm_recipe recipe;
        struct farm_run *run = make_with(&request, &recipe, "infer_threads", shards == 1 ? "0" : "2");
        cr_expect_eq(run->plan.shards, shards);
        end(run);
    }
}

Test(run, ends_after_ten_seconds_and_a_thousand_rejected_steps_without_a_valid_one) {
    const struct {
        double at_s;
        uint64_t valid, steps;
        bool ends;
    } looks[] = {
        {1, 0, 0, false},        {10.9, 0, 5000, false}, {11, 0, 999, false},  {11, 0, 1000, true},
        {12, 1, 9000, false}, // a valid one: from here on
        {21.9, 1, 99000, false}, {22, 1, 9999, false},   {22, 1, 10000, true}, {23, 5, 20000, false},
    };
    struct farm_run_rejected rejected = {0};
    for (size_t i = 0; i < sizeof looks / sizeof *looks; i++)
        cr_expect_eq(farm_run_rejected_all(&rejected, (uint64_t)(looks[i].at_s * 1e9), looks[i].valid, looks[i].steps),
                     looks[i].ends, "look %zu", i);
}

Test(run, finds_no_checkpoint_in_a_missing_folder) {
    char path[256];
    cr_expect(!farm_run_find_checkpoint("/nowhere", NULL, NULL, path, sizeof path));
}
