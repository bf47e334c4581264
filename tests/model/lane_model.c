// The lane under the model checker: the loops of src/actor/actor.c, src/learner/inference.c and src/learner/trainer.c,
// and with replay src/replay/prioritised.c's push, take and done, reduced to their accesses to a lane, over the real
// code of src/ring/{lane,wait,window}. Observations and answers are variables, so races are found. Each answer is a
// function of its observation, so lost, doubled and foreign ones are found.
#include <stdio.h>
#include <string.h>

#include "explore.h"
#include "ring/ring.h"
#include "ring/wait.h"
#include "ring/window.h"

enum { ACTORS = 2, LANES = 2, SLOTS = 4, STEPS = 6, LIVES = 4, EVENTFD = 3 };
static const uint64_t FOREVER = UINT64_MAX, GARBAGE = 0xbad, LIFE = 1000, ANSWER = 1000000;

struct setting {
    const char *name;
    uint32_t actors, lanes, slots, steps; // steps: published in each lane before the actor ends
    struct farm_window_shape window;      // the training thread's; length 0: no training, inference releases
    unsigned crashes, spurious;
    bool actor_crashes, learner_crashes, extensive;
    bool busy;        // no side sleeps or wakes the other
    uint64_t windows; // training waits for ever after this many; 0: it takes all
    bool looks;       // the supervisor checks the counters
    bool bare;        // only the counters and the actor's sleep: no data, and inference never sleeps
    bool late;        // the actor rings before it waits, instead of at every step (rings_late)
    bool local;       // FARM_ANSWERS_LOCAL
    bool held;   // local, one lane: synchronous; an actor answers a window's last step with the parameters that the
                 // window gives, and training changes them only while the actor waits for that grant
    bool replay; // one lane: windows stay until eviction; `windows` is the number of takes, of the oldest window each
    bool lies;   // a killed actor's last store is an invalid `produced`; loads return the newest stores, because
                 // a death takes longer than a store needs to become visible
};

