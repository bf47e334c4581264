// The actor process on a real ring: a forked process steps the test's environments; the test answers in the learner's
// place and checks every step against farm/step.h.
#include <criterion/criterion.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "../support/rings.h"
#include "actor/actor.h"
#include "base/time.h"
#include "envs/native/native.h"

static struct farm_error err;

enum { LANES = 2, WIDTH = 3, STEPS = 8 };
static const uint64_t limit_ns = 10000000000u;

// ---- an environment that shows its calls ----

// Observation: i32 [4] = {seed's low bits, episode, step in it, last action}. An episode has 2 + seed % 4 steps; even
// ones terminate, odd ones are truncated. Reward: NaN in every step 2, else 10 * episode + step.
struct tally {
    int32_t seen[4];
    int32_t length;
};

static int tally_spec(const struct farm_env_config *config, struct farm_env_spec *spec, char *error,
                      size_t error_bytes) {
    *spec = (struct farm_env_spec){.obs_count = 1,
                                   .obs[0] = {.name = "tally", .dtype = FARM_I32, .rank = 1, .dims = {4}},
                                   .action = {.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {1000}},
                                   .frames_per_step = 1,
                                   .agents = 1};
    return 0;
}
static void *tally_create(const struct farm_env_config *config, char *error, size_t error_bytes) {
    struct tally *tally = calloc(1, sizeof *tally);
    tally->seen[0] = (int32_t)(config->seed & 0xffffff);
    tally->seen[1] = -1;
    tally->length = 2 + tally->seen[0] % 4;
    return tally;
}
static void tally_reset(void *env, void *const *obs) {
    struct tally *tally = env;
    tally->seen[1]++;
    tally->seen[2] = 0;
    tally->seen[3] = -1;
    memcpy(obs[0], tally->seen, sizeof tally->seen);
}
static uint32_t tally_step(void *env, const void *action, void *const *obs, float *reward) {
    struct tally *tally = env;
    memcpy(&tally->seen[3], action, sizeof tally->seen[3]);
    tally->seen[2]++;
    memcpy(obs[0], tally->seen, sizeof tally->seen);
    *reward = tally->seen[2] == 2 ? NAN : (float)(10 * tally->seen[1] + tally->seen[2]);
    if (tally->seen[2] < tally->length) return 0;
    return (tally->seen[1] % 2 ? FARM_STEP_TRUNCATED : FARM_STEP_TERMINATED) | FARM_STEP_GAME_END;
}
static uint32_t rogue_step(void *env, const void *action, void *const *obs, float *reward) {
    tally_step(env, action, obs, reward);
    return FARM_STEP_FIRST;
}

// Starts a process and ends it by SIGTERM.
static uint32_t forking_step(void *env, const void *action, void *const *obs, float *reward) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0)
        for (;;) pause();
    if (child < 0 || kill(child, SIGTERM) || waitpid(child, &status, 0) != child || WTERMSIG(status) != SIGTERM)
        abort();
    return tally_step(env, action, obs, reward);
}

static struct farm_env_api tally_api = FARM_ENV_API("test/tally", "counts", tally, free);

// ---- the farm around it ----

struct farm {
    struct farm_ring supervisor, learner;
    int bell;
    pid_t actor;
    uint64_t answered[LANES];
    int32_t tally[LANES][WIDTH][4]; // the observation before
    uint8_t flags[LANES][WIDTH];    // and its flags
    bool fresh[LANES];              // a new actor: FIRST everywhere
};

static struct farm_actor_config actor_config(struct farm *farm, const struct farm_env_api *api) {
    return (struct farm_actor_config){.actor = 1,
                                      .up_fd = dup(farm->supervisor.up.fd),
                                      .down_fd = dup(farm->supervisor.down.fd_readonly),
                                      .learner_eventfd = farm->bell,
                                      .api = api,
                                      .seed = 42,
                                      .video = -1,
                                      .spin_ns = 1000};
}

static void start_actor(struct farm *farm, const struct farm_env_api *api) {
    const struct farm_actor_config config = actor_config(farm, api);
    farm->actor = fork();
    cr_assert_geq(farm->actor, 0);
    if (farm->actor == 0) _exit(farm_actor_run(&config, &err));
    close(config.up_fd);
    close(config.down_fd);
    for (int l = 0; l < LANES; l++) farm->fresh[l] = true;
}

