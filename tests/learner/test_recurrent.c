// The state of a recurrent policy lies in the lanes: it outlives the learner, and a new actor's episode begins without.
#include <signal.h>
#include <unistd.h>

#include "../support/updates.h"

enum { STEPS = 60, KILLED = 37, REBORN = 42, RING = 4 * UPDATES_UNROLL };

static const struct update_case *recurrent_case(void) {
    const struct update_case *c = NULL;
    do c = update_next(c);
    while (c && !(c->lstm && c->burn_in));
    cr_assert(c);
    return c;
}

static void release(struct update_run *run) {
    for (uint32_t l = 0; l < UPDATES_LANES && run->rig.n > UPDATES_UNROLL; l++)
        farm_lane_release(rig_lane(&run->rig, l), run->rig.n - UPDATES_UNROLL);
}

// Publishes and answers steps before `end`, as a learner that is killed while it answers step `killed`.
static void play(struct update_run *run, uint64_t end, uint64_t killed) {
    for (; run->rig.n < end; release(run)) {
        update_publish(run);
        if (run->rig.n == killed) {
            must(rig_infer(&run->rig), &run->rig.err);
            raise(SIGKILL);
        }
        update_answer(run, false);
    }
}

// Both rings hold the same policies, actions and states in the end. Closes the runs.
static void expect_equal(struct update_run *a, struct update_run *b) {
    const uint32_t state = rig_actor(&a->rig, 0)->state;
    const uint32_t fields[] = {FARM_ANSWER_POLICY, FARM_ANSWER_ACTION, state, state + 1};
    cr_assert(state);
    for (uint32_t i = 0; i < 4 * UPDATES_LANES; i++) {
        const struct farm_answer_array *of = &rig_actor(&a->rig, i / 4)->answer[fields[i % 4]],
                                       *other = &rig_actor(&b->rig, i / 4)->answer[fields[i % 4]];
        cr_assert_arr_eq(of->at, other->at, (size_t)of->slots * of->rows * of->bytes);
    }
    update_close(a);
    update_close(b);
}

// The learner process is killed after it has written the answer and before it has stored `acted`.
Test(recurrent, state_outlives_a_killed_learner, .timeout = 60) {
    const struct update_case *c = recurrent_case();
    struct update_run *killed = update_open(c, &farm_backend_cpu, FARM_PRECISION_F32);
    rig_close_learner(&killed->rig); // no threads at a fork
    const pid_t child = fork();
    if (!child) {
        update_reopen(killed);
        play(killed, STEPS, KILLED);
        _exit(0);
    }
    cr_assert_eq(wait_for(child), 256 + SIGKILL);
    update_reopen(killed);
    cr_assert_eq(killed->rig.n, KILLED);
    rig_take_in(&killed->rig);
    update_answer(killed, false);
    play(killed, STEPS, STEPS);
    struct update_run *whole = update_open(c, &farm_backend_cpu, FARM_PRECISION_F32);
    play(whole, STEPS, STEPS);
    expect_equal(whole, killed);
}

// The actor process is killed while it writes a step, which its successor writes anew, as the first of new episodes.
Test(recurrent, a_killed_actor_leaves_no_state, .timeout = 60) {
    const struct update_case *c = recurrent_case();
    struct update_run *whole = update_open(c, &farm_backend_cpu, FARM_PRECISION_F32);
    struct update_run *killed = update_open(c, &farm_backend_cpu, FARM_PRECISION_F32);
    const struct farm_lane *lane = rig_lane(&killed->rig, 0);
    const uint32_t state = lane->state, floats = lane->answer[state].values;
    whole->reborn = killed->reborn = REBORN;
    cr_assert_eq(REBORN % lane->answer[state].every, 0, "no state is kept at step %d", REBORN);
    play(whole, STEPS, STEPS);
    play(killed, REBORN, STEPS);
    const pid_t child = fork();
    if (!child) {
        update_reopen_actor(killed);
        for (uint32_t l = 0; l < UPDATES_LANES; l++) {
            struct farm_lane *own = rig_actor(&killed->rig, l);
            memset(farm_lane_obs(own, 0, REBORN, 0), 0xff, own->obs_bytes[0]);
            memset(farm_lane_flags(own, REBORN), 0xff, UPDATES_WIDTH);
        }
        raise(SIGKILL);
    }
    cr_assert_eq(wait_for(child), 256 + SIGKILL);
    update_reopen_actor(killed);
    play(killed, STEPS, STEPS);
    for (uint32_t e = 0; e < UPDATES_WIDTH; e++)
        for (uint32_t i = 0; i < floats; i++)
            cr_assert_eq(((const float *)farm_lane_answer_at(lane, state, REBORN, e))[i], 0.0f);
    expect_equal(whole, killed);
}

// Some of the window starts that the ring holds are an episode's, as after an actor's death: the state there is 0, and
// only there.
Test(recurrent, an_episode_begins_without_state, .timeout = 60) {
    struct update_run *run = update_open(recurrent_case(), &farm_backend_cpu, FARM_PRECISION_F32);
    unsigned firsts = 0, others = 0;
    play(run, STEPS, STEPS);
    const struct farm_lane *lane = rig_lane(&run->rig, 0);
    const uint32_t every = lane->answer[lane->state].every, floats = lane->answer[lane->state].values;
    for (uint64_t n = (STEPS - RING) / every * every + every; n < STEPS; n += every)
        for (uint32_t e = 0; e < UPDATES_WIDTH; e++) {
            const float *state = farm_lane_answer_at(lane, lane->state, n, e);
            const bool first = farm_lane_flags(lane, n)[e] & FARM_STEP_FIRST;
            for (uint32_t i = 0; i < floats; i++) cr_assert_eq(first, state[i] == 0.0f, "step %lu of %u", n, e);
            firsts += first;
            others += !first;
        }
    cr_assert(firsts && others);
    update_close(run);
}