// clang-format off
static const struct setting SETTINGS[] = {
    {"busy", 1, 1, 2, 4, {0, 0, 1, 0}, .busy = true},
    {"busy, training", 1, 1, 1, 3, {1, 1, 1, 0}, .busy = true},
    {"busy, overlapping windows", 1, 1, 2, 4, {1, 2, 1, 0}, .busy = true},
    {"spurious wake-ups", 1, 1, 1, 1, {0, 0, 1, 0}, .spurious = 2},
    {"actor killed", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true},
    {"learner killed", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 1, .learner_crashes = true},
    {"two lanes", 1, 2, 1, 1, {0, 0, 1, 0}, .crashes = 0},
    {"two lanes, rung late", 1, 2, 1, 1, {0, 0, 1, 0}, .late = true},
    {"training", 1, 1, 1, 1, {1, 1, 1, 0}, .crashes = 0},
    {"one lane", 1, 1, 2, 3, {0, 0, 1, 0}, .crashes = 0},
    {"busy, the supervisor looks", 1, 1, 2, 3, {0, 0, 1, 0}, .busy = true, .looks = true},
    {"busy, a liar killed", 1, 1, 2, 3, {1, 1, 1, 0}, .crashes = 1, .actor_crashes = true, .busy = true, .lies = true},
    {"local, busy, a liar killed", 1, 1, 2, 3, {1, 1, 1, 0}, .crashes = 1, .actor_crashes = true, .busy = true, .local = true, .lies = true},
    {"local, busy", 1, 1, 2, 4, {0, 0, 1, 0}, .busy = true, .local = true},
    {"local, busy, held", 1, 1, 4, 5, {2, 3, 1, 0}, .busy = true, .local = true, .held = true},
    {"local, held", 1, 1, 3, 2, {1, 2, 1, 0}, .extensive = true, .local = true, .held = true},
    {"local, busy, held, actor killed", 1, 1, 2, 3, {1, 2, 1, 0}, .crashes = 1, .actor_crashes = true, .busy = true, .local = true, .held = true},
    {"local, busy, overlapping windows", 1, 1, 2, 4, {1, 2, 1, 0}, .busy = true, .local = true},
    {"local, busy, the supervisor looks", 1, 1, 2, 3, {0, 0, 1, 0}, .busy = true, .looks = true, .local = true},
    {"local, one lane", 1, 1, 2, 3, {0, 0, 1, 0}, .local = true},
    {"local, actor killed", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true, .local = true},
    {"local, learner killed", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 1, .learner_crashes = true, .local = true},
    {"local, actor killed, two steps", 1, 1, 1, 2, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true, .extensive = true, .local = true},
    {"local, learner killed, two steps", 1, 1, 1, 2, {0, 0, 1, 0}, .crashes = 1, .learner_crashes = true, .extensive = true, .local = true},
    {"local, training", 1, 1, 2, 2, {1, 1, 1, 0}, .extensive = true, .local = true},
    {"local, two lanes", 1, 2, 1, 1, {0, 0, 1, 0}, .extensive = true, .local = true},
    {"local, rung late, actor killed", 1, 1, 2, 2, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true, .extensive = true, .late = true, .local = true},
    {"local, busy, actor killed twice", 1, 1, 2, 3, {1, 2, 1, 0}, .crashes = 2, .actor_crashes = true, .extensive = true, .busy = true, .local = true},
    {"local, busy, learner killed twice", 1, 1, 2, 3, {1, 2, 1, 0}, .crashes = 2, .learner_crashes = true, .extensive = true, .busy = true, .local = true},
    {"local, actor and learner killed", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 2, .actor_crashes = true, .learner_crashes = true, .extensive = true, .local = true},
    {"training waits for a batch", 1, 1, 3, 3, {1, 1, 1, 0}, .extensive = true, .windows = 1, .bare = true},
    {"busy, actor killed twice", 1, 1, 2, 3, {1, 2, 1, 0}, .crashes = 2, .actor_crashes = true, .extensive = true, .busy = true},
    {"busy, learner killed twice", 1, 1, 2, 3, {1, 2, 1, 0}, .crashes = 2, .learner_crashes = true, .extensive = true, .busy = true},
    {"busy, two lanes in training", 1, 2, 1, 2, {1, 1, 1, 0}, .extensive = true, .busy = true},
    {"five steps", 1, 1, 2, 5, {0, 0, 1, 0}, .extensive = true},
    {"actor killed, two steps", 1, 1, 1, 2, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true, .extensive = true},
    {"learner killed, two steps", 1, 1, 1, 2, {0, 0, 1, 0}, .crashes = 1, .learner_crashes = true, .extensive = true},
    {"actor killed twice", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 2, .actor_crashes = true, .extensive = true},
    {"actor and learner killed", 1, 1, 1, 1, {0, 0, 1, 0}, .crashes = 2, .actor_crashes = true, .learner_crashes = true, .extensive = true},
    {"training, two steps", 1, 1, 1, 2, {1, 1, 1, 0}, .extensive = true},
    {"actor killed in training", 1, 1, 1, 1, {1, 1, 1, 0}, .crashes = 1, .actor_crashes = true, .extensive = true},
    {"learner killed in training", 1, 1, 1, 1, {1, 1, 1, 0}, .crashes = 1, .learner_crashes = true, .extensive = true},
    {"two lanes, actor killed", 1, 2, 1, 1, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true, .extensive = true},
    {"two lanes, rung late, actor killed", 1, 2, 1, 1, {0, 0, 1, 0}, .crashes = 1, .actor_crashes = true, .extensive = true, .late = true},
    {"replay, busy", 1, 1, 3, 5, {1, 1, 1, 0}, .busy = true, .replay = true, .windows = 1},
    {"replay, busy, history", 1, 1, 3, 5, {1, 1, 2, 0}, .busy = true, .replay = true, .windows = 1},
    {"replay, bare, learner killed", 1, 1, 2, 3, {1, 1, 1, 0}, .crashes = 1, .learner_crashes = true, .busy = true, .replay = true, .bare = true},
    {"replay, busy, learner killed", 1, 1, 2, 3, {1, 1, 1, 0}, .crashes = 1, .learner_crashes = true, .extensive = true, .busy = true, .replay = true, .windows = 1},
    {"replay, busy, local", 1, 1, 3, 4, {1, 1, 1, 0}, .busy = true, .local = true, .replay = true, .windows = 1},
    {"replay", 1, 1, 3, 4, {1, 1, 1, 0}, .extensive = true, .replay = true, .windows = 1},
    {"replay, busy, two windows live, learner killed", 1, 1, 4, 6, {1, 2, 1, 0}, .crashes = 1, .learner_crashes = true, .extensive = true, .busy = true, .replay = true, .windows = 2},
    {"two actors", 2, 1, 1, 1, {0, 0, 1, 0}, .extensive = true},
};
// clang-format on
static const struct setting *set;

