// See farm/consumer.h. Lanes are read through src/intake, as the learner reads them: counters and values that actors
// wrote are checked there. Runs in the caller's process. Memory order: ring/lane.h; this is the learner's side of each
// pair. A fork's child must not use the objects here: it finds their memory zeroed.
#include <errno.h>
#include <farm/consumer.h>
#include <farm/step.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/statistics.h"
#include "base/time.h"
#include "intake/admission.h"
#include "intake/lanes.h"
#include "view/view.h"

enum { PLACES_MAX = 65536, WORDS_MAX = 250, PASS_MAX = 4, STACK_MAX = 64, ALL_BELLS = UINT32_MAX };
static const uint64_t CHECK_NS = 10000000;  // between two looks at the socket while lanes are always ready
static const uint64_t SLEEP_NS = 100000000; // at most: an actor may have read the eventfd that another one wrote
static const char no_room[] = "no room for descriptors (ulimit -n)";
static const struct farm_window_shape any_window = {.stride = 1, .length = 1, .stack = 1};

struct durations {
    uint64_t count;
    double us[1024]; // the last ones, a circle
};

// A lane, and the holds of its steps, which may outlive the consumer.
struct seat {
    struct place *place;
    struct farm_intake_lane *lane;
    uint32_t number;             // the user's for the lane
    uint32_t written;            // bits: answer fields that may hold something and are cleared at each step
    bool answering;              // in the present call of farm_consumer_answer
    uint64_t base;               // its first step that this consumer may read
    uint64_t listed_ns;          // when recv listed the waiting step
    uint64_t consumed, released; // steps that the actor may overwrite; those that it may but for holds
    uint32_t *holds;             // [steps], by slot
};

// One actor's ring. It stays while the consumer has it or a step is held.
struct place {
    size_t bytes; // the mapping's
    pthread_mutex_t lock;
    uint64_t users;         // holds, and 1 of the consumer
    bool left;              // the consumer has it no longer
    struct farm_lanes ring; // a table of one ring
    struct seat seats[];    // [lanes], and their `holds` behind them
};

struct farm_consumer {
    bool mine;         // false in a fork's child
    bool began, ended; // began: the first recv was called
    int socket, bell;
    pid_t pid;
    struct farm *farm; // that farm_consumer_start started
    struct farm_ring_spec model;
    uint32_t place_count, keep;
    struct place **places;    // [place_count], NULL: vacant; the arrays below lie behind it
    struct place **listed;    // those of `bells`, whose count they have
    struct farm_ring **rings; // their rings
    uint32_t *rung;           // [place_count]
    uint32_t *queue;          // [place_count * model.lanes], a circle: lanes that wait and recv has not listed
    uint32_t room, head, queued;
    struct farm_doorbells bells;
    uint64_t spin_ns, checked_ns, waited_ns; // waited: in calls of recv since the last one that found a lane
    struct farm_stats stats;
    struct durations waits[2];      // recv's, and those for answers; since the last farm_consumer_stats
    uint64_t agent_steps;           // since then, too
    struct farm_error *error, last; // NULL in a fork's child; of the last call that failed
};

// Zeroed memory that a fork's child finds zeroed again.
static void *map_unforked(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !madvise(memory, bytes, MADV_WIPEONFORK)) return memory == MAP_FAILED ? NULL : memory;
    munmap(memory, bytes);
    return NULL;
}

static void add_duration(struct durations *all, uint64_t ns) {
    all->us[all->count++ % 1024] = (double)ns * 1e-3;
}

// ---- steps that stay ----

static uint64_t consumed_of(const struct seat *seat) {
    return farm_load_relaxed(&seat->consumed);
}

// Steps that are published and taken in.
static uint64_t end_of(const struct seat *seat) {
    return seat->lane->answered + seat->lane->taken;
}

// Releases what is not held. Pair C: the lock orders reads of other threads before it. False: nothing. Locked.
static bool release_steps(struct seat *seat) {
    uint64_t n = seat->consumed;
    while (n < seat->released && !seat->holds[n % seat->lane->lane->steps]) n++;
    if (n == seat->consumed || seat->place->left) return false;
    farm_store_relaxed(&seat->consumed, n);
    farm_lane_release(seat->lane->lane, n);
    return true;
}

// Only holders need the steps before `answered` - `keep`. Without holds no other thread comes here: the acquire, whose
// partner is in end_use, orders what the last one has done.
static void release_answered(struct seat *seat, uint64_t answered, uint32_t keep) {
    const bool shared = farm_load_acquire(&seat->place->users) > 1;
    if (shared) pthread_mutex_lock(&seat->place->lock);
    if (answered > seat->released + keep) seat->released = answered - keep;
    release_steps(seat);
    if (shared) pthread_mutex_unlock(&seat->place->lock);
}

// Ends a use of the place, and its memory after the last one. Unlocks.
static void end_use(struct place *place) {
    const uint64_t users = place->users - 1;
    farm_store_release(&place->users, users); // partner: release_answered
    pthread_mutex_unlock(&place->lock);
    if (users) return;
    farm_lanes_close(&place->ring);
    munmap(place, place->bytes);
}

