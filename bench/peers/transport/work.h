// What every program of this folder measures: an actor's process writes the observation of a step (28,224 B, four 84x84
// frames) into the transport's memory, a learner's process receives it and sends an action (4 B) back. A program fills
// struct transport and calls work_main, which reads the flags, forks the two sides onto two CPUs, keeps N steps
// in flight, checks the order of the actions (with --sum, every byte too), and prints one line of JSON. C17 and C++17.
#ifndef WORK_H
#define WORK_H

#include <assert.h>
#include <errno.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

enum { WORK_OBS_BYTES = 28224, WORK_OBS_WORDS = WORK_OBS_BYTES / 8, WORK_IN_FLIGHT_MAX = 64, WORK_TRIPS_MAX = 1 << 20 };

struct work {
    int cpus[2];        // the actor's, the learner's
    unsigned in_flight; // steps on the way at once
    bool sum;           // the learner's side adds up the payload; else it does not read it
    bool spin;          // both sides poll; else they sleep in the transport's call
    bool free_threads;  // threads of the transport's library may run on any CPU; else on their side's
    unsigned slots;     // a ring's, one for each step in flight, if the transport has rings
    bool stream;        // store the observation past the caches
    double seconds;
};

// One transport. `self` is what `open` returned on that side. A side that spins gets false or NULL while nothing has
// arrived; a side that sleeps waits in the call.
struct transport {
    const char *name;
    void (*prepare)(const struct work *work);                    // before the fork
    void *(*open)(const struct work *work, bool actor);          // in both processes at once
    void *(*loan)(void *self);                                   // actor: memory for the next observation
    void (*send)(void *self, void *obs);                         // actor
    bool (*answered)(void *self, int32_t *action);               // actor: receives one action
    const void *(*arrived)(void *self);                          // learner: the next observation
    void (*answer)(void *self, const void *obs, int32_t action); // learner: releases it and sends the action
};

static inline void work_need(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "wrong");
    _exit(1);
}

static inline uint64_t work_clock(clockid_t clock) {
    struct timespec now;
    work_need(clock_gettime(clock, &now) == 0, "clock_gettime");
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
static inline uint64_t work_now_ns(void) {
    return work_clock(CLOCK_MONOTONIC);
}

static inline void work_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// All threads that this one starts later stay on the CPU too.
static inline void work_pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    work_need(sched_setaffinity(0, sizeof set, &set) == 0, "sched_setaffinity");
}

// ---- the observation: all its bytes depend on the step, and its first and last word are the step's number ----

static inline uint8_t work_colour(uint64_t n) {
    return (uint8_t)(n % 255 + 1);
}

// The cheapest writes there are, so that the transport is what is timed. Stores past the caches do not have to fetch
// the lines that the reader had last; they are done when this returns. Any alignment.
static inline void work_fill(void *obs, uint8_t colour, bool stream) {
#if defined(__x86_64__)
    enum { LINE = 64 };
    if (stream) {
        char *to = (char *)obs;
        const size_t head = (size_t)(-(uintptr_t)to % LINE);
        const __m128i bytes = _mm_set1_epi8((char)colour);
        size_t at = head;
        memset(to, colour, head);
        for (; at + LINE <= WORK_OBS_BYTES; at += LINE)
            for (int i = 0; i < LINE; i += 16) _mm_stream_si128((__m128i *)(void *)(to + at + i), bytes);
        memset(to + at, colour, WORK_OBS_BYTES - at);
        _mm_sfence();
        return;
    }
#endif
    (void)stream;
    memset(obs, colour, WORK_OBS_BYTES);
}

static inline void work_write(void *obs, uint64_t n, bool stream) {
    work_fill(obs, work_colour(n), stream);
    memcpy(obs, &n, sizeof n);
    memcpy((char *)obs + WORK_OBS_BYTES - sizeof n, &n, sizeof n);
}