// ---- shared memory: addresses only, its contents are the checker's ----

static struct shared {
    struct farm_up_control up_control;
    struct farm_down_control down_control;
    struct farm_up_lane up[LANES];
    struct farm_down_lane down[LANES];
    uint64_t obs[LANES][SLOTS], answer[LANES][SLOTS];
    uint64_t leaf[SLOTS]; // replay: 1 + its window's start; 0: none
} shared[ACTORS];
static uint8_t flags[SLOTS]; // farm_lane_restore writes them; not checked
static float rewards[SLOTS];
static uint64_t handed[LIVES]; // windows handed to training, a counter a life of the learner
static uint64_t locks[LIVES];  // replay: the trainer's lock, one a life of the learner
static uint64_t released;      // held: windows whose parameters are published
static uint64_t parameters;    // held

// ---- what belongs to the explored state ----

// A process's private view of a ring. `ring` never changes once it is open, so it is outside the state.
struct ring_view {
    struct farm_ring *ring;
    struct farm_lane lanes[LANES];
};
static struct farm_ring actor_rings[ACTORS], learner_rings[ACTORS];
static struct state {
    struct ring_view actor[ACTORS], learner[ACTORS];
    // For the checks only.
    uint64_t published[ACTORS][LANES][STEPS];
    bool lying[ACTORS], junk[ACTORS][LANES][STEPS]; // `produced` is invalid; steps with any content
    uint64_t produced[ACTORS][LANES], acted[ACTORS][LANES], consumed[ACTORS][LANES];
    struct {
        uint32_t actor, lane;
        uint64_t start;
    } windows[LIVES][ACTORS * LANES * STEPS];
    struct { // replay: under the lock; of the learner's present life
        struct farm_window_cursor cursor;
        uint64_t first, next; // starts of the windows that live
        uint32_t pins[SLOTS];
    } replay;
} * state;

static void open_view(struct ring_view *view, struct shared *memory, struct farm_ring *ring) {
    memset(view, 0, sizeof *view);
    view->ring = ring;
    if (ring)
        *ring = (struct farm_ring){.spec.lanes = set->lanes,
                                   .up_control = &memory->up_control,
                                   .down_control = &memory->down_control,
                                   .lanes = view->lanes,
                                   .wake_fd = -1};
    for (uint32_t l = 0; l < set->lanes; l++)
        view->lanes[l] = (struct farm_lane){.up_control = &memory->up_control,
                                            .up = &memory->up[l],
                                            .down = &memory->down[l],
                                            .width = 1,
                                            .steps = set->slots,
                                            .local = set->local,
                                            .flags = flags,
                                            .reward = rewards};
}

static uint64_t *obs_variable(uint32_t a, uint32_t l, uint64_t n) {
    return &shared[a].obs[l][n % set->slots];
}
static uint64_t *answer_variable(uint32_t a, uint32_t l, uint64_t n) {
    return &shared[a].answer[l][n % set->slots];
}

// The variable's content, or `wanted` in scenarios without data.
static uint64_t read_variable(uint64_t *variable, uint64_t wanted) {
    return set->bare ? wanted : model_read(variable);
}

