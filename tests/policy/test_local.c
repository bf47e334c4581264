// An actor's own policy gives the answers that inference gives to the same steps, bit for bit if both compute the same
// number of rows, and is safe from signals.
#include "policy/local.h"

#include <criterion/criterion.h>
#include <math.h>
#include <signal.h>
#include <time.h>

#include "../support/rings.h"
#include "intake/validator.h"
#include "policy/policy.h"
#include "samples.h"

enum { WIDTH = 3, STEPS = 12, EVERY = 4 };

static struct farm_policy_description made;
static struct farm_executor *packs;
static struct farm_board *board;
static struct views local_ring, central_ring;
static struct farm_local *local;
static struct farm_policy *central;
static struct farm_validator checked; // inference's
static float *params;

static void pack(void *executor, const float *from, void *to) {
    farm_executor_pack(executor, from, to);
}

static struct farm_ring_spec spec_for(const struct sample *sample, enum farm_answers answers, uint32_t width) {
    struct farm_ring_spec spec = {.lanes = 1, .width = width, .steps = STEPS, .answers = answers, .env = sample->env};
    farm_ring_spec_answers(&spec);
    if (made.head.samples) farm_ring_spec_sample(&spec);
    if (made.net.state) farm_ring_spec_state(&spec, (uint32_t)made.net.state, EVERY);
    return spec;
}

static void publish(uint64_t version) {
    farm_net_init(&made.net, FARM_INIT_ORTHOGONAL, version, params);
    cr_assert(farm_board_publish(board, params, version));
}

static void open_sides(const struct sample *sample, uint32_t width, uint32_t refresh, bool packed) {
    struct farm_error err = {0};
    char text[FARM_POLICY_TEXT_BYTES];
    made = sample_describe(sample, refresh, text);
    const struct farm_executor_config config = {
        .net = &made.net, .batch_max = (int)width, .arithmetic = &made.arithmetic};
    must(farm_executor_create(&config, &packs, &err), &err);
    const size_t bytes = packed ? farm_executor_packed_bytes(packs) : 0;
    const struct farm_board_request request = {
        .count = made.net.parameter_count, .packed_max = bytes, .buffers = FARM_BOARD_BUFFERS, .node = -1};
    must(farm_board_create(&request, &board, &err), &err);
    board->pack = packed ? pack : NULL;
    board->pack_context = packs;
    cr_assert(farm_board_describe(board, text, bytes, packed ? farm_executor_packed_layout(packs) : 0));
    params = malloc(made.net.parameter_count * sizeof *params);
    publish(1);
    local_ring = views_of(spec_for(sample, FARM_ANSWERS_LOCAL, width));
    central_ring = views_of(spec_for(sample, FARM_ANSWERS_CENTRAL, width));
    must(farm_board_watch(board, &local_ring.learner.up_control->using, &err), &err);
    must(farm_local_open(dup(board->segment.fd_readonly), &local_ring.actor, 0, 3, &local, &err), &err);
    must(farm_validator_open(&central_ring.learner, 0, &checked, &err), &err);
    const struct farm_policy_config own = {.net = &made.net,
                                           .head = made.head,
                                           .arithmetic = &made.arithmetic,
                                           .board = board,
                                           .rows_max = width,
                                           .sampler = made.sampler};
    must(farm_policy_make(&own, &central, &err), &err);
}

static void close_sides(void) {
    farm_local_close(local);
    farm_policy_free(central);
    farm_validator_close(&checked);
    farm_executor_destroy(packs);
    farm_board_free(board);
    close_views(&local_ring);
    close_views(&central_ring);
    free(params);
}