// Any alignment. Four sums at once, so that the additions do not wait for one another.
static inline uint64_t work_sum(const void *obs) {
    uint64_t sums[4] = {0, 0, 0, 0}, word;
    const char *at = (const char *)obs;
    static_assert(WORK_OBS_WORDS % 4 == 0, "the observation is whole groups of words");
    for (size_t i = 0; i < WORK_OBS_WORDS; i += 4, at += 32)
        for (int j = 0; j < 4; j++) {
            memcpy(&word, at + 8 * j, sizeof word);
            sums[j] += word;
        }
    return sums[0] + sums[1] + sums[2] + sums[3];
}

static inline void work_check(const void *obs, uint64_t n) {
    uint64_t first, last;
    memcpy(&first, obs, sizeof first);
    memcpy(&last, (const char *)obs + WORK_OBS_BYTES - sizeof last, sizeof last);
    const uint64_t word = work_colour(n) * 0x0101010101010101u;
    errno = 0;
    work_need(first == n && last == n && work_sum(obs) == (WORK_OBS_WORDS - 2) * word + 2 * n, "an observation");
}

// ---- the sides ----

static inline void *work_open(const struct transport *transport, const struct work *work, bool actor) {
    if (!work->free_threads) work_pin(work->cpus[!actor]);
    void *self = transport->open(work, actor);
    work_pin(work->cpus[!actor]);
    return self;
}

static inline void work_learn(const struct transport *transport, const struct work *work) {
    void *self = work_open(transport, work, false);
    for (uint64_t n = 0;;) {
        const void *obs = transport->arrived(self);
        if (!obs) {
            work_relax();
            continue;
        }
        if (work->sum) work_check(obs, n);
        transport->answer(self, obs, (int32_t)(n++ & 0x7fffffff));
    }
}

struct work_tally {
    uint64_t start_ns, steps, trips;
    uint64_t sent_ns[WORK_IN_FLIGHT_MAX];
    uint32_t *trip_ns; // [WORK_TRIPS_MAX]
};

// Keeps in_flight steps under way until `end_ns`, then waits for the last of them. Returns the number of the next step.
static inline uint64_t work_act(const struct transport *transport, const struct work *work, void *self, uint64_t n,
                                uint64_t end_ns, struct work_tally *tally) {
    uint64_t now = work_now_ns(), done = n;
    *tally = (struct work_tally){.start_ns = now, .steps = 0, .trips = 0, .sent_ns = {0}, .trip_ns = tally->trip_ns};
    while (now < end_ns || done < n) {
        while (now < end_ns && n - done < work->in_flight) {
            tally->sent_ns[n % work->in_flight] = work_now_ns();
            void *obs = transport->loan(self);
            work_write(obs, n++, work->stream);
            transport->send(self, obs);
        }
        int32_t action;
        if (!transport->answered(self, &action)) {
            work_relax();
            continue;
        }
        errno = 0;
        work_need(action == (int32_t)(done & 0x7fffffff), "an action");
        now = work_now_ns();
        if (tally->trips < WORK_TRIPS_MAX)
            tally->trip_ns[tally->trips++] = (uint32_t)(now - tally->sent_ns[done % work->in_flight]);
        done++;
        tally->steps++;
    }
    return n;
}