// Writes twice, so that a crash may come in between.
static void write_slowly(uint64_t *variable, uint64_t value) {
    if (set->bare) return;
    model_write(variable, GARBAGE);
    if (set->crashes) model_yield();
    model_write(variable, value);
}

// ---- waiting: that of src/ring/wait.c, or looking again and again ----

static void wait_actor(uint32_t a, uint32_t *l, bool any) {
    struct ring_view *view = &state->actor[a];
    if (set->late && (!any || !farm_actor_ready(view->ring))) farm_actor_notify(view->ring, EVENTFD);
    if (!set->busy) {
        bool go = farm_actor_wait(view->ring, any ? NULL : &view->lanes[*l], 0, FOREVER, any ? l : NULL);
        model_check(go, "the actor's wait ended without a reason");
        return;
    }
    if (any) *l = (*l + 1) % set->lanes;
    struct farm_lane *lane = &view->lanes[*l];
    while (!farm_lane_actor_answered(lane))
        model_until(set->local ? &lane->down->granted : &lane->down->acted, lane->produced_local);
    while (!farm_lane_actor_can_write(lane)) model_until(&lane->down->consumed, lane->produced_local - lane->steps + 1);
}

static void notify_learner(struct ring_view *view) {
    if (!set->busy && !set->bare) farm_actor_notify(view->ring, EVENTFD);
}
static void notify_actor(struct ring_view *view) {
    if (!set->busy) farm_learner_notify(view->ring);
}

// Scenarios without sleep have one actor.
static void wait_learner(struct farm_doorbells *bells) {
    if (set->busy || set->bare)
        model_until(&bells->rings[0]->up_control->doorbell, bells->seen[0] + 1);
    else
        farm_doorbells_wait(bells, 0, FOREVER);
}

// ---- the actor: play() and farm_group_step() ----

// LOCAL: farm_local_answer() for the newest published step.
static void answer_own(uint32_t a, uint32_t l) {
    const uint64_t n = farm_lane_actor_next(&state->actor[a].lanes[l]);
    if (!n || !set->local) return;
    if (set->held)
        model_check(model_read(&parameters) == (n - 1) / set->window.stride,
                    "an answer by parameters of another version");
    write_slowly(answer_variable(a, l, n - 1), state->published[a][l][n - 1] + ANSWER);
}

static void actor_step(uint32_t a, uint32_t l) {
    struct farm_lane *lane = &state->actor[a].lanes[l];
    uint64_t n = farm_lane_actor_next(lane);
    answer_own(a, l);
    if (n && !set->local && !state->junk[a][l][n - 1]) {
        const uint64_t wanted = state->published[a][l][n - 1] + ANSWER;
        model_check(read_variable(answer_variable(a, l, n - 1), wanted) == wanted,
                    "the answer is not that to the actor's last step");
    }
    if (n == set->steps) return;
    uint64_t observation = n + LIFE * (model_life() + 1);
    model_check(model_newest(&lane->up->produced) == n, "a published step is written again");
    write_slowly(obs_variable(a, l, n), observation);
    state->published[a][l][n] = observation;
    farm_lane_actor_publish(lane);
    if (!set->late) notify_learner(&state->actor[a]);
}

