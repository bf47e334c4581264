// See wait.h.
#include "ring/wait.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/time.h"

enum { SPIN_NS = 20000, LOOKS_PER_CLOCK = 64 };

uint64_t farm_wait_spin_ns(enum farm_wait_mode mode, bool oversubscribed) {
    if (mode == FARM_WAIT_SPIN) return UINT64_MAX;
    if (mode == FARM_WAIT_SLEEP || oversubscribed) return 0;
    return SPIN_NS; // about a wake-up's cost
}

static struct timespec timespec_of(uint64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

// Returns when woken, timed out or interrupted: the caller looks again.
static void futex_sleep(const uint32_t *word, uint32_t seen, uint64_t timeout_ns) {
    const struct timespec timeout = timespec_of(timeout_ns);
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, NULL, 0);
}

static bool lane_can_proceed(struct farm_lane *lane) {
    return farm_lane_actor_answered(lane) && farm_lane_actor_can_write(lane);
}

static bool actor_look(struct farm_ring *ring, struct farm_lane *lane, uint32_t *ready) {
    if (lane) return lane_can_proceed(lane);
    uint32_t lanes = ring->spec.lanes, from = ready ? *ready + 1 : 0;
    for (uint32_t i = 0; i < lanes; i++) {
        uint32_t l = (from + i) % lanes;
        if (!lane_can_proceed(&ring->lanes[l])) continue;
        if (ready) *ready = l;
        return true;
    }
    return false;
}

bool farm_actor_ready(struct farm_ring *ring) {
    return actor_look(ring, NULL, NULL);
}

static bool stopped(const struct farm_ring *ring) {
    return farm_load_relaxed(&ring->down_control->stop) != 0;
}

void farm_actor_announce(struct farm_ring *ring, bool asleep) {
    farm_store_relaxed(&ring->up_control->asleep, asleep);
    if (!asleep) return;
    farm_fence_full(); // `asleep` before the counters; partner: the fence in farm_learner_notify
}

bool farm_actor_wait(struct farm_ring *ring, struct farm_lane *lane, uint64_t spin_ns, uint64_t timeout_ns,
                     uint32_t *ready) {
    if (stopped(ring)) return false;
    if (actor_look(ring, lane, ready)) return true;
    uint64_t start = farm_now_ns();
    while (spin_ns) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (actor_look(ring, lane, ready)) return !stopped(ring);
            farm_cpu_relax();
        }
        uint64_t spent = farm_now_ns() - start;
        if (stopped(ring) || spent >= timeout_ns) return false;
        if (spent >= spin_ns) break;
    }
    for (;;) {
        uint32_t seen = farm_load32_acquire(&ring->down_control->wake);
        farm_actor_announce(ring, true);
        bool go = actor_look(ring, lane, ready);
        uint64_t spent = farm_now_ns() - start;
        bool end = stopped(ring) || (!go && spent >= timeout_ns);
        if (!go && !end) futex_sleep(&ring->down_control->wake, seen, timeout_ns - spent);
        farm_actor_announce(ring, false);
        if (end) return false;
        if (go) return true;
    }
}

static void ring_eventfd(int eventfd) {
    const uint64_t one = 1;
    const ssize_t ignored = write(eventfd, &one, sizeof one); // EAGAIN: full, so it has rung already
    (void)ignored;
}