static inline int work_ascending(const void *a, const void *b) {
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// ---- the program ----

static inline struct work work_flags(int argc, char **argv) {
    static const struct option options[] = {{"cpus", required_argument, NULL, 'c'},
                                            {"in-flight", required_argument, NULL, 'f'},
                                            {"sum", no_argument, NULL, 's'},
                                            {"sleep", no_argument, NULL, 'w'},
                                            {"free-threads", no_argument, NULL, 'a'},
                                            {"stream", no_argument, NULL, 'n'},
                                            {"slots", required_argument, NULL, 'l'},
                                            {"seconds", required_argument, NULL, 't'},
                                            {NULL, 0, NULL, 0}};
    struct work work = {.cpus = {0, 1},
                        .in_flight = 1,
                        .sum = false,
                        .spin = true,
                        .free_threads = false,
                        .slots = 4,
                        .stream = false,
                        .seconds = 1};
    bool good = true;
    for (int flag; (flag = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (flag == 'c')
            good &= sscanf(optarg, "%d,%d", &work.cpus[0], &work.cpus[1]) == 2;
        else if (flag == 'f')
            work.in_flight = (unsigned)atoi(optarg);
        else if (flag == 's')
            work.sum = true;
        else if (flag == 'a')
            work.free_threads = true;
        else if (flag == 'n')
            work.stream = true;
        else if (flag == 'l')
            work.slots = (unsigned)atoi(optarg);
        else if (flag == 'w')
            work.spin = false;
        else if (flag == 't')
            work.seconds = atof(optarg);
        else
            good = false;
    }
    good &= work.slots >= 2 && work.slots <= 1024;
    if (good && optind == argc && work.in_flight > 0 && work.in_flight <= WORK_IN_FLIGHT_MAX && work.seconds > 0)
        return work;
    fprintf(stderr,
            "usage: %s [--cpus A,B] [--in-flight N] [--sum] [--sleep] [--free-threads] [--slots N] [--stream] "
            "[--seconds S]\n",
            argv[0]);
    exit(2);
}

static inline pid_t work_start_learner(const struct transport *transport, const struct work *work) {
    const pid_t pid = fork();
    work_need(pid >= 0, "fork");
    if (pid) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    work_learn(transport, work);
    _exit(1);
}

static inline int work_main(const struct transport *transport, int argc, char **argv) {
    const struct work work = work_flags(argc, argv);
    struct work_tally tally = {.start_ns = 0, .steps = 0, .trips = 0, .sent_ns = {0}, .trip_ns = NULL};
    tally.trip_ns = (uint32_t *)calloc(WORK_TRIPS_MAX, sizeof *tally.trip_ns);
    work_need(tally.trip_ns != NULL, "memory");
    memset(tally.trip_ns, 1, WORK_TRIPS_MAX * sizeof *tally.trip_ns); // no faults later
    transport->prepare(&work);
    const pid_t pid = work_start_learner(transport, &work);
    void *self = work_open(transport, &work, true);

    clockid_t clock;
    work_need(clock_getcpuclockid(pid, &clock) == 0, "the learner's clock");
    const uint64_t length_ns = (uint64_t)(work.seconds * 1e9);
    uint64_t n = work_act(transport, &work, self, 0, work_now_ns() + length_ns / 8, &tally); // warms up
    const uint64_t cpu_ns = (work_clock(CLOCK_PROCESS_CPUTIME_ID) + work_clock(clock));
    work_act(transport, &work, self, n, work_now_ns() + length_ns, &tally);
    const double wall_s = (double)(work_now_ns() - tally.start_ns) * 1e-9,
                 cpu_s = (double)((work_clock(CLOCK_PROCESS_CPUTIME_ID) + work_clock(clock)) - cpu_ns) * 1e-9;
    errno = 0;
    work_need(waitpid(pid, NULL, WNOHANG) == 0, "the learner's side ended");
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    qsort(tally.trip_ns, tally.trips, sizeof *tally.trip_ns, work_ascending);
    printf(
        "{\"transport\": \"%s\", \"steps\": %llu, \"wall_s\": %.6f, \"steps_per_s\": %.1f, \"round_trip_p50_ns\": %u, "
        "\"round_trip_p99_ns\": %u, \"cpu_s_per_million_steps\": %.4f}\n",
        transport->name, (unsigned long long)tally.steps, wall_s, (double)tally.steps / wall_s,
        tally.trip_ns[tally.trips / 2], tally.trip_ns[tally.trips * 99 / 100], 1e6 * cpu_s / (double)tally.steps);
    fflush(stdout);
    _exit(0); // threads of the transport's library may still run
}

#endif