void farm_consumer_drop(void *token, uint64_t step) {
    struct seat *seat = token;
    struct place *place = seat->place;
    if (!place) return; // a fork's child
    pthread_mutex_lock(&place->lock);
    seat->holds[step % seat->lane->lane->steps]--;
    if (release_steps(seat)) farm_learner_notify(&place->ring.rings[0]);
    end_use(place);
}

// Replaces a ring's segments by private copies, because held steps are to be overwritten. False: no memory for them,
// and the segments stay.
static bool copy_segments(const struct farm_ring *ring) {
    const struct farm_segment *const segments[] = {&ring->up, &ring->down};
    void *copies[2] = {MAP_FAILED, MAP_FAILED};
    bool done = true;
    for (int i = 0; i < 2 && done; i++) {
        const size_t bytes = segments[i]->bytes;
        copies[i] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        done = copies[i] != MAP_FAILED;
        if (done) memcpy(copies[i], segments[i]->header, bytes);
        done = done && !mprotect(copies[i], bytes, PROT_READ);
    }
    for (int i = 0; i < 2; i++) {
        const size_t bytes = segments[i]->bytes;
        void *at = segments[i]->header;
        done = done && mremap(copies[i], bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED;
        if (!done && copies[i] != MAP_FAILED) munmap(copies[i], bytes);
    }
    return done;
}

// False: it stays, unless it `must` leave, because held steps find no memory.
static bool leave_place(struct place *place, bool must) {
    pthread_mutex_lock(&place->lock);
    place->left = place->users == 1 || copy_segments(&place->ring.rings[0]) || must;
    if (!place->left) return pthread_mutex_unlock(&place->lock), false;
    farm_lanes_set_wake(&place->ring, 0, -1);
    end_use(place);
    return true;
}

// ---- rings that join and leave ----

// Lists the occupied places with new bells, all of which are looked at once.
static enum farm_status list_places(struct farm_consumer *consumer, struct farm_error *err) {
    uint32_t count = 0, here = 0;
    for (uint32_t r = 0; r < consumer->place_count; r++) {
        if (!consumer->places[r]) continue;
        consumer->listed[count] = consumer->places[r];
        consumer->rings[count++] = &consumer->places[r]->ring.rings[0];
        here += consumer->places[r]->ring.rings[0].wake_fd < 0;
    }
    farm_doorbells_free(&consumer->bells);
    cpu_set_t cpus;
    const bool crowded = sched_getaffinity(0, sizeof cpus, &cpus) == 0 && (uint32_t)CPU_COUNT(&cpus) <= here;
    consumer->spin_ns = farm_wait_spin_ns(FARM_WAIT_ADAPTIVE, crowded);
    const enum farm_status status = farm_doorbells_make(&consumer->bells, consumer->rings, count, consumer->bell, err);
    if (status) farm_doorbells_free(&consumer->bells); // no lane is served any more
    return status;
}

// Lets the actor go on: the consumer before may have died as it was about to.
static void begin_place(const struct farm_consumer *consumer, struct place *place) {
    for (struct seat *seat = place->seats; seat < place->seats + consumer->model.lanes; seat++)
        release_answered(seat, seat->lane->answered, consumer->keep);
    farm_learner_notify(&place->ring.rings[0]);
}

// Owns the request's descriptors after success. The first place gives the model.
static enum farm_status open_place(struct farm_consumer *consumer, struct farm_admission_request *request,
                                   struct farm_error *err) {
    const uint32_t r = request->ring;
    if (request->fds[1] < 0) return farm_fail(err, FARM_E_LIMIT, no_room);
    if (r >= consumer->place_count || consumer->places[r])
        return farm_fail(err, FARM_E_INVALID, "there is no vacant place %u", r);
    struct farm_lanes ring;
    enum farm_status status = farm_lanes_open((const int(*)[2]) & request->fds, 1, &any_window, NULL, &ring, err);
    if (status == FARM_E_LIMIT) request->fds[0] = request->fds[1] = -1; // perhaps closed already
    if (status) return status;
    const struct farm_ring_spec *spec = &ring.rings[0].spec;
    const size_t bytes =
        sizeof(struct place) + spec->lanes * (sizeof(struct seat) + (size_t)spec->steps * sizeof(uint32_t));
    if (!consumer->model.lanes) consumer->model = *spec;
    struct place *place = map_unforked(bytes);
    if (!place)
        status = farm_fail_errno(err, FARM_E_LIMIT, "no memory for the lanes of actor %u", r);
    else if (spec->answers != FARM_ANSWERS_CENTRAL || memcmp(spec, &consumer->model, sizeof *spec) != 0)
        status =
            farm_fail(err, FARM_E_INVALID, "actor %u has lanes of another shape than the others, or its own policy", r);
    if (status) {
        if (place) munmap(place, bytes);
        ring.rings[0].up.fd = ring.rings[0].down.fd = -1;
        farm_lanes_close(&ring);
        return status;
    }
    *place = (struct place){.bytes = bytes, .lock = PTHREAD_MUTEX_INITIALIZER, .users = 1, .ring = ring};
    farm_lanes_set_wake(&place->ring, 0, request->wake);
    for (uint32_t l = 0; l < spec->lanes; l++)
        place->seats[l] = (struct seat){
            .place = place,
            .lane = &ring.lanes[l],
            .number = r * spec->lanes + l,
            .written = ring.lanes[l].answered ? UINT32_MAX : 1u << FARM_ANSWER_ACTION,
            .base = farm_lane_consumed(ring.lanes[l].lane),
            .consumed = farm_lane_consumed(ring.lanes[l].lane),
            .holds = (uint32_t *)(place->seats + spec->lanes) + (size_t)l * spec->steps,
        };
    consumer->places[r] = place;
    return FARM_OK;
}

// Owns the request's descriptors.
static enum farm_status make_place(struct farm_consumer *consumer, struct farm_admission_request *request,
                                   struct farm_error *err) {
    const enum farm_status status = open_place(consumer, request, err);
    const int fds[] = {request->up_writable, request->fds[0], request->fds[1], request->wake};
    for (int i = 0; i < (status ? 4 : 1); i++)
        if (fds[i] >= 0) close(fds[i]);
    return status;
}

static enum farm_status join(struct farm_consumer *consumer, struct farm_admission_request *request,
                             struct farm_error *err) {
    enum farm_status status = make_place(consumer, request, err);
    if (!status) status = list_places(consumer, err);
    if (!status && consumer->began) begin_place(consumer, consumer->places[request->ring]);
    return status;
}

static enum farm_status leave(struct farm_consumer *consumer, uint32_t r, struct farm_error *err) {
    struct place *place = r < consumer->place_count ? consumer->places[r] : NULL;
    if (!place) return farm_fail(err, FARM_E_INVALID, "place %u is vacant", r);
    const uint32_t head = consumer->head, count = consumer->queued;
    consumer->queued = 0;
    for (uint32_t i = 0; i < count; i++) { // the others keep their order
        const uint32_t lane = consumer->queue[(head + i) % consumer->room];
        if (lane / consumer->model.lanes != r) consumer->queue[(head + consumer->queued++) % consumer->room] = lane;
    }
    consumer->places[r] = NULL;
    const enum farm_status status = list_places(consumer, err);
    leave_place(place, true);
    return status;
}

// The seat goes on where the one before it is.
static void continue_seat(struct seat *seat, const struct seat *before) {
    struct farm_stats ignored = {0}; // the step has been counted
    struct farm_intake_lane *lane = seat->lane;
    seat->base = before->base;
    seat->written = before->written;
    seat->listed_ns = before->listed_ns;
    lane->taken = before->lane->taken && farm_lanes_take_in(lane, 0, &ignored);
    lane->queued = before->lane->queued;
    memcpy(lane->games, before->lane->games, lane->lane->width * sizeof *lane->games);
}

bool farm_consumer_detach(struct farm_consumer *consumer, unsigned lane) {
    const uint32_t r = consumer->mine ? lane / consumer->model.lanes : UINT32_MAX;
    struct place *before = r < consumer->place_count ? consumer->places[r] : NULL;
    if (!before) return false;
    const struct farm_ring *ring = &before->ring.rings[0];
    struct farm_admission_request again = {.ring = r,
                                           .fds = {dup(ring->up.fd), dup(ring->down.fd)},
                                           .up_writable = -1,
                                           .wake = ring->wake_fd < 0 ? -1 : dup(ring->wake_fd)};
    consumer->places[r] = NULL;
    const bool made = !make_place(consumer, &again, consumer->error);
    struct place *after = consumer->places[r];
    for (uint32_t l = 0; l < consumer->model.lanes && made; l++) continue_seat(&after->seats[l], &before->seats[l]);
    if (!made || !leave_place(before, false)) {
        consumer->places[r] = before;
        if (made) leave_place(after, true);
        return false;
    }
    const bool listed = !list_places(consumer, consumer->error);
    if (listed) begin_place(consumer, after);
    return listed;
}

static void carry_out(struct farm_consumer *consumer, struct farm_admission_request *request) {
    struct farm_admission_reply reply = {.ring = request->ring};
    if (request->kind == FARM_ADMISSION_END) {
        consumer->ended = true;
        farm_fail(consumer->error, FARM_E_DEAD, "%s", request->text);
    } else if (request->kind != FARM_ADMISSION_OPEN) {
        reply.status = request->kind == FARM_ADMISSION_JOIN ? join(consumer, request, &reply.error)
                                                            : leave(consumer, request->ring, &reply.error);
        if (reply.status) *consumer->error = reply.error;
        farm_admission_send_reply(consumer->socket, &reply);
    }
}

static void look_at_socket(struct farm_consumer *consumer, uint64_t now_ns) {
    struct farm_admission_request request;
    uint8_t byte;
    ssize_t got = -1;
    consumer->checked_ns = now_ns;
    while (!consumer->ended && (got = recv(consumer->socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT)) > 0)
        if (farm_admission_receive_request(consumer->socket, 0, &request)) carry_out(consumer, &request);
    if (consumer->ended || (got < 0 && (errno == EAGAIN || errno == EINTR))) return;
    consumer->ended = true;
    farm_fail(consumer->error, FARM_E_DEAD, "the farm has ended (its messages are on stderr)");
}

// ---- waiting ----

// NULL: the number is vacant.
static struct seat *look_up_seat(const struct farm_consumer *consumer, unsigned lane) {
    const uint32_t r = consumer->mine ? lane / consumer->model.lanes : 0;
    if (!consumer->mine || r >= consumer->place_count || !consumer->places[r]) return NULL;
    return &consumer->places[r]->seats[lane % consumer->model.lanes];
}

static struct seat *find_seat(const struct farm_consumer *consumer, unsigned lane) {
    struct seat *seat = look_up_seat(consumer, lane);
    if (!seat) farm_fail(consumer->error, FARM_E_INVALID, "there is no lane %u", lane);
    return seat;
}

static void clear_answer(const struct farm_lane *lane, uint32_t field, uint64_t n) {
    memset(farm_lane_answer_at(lane, field, n, 0), 0, lane->answer[field].rows * lane->answer[field].bytes);
}

// Takes in the lane's next step, if it is published, and queues it.
static void take_in(struct farm_consumer *consumer, struct seat *seat) {
    struct farm_intake_lane *lane = seat->lane;
    if (lane->taken || !farm_lanes_take_in(lane, 0, &consumer->stats)) return;
    lane->taken = lane->queued = true;
    for (uint32_t f = 0; f < lane->lane->answer_count; f++)
        if (seat->written >> f & 1 || !lane->answered) clear_answer(lane->lane, f, lane->answered);
    consumer->queue[(consumer->head + consumer->queued++) % consumer->room] = seat->number;
}

static void take_in_rung(struct farm_consumer *consumer) {
    const uint32_t count = farm_doorbells_poll(&consumer->bells, consumer->rung);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t l = 0; l < consumer->model.lanes; l++)
            take_in(consumer, &consumer->listed[consumer->rung[i]]->seats[l]);
}

