// The pool of threads: every piece is done once; its threads have names, receive no signals (oneDNN moves their stack
// pointer) and leave the caller's CPU.
#include <criterion/criterion.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/atomics.h"
#include "base/bitmap.h"
#include "learner/pool.h"

enum { PIECES_MAX = 64, THREADS_MAX = 4, RUNS = 2000 };

TestSuite(learner, .timeout = 30);

static struct farm_error err;

struct tally {
    int done[PIECES_MAX];
    int inside[THREADS_MAX]; // pieces that a thread is working on: never two
    int wrong;
    pthread_t caller;
};

static void count_piece(void *context, uint32_t piece, uint32_t thread) {
    struct tally *tally = context;
    bool wrong = thread >= THREADS_MAX || piece >= PIECES_MAX;
    if (wrong) __atomic_fetch_add(&tally->wrong, 1, __ATOMIC_RELAXED);
    if (wrong) return;
    wrong = __atomic_fetch_add(&tally->inside[thread], 1, __ATOMIC_RELAXED) != 0;
    wrong |= (thread == 0) != (pthread_equal(pthread_self(), tally->caller) != 0);
    char name[16], expected[16];
    snprintf(expected, sizeof expected, "train %u", thread);
    wrong |= thread && (pthread_getname_np(pthread_self(), name, sizeof name) || strcmp(name, expected) != 0);
    sigset_t blocked;
    wrong |= thread && (pthread_sigmask(SIG_BLOCK, NULL, &blocked) || !sigismember(&blocked, SIGTERM));
    __atomic_fetch_add(&tally->wrong, wrong, __ATOMIC_RELAXED);
    tally->done[piece]++; // no atomic: the pool orders it before the caller's read
    __atomic_fetch_sub(&tally->inside[thread], 1, __ATOMIC_RELAXED);
}

// Groups with these numbers of threads, on all CPUs.
static struct farm_pool *create(uint32_t first, uint32_t second, uint32_t third) {
    static struct farm_bitmap cpus;
    const struct farm_pool_group groups[] = {{0, first, &cpus}, {1, second, &cpus}, {2, third, &cpus}};
    struct farm_pool *pool;
    cr_assert_eq(farm_bitmap_pinned(&cpus, &err), FARM_OK);
    cr_assert_eq(farm_pool_create(groups, 1 + (second > 0) + (third > 0), &pool, &err), FARM_OK, "%s", err.message);
    return pool;
}

static void run_many(uint32_t first, uint32_t second, uint32_t third) {
    struct farm_pool *pool = create(first, second, third);
    struct tally tally = {.caller = pthread_self()};
    const uint32_t threads = first + second + third;
    for (uint32_t run = 0; run < RUNS; run++) {
        const uint32_t count = run % (PIECES_MAX + 1),
                       pieces[] = {count / (1 + (second > 0) + (third > 0)), third ? count / 4 : count - count / 2,
                                   count - count / 3 - count / 4};
        memset(tally.done, 0, sizeof tally.done);
        farm_pool_run(pool, 1 + run % threads, pieces, count_piece, &tally);
        for (uint32_t i = 0; i < PIECES_MAX; i++)
            cr_assert_eq(tally.done[i], i < count, "%u threads, run %u: piece %u done %d times", threads, run, i,
                         tally.done[i]);
    }
    cr_assert_eq(tally.wrong, 0, "%u threads: %d wrong thread numbers, names or overlaps", threads, tally.wrong);
    farm_pool_destroy(pool);
}

Test(learner, pool_does_every_piece_once_with_one_to_four_threads_in_one_to_three_groups) {
    for (uint32_t threads = 1; threads <= THREADS_MAX; threads++) run_many(threads, 0, 0);
    run_many(2, 2, 0);
    run_many(1, 3, 0);
    run_many(1, 1, 2);
    for (int i = 0; i < 100; i++) farm_pool_destroy(create(THREADS_MAX, 0, 0)); // one that never ran ends
    farm_pool_destroy(NULL);
}

// ---- groups ----

struct homes {
    struct farm_pool *pool;
    const uint32_t *pieces, *threads;
    int alien[PIECES_MAX]; // another group's thread did it
    int unused;            // pieces of a thread that is not the first of its group
};