static void actor(void *context) {
    uint32_t a = *(const uint32_t *)context, l = set->lanes - 1;
    struct ring_view *view = &state->actor[a];
    open_view(view, &shared[a], &actor_rings[a]);
    for (uint32_t i = 0; i < set->lanes && model_life(); i++) { // the supervisor, before it starts this life
        const bool restored = farm_lane_restore(&view->lanes[i]);
        model_check(restored == state->lying[a], "an honest actor's counters were changed, or invalid ones were not");
        if (!restored) continue;
        state->produced[a][i] = model_newest(&view->lanes[i].up->produced); // steps that were not checked are lost
        state->junk[a][i][state->produced[a][i] - 1] = true;
    }
    state->lying[a] = false;
    for (uint32_t i = 0; i < set->lanes; i++) farm_lane_actor_take_over(&view->lanes[i]);
    notify_learner(view);
    bool all = true; // no lane has ended
    for (uint32_t i = 0; i < set->lanes; i++) all &= farm_lane_actor_next(&view->lanes[i]) < set->steps;
    while (all) {
        wait_actor(a, &l, true);
        actor_step(a, l);
        all = farm_lane_actor_next(&view->lanes[l]) < set->steps;
    }
    for (uint32_t i = 0; i < set->lanes; i++) {
        bool more = true; // the last iteration waits for the last answer
        while (more) {
            more = farm_lane_actor_next(&view->lanes[i]) < set->steps;
            l = i;
            wait_actor(a, &l, false);
            actor_step(a, i);
        }
    }
}

// ---- the learner ----

static uint64_t *leaf_variable(uint64_t start) {
    return &shared[0].leaf[start / set->window.stride % set->slots];
}

static void release(struct farm_lane *lane, struct farm_window_cursor *cursor, uint64_t start) { // farm_window_release
    farm_window_done(&set->window, cursor, start);
    const uint64_t before = farm_lane_consumed(lane);
    farm_lane_release(lane, farm_window_needs(&set->window, cursor));
    farm_fence_full();
    if (farm_lane_produced(lane) - before >= lane->steps) notify_actor(&state->learner[0]);
}

// prioritised.c: evict, with room for one stride, and, LOCAL, for the step with the last answer.
static void evict(struct farm_lane *lane) {
    const struct farm_window_shape *shape = &set->window;
    const uint64_t end = state->replay.next + shape->length + set->local, before = state->replay.first,
                   to = farm_window_oldest(shape, before, end, set->slots, state->replay.pins, set->slots);
    for (uint64_t start = before; start < to; start += shape->stride) model_write(leaf_variable(start), 0);
    state->replay.first = to;
    if (to > before) release(lane, &state->replay.cursor, to - shape->stride);
}

// push: an existing leaf is the window's own, which a dead learner had inserted.
static void insert(struct farm_lane *lane, uint64_t start) {
    model_lock(&locks[model_life()]);
    if (state->replay.first == state->replay.next) state->replay.first = start;
    state->replay.next = start + set->window.stride;
    evict(lane);
    const uint64_t leaf = model_read(leaf_variable(start));
    model_check(!leaf || leaf == start + 1, "a window got the leaf of another one");
    model_write(leaf_variable(start), start + 1);
    model_unlock(&locks[model_life()]);
}

static void hand_on(uint32_t a, uint32_t l, uint64_t answered, struct farm_window_cursor *cursor, uint64_t *count) {
    struct farm_lane *lane = &state->learner[a].lanes[l];
    if (!set->window.length) {
        if (answered) farm_lane_release(lane, answered);
        return;
    }
    if (set->replay && set->local && answered) answered--; // the last answer is there
    while (farm_window_ready(&set->window, cursor, answered)) {
        uint64_t k = (*count)++;
        state->windows[model_life()][k].actor = a;
        state->windows[model_life()][k].lane = l;
        state->windows[model_life()][k].start = farm_window_take(&set->window, cursor);
        if (set->replay) insert(lane, state->windows[model_life()][k].start);
        model_store(&handed[model_life()], k + 1, MODEL_RELEASE); // the queue's mutex
    }
}

// farm_lanes_take_in
static bool is_ready(const struct farm_lane *lane, uint64_t answered) {
    const uint64_t produced = farm_lane_produced(lane), ahead = produced - answered;
    if (ahead > farm_lane_ahead_max(lane)) {
        model_check(set->lies, "an honest actor's counter is ignored");
        return false;
    }
    return ahead && produced - farm_lane_consumed(lane) <= lane->steps;
}