// Whether the lane's next step may come: its slot is free, and its actor's counter makes sense.
static bool can_publish(const struct seat *seat) {
    const struct farm_intake_lane *lane = seat->lane;
    if (lane->taken || lane->answered - consumed_of(seat) >= lane->lane->steps) return false;
    return !lane->warned || lane->warned != farm_load_relaxed(&lane->lane->down->generation) + 1;
}

// Lanes that may be ready before another answer, those in the queue too. *bell: the last that one of them lacks,
// because its actor was woken last.
static uint32_t count_possible(const struct farm_consumer *consumer, uint32_t *bell) {
    uint32_t count = consumer->queued;
    for (uint32_t i = 0; i < consumer->bells.count; i++)
        for (uint32_t l = 0; l < consumer->model.lanes; l++) {
            if (!can_publish(&consumer->listed[i]->seats[l])) continue;
            count++;
            *bell = i;
        }
    return count;
}

// Waits until a bell rings (of all, or a single one), a request comes, or the time or SLEEP_NS is over. False: a signal
// came.
static bool wait_for_bell(struct farm_consumer *consumer, uint32_t bell, uint64_t limit_ns) {
    struct farm_doorbells on = consumer->bells;
    if (bell != ALL_BELLS) on.rings += bell, on.seen += bell, on.count = 1;
    const uint64_t spin_ns = limit_ns < consumer->spin_ns ? limit_ns : consumer->spin_ns;
    if (spin_ns && farm_doorbells_wait(&on, spin_ns, spin_ns)) return true;
    struct pollfd look[] = {{.fd = on.eventfd, .events = POLLIN}, {.fd = consumer->socket, .events = POLLIN}};
    const struct timespec limit = {.tv_nsec = (long)(limit_ns < SLEEP_NS ? limit_ns : SLEEP_NS)};
    int count = 0;
    farm_doorbells_announce(&on, true);
    if (!farm_doorbells_look(&on)) count = ppoll(look, 2, &limit, NULL);
    const bool interrupted = count < 0 && errno == EINTR;
    farm_doorbells_announce(&on, false);
    if (count > 0 && look[0].revents) farm_bell_empty(on.eventfd);
    if (count > 0 && look[1].revents) look_at_socket(consumer, farm_now_ns());
    return !interrupted;
}

