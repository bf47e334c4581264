// farm/consumer.h: the test is the farm's side and the actors, in one process; the last tests start a farm.
#include <criterion/criterion.h>
#include <errno.h>
#include <farm/consumer.h>
#include <farm/step.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "../support/rings.h"
#include "intake/admission.h"
#include "ring/wait.h"

enum { RINGS = 2, PLACES = 3, STEPS = 8, WIDTH = 2, LANES = 2 };
static const int64_t SOON = 5000000, LONG = 5000000000; // ns

static struct {
    struct farm_ring made[PLACES], actor[PLACES];
    int listener, side, bell; // side: the farm's end of the socket
    char path[64];
    struct farm_consumer *consumer;
    struct farm_ready ready[PLACES * LANES];
} rig;

// ---- the farm's side ----

static void send_request(enum farm_admission_kind kind, uint32_t ring) {
    struct farm_error err;
    struct farm_admission_request request = {
        .kind = kind,
        .ring = kind == FARM_ADMISSION_OPEN ? PLACES : ring,
        .shard = FARM_ADMISSION_VERSION,
        .joins = RINGS,
        .fds = {rig.made[ring].up.fd_readonly, kind == FARM_ADMISSION_OPEN ? rig.bell : rig.made[ring].down.fd},
        .up_writable = -1,
        .wake = -1,
        .text = "last words"};
    must(farm_admission_send_request(rig.side, &request, &err), &err);
}

static void *greet(void *none) {
    rig.side = accept(rig.listener, NULL, NULL);
    send_request(FARM_ADMISSION_OPEN, 0);
    for (uint32_t r = 0; r < RINGS; r++) send_request(FARM_ADMISSION_JOIN, r);
    return none;
}

static void connect_consumer(void) {
    pthread_t thread;
    char error[256];
    pthread_create(&thread, NULL, greet, NULL);
    rig.consumer = farm_consumer_connect(rig.path, error, sizeof error);
    pthread_join(thread, NULL);
    cr_assert(rig.consumer, "%s", error);
}

static void open_rig(struct farm_ring_spec spec) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    for (uint32_t r = 0; r < PLACES; r++) {
        rig.made[r] = ring_of(spec, r);
        rig.actor[r] = open_view(&rig.made[r], FARM_RING_ACTOR);
    }
    snprintf(rig.path, sizeof rig.path, "/tmp/farm-consumer-%d", (int)getpid());
    strcpy(name.sun_path, rig.path);
    rig.listener = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    rig.bell = eventfd(0, EFD_NONBLOCK);
    cr_assert(!bind(rig.listener, (struct sockaddr *)&name, sizeof name) && !listen(rig.listener, 1));
    connect_consumer();
}

static int close_consumer(void) {
    struct farm_consumer *consumer = rig.consumer;
    rig.consumer = NULL;
    return farm_consumer_close(consumer);
}

static void tear_down(void) {
    close_consumer();
    for (uint32_t r = 0; r < PLACES; r++) {
        farm_ring_close(&rig.actor[r]);
        farm_ring_close(&rig.made[r]);
    }
    unlink(rig.path);
}

static void set_up(void) {
    struct farm_ring_spec spec = spec_of(LANES, WIDTH, STEPS);
    farm_ring_spec_control(&spec);
    open_rig(spec);
}

TestSuite(consumer, .init = set_up, .fini = tear_down, .timeout = 30);

// ---- hands ----

static struct farm_lane *actors_lane(unsigned lane) {
    return &rig.actor[lane / LANES].lanes[lane % LANES];
}

static void publish(unsigned lane) {
    struct farm_lane *at = actors_lane(lane);
    publish_step(at, farm_lane_actor_next(at) == 0);
    farm_actor_notify(&rig.actor[lane / LANES], rig.bell);
}

static int receive(unsigned least, int64_t timeout_ns) {
    return farm_consumer_recv(rig.consumer, least, PLACES * LANES, timeout_ns, rig.ready);
}