static void answer_step(uint32_t a, uint32_t l, uint64_t n) {
    const uint64_t wanted = state->published[a][l][n], observation = read_variable(obs_variable(a, l, n), wanted);
    const bool junk = state->junk[a][l][n];
    model_check(observation == wanted || junk, "inference read another observation than was published");
    if (!set->local) write_slowly(answer_variable(a, l, n), observation + ANSWER);
    if (!set->local || !n) return;
    const uint64_t own = state->published[a][l][n - 1] + ANSWER;
    model_check(read_variable(answer_variable(a, l, n - 1), own) == own || junk || state->junk[a][l][n - 1],
                "inference read another answer than was published");
}

// LOCAL: lets the actor answer all steps, or those before the last one of the next window.
static void grant_steps(uint32_t a, uint32_t l, const struct farm_window_cursor *cursor) {
    if (!set->local) return;
    farm_lane_grant(&state->learner[a].lanes[l], set->held ? cursor->next + set->window.length - 1 : FOREVER);
    notify_actor(&state->learner[a]);
}

// Answers (LOCAL: checks) step n if it is published.
static bool serve_step(uint32_t a, uint32_t l, uint64_t n, struct farm_window_cursor *cursor, uint64_t *windows) {
    struct farm_lane *lane = &state->learner[a].lanes[l];
    if (n == set->steps || !is_ready(lane, n)) return false;
    answer_step(a, l, n);
    const uint64_t before = *windows;
    if (set->held) hand_on(a, l, n + 1, cursor, windows);
    if (set->held) model_await(&released, *windows); // the ticket
    farm_lane_answer(lane, n);
    if (!set->local) notify_actor(&state->learner[a]);
    if (!set->held) hand_on(a, l, n + 1, cursor, windows);
    if (*windows != before && set->held) grant_steps(a, l, cursor);
    if (!set->window.length) notify_actor(&state->learner[a]);
    return true;
}

static void inference(void *context) {
    struct farm_ring *rings[ACTORS];
    struct farm_doorbells bells;
    struct farm_window_cursor cursors[ACTORS][LANES];
    uint64_t answered[ACTORS][LANES], windows = 0;
    uint32_t left = 0, rung[ACTORS];
    for (uint32_t a = 0; a < set->actors; a++) {
        open_view(&state->learner[a], &shared[a], &learner_rings[a]);
        rings[a] = state->learner[a].ring;
        for (uint32_t l = 0; l < set->lanes; l++) {
            answered[a][l] = farm_lane_acted(&rings[a]->lanes[l]);
            if (set->window.length) farm_window_cursor_start(&rings[a]->lanes[l], &set->window, &cursors[a][l]);
            left += (uint32_t)(set->steps - answered[a][l]);
        }
    }
    memset(&state->replay, 0, sizeof state->replay);
    farm_doorbells_make(&bells, rings, set->actors, EVENTFD, NULL);
    for (uint32_t a = 0; a < set->actors; a++)
        for (uint32_t l = 0; l < set->lanes; l++) {
            hand_on(a, l, answered[a][l], &cursors[a][l], &windows);
            grant_steps(a, l, &cursors[a][l]);
        }
    for (uint32_t a = 0; a < set->actors; a++) notify_actor(&state->learner[a]);
    while (left) {
        uint32_t count = farm_doorbells_poll(&bells, rung), served = 0;
        for (uint32_t i = 0; i < count; i++)
            for (uint32_t l = 0; l < set->lanes; l++) {
                const uint32_t a = rung[i], most = set->local ? set->slots : 1;
                for (uint32_t k = 0; k < most && serve_step(a, l, answered[a][l], &cursors[a][l], &windows); k++) {
                    answered[a][l]++;
                    left--;
                    served++;
                }
            }
        if (!served && left) wait_learner(&bells);
    }
}

static void read_window(uint32_t a, uint32_t l, uint64_t start) {
    const uint64_t history = set->replay && start >= set->window.stack - 1 ? set->window.stack - 1 : 0,
                   end = start + set->window.length;
    for (uint64_t n = start - history; n < end; n++) {
        uint64_t observation = read_variable(obs_variable(a, l, n), state->published[a][l][n]);
        const bool junk = state->junk[a][l][n];
        model_check(observation == state->published[a][l][n] || junk, "training read another observation");
        if (set->local && !set->replay && n == end - 1) continue; // its answer is not taken in
        uint64_t answer = read_variable(answer_variable(a, l, n), observation + ANSWER);
        model_check(answer == observation + ANSWER || junk || state->junk[a][l][n + 1],
                    "training read an answer to another step");
    }
}