// The environments' part of step n. Environment 0's episode ends at step 5; environment 1 returns NaN at step 3.
static void observe(struct farm_lane *lane, const struct farm_env_spec *env, uint64_t n) {
    uint64_t random = n;
    for (uint32_t f = 0; f < env->obs_count; f++) {
        uint8_t *at = farm_lane_obs(lane, f, n, 0);
        for (size_t i = 0; i < lane->width * farm_field_values(&env->obs[f]); i++) {
            const uint64_t drawn = random_next(&random);
            if (env->obs[f].dtype == FARM_U8) at[i] = (uint8_t)drawn;
            if (env->obs[f].dtype == FARM_I32) ((int32_t *)at)[i] = (int32_t)(drawn % env->obs[f].choices);
            if (env->obs[f].dtype == FARM_F32)
                ((float *)at)[i] = n == 3 && i == farm_field_values(&env->obs[f]) ? NAN : (float)(drawn % 97) / 97;
        }
    }
    for (uint32_t e = 0; e < lane->width; e++) {
        farm_lane_reward(lane, n)[e] = (float)(random_next(&random) % 3);
        farm_lane_flags(lane, n)[e] = n == 0 || (n == 6 && !e) ? FARM_STEP_FIRST : 0;
        if (n == 5 && !e) farm_lane_flags(lane, n)[e] = FARM_STEP_LAST | FARM_STEP_TERMINATED;
    }
}

static void answer_central(uint64_t n) {
    struct farm_error err;
    struct farm_lane *lane = &checked.checked;
    const struct farm_policy_rows rows = {.lane = lane, .lane_id = 3, .n = n, .env_count = lane->width};
    (void)farm_validator_step(&checked, n, 0);
    for (uint32_t e = 0; e < lane->width && lane->state && n % lane->answer[lane->state].every == 0; e++) {
        const bool first = farm_lane_flags(lane, n)[e] & FARM_STEP_FIRST;
        memcpy(farm_lane_answer_at(lane, lane->state, n, e), farm_lane_answer_at(lane, lane->state + 1, n, e),
               first ? 0 : lane->answer[lane->state].bytes);
        if (first) memset(farm_lane_answer_at(lane, lane->state, n, e), 0, lane->answer[lane->state].bytes);
    }
    (void)farm_policy_answer(central, &rows, 1, &err);
}

Test(local, gives_the_answers_of_inference) {
    for (int i = 0; i < 2 * SAMPLES; i++) {
        const struct sample *sample = &samples[i / 2];
        open_sides(sample, WIDTH, 1, i % 2);
        const struct farm_lane *here = &local_ring.actor.lanes[0], *there = &checked.checked;
        for (uint64_t n = 0; n < STEPS; n++) {
            if (n == 4 || n == 8) publish(n);
            observe(&local_ring.actor.lanes[0], &sample->env, n);
            observe(&central_ring.actor.lanes[0], &sample->env, n);
            farm_local_answer(local, 0, n);
            answer_central(n);
            for (uint32_t f = 0; f < here->answer_count; f++)
                cr_assert_arr_eq(farm_lane_answer_at(here, f, n, 0), farm_lane_answer_at(there, f, n, 0),
                                 here->answer[f].rows * here->answer[f].bytes, "%s%s: field %u of step %lu",
                                 sample->name, i % 2 ? ", packed" : "", f, n);
            for (uint32_t e = 0; e < WIDTH && made.head.kind == FARM_HEAD_GREEDY_Q; e++) {
                const float *q = farm_lane_policy(here, n, e);
                int32_t action;
                made.sampler.version = *farm_lane_version(here, n);
                farm_head_choose(&made.head, &made.sampler, farm_random_stream(3, e), n, q, &action, NULL);
                cr_assert_eq(farm_head_discrete(farm_lane_action(here, n, e), 0), action);
                cr_assert_eq(farm_lane_value(here, n)[e], q[farm_categorical_greedy(q, made.head.outputs)]);
            }
            cr_assert_eq(*farm_lane_version(here, n), n < 4 ? 1 : n < 8 ? 4 : 8);
            cr_assert_eq(local_ring.learner.up_control->using, 0);
        }
        close_sides();
    }
}

Test(local, its_policy_answers_only_the_rows_that_it_is_given) {
    struct farm_error err;
    open_sides(&samples[0], WIDTH, 1, false);
    struct farm_lane *lane = &checked.checked;
    const struct farm_policy_rows rows = {.lane = lane, .lane_id = 3, .env_from = 1, .env_count = 2};
    observe(&central_ring.actor.lanes[0], &samples[0].env, 0);
    cr_assert_eq(farm_policy_answer(central, &rows, 1, &err), FARM_OK);
    cr_assert(farm_lane_value(lane, 0)[0] == 0 && farm_lane_value(lane, 0)[1] != 0 && farm_lane_value(lane, 0)[2] != 0);
    close_sides();
}