int farm_consumer_recv(struct farm_consumer *consumer, unsigned least, unsigned most, int64_t timeout_ns,
                       struct farm_ready *ready) {
    if (!consumer->mine) return -1;
    for (uint32_t i = 0; i < consumer->bells.count && !consumer->began; i++) begin_place(consumer, consumer->listed[i]);
    consumer->began = true;
    const uint64_t start = farm_now_ns(), limit = timeout_ns < 0 ? UINT64_MAX : (uint64_t)timeout_ns;
    uint64_t now = start;
    if (now - consumer->checked_ns > CHECK_NS) look_at_socket(consumer, now);
    for (;; now = farm_now_ns()) {
        if (consumer->ended) return -1;
        take_in_rung(consumer);
        uint32_t bell = ALL_BELLS, wanted = least ? least : 1;
        if (consumer->queued < wanted) {
            const uint32_t possible = count_possible(consumer, &bell);
            if (possible > wanted) bell = ALL_BELLS;
            if (possible < wanted) wanted = possible ? possible : 1;
        }
        if (consumer->queued >= wanted) break;
        if (now - start >= limit ||
            !wait_for_bell(consumer, bell, limit == UINT64_MAX ? limit : limit - (now - start))) {
            consumer->waited_ns += farm_now_ns() - start;
            return 0;
        }
    }
    add_duration(&consumer->waits[0], now - start + consumer->waited_ns);
    consumer->waited_ns = 0;
    unsigned count = 0;
    for (; count < most && consumer->queued; count++, consumer->queued--) {
        struct seat *seat = find_seat(consumer, consumer->queue[consumer->head]);
        consumer->head = (consumer->head + 1) % consumer->room;
        seat->lane->queued = false;
        seat->listed_ns = now;
        ready[count] = (struct farm_ready){seat->number, seat->lane->answered};
    }
    return (int)count;
}