static void answer(uint32_t lane) {
    cr_assert(farm_consumer_answer(rig.consumer, &lane, 1), "%s", farm_consumer_error(rig.consumer));
}

// Publishes and receives a step of one lane.
static void bring(unsigned lane) {
    publish(lane);
    cr_assert_eq(receive(1, LONG), 1);
}

static void play(unsigned lane) {
    bring(lane);
    answer(lane);
}

static bool actor_can_go_on(unsigned lane) {
    return farm_lane_actor_answered(actors_lane(lane)) && farm_lane_actor_can_write(actors_lane(lane));
}

static bool has_words(const char *part) {
    return strstr(farm_consumer_error(rig.consumer), part) != NULL;
}

// ---- the loop ----

Test(consumer, lists_lanes_that_wait_longest_first_and_each_once) {
    bring(2);
    publish(3);
    cr_assert_eq(receive(2, SOON), 0, "one is ready");
    publish(0);
    cr_assert_eq(farm_consumer_recv(rig.consumer, 2, 1, LONG, rig.ready), 1);
    cr_assert_eq(rig.ready[0].lane, 3);
    cr_assert_eq(receive(1, LONG), 1);
    cr_assert_eq(rig.ready[0].lane, 0);
    cr_assert_eq(receive(1, SOON), 0);
    int32_t *action = farm_consumer_answer_field(rig.consumer, 2, FARM_VIEW_ACTION);
    cr_assert(action[0] == 0 && action[1] == 0);
    action[1] = 4;
    answer(2);
    cr_assert_eq(*(int32_t *)farm_lane_action(actors_lane(2), 0, 1), 4);
    cr_assert(actor_can_go_on(2) && !actor_can_go_on(3));
    struct farm_consumer_stats stats;
    farm_consumer_stats(rig.consumer, &stats);
    cr_assert(stats.recvs == 3 && stats.answers == 1 && stats.recv_wait_p95_us >= stats.recv_wait_p50_us);
}

static void *publish_late(void *lanes) {
    for (unsigned lane = 0; lane < LANES * RINGS; lane++) {
        usleep(2000);
        if (*(unsigned *)lanes >> lane & 1) publish(lane);
    }
    return NULL;
}

Test(consumer, waits_for_all_lanes_that_can_still_become_ready) {
    for (unsigned round = 0; round < 4; round++) {
        unsigned lanes = (unsigned[]){1, 15, 13, 13}[round]; // lane 1 is not answered
        pthread_t thread;
        pthread_create(&thread, NULL, publish_late, &lanes);
        const int count = receive(round ? 3 + round : 1, -1);
        pthread_join(thread, NULL);
        cr_assert_eq(count, __builtin_popcount(lanes));
        for (int i = 0; i < count; i++)
            if (rig.ready[i].lane != 1) answer(rig.ready[i].lane);
    }
}

static void on_alarm(int number) {
    (void)number;
}

Test(consumer, a_signal_ends_a_wait) {
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 20000}, {0, 20000}}, NULL);
    cr_assert_eq(receive(1, -1), 0);
}

Test(consumer, refuses_a_wrong_action_and_publishes_nothing) {
    publish(0);
    publish(1);
    cr_assert_eq(receive(2, LONG), 2);
    *(int32_t *)farm_consumer_answer_field(rig.consumer, 1, FARM_VIEW_ACTION) = 5;
    cr_assert(!farm_consumer_answer(rig.consumer, (uint32_t[]){0, 1}, 2));
    cr_assert(has_words("lane 1 environment 0: number 0 of the action"), "%s", farm_consumer_error(rig.consumer));
    cr_assert_eq(farm_lane_acted(actors_lane(0)), 0);
    cr_assert(!farm_consumer_answer(rig.consumer, (uint32_t[]){0, 0}, 2) && has_words("twice"));
    cr_assert(!farm_consumer_answer(rig.consumer, (uint32_t[]){0, 2}, 2) && has_words("does not wait"));
    answer(0);
}