// take and done of the oldest window, an iteration.
static void train_again(void) {
    struct farm_lane *lane = &state->learner[0].lanes[0];
    uint64_t *lock = &locks[model_life()];
    model_lock(lock);
    const uint64_t start = state->replay.first;
    uint32_t *pins = &state->replay.pins[start / set->window.stride % set->slots];
    ++*pins; // the window stays
    model_unlock(lock);
    read_window(0, 0, start);
    model_lock(lock);
    --*pins;
    model_check(model_read(leaf_variable(start)) == start + 1, "a window in training has lost its leaf");
    model_write(leaf_variable(start), start + 1);
    evict(lane);
    model_unlock(lock);
}

static void training(void *context) {
    struct farm_window_cursor cursors[ACTORS][LANES];
    const struct farm_window_shape *shape = &set->window;
    uint64_t windows = 0;
    for (uint32_t a = 0; a < set->actors; a++)
        for (uint32_t l = 0; l < set->lanes; l++) {
            struct ring_view view;
            open_view(&view, &shared[a], NULL);
            farm_window_cursor_start(&view.lanes[l], shape, &cursors[a][l]);
            windows += farm_window_ready(shape, &cursors[a][l], set->steps);
        }
    if ((set->windows || set->replay) && windows > set->windows) windows = set->windows;
    for (uint64_t k = 0; k < windows; k++) {
        model_await(&handed[model_life()], k + 1);
        uint32_t a = state->windows[model_life()][k].actor, l = state->windows[model_life()][k].lane;
        uint64_t start = state->windows[model_life()][k].start;
        if (set->replay) {
            train_again();
            continue;
        }
        read_window(a, l, start);
        if (set->held) model_write(&parameters, k + 1);
        release(&state->learner[a].lanes[l], &cursors[a][l], start);
        if (set->held) model_store(&released, k + 1, MODEL_RELEASE);
    }
}

// ---- the supervisor, while all processes live ----

static void supervisor(void *context) {
    struct ring_view view;
    open_view(&view, &shared[0], NULL);
    model_check(farm_lane_sound(&view.lanes[0]), "an honest actor's counters count as invalid");
}

// ---- the scenario ----

// The supervisor counts the generation before it starts a new actor.
static void bump_generation(void *context) {
    uint32_t a = *(const uint32_t *)context;
    for (uint32_t l = 0; l < set->lanes; l++) {
        uint64_t *generation = &shared[a].down[l].generation;
        model_store_by(a, generation, model_newest(generation) + 1);
        uint64_t *produced = &shared[a].up[l].produced; // after its last step an actor is honest
        state->lying[a] = set->lies && model_newest(produced) < set->steps;
        if (state->lying[a]) model_store_by(a, produced, UINT64_MAX);
    }
}

static const uint32_t NUMBERS[ACTORS] = {0, 1};