// ---- reading ----

const void *farm_consumer_field(const struct farm_consumer *consumer, unsigned lane, uint64_t step, unsigned steps,
                                unsigned field) {
    const struct seat *seat = find_seat(consumer, lane);
    const bool last = field >= FARM_VIEW_LAST; // the actor may be writing the older one of two slots
    const void *rows;
    bool answer;
    if (!seat) return NULL;
    const struct farm_lane *at = seat->lane->lane;
    const uint64_t answered = seat->lane->answered,
                   end = farm_view_locate(at, step, field, &rows, &answer) ? answer ? answered : end_of(seat) : 0,
                   first = last ? answered - (answered > 0) : consumed_of(seat);
    const uint32_t room = last ? 1 : at->steps - (uint32_t)farm_lane_slot(at, step);
    if (step >= first && step < end && steps && steps <= end - step && steps <= room) return rows;
    farm_fail(consumer->error, FARM_E_INVALID, "lane %u has no field %u of %u neighbouring steps from %llu on", lane,
              field, steps, (unsigned long long)step);
    return NULL;
}

// How many of the `stack` frames up to step n may be read; 0: too few. A lane's first steps, also those of a consumer
// that continues at it, have fewer.
static unsigned count_frames(const struct seat *seat, uint64_t n, unsigned stack) {
    const uint64_t frames = n + 1 - consumed_of(seat);
    if (frames >= stack) return stack;
    return consumed_of(seat) == seat->base ? (unsigned)frames : 0;
}

// Copies each environment's `stack` frames up to step n, of which `frames` may be read; the first one in place of those
// before an episode's first.
static void copy_frames(const struct farm_lane *lane, unsigned f, uint64_t n, unsigned frames, unsigned stack,
                        uint8_t *out) {
    for (uint32_t e = 0; e < lane->width; e++) {
        const void *rows[STACK_MAX];
        unsigned first = 0;
        farm_lane_stack(lane, f, n, e, frames, rows);
        while (!rows[first]) first++;
        for (unsigned i = 0; i < stack; i++, out += lane->obs_bytes[f]) {
            const unsigned row = i + frames < stack ? 0 : i + frames - stack;
            memcpy(out, rows[row < first ? first : row], lane->obs_bytes[f]);
        }
    }
}

bool farm_consumer_gather(const struct farm_consumer *consumer, const struct farm_ready *ready, unsigned count,
                          unsigned field, unsigned stack, void *out) {
    uint8_t *to = out;
    for (unsigned i = 0; i < count; i++) {
        const void *rows = farm_consumer_field(consumer, ready[i].lane, ready[i].step, 1, field);
        if (!rows) return false;
        const struct seat *seat = find_seat(consumer, ready[i].lane);
        const struct farm_lane *lane = seat->lane->lane;
        const unsigned f = field - FARM_VIEW_OBS, frames = count_frames(seat, ready[i].step, stack);
        if (f >= lane->obs_count || !frames || stack > STACK_MAX) {
            farm_fail(consumer->error, FARM_E_INVALID,
                      "field %u, %u frames: observations only, at most %d, and farm_consumer_keep keeps all but one",
                      field, stack, STACK_MAX);
            return false;
        }
        const size_t bytes = lane->obs_bytes[f] * stack * lane->width;
        if (stack == 1)
            memcpy(to, rows, bytes);
        else
            copy_frames(lane, f, ready[i].step, frames, stack, to);
        to += bytes;
    }
    return true;
}

// ---- answering ----

// A lane that recv has listed and that is not answered yet.
static struct seat *find_waiting(const struct farm_consumer *consumer, unsigned lane) {
    struct seat *seat = find_seat(consumer, lane);
    if (!seat || (seat->lane->taken && !seat->lane->queued)) return seat;
    return farm_fail(consumer->error, FARM_E_INVALID, "lane %u does not wait for an answer", lane), NULL;
}

// Where an answer field of the waiting step lies. Zeros until now, if nothing has been written there before.
static void *open_answer(struct seat *seat, uint32_t field) {
    const struct farm_lane *lane = seat->lane->lane;
    if (!(seat->written >> field & 1)) clear_answer(lane, field, seat->lane->answered);
    seat->written |= 1u << field;
    return farm_lane_answer_at(lane, field, seat->lane->answered, 0);
}