static struct farm farm_of(const struct farm_env_api *api) {
    struct farm_ring_spec spec = {.lanes = LANES, .width = WIDTH, .steps = STEPS};
    struct farm farm = {.bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)};
    api->spec(&(struct farm_env_config){0}, &spec.env, NULL, 0);
    spec.env.agents = 1;
    farm_ring_spec_answers(&spec);
    farm.supervisor = ring_of(spec, 1);
    farm.learner = open_view(&farm.supervisor, FARM_RING_LEARNER);
    return farm;
}

// Polls until the condition holds, for ten seconds at most.
#define until(condition)                                                                                               \
    for (const uint64_t start = farm_now_ns(); !(condition); sched_yield())                                            \
    cr_assert_lt(farm_now_ns() - start, limit_ns, "%s", #condition)

static int wait_for_end(struct farm *farm) {
    int status = -1;
    until(waitpid(farm->actor, &status, WNOHANG));
    return status;
}

static void end_farm(struct farm *farm) {
    farm_ring_close(&farm->learner);
    farm_ring_close(&farm->supervisor);
    close(farm->bell);
}

#define with_farm __attribute__((cleanup(end_farm))) struct farm // closed at the end of its scope

static int32_t action_of(uint64_t n, uint32_t env) {
    return (int32_t)((n * 7 + env) % 1000);
}

static void check_first(const int32_t *tally, float reward, unsigned flags) {
    cr_assert_eq(flags, FARM_STEP_FIRST);
    cr_assert_eq(reward, 0.0f);
    cr_assert_eq(tally[2], 0, "an episode starts with its first observation");
}

// Checks step n of one environment against its last one.
static void check_step(struct farm *farm, uint32_t l, uint64_t n, uint32_t e) {
    struct farm_lane *lane = &farm->learner.lanes[l];
    const int32_t *now = farm_lane_obs(lane, 0, n, e), *before = farm->tally[l][e];
    const unsigned flags = farm_lane_flags(lane, n)[e], flags_before = farm->flags[l][e];
    const float reward = farm_lane_reward(lane, n)[e];
    if (farm->fresh[l]) {
        check_first(now, reward, flags);
        cr_assert_eq(now[1], 0);
    } else if (flags_before & FARM_STEP_LAST) {
        check_first(now, reward, flags);
        cr_assert_eq(now[1], before[1] + 1, "exactly one reset");
    } else {
        const bool ends = now[2] == 2 + now[0] % 4;
        const unsigned end = now[1] % 2 ? FARM_STEP_TRUNCATED : FARM_STEP_TERMINATED;
        cr_assert_eq(now[1], before[1], "no reset without LAST");
        cr_assert_eq(now[2], before[2] + 1, "exactly one step");
        cr_assert_eq(now[3], action_of(n - 1, e), "the answer to the step before is what was played");
        cr_assert_eq(flags, ends ? FARM_STEP_LAST | FARM_STEP_GAME_END | end : 0);
        if (now[2] == 2)
            cr_assert(isnan(reward), "a NaN is passed on");
        else
            cr_assert_eq(reward, (float)(10 * now[1] + now[2]));
    }
    memcpy(farm->tally[l][e], now, sizeof farm->tally[l][e]);
    farm->flags[l][e] = (uint8_t)flags;
}

// Checks and answers `more` steps of each lane.
static void answer_steps(struct farm *farm, uint64_t more) {
    const uint64_t start = farm_now_ns();
    uint64_t until[LANES];
    for (uint32_t l = 0; l < LANES; l++) until[l] = farm->answered[l] + more;
    for (uint32_t done = 0; done < LANES;) {
        done = 0;
        for (uint32_t l = 0; l < LANES; l++) {
            struct farm_lane *lane = &farm->learner.lanes[l];
            const uint64_t n = farm->answered[l];
            done += n == until[l];
            if (n == until[l] || farm_lane_produced(lane) <= n) continue;
            cr_assert_eq(farm_lane_produced(lane), n + 1, "an actor never runs ahead of its answers");
            for (uint32_t e = 0; e < WIDTH; e++) {
                check_step(farm, l, n, e);
                const int32_t action = action_of(n, e);
                memcpy(farm_lane_action(lane, n, e), &action, sizeof action);
            }
            farm->fresh[l] = false;
            farm_lane_answer(lane, n);
            farm_lane_release(lane, n);
            farm_learner_notify(&farm->learner);
            farm->answered[l]++;
        }
        cr_assert_lt(farm_now_ns() - start, limit_ns, "the actor does not step");
        sched_yield();
    }
}

static void stop_actor(struct farm *farm) {
    farm_store_release(&farm->supervisor.down_control->stop, 1);
    farm_learner_notify(&farm->learner);
    cr_assert_eq(wait_for_end(farm), 0);
}

static void check_ring(struct farm *farm) {
    char text[4096];
    verify_lanes(&farm->learner, text, sizeof text);
    for (const char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) // the environment's NaN
        cr_assert_not_null(strstr(line, "reward is not finite"), "%s", line);
}

// ---- tests ----

Test(actor, steps_every_lane_by_the_rules_of_first_and_last) {
    with_farm farm = farm_of(&tally_api);
    start_actor(&farm, &tally_api);
    answer_steps(&farm, 300);
    int32_t seeds[LANES * WIDTH];
    for (int l = 0; l < LANES; l++)
        for (int e = 0; e < WIDTH; e++) {
            seeds[l * WIDTH + e] = farm.tally[l][e][0];
            for (int k = 0; k < l * WIDTH + e; k++) cr_assert_neq(seeds[k], seeds[l * WIDTH + e], "seeds differ");
        }
    stop_actor(&farm);
    check_ring(&farm);
    const uint64_t calls = farm_load_relaxed(&farm.learner.up_control->heartbeat);
    cr_assert(calls >= 300u * LANES * WIDTH && calls <= 303u * LANES * WIDTH, "heartbeat %llu",
              (unsigned long long)calls);
}

Test(actor, lets_sigterm_end_what_an_environment_forks) {
    struct farm_env_api api = tally_api;
    api.step = forking_step;
    with_farm farm = farm_of(&api);
    start_actor(&farm, &api);
    answer_steps(&farm, 100);
    stop_actor(&farm);
}

Test(actor, a_new_actor_continues_at_the_step_of_a_killed_one) {
    with_farm farm = farm_of(&tally_api);
    start_actor(&farm, &tally_api);
    for (uint64_t generation = 1; generation <= 4; generation++) {
        const int32_t seed_before = farm.tally[0][0][0];
        answer_steps(&farm, 20 + generation); // LAST is at another step each time
        if (generation > 1) cr_assert_neq(farm.tally[0][0][0], seed_before, "each generation has different seeds");
        kill(farm.actor, SIGKILL);
        cr_assert(WIFSIGNALED(wait_for_end(&farm)));
        const uint64_t produced[LANES] = {farm_lane_produced(&farm.learner.lanes[0]),
                                          farm_lane_produced(&farm.learner.lanes[1])};
        for (uint32_t l = 0; l < LANES; l++) {
            // Published steps are answered: none is lost.
            while (farm.answered[l] < produced[l]) {
                for (uint32_t e = 0; e < WIDTH; e++) check_step(&farm, l, farm.answered[l], e);
                farm_lane_answer(&farm.learner.lanes[l], farm.answered[l]);
                farm_lane_release(&farm.learner.lanes[l], farm.answered[l]++);
            }
            farm_store_release(&farm.supervisor.lanes[l].down->generation, generation);
        }
        start_actor(&farm, &tally_api);
    }
    answer_steps(&farm, 50);
    stop_actor(&farm);
    check_ring(&farm);
}

Test(actor, stops_while_it_sleeps) {
    with_farm farm = farm_of(&tally_api);
    start_actor(&farm, &tally_api);
    until(farm_load_acquire(&farm.learner.up_control->asleep));
    for (uint32_t l = 0; l < LANES; l++) cr_assert_eq(farm_lane_produced(&farm.learner.lanes[l]), 1);
    stop_actor(&farm);
}

Test(actor, ends_on_sigterm_but_not_on_sigint_or_sigpipe) {
    with_farm farm = farm_of(&tally_api);
    start_actor(&farm, &tally_api);
    answer_steps(&farm, 10);
    kill(farm.actor, SIGINT);
    kill(farm.actor, SIGPIPE);
    answer_steps(&farm, 10);
    kill(farm.actor, SIGTERM);
    cr_assert_eq(wait_for_end(&farm), 0);
    check_ring(&farm);
}

Test(actor, refuses_lanes_that_were_made_for_another_environment) {
    with_farm farm = farm_of(&tally_api);
    const struct farm_actor_config config = actor_config(&farm, farm_native_env_find("native/catch"));
    cr_assert_eq(farm_actor_run(&config, &err), 1);
    cr_assert_not_null(strstr(err.message, "not made for environment native/catch"), "%s", err.message);
}

Test(actor, reports_an_environment_that_breaks_the_contract) {
    with_farm farm = farm_of(&tally_api);
    struct farm_env_api rogue = tally_api;
    rogue.step = rogue_step;
    start_actor(&farm, &rogue);
    answer_steps(&farm, 1);
    const int status = wait_for_end(&farm);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == FARM_ACTOR_ENV_BROKEN);
}