Test(consumer, clears_answers_and_resets_at_each_step) {
    for (uint32_t n = 0; n < 2 * STEPS; n++) {
        bring(0);
        const uint64_t *control = farm_lane_answer_at(actors_lane(0), actors_lane(0)->control, n, 1);
        if (n == STEPS - 1) {
            *(float *)farm_consumer_answer_field(rig.consumer, 0, FARM_VIEW_VALUE) = 3;
            cr_assert(farm_consumer_control(rig.consumer, 0, 1, &(uint64_t){7}, NULL));
            cr_assert(control[0] == (FARM_CONTROL_RESET | FARM_CONTROL_RESEED) && control[1] == 7);
        } else {
            cr_assert(control[0] == 0 && *farm_lane_value(actors_lane(0), n) == 0, "step %u", n);
        }
        answer(0);
    }
}

// ---- what is read ----

Test(consumer, fields_of_several_steps_lie_in_a_row_unless_they_wrap) {
    farm_consumer_keep(rig.consumer, 4);
    for (int i = 0; i < 6; i++) play(0);
    const int32_t *obs = farm_consumer_field(rig.consumer, 0, 2, 4, FARM_VIEW_OBS);
    cr_assert(obs, "%s", farm_consumer_error(rig.consumer));
    for (uint64_t n = 2; n < 6; n++) cr_assert_eq((uint32_t)obs[(n - 2) * WIDTH * 2], (uint32_t)number_of(n, 0));
    cr_assert(!farm_consumer_field(rig.consumer, 0, 1, 1, FARM_VIEW_OBS), "not kept");
    cr_assert(!farm_consumer_field(rig.consumer, 0, 6, 1, FARM_VIEW_OBS), "not published");
    cr_assert(!farm_consumer_field(rig.consumer, 0, 2, 5, FARM_VIEW_OBS), "5 steps are not there");
    for (int i = 0; i < 4; i++) play(0);
    cr_assert(farm_consumer_field(rig.consumer, 0, 8, 2, FARM_VIEW_ACTION));
    cr_assert(!farm_consumer_field(rig.consumer, 0, 6, 4, FARM_VIEW_OBS), "they wrap");
    cr_assert(!farm_consumer_field(rig.consumer, 0, 6, 1, FARM_VIEW_OBS + 1), "no such field");
}

Test(consumer, ignores_hostile_counters_and_marks_invalid_values) {
    struct farm_lane *lane = actors_lane(0);
    play(0);
    lane->produced_local = 1000;
    farm_lane_actor_publish(lane);
    cr_assert_eq(receive(1, SOON), 0);
    for (unsigned other = 1; other < 4; other++) publish(other);
    cr_assert_eq(receive(4, LONG), 3, "lane 0 is not waited for");
    lane->produced_local = 1;
    farm_lane_flags(lane, 1)[0] = 0x40;
    farm_lane_flags(lane, 1)[1] = 0;
    farm_lane_reward(lane, 1)[0] = farm_lane_reward(lane, 1)[1] = NAN;
    farm_lane_actor_publish(lane);
    cr_assert_eq(receive(1, LONG), 1);
    const uint8_t *flags = farm_consumer_field(rig.consumer, 0, 1, 1, FARM_VIEW_FLAGS);
    const float *rewards = farm_consumer_field(rig.consumer, 0, 1, 1, FARM_VIEW_REWARD);
    for (int e = 0; e < WIDTH; e++) cr_assert(flags[e] == 0x83 && rewards[e] == 0);
    answer(0);
    struct farm_consumer_stats stats;
    farm_consumer_stats(rig.consumer, &stats);
    cr_assert(stats.bad_values == 3 && stats.agent_steps == 0, "a counter and two values");
}