void *farm_consumer_answer_field(struct farm_consumer *consumer, unsigned lane, unsigned field) {
    struct seat *seat = find_waiting(consumer, lane);
    _Static_assert(FARM_VIEW_VALUE - FARM_VIEW_ACTION == FARM_ANSWER_VALUE - FARM_ANSWER_ACTION, "in one order");
    if (!seat) return NULL;
    if (field >= FARM_VIEW_ACTION && field <= FARM_VIEW_VALUE)
        return open_answer(seat, field - FARM_VIEW_ACTION + FARM_ANSWER_ACTION);
    return farm_fail(consumer->error, FARM_E_INVALID, "field %u is no answer", field), NULL;
}

bool farm_consumer_control(struct farm_consumer *consumer, unsigned lane, uint32_t env, const uint64_t *seed,
                           const double *numbers) {
    struct seat *seat = find_waiting(consumer, lane);
    if (!seat) return false;
    const uint32_t field = seat->lane->lane->control, count = consumer->model.number_count;
    bool ok = field && env < consumer->model.width;
    for (uint32_t i = 0; numbers && i < count; i++) ok = ok && !isinf(numbers[i]);
    if (!ok)
        return farm_fail(consumer->error, FARM_E_INVALID, "environment %u cannot be reset%s", env,
                         field ? " with these numbers" : ": the farm has no forced resets"),
               false;
    uint64_t *words = (uint64_t *)open_answer(seat, field) + env * (FARM_CONTROL_NUMBERS + count);
    words[FARM_CONTROL_DO] = FARM_CONTROL_RESET | (seed ? FARM_CONTROL_RESEED : 0);
    words[FARM_CONTROL_SEED] = seed ? *seed : 0;
    for (uint32_t i = 0; i < count; i++)
        memcpy(&words[FARM_CONTROL_NUMBERS + i], numbers ? &numbers[i] : &(double){NAN}, sizeof *words);
    return true;
}

// Marks a lane whose answer may be published.
static bool check_answer(const struct farm_consumer *consumer, unsigned lane) {
    struct seat *seat = find_waiting(consumer, lane);
    if (!seat) return false;
    const struct farm_action_spec *action = &consumer->model.env.action;
    const int32_t *values = farm_lane_action(seat->lane->lane, seat->lane->answered, 0);
    const size_t bad = farm_action_find_invalid(action, values, consumer->model.width);
    if (bad < (size_t)action->dims * consumer->model.width)
        return farm_fail(consumer->error, FARM_E_INVALID,
                         "lane %u environment %zu: number %zu of the action is %s (%d)", lane, bad / action->dims,
                         bad % action->dims,
                         action->kind == FARM_ACTION_CONTINUOUS ? "not finite" : "not one of its choices", values[bad]),
               false;
    if (seat->answering) return farm_fail(consumer->error, FARM_E_INVALID, "lane %u is answered twice", lane), false;
    return seat->answering = true;
}

bool farm_consumer_answer(struct farm_consumer *consumer, const uint32_t *lanes, unsigned count) {
    unsigned checked = 0;
    while (checked < count && check_answer(consumer, lanes[checked])) checked++;
    for (unsigned i = 0; i < checked; i++) find_seat(consumer, lanes[i])->answering = false;
    if (checked < count) return false;
    const uint64_t now = farm_now_ns();
    for (unsigned i = 0; i < count; i++) {
        struct seat *seat = find_seat(consumer, lanes[i]);
        farm_lane_answer(seat->lane->lane, seat->lane->answered);
        release_answered(seat, seat->lane->answered + 1, consumer->keep);
        if (i + 1 == count || find_seat(consumer, lanes[i + 1])->place != seat->place) // once for neighbouring lanes
            farm_learner_notify(&seat->place->ring.rings[0]);
    }
    for (unsigned i = 0; i < count; i++) { // no actor waits for this
        struct seat *seat = find_seat(consumer, lanes[i]);
        const uint8_t *flags = farm_lane_flags(seat->lane->lane, seat->lane->answered);
        uint32_t steps = consumer->model.width;
        for (uint32_t e = 0; e < consumer->model.width; e++) steps -= flags[e] & FARM_STEP_FIRST;
        for (uint32_t e = 0; e < consumer->model.width && consumer->model.autoreset; e++)
            steps += farm_step_renews(seat->lane->lane, flags[e]);
        consumer->agent_steps += steps;
        consumer->stats.bad_values += seat->lane->bad;
        seat->lane->answered++;
        seat->lane->taken = false;
        add_duration(&consumer->waits[1], now - seat->listed_ns);
    }
    return true;
}

void *farm_consumer_hold(struct farm_consumer *consumer, unsigned lane, uint64_t step) {
    struct seat *seat = find_seat(consumer, lane);
    if (!seat) return NULL;
    pthread_mutex_lock(&seat->place->lock);
    const bool held = step >= seat->consumed && step < end_of(seat);
    seat->holds[step % consumer->model.steps] += held;
    seat->place->users += held;
    pthread_mutex_unlock(&seat->place->lock);
    if (held) return seat;
    return farm_fail(consumer->error, FARM_E_INVALID, "lane %u does not hold step %llu", lane,
                     (unsigned long long)step),
           NULL;
}

