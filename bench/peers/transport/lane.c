// Ours: a lane for each step in flight, in one actor's ring, through the functions that actors and learners call.
#include <sys/eventfd.h>

#include "../../../tests/support/rings.h"
#include "ring/wait.h"
#include "work.h"

static struct farm_ring made;
static int bell;

struct lane_side {
    struct farm_ring ring;
    struct farm_doorbells bells;
    struct farm_ring *rings[1];
    uint64_t spin_ns;
    uint64_t next, done; // steps begun and finished on this side; step n travels in lane n mod in_flight
};

static void prepare(const struct work *work) {
    made = make_ring(farm_ring_spec_plain(work->in_flight, 1, work->slots, FARM_U8, WORK_OBS_BYTES, 4), 0, true);
    bell = eventfd(0, EFD_NONBLOCK);
    work_need(bell >= 0, "eventfd");
}

static void *open_side(const struct work *work, bool actor) {
    struct farm_error err;
    struct lane_side *side = calloc(1, sizeof *side);
    work_need(side != NULL, "memory");
    side->ring = open_view(&made, actor ? FARM_RING_ACTOR : FARM_RING_LEARNER);
    side->rings[0] = &side->ring;
    side->spin_ns = farm_wait_spin_ns(work->spin ? FARM_WAIT_SPIN : FARM_WAIT_SLEEP, false);
    if (actor) farm_ring_populate(&side->ring);
    if (!actor) must(farm_doorbells_make(&side->bells, side->rings, 1, bell, &err), &err);
    return side;
}

static struct farm_lane *lane_of(struct lane_side *side, uint64_t n) {
    return &side->ring.lanes[n % side->ring.spec.lanes];
}

static void *loan(void *self) {
    struct lane_side *side = self;
    struct farm_lane *lane = lane_of(side, side->next);
    const uint64_t n = farm_lane_actor_next(lane);
    work_need(farm_lane_actor_can_write(lane), "a slot");
    *farm_lane_reward(lane, n) = 0;
    *farm_lane_flags(lane, n) = n ? 0 : FARM_STEP_FIRST;
    return farm_lane_obs(lane, 0, n, 0);
}
static void send_step(void *self, void *obs) {
    struct lane_side *side = self;
    farm_lane_actor_publish(lane_of(side, side->next++));
    farm_actor_notify(&side->ring, bell);
}
static bool answered(void *self, int32_t *action) {
    struct lane_side *side = self;
    struct farm_lane *lane = lane_of(side, side->done);
    if (!farm_actor_wait(&side->ring, lane, side->spin_ns, UINT64_MAX, NULL)) return false;
    *action = *(const int32_t *)farm_lane_action(lane, farm_lane_actor_next(lane) - 1, 0);
    side->done++;
    return true;
}

static const void *arrived(void *self) {
    struct lane_side *side = self;
    struct farm_lane *lane = lane_of(side, side->next);
    const uint64_t n = farm_lane_acted(lane);
    uint32_t rung;
    while (farm_lane_produced(lane) == n) {
        farm_doorbells_wait(&side->bells, side->spin_ns, UINT64_MAX);
        farm_doorbells_poll(&side->bells, &rung);
    }
    return farm_lane_obs(lane, 0, n, 0);
}
static void answer(void *self, const void *obs, int32_t action) {
    struct lane_side *side = self;
    struct farm_lane *lane = lane_of(side, side->next++);
    const uint64_t n = farm_lane_acted(lane);
    *(int32_t *)farm_lane_action(lane, n, 0) = action;
    farm_lane_answer(lane, n);
    farm_lane_release(lane, n);
    farm_learner_notify(&side->ring);
}

int main(int argc, char **argv) {
    const struct transport transport = {"lane", prepare, open_side, loan, send_step, answered, arrived, answer};
    return work_main(&transport, argc, argv);
}