// Against stacks that the test makes of all steps; in the middle another consumer takes the farm over.
static void check_gather(unsigned field, size_t bytes) {
    enum { N = 40, STACK = 4, ROOM = 128 };
    static uint8_t shown[N][WIDTH][ROOM], out[WIDTH * STACK * ROOM];
    uint64_t seed = 5, first[WIDTH] = {0};
    open_rig(spec_rich(LANES, WIDTH, STEPS));
    for (uint64_t n = 0; n < N; n++) {
        struct farm_lane *lane = actors_lane(1);
        if (n == N / 2) {
            close_consumer();
            connect_consumer();
        }
        farm_consumer_keep(rig.consumer, STACK - 1);
        for (uint32_t e = 0; e < WIDTH; e++) {
            const bool begins = n == 0 || random_next(&seed) % 5 == 0;
            if (begins) first[e] = n;
            for (uint32_t f = 0; f < lane->obs_count; f++)
                memset(farm_lane_obs(lane, f, n, e), f == field ? (int)(random_next(&seed) % 60) : 0,
                       lane->obs_bytes[f]);
            memcpy(shown[n][e], farm_lane_obs(lane, field, n, e), bytes);
            farm_lane_flags(lane, n)[e] = begins ? FARM_STEP_FIRST : 0;
            farm_lane_reward(lane, n)[e] = 0;
        }
        farm_lane_actor_publish(lane);
        cr_assert_eq(receive(1, LONG), 1);
        cr_assert(farm_consumer_gather(rig.consumer, rig.ready, 1, FARM_VIEW_OBS + field, STACK, out), "%s",
                  farm_consumer_error(rig.consumer));
        for (uint64_t i = 0; i < WIDTH * STACK; i++) {
            const uint64_t e = i / STACK, k = n + i % STACK;
            const uint64_t from = k >= STACK - 1 + first[e] ? k - (STACK - 1) : first[e];
            cr_assert_arr_eq(out + i * bytes, shown[from][e], bytes, "step %lu", n);
        }
        answer(1);
    }
    cr_assert(!farm_consumer_gather(rig.consumer, rig.ready, 1, FARM_VIEW_OBS + field, STACK + 2, out));
}

TestSuite(gather, .fini = tear_down, .timeout = 30);
Test(gather, stacks_frames_in_place) {
    check_gather(0, 7 * 5 * 3);
}
Test(gather, stacks_numbers_that_are_copied) {
    check_gather(1, 11 * 4);
}

// ---- steps that stay ----

static void *drop_later(void *token) {
    usleep(20000);
    farm_consumer_drop(token, 0);
    return NULL;
}

Test(consumer, a_held_step_stops_the_actor_and_a_drop_wakes_it) {
    bring(0);
    void *token = farm_consumer_hold(rig.consumer, 0, 0);
    cr_assert(token && farm_consumer_hold(rig.consumer, 0, 0) == token);
    cr_assert(!farm_consumer_hold(rig.consumer, 0, 1));
    answer(0);
    for (int i = 1; i < STEPS; i++) play(0);
    cr_assert(!actor_can_go_on(0) && farm_consumer_room(rig.consumer, 0) == 0);
    farm_consumer_drop(token, 0);
    cr_assert(!actor_can_go_on(0), "held twice");
    pthread_t thread;
    pthread_create(&thread, NULL, drop_later, token);
    uint32_t none = 0;
    cr_assert(farm_actor_wait(&rig.actor[0], &rig.actor[0].lanes[0], 0, 10 * (uint64_t)LONG, &none));
    pthread_join(thread, NULL);
    cr_assert_eq(farm_consumer_room(rig.consumer, 0), STEPS);
}