unsigned farm_consumer_room(const struct farm_consumer *consumer, unsigned lane) {
    const struct seat *seat = find_seat(consumer, lane);
    return seat ? consumer->model.steps - (unsigned)(end_of(seat) - consumed_of(seat)) : 0;
}

void farm_consumer_keep(struct farm_consumer *consumer, unsigned steps) {
    if (consumer->mine && !consumer->began)
        consumer->keep = steps < consumer->model.steps ? steps : consumer->model.steps - 1;
}

// ---- what it is ----

const char *farm_consumer_error(const struct farm_consumer *consumer) {
    return consumer->mine ? consumer->last.message : "a fork's child cannot use its parent's consumer";
}

pid_t farm_consumer_pid(const struct farm_consumer *consumer) {
    return consumer->pid;
}

unsigned farm_consumer_places(const struct farm_consumer *consumer) {
    return consumer->room;
}

const struct farm_env_spec *farm_consumer_env(const struct farm_consumer *consumer) {
    return &consumer->model.env;
}

void farm_consumer_shape(const struct farm_consumer *consumer, struct farm_consumer_shape *shape) {
    const struct farm_ring_spec *model = &consumer->model;
    *shape = (struct farm_consumer_shape){.width = model->width,
                                          .steps = model->steps,
                                          .policy_outputs = model->answer[FARM_ANSWER_POLICY].values,
                                          .same_step = model->autoreset == FARM_AUTORESET_SAME_STEP,
                                          .controls = farm_ring_spec_find(model, "control") != 0,
                                          .number_count = model->number_count};
    _Static_assert(sizeof shape->numbers == sizeof model->numbers, "as in the ring's spec");
    memcpy(shape->numbers, model->numbers, sizeof shape->numbers);
}

bool farm_consumer_state(const struct farm_consumer *consumer, unsigned lane, struct farm_lane_state *state) {
    const struct seat *seat = look_up_seat(consumer, lane); // callers ask for all numbers: a vacant one is no error
    if (!seat) return false;
    *state = (struct farm_lane_state){.actor = seat->lane->ring->down.header->owner,
                                      .lane = lane % consumer->model.lanes,
                                      .width = consumer->model.width,
                                      .steps = consumer->model.steps,
                                      .produced = end_of(seat),
                                      .acted = seat->lane->answered,
                                      .consumed = consumed_of(seat)};
    return true;
}

void farm_consumer_stats(struct farm_consumer *consumer, struct farm_consumer_stats *stats) {
    double us[2][2] = {{0}};
    for (int i = 0; i < 2 * consumer->mine; i++) {
        struct durations *all = &consumer->waits[i];
        const size_t count = all->count < 1024 ? all->count : 1024;
        farm_sort(all->us, count);
        for (int k = 0; k < 2 && count; k++) us[i][k] = farm_quantile(all->us, count, k ? 0.95 : 0.5);
    }
    *stats = (struct farm_consumer_stats){.recvs = consumer->waits[0].count,
                                          .answers = consumer->waits[1].count,
                                          .agent_steps = consumer->agent_steps,
                                          .bad_values = consumer->stats.bad_values,
                                          .recv_wait_p50_us = us[0][0],
                                          .recv_wait_p95_us = us[0][1],
                                          .answer_wait_p50_us = us[1][0],
                                          .answer_wait_p95_us = us[1][1]};
    consumer->waits[0].count = consumer->waits[1].count = consumer->agent_steps = consumer->stats.bad_values = 0;
}

// ---- start and end ----

int farm_consumer_close(struct farm_consumer *consumer) {
    if (!consumer || !consumer->mine) return 0;
    for (uint32_t r = 0; r < consumer->place_count; r++)
        if (consumer->places && consumer->places[r]) leave_place(consumer->places[r], true);
    farm_doorbells_free(&consumer->bells);
    shutdown(consumer->socket, SHUT_RDWR); // a fork's child may hold the descriptor, too
    close(consumer->socket);
    if (consumer->bell >= 0) close(consumer->bell);
    if (consumer->farm) farm_stop(consumer->farm);
    const int status = consumer->farm ? farm_wait(consumer->farm) : 0;
    free(consumer->places);
    munmap(consumer, sizeof *consumer);
    return status;
}

static enum farm_status await_request(const struct farm_consumer *consumer, struct farm_admission_request *request,
                                      struct farm_error *err) {
    struct pollfd look = {.fd = consumer->socket, .events = POLLIN};
    if (poll(&look, 1, -1) < 0) return farm_fail_errno(err, FARM_E_INTERRUPTED, "cannot wait for the farm's lanes");
    if (!farm_admission_receive_request(consumer->socket, 0, request))
        return farm_fail(err, FARM_E_IO, "the farm ended before it had lanes, without a word");
    return request->kind == FARM_ADMISSION_END ? farm_fail(err, FARM_E_DEAD, "%s", request->text) : FARM_OK;
}