static struct farm_ring *open_opponents(uint64_t next, struct farm_local **opponents) {
    struct farm_error err = {0};
    central_ring.actor.lanes[0].produced_local = next;
    must(farm_local_open(dup(board->segment.fd_readonly), &central_ring.actor, WIDTH, 3, opponents, &err), &err);
    return farm_local_opponents(*opponents);
}

Test(local, plays_opponents_as_it_answers_a_ring) {
    struct farm_local *opponents;
    for (int i = 0; i < SAMPLES; i++) {
        open_sides(&samples[i], WIDTH, 1, false);
        struct farm_lane *here = open_opponents(0, &opponents)->lanes, *there = local_ring.actor.lanes;
        for (uint64_t n = 0; n < STEPS; n++) {
            cr_assert(farm_lane_actor_next(here) == n && farm_lane_actor_can_write(here));
            observe(here, &samples[i].env, n);
            observe(there, &samples[i].env, n);
            farm_local_play(opponents, 0);
            farm_local_answer(local, 0, n);
            cr_assert(farm_lane_actor_answered(here));
            for (uint32_t f = 0; f < FARM_ANSWERS_STANDARD; f++)
                cr_assert_arr_eq(farm_lane_answer_at(here, f, n, 0), farm_lane_answer_at(there, f, n, 0),
                                 here->answer[f].rows * here->answer[f].bytes, "%s: field %u of step %lu",
                                 samples[i].name, f, n);
        }
        farm_local_close(opponents);
        close_sides();
    }
}

Test(local, opponents_of_a_new_actor_draw_other_numbers) {
    struct farm_local *opponents;
    int32_t drawn[2][2 * WIDTH];
    open_sides(&samples[0], WIDTH, 1, false);
    for (uint64_t life = 0; life < 2; life++) {
        struct farm_lane *lane = open_opponents(3 * life, &opponents)->lanes; // of 3 slots
        cr_assert(farm_lane_actor_can_write(lane) && farm_lane_actor_answered(lane));
        observe(lane, &samples[0].env, 0);
        farm_local_play(opponents, 0);
        cr_assert_eq(farm_lane_actor_next(lane), 3 * life + 1);
        memcpy(drawn[life], farm_lane_action(lane, 0, 0), sizeof *drawn);
        farm_local_close(opponents);
    }
    cr_assert_arr_neq(drawn[0], drawn[1], sizeof *drawn);
    close_sides();
}

Test(local, keeps_its_parameters_for_a_window) {
    open_sides(&samples[0], WIDTH, 4, true);
    for (uint64_t n = 0; n < STEPS; n++) {
        if (n) publish(n + 1);
        observe(&local_ring.actor.lanes[0], &samples[0].env, n);
        farm_local_answer(local, 0, n);
        cr_assert_eq(*farm_lane_version(&local_ring.actor.lanes[0], n), n - n % 4 + 1);
    }
    close_sides();
}

// ---- signals ----

static volatile uint64_t signals, outside;
static uintptr_t stack; // an address in it

// An environment's, on the interrupted stack.
static void on_signal(int number) {
    signals++;
    outside += stack - (uintptr_t)&number > 1 << 20;
}

Test(local, takes_no_signal_while_the_stack_is_in_the_heap) {
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    const struct itimerspec period = {.it_value = {.tv_nsec = 50000}, .it_interval = {.tv_nsec = 50000}};
    stack = (uintptr_t)&timer;
    setenv("ONEDNN_MAX_CPU_ISA", "AVX2", 1); // its products of matrices do so
    open_sides(&samples[2], 4, 1, true);
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_signal}, NULL);
    cr_assert(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &period, NULL) == 0);
    for (uint64_t n = 0; n < 500; n++) {
        observe(&local_ring.actor.lanes[0], &samples[2].env, n);
        farm_local_answer(local, 0, n);
    }
    timer_delete(timer);
    cr_assert_gt(signals, 100);
    cr_assert_eq(outside, 0, "%lu of %lu signals", outside, signals);
    close_sides();
}