static void note_home(void *context, uint32_t piece, uint32_t thread) {
    struct homes *homes = context;
    const struct farm_pool_part by = farm_pool_part(homes->pool, homes->threads, thread);
    homes->alien[piece] = by.group != farm_pool_part(homes->pool, homes->pieces, piece).group;
    if (by.part) farm_add32_release((uint32_t *)&homes->unused, 1);
}

Test(learner, pool_leaves_a_group_what_its_threads_can_begin) {
    struct farm_pool *pool = create(1, 2, 1);
    const uint32_t threads[] = {1, 2, 1}, uneven[] = {0, 9, 0};
    struct homes homes = {.pool = pool, .pieces = threads, .threads = threads};
    int alien = 0;
    for (int run = 0; run < RUNS; run++) {
        farm_pool_run(pool, 4, run % 2 ? threads : NULL, note_home, &homes);
        for (int i = 0; i < 4; i++) cr_assert_not(homes.alien[i], "run %d: piece %d left its group", run, i);
    }
    homes.pieces = uneven;
    for (int run = 0; run < RUNS; run++) {
        farm_pool_run(pool, 4, uneven, note_home, &homes);
        cr_assert_not(homes.alien[7] || homes.alien[8], "its last two pieces left a group of two threads");
        for (int i = 0; i < 7; i++) alien += homes.alien[i];
    }
    cr_assert_gt(alien, 0, "idle threads took nothing of another group");
    homes.unused = 0;
    for (int run = 0; run < RUNS; run++) farm_pool_run(pool, 3, uneven, note_home, &homes);
    cr_assert_eq(homes.unused, 0, "three threads in use are not spread over three groups");
    farm_pool_destroy(pool);
}

static void meet_at_barrier(void *context, uint32_t piece, uint32_t thread) {
    pthread_barrier_wait(context);
}

Test(learner, pool_runs_pieces_side_by_side) {
    struct farm_pool *pool = create(THREADS_MAX, 0, 0);
    pthread_barrier_t barrier; // opens when all pieces are under way at once
    pthread_barrier_init(&barrier, NULL, THREADS_MAX);
    for (int i = 0; i < 50; i++) farm_pool_run(pool, THREADS_MAX, NULL, meet_at_barrier, &barrier);
    farm_pool_destroy(pool);
    pthread_barrier_destroy(&barrier);
}

struct place {
    pthread_barrier_t barrier;
    int cpu[2];  // the caller's and the other thread's
    int changed; // runs in which the other thread's set of CPUs differed from `allowed`
    struct farm_bitmap allowed;
};

// The other thread ends each piece on the caller's CPU.
static void note_cpu(void *context, uint32_t piece, uint32_t thread) {
    struct place *place = context;
    struct farm_bitmap now;
    place->cpu[thread] = sched_getcpu();
    pthread_barrier_wait(&place->barrier);
    if (!thread) return;
    place->changed += farm_bitmap_pinned(&now, &err) || memcmp(&now, &place->allowed, sizeof now) != 0;
    place->changed += farm_bitmap_pin_to(place->cpu[0], &err) || farm_bitmap_pin(&place->allowed, &err);
}

Test(learner, pool_leaves_the_cpu_of_its_caller) {
    struct farm_pool *pool = create(2, 0, 0);
    struct place place = {0};
    int together = 0;
    cr_assert_eq(farm_bitmap_pinned(&place.allowed, &err), FARM_OK);
    if (farm_bitmap_count(&place.allowed) < 2) cr_skip_test("needs two CPUs");
    pthread_barrier_init(&place.barrier, NULL, 2);
    cr_assert_eq(farm_bitmap_pin_to(farm_bitmap_next(&place.allowed, 0), &err), FARM_OK);
    for (int i = 0; i < 100; i++) {
        farm_pool_run(pool, 2, NULL, note_cpu, &place);
        together += place.cpu[0] == place.cpu[1];
    }
    farm_pool_destroy(pool);
    pthread_barrier_destroy(&place.barrier);
    cr_assert_eq(place.changed, 0, "the thread's set of CPUs changed in %d runs", place.changed);
    // The scheduler may move it back between two instructions.
    cr_assert_leq(together, 5, "both threads on one CPU in %d of 100 runs", together);
}