// Receives the lanes that the farm has: at least one actor's.
static enum farm_status receive_lanes(struct farm_consumer *consumer, struct farm_error *err) {
    struct farm_admission_request request;
    enum farm_status status = await_request(consumer, &request, err);
    if (status) return status;
    if (request.kind != FARM_ADMISSION_OPEN || request.ring - 1 >= PLACES_MAX)
        return farm_fail(err, FARM_E_FORMAT, "the other side is not `farm serve`");
    if (request.fds[1] < 0) return farm_fail(err, FARM_E_LIMIT, no_room);
    close(request.fds[0]);
    consumer->bell = request.fds[1];
    if (request.shard != FARM_ADMISSION_VERSION)
        return farm_fail(err, FARM_E_FORMAT, "the farm has version %u of the messages, this library %d: use one build",
                         request.shard, FARM_ADMISSION_VERSION);
    const uint32_t sent = request.joins, joins = sent ? sent : 1, places = request.ring;
    consumer->place_count = places;
    consumer->places = calloc(places, 3 * sizeof *consumer->places + (1 + FARM_LANES_MAX) * sizeof *consumer->rung);
    if (!consumer->places) return farm_fail(err, FARM_E_LIMIT, "no memory for %u actors", places);
    consumer->listed = consumer->places + places;
    consumer->rings = (struct farm_ring **)(consumer->listed + places);
    consumer->rung = (uint32_t *)(consumer->rings + places);
    consumer->queue = consumer->rung + places;
    for (uint32_t i = 0; i < joins && !consumer->ended && !status;) {
        status = await_request(consumer, &request, err);
        if (status) return status;
        if (sent && request.kind == FARM_ADMISSION_JOIN)
            status = join(consumer, &request, err);
        else
            carry_out(consumer, &request);
        i += request.kind == FARM_ADMISSION_JOIN;
    }
    if (status) return status;
    if (!consumer->bells.count) return *err = *consumer->error, farm_fail_in(err, FARM_E_DEAD, "no lanes");
    consumer->room = places * consumer->model.lanes;
    return FARM_OK;
}

// Makes the consumer at its socket's end, which it owns, as `farm` and `error`. NULL: *err says why.
static struct farm_consumer *open_consumer(int end, struct farm *farm, pid_t pid, char *error, size_t error_bytes) {
    struct farm_error err = {0};
    struct farm_consumer *consumer = map_unforked(sizeof *consumer);
    if (!consumer) {
        close(end);
        if (farm) farm_wait(farm);
        return snprintf(error, error_bytes, "no memory for a consumer"), NULL;
    }
    consumer->mine = true;
    consumer->error = &consumer->last;
    consumer->socket = end;
    consumer->bell = consumer->bells.eventfd = -1;
    consumer->farm = farm;
    consumer->pid = pid;
    if (!receive_lanes(consumer, &err)) return consumer;
    const int status = farm_consumer_close(consumer);
    if (status && err.status == FARM_E_IO)
        snprintf(error, error_bytes, "%s (exit status %d, messages on stderr)", err.message, status);
    else
        snprintf(error, error_bytes, "%s", err.message);
    return NULL;
}

struct farm_consumer *farm_consumer_start(const char *const *words, const int *pass, unsigned pass_count, char *error,
                                          size_t error_bytes) {
    char number[12], numbers[12 * PASS_MAX];
    const char *all[WORDS_MAX + 8] = {"serve", "--socket-fd", number}; // first: to it go errors of what follows
    int keep[PASS_MAX + 1], ends[2];
    unsigned count = 3, used = 0;
    for (; *words && count < WORDS_MAX; words++) all[count++] = *words;
    if (*words || pass_count > PASS_MAX)
        return snprintf(error, error_bytes, "more than %d words or %d descriptors", WORDS_MAX, PASS_MAX), NULL;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        return snprintf(error, error_bytes, "no socket to the farm: %s (ulimit -n)", strerror(errno)), NULL;
    snprintf(number, sizeof number, "%d", keep[pass_count] = ends[1]);
    for (unsigned i = 0; i < pass_count; i++)
        used += (unsigned)sprintf(numbers + used, "%s%d", i ? "," : "", keep[i] = pass[i]);
    if (pass_count) all[count++] = "--pass-fds", all[count++] = numbers;
    struct farm *farm = farm_start_keeping(all, keep, pass_count + 1, error, error_bytes);
    close(ends[1]);
    if (farm) return open_consumer(ends[0], farm, farm_pid(farm), error, error_bytes);
    close(ends[0]);
    return NULL;
}

struct farm_consumer *farm_consumer_connect(const char *path, char *error, size_t error_bytes) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct ucred peer = {.uid = (uid_t)-1};
    const int file = open(path, O_PATH | O_CLOEXEC), end = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d", file); // `path` may be longer
    const bool connected = file >= 0 && end >= 0 && !connect(end, (struct sockaddr *)&address, sizeof address);
    if (!connected) snprintf(error, error_bytes, "no `farm serve --socket %s` runs: %s", path, strerror(errno));
    if (file >= 0) close(file);
    if (connected && !getsockopt(end, SOL_SOCKET, SO_PEERCRED, &peer, &(socklen_t){sizeof peer}) &&
        peer.uid == geteuid())
        return open_consumer(end, NULL, peer.pid, error, error_bytes);
    if (connected) snprintf(error, error_bytes, "%s belongs to user %u", path, (unsigned)peer.uid);
    if (end >= 0) close(end);
    return NULL;
}