// After close or leave the ring goes on under another owner.
static void check_kept(bool leave) {
    struct farm_lane *lane = actors_lane(0);
    bring(0);
    const uint8_t *image = farm_consumer_field(rig.consumer, 0, 0, 1, FARM_VIEW_OBS);
    const int32_t *items = farm_consumer_field(rig.consumer, 0, 0, 1, FARM_VIEW_OBS + 1);
    void *token = farm_consumer_hold(rig.consumer, 0, 0);
    cr_assert(token);
    answer(0);
    const uint8_t pixel = image[3];
    if (leave) {
        publish(1);
        cr_assert_eq(receive(2, SOON), 0, "lane 1 is ready");
        send_request(FARM_ADMISSION_LEAVE, 0);
        send_request(FARM_ADMISSION_JOIN, 2);
        cr_assert_eq(receive(2, SOON), 0);
        bring(2 * LANES);
        cr_assert_eq(rig.ready[0].lane, 2 * LANES);
        send_request(FARM_ADMISSION_JOIN, 0);
        cr_assert_eq(receive(1, LONG), 1);
        cr_assert_eq(rig.ready[0].lane, 1);
        struct farm_admission_reply reply;
        for (int i = 0; i < 3; i++) cr_assert(farm_admission_receive_reply(rig.side, &reply) && !reply.status);
    } else {
        cr_assert_eq(close_consumer(), 0);
    }
    memset(farm_lane_obs(lane, 0, 0, 0), pixel + 1, lane->obs_bytes[0]);
    cr_assert(image[3] == pixel && items[0] == 0);
    farm_consumer_drop(token, 0);
    cr_assert(msync((void *)((uintptr_t)image & ~(uintptr_t)4095), 4096, MS_ASYNC) && errno == ENOMEM, "unmapped");
    cr_assert_eq(farm_lane_consumed(lane), leave, "released by the next owner alone");
}

TestSuite(kept, .fini = tear_down, .timeout = 30);
Test(kept, held_steps_stay_after_close) {
    open_rig(spec_rich(LANES, WIDTH, STEPS));
    check_kept(false);
}
Test(kept, held_steps_stay_after_their_ring_has_left_and_joined_again) {
    open_rig(spec_rich(LANES, WIDTH, STEPS));
    check_kept(true);
}
// Lane 0 waits for an answer and lane 1 to be listed, as they did.
Test(kept, held_steps_move_out_of_a_full_ring_which_goes_on) {
    open_rig(spec_rich(LANES, WIDTH, STEPS));
    struct farm_lane *lane = actors_lane(0);
    bring(0);
    const uint8_t *image = farm_consumer_field(rig.consumer, 0, 0, 1, FARM_VIEW_OBS);
    const int32_t *items = farm_consumer_field(rig.consumer, 0, 0, 1, FARM_VIEW_OBS + 1);
    const uint8_t pixel = image[3];
    const int32_t item = items[1];
    void *token = farm_consumer_hold(rig.consumer, 0, 0);
    cr_assert(token);
    answer(0);
    for (int i = 1; i < STEPS - 1; i++) play(0);
    bring(0);
    publish(1);
    cr_assert(receive(2, SOON) == 0 && farm_consumer_room(rig.consumer, 0) == 0);
    cr_assert(farm_consumer_detach(rig.consumer, 0) && !farm_consumer_detach(rig.consumer, PLACES * LANES));
    cr_assert_eq(farm_consumer_room(rig.consumer, 0), STEPS - 1);
    cr_assert(receive(1, SOON) == 1 && rig.ready[0].lane == 1 && rig.ready[0].step == 0);
    answer(1);
    answer(0);
    for (int i = 0; i < 2 * STEPS; i++) play(0);
    cr_assert_eq(farm_lane_consumed(lane), 3 * STEPS);
    memset(farm_lane_obs(lane, 0, 0, 0), pixel + 1, lane->obs_bytes[0]);
    cr_assert(image[3] == pixel && items[1] == item);
    farm_consumer_drop(token, 0);
    cr_assert(msync((void *)((uintptr_t)image & ~(uintptr_t)4095), 4096, MS_ASYNC) && errno == ENOMEM, "unmapped");
}