static void set_up(void) {
    state = model_allocate(sizeof *state);
    for (uint32_t a = 0; a < set->actors; a++) {
        struct shared *memory = &shared[a];
        model_word(&memory->up_control.doorbell, "doorbell", 0, true);
        model_word(&memory->up_control.asleep, "up.asleep", 0, true);
        model_word(&memory->down_control.wake, "wake", 0, !set->window.length);
        model_word(&memory->down_control.asleep, "down.asleep", 0, true);
        model_constant(&memory->down_control.stop, 0);
        for (uint32_t l = 0; l < set->lanes; l++) {
            model_word(&memory->up[l].produced, "produced", 0, true);
            model_word(&memory->down[l].acted, "acted", 0, true);
            if (set->local) model_word(&memory->down[l].granted, "granted", 0, true);
            model_word(&memory->down[l].consumed, "consumed", 0, !set->replay);
            if (set->actor_crashes) model_word(&memory->down[l].generation, "generation", 0, true);
            for (uint32_t s = 0; s < set->slots && !set->bare; s++) {
                model_variable(&memory->obs[l][s], "an observation", GARBAGE);
                model_variable(&memory->answer[l][s], "an answer", GARBAGE);
            }
        }
        unsigned process = model_process(a ? "actor 1" : "actor 0", set->actor_crashes,
                                         set->actor_crashes ? bump_generation : NULL, (void *)&NUMBERS[a]);
        model_thread(process, a ? "actor 1" : "actor 0", actor, (void *)&NUMBERS[a]);
    }
    if (set->looks) model_thread(model_process("the supervisor", false, NULL, NULL), "supervisor", supervisor, NULL);
    unsigned learner = model_process("the learner", set->learner_crashes, NULL, NULL);
    model_thread(learner, "inference", inference, NULL);
    if (!set->window.length) return;
    if (set->held) {
        model_word(&released, "windows whose parameters are published", 0, true);
        model_variable(&parameters, "parameters", 0);
    }
    for (unsigned i = 0; i <= (set->learner_crashes ? set->crashes : 0); i++) {
        model_word(&handed[i], "windows handed on", 0, true);
        if (set->replay) model_word(&locks[i], "lock", 0, false);
    }
    for (uint32_t s = 0; s < set->slots && set->replay; s++) model_variable(&shared[0].leaf[s], "a leaf", 0);
    model_thread(learner, "training", training, NULL);
}

static void check_growth(uint64_t *last, uint64_t now, uint64_t most, const char *text) {
    model_check(now >= *last && now - *last <= most, text);
    *last = now;
}

static void invariant(void) {
    for (uint32_t a = 0; a < set->actors; a++)
        for (uint32_t l = 0; l < set->lanes; l++) {
            uint64_t produced = model_newest(&shared[a].up[l].produced);
            uint64_t acted = model_newest(&shared[a].down[l].acted);
            uint64_t consumed = model_newest(&shared[a].down[l].consumed);
            if (state->lying[a]) produced = state->produced[a][l];
            check_growth(&state->produced[a][l], produced, 1, "`produced` does not grow by one");
            check_growth(&state->acted[a][l], acted, 1,
                         "`acted` does not grow by one: a step was answered twice or skipped");
            check_growth(&state->consumed[a][l], consumed, STEPS, "`consumed` has shrunk");
            model_check(acted <= produced && (set->local || produced <= acted + 1),
                        "acted <= produced <= acted + 1 (local: + C) does not hold");
            model_check(consumed <= acted && produced - consumed <= set->slots,
                        "consumed <= acted, produced <= consumed + C does not hold");
        }
}

static void end(void) {
    uint64_t windows_end = set->steps;
    if (set->window.length)
        windows_end = (set->steps - set->window.length) / set->window.stride * set->window.stride + set->window.stride;
    if (set->windows) windows_end = set->windows * set->window.stride;
    if (set->replay) windows_end = state->replay.first - (set->window.stack - 1);
    for (uint32_t a = 0; a < set->actors; a++)
        for (uint32_t l = 0; l < set->lanes; l++) {
            model_check(state->produced[a][l] == set->steps, "steps are missing");
            model_check(state->acted[a][l] == set->steps, "answers are missing");
            model_check(state->consumed[a][l] == windows_end, "windows are missing");
        }
}

static bool choose(unsigned i, struct model_scenario *scenario) {
    set = &SETTINGS[i];
    *scenario = (struct model_scenario){.name = set->name,
                                        .set_up = set_up,
                                        .invariant = invariant,
                                        .end = end,
                                        .crashes = set->crashes,
                                        .spurious = set->spurious,
                                        .latest = set->lies};
    return set->extensive;
}

int main(int argc, char **argv) {
    return model_main(argc, argv, sizeof SETTINGS / sizeof *SETTINGS, choose);
}