void farm_learner_notify(struct farm_ring *ring) {
    farm_fence_full(); // the answers before `asleep`; partner: the fence in farm_actor_announce
    if (!farm_load_relaxed(&ring->up_control->asleep)) return;
    if (ring->wake_fd >= 0) {
        ring_eventfd(ring->wake_fd);
        return;
    }
    // Two threads of the learner may do this at once. With a load and a store, a late store could restore the number
    // that the actor has just read, over the other thread's wake-up.
    uint32_t *wake = &ring->down_control->wake;
    farm_add32_release(wake, 1);
    syscall(SYS_futex, wake, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void farm_actor_notify(struct farm_ring *ring, int learner_eventfd) {
    farm_fence_full(); // the doorbell before `asleep`; partner: the fence in farm_doorbells_announce
    if (farm_load_relaxed(&ring->down_control->asleep)) ring_eventfd(learner_eventfd);
}

void farm_doorbells_announce(const struct farm_doorbells *bells, bool asleep) {
    for (uint32_t i = 0; i < bells->count; i++) farm_store_relaxed(&bells->rings[i]->down_control->asleep, asleep);
    if (!asleep) return;
    farm_fence_full(); // `asleep` before the doorbells; partner: the fence in farm_actor_notify
}

enum farm_status farm_doorbells_make(struct farm_doorbells *bells, struct farm_ring **rings, uint32_t count,
                                     int eventfd, struct farm_error *err) {
    *bells = (struct farm_doorbells){.rings = rings, .count = count, .eventfd = eventfd};
    bells->seen = calloc(count ? count : 1, sizeof *bells->seen);
    if (!bells->seen) return farm_fail(err, FARM_E_LIMIT, "no memory for %u doorbells", count);
    // Old bells count as new: a restarted learner must look at every lane once.
    for (uint32_t i = 0; i < count; i++) bells->seen[i] = farm_load_acquire(&rings[i]->up_control->doorbell) - 1;
    farm_doorbells_announce(bells, false); // the dead learner may have slept
    return FARM_OK;
}

void farm_doorbells_free(struct farm_doorbells *bells) {
    free(bells->seen);
    *bells = (struct farm_doorbells){.eventfd = -1};
}

uint32_t farm_doorbells_poll(struct farm_doorbells *bells, uint32_t *out) {
    uint32_t rung = 0;
    for (uint32_t i = 0; i < bells->count; i++) {
        uint64_t now = farm_load_acquire(&bells->rings[i]->up_control->doorbell); // acquires `produced` too
        if (now == bells->seen[i]) continue;
        bells->seen[i] = now;
        out[rung++] = i;
    }
    return rung;
}

bool farm_doorbells_look(const struct farm_doorbells *bells) {
    if (bells->call && farm_load_relaxed(bells->call)) return true;
    if (bells->release && farm_load_acquire(bells->release) != bells->release_seen) return true;
    for (uint32_t i = 0; i < bells->count; i++)
        if (farm_load_acquire(&bells->rings[i]->up_control->doorbell) != bells->seen[i]) return true;
    return false;
}

uint64_t farm_bell_empty(int eventfd) {
    uint64_t count;
    const struct iovec into = {&count, sizeof count};
    // RWF_NOWAIT, because every actor holds this descriptor: an actor that clears O_NONBLOCK and reads the count must
    // not block this thread.
    ssize_t n = preadv2(eventfd, &into, 1, -1, RWF_NOWAIT);
    // Old kernels and qemu-user refuse the flag for eventfds: O_NONBLOCK remains.
    if (n < 0 && errno == EOPNOTSUPP) n = read(eventfd, &count, sizeof count);
    if (n < 0 && errno != EAGAIN && errno != EINTR) abort(); // not an eventfd: a broken invariant
    return n > 0 ? count : 0;
}

static void sleep_until_written(const struct farm_doorbells *bells, uint64_t timeout_ns) {
    const struct timespec timeout = timespec_of(timeout_ns);
    struct pollfd waiter = {.fd = bells->eventfd, .events = POLLIN};
    if (ppoll(&waiter, 1, &timeout, NULL) != 1) return;
    farm_bell_empty(bells->eventfd);
}

bool farm_doorbells_wait(struct farm_doorbells *bells, uint64_t spin_ns, uint64_t timeout_ns) {
    if (farm_doorbells_look(bells)) return true;
    uint64_t start = farm_now_ns();
    while (spin_ns) {
        for (int i = 0; i < LOOKS_PER_CLOCK; i++) {
            if (farm_doorbells_look(bells)) return true;
            farm_cpu_relax();
        }
        uint64_t spent = farm_now_ns() - start;
        if (spent >= timeout_ns) return false;
        if (spent >= spin_ns) break;
    }
    for (;;) {
        farm_doorbells_announce(bells, true);
        bool rung = farm_doorbells_look(bells);
        uint64_t spent = farm_now_ns() - start;
        // The write may belong to a bell that was answered meanwhile: then the wait continues.
        if (!rung && spent < timeout_ns) sleep_until_written(bells, timeout_ns - spent);
        farm_doorbells_announce(bells, false);
        if (rung || spent >= timeout_ns) return rung;
    }
}