Test(consumer, the_farms_end_has_words_and_the_next_consumer_continues) {
    play(0);
    publish(0);
    cr_assert_eq(receive(1, LONG), 1); // not answered
    send_request(FARM_ADMISSION_END, 0);
    cr_assert_eq(receive(1, -1), -1);
    cr_assert_str_eq(farm_consumer_error(rig.consumer), "last words");
    close_consumer();
    connect_consumer();
    cr_assert_eq(receive(1, LONG), 1);
    cr_assert(rig.ready[0].lane == 0 && rig.ready[0].step == 1);
    close(rig.side);
    cr_assert_eq(receive(1, -1), -1);
    cr_assert(has_words("the farm has ended"));
}

Test(consumer, a_forks_child_is_refused_and_the_parent_goes_on) {
    bring(0);
    void *token = farm_consumer_hold(rig.consumer, 0, 0);
    cr_assert(token);
    int status;
    if (!fork()) {
        farm_consumer_drop(token, 0);
        const bool used = receive(1, 0) >= 0 || !has_words("a fork's child") ||
                          farm_consumer_answer(rig.consumer, (uint32_t[]){0}, 1) ||
                          farm_consumer_field(rig.consumer, 0, 0, 1, FARM_VIEW_OBS);
        close_consumer();
        _exit(used);
    }
    cr_assert(wait(&status) > 0 && status == 0);
    answer(0);
    cr_assert_eq(farm_lane_consumed(actors_lane(0)), 0, "held");
    farm_consumer_drop(token, 0);
    cr_assert_eq(farm_lane_consumed(actors_lane(0)), 1);
}

// ---- a farm ----

static void start(const char *const *words, char error[512]) {
    char program[512];
    snprintf(program, sizeof program, "%s/farm", getenv("FARM_BUILD") ? getenv("FARM_BUILD") : "build");
    setenv("FARM_PROGRAM", program, 1);
    rig.consumer = farm_consumer_start(words, NULL, 0, error, 512);
}

TestSuite(farm, .timeout = 60);
Test(farm, goes_on_when_an_actor_is_killed) {
    char error[512], command[64];
    start((const char *[]){"--env", "native/cartpole", "--actors", "1", "--quiet", NULL}, error);
    cr_assert(rig.consumer, "%s", error);
    snprintf(command, sizeof command, "pkill -KILL -P %d actor", (int)farm_consumer_pid(rig.consumer));
    bool abandoned = false;
    for (int n = 0; !abandoned; n++) {
        if (n == 1000) cr_assert(!system(command));
        const int count = receive(1, LONG);
        cr_assert_gt(count, 0, "%s", farm_consumer_error(rig.consumer));
        for (int i = 0; i < count; i++) {
            const struct farm_ready *at = &rig.ready[i];
            const uint8_t *flags = farm_consumer_field(rig.consumer, at->lane, at->step, 1, FARM_VIEW_FLAGS);
            struct farm_lane_state state;
            cr_assert(farm_consumer_state(rig.consumer, at->lane, &state));
            unsigned all = FARM_STEP_FIRST; // a lane that is taken over begins as one
            for (uint32_t e = 0; e < state.width; e++) all &= flags[e];
            abandoned |= at->step && all;
            answer(at->lane);
        }
    }
    cr_assert_eq(close_consumer(), 0);
}

Test(farm, that_cannot_start_says_why) {
    char error[512];
    start((const char *[]){"--env", "native/cartpole", "--nothing", NULL}, error);
    cr_assert(!rig.consumer && strstr(error, "unknown flag --nothing"), "%s", error);
    start((const char *[]){"--env", "native/none", NULL}, error);
    cr_assert(!rig.consumer && strstr(error, "native/none"), "%s", error);
    cr_assert(!farm_consumer_connect("/tmp/no/socket", error, sizeof error) && strstr(error, "No such file"));
}
