// See pool.h.
#include "learner/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomics.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"

struct worker {
    struct farm_pool *pool;
    uint32_t number, group, rank; // rank: in its group
    uint32_t place; // 1 + the CPU on which it took its newest piece; 0: it may sleep. Atomic; others take it as a hint
    pthread_cond_t start; // for sleeping
    pthread_t thread;
};

// `run` is the whole state of a group's part of a run, so that a thread that comes late takes no piece of another run:
// its number, the next piece, the end.
struct group {
    _Alignas(FARM_CACHE_LINE) uint64_t run; // number << 32 | next << 16 | end
    uint32_t used;                          // threads in the present run: those of the lowest ranks
    struct farm_pool_group config;
};

// Runs follow one another within microseconds (a pass of PPO has three of them), so threads spin a while before they
// sleep.
struct farm_pool {
    struct group groups[FARM_POOL_GROUPS_MAX];
    uint64_t left; // pieces that are not done
    void (*work)(void *context, uint32_t piece, uint32_t thread);
    void *context;
    uint64_t number; // runs so far
    uint32_t group_count;
    pthread_mutex_t lock; // for sleeping only
    pthread_cond_t finish;
    bool waiting; // the caller sleeps; with the lock held
    bool end;
    uint32_t worker_count;
    struct worker workers[]; // [worker_count], the caller first
};

enum { SPIN_NS = 50000, PIECES_MAX = 0xffff };

// The group from which this thread may take a piece, its own first; NULL: none. *run: its present state. Of another
// group's pieces it leaves as many as that has threads, which begin them at once. `used` changes only while no piece is
// left, before all groups' `run` (release), so it is of a run that has pieces.
static struct group *find_piece(const struct worker *worker, uint64_t *run) {
    struct farm_pool *pool = worker->pool;
    for (uint32_t i = 0; i < pool->group_count; i++) {
        struct group *group = &pool->groups[(worker->group + i) % pool->group_count];
        *run = farm_load_acquire(&group->run);
        const uint32_t left = (*run & PIECES_MAX) - (*run >> 16 & PIECES_MAX);
        if (left > (i ? farm_load32_acquire(&group->used) : 0) &&
            worker->rank < farm_load32_acquire(&pool->groups[worker->group].used))
            return group;
    }
    return NULL;
}

static bool has_piece(const struct worker *worker) {
    uint64_t run;
    return find_piece(worker, &run) != NULL;
}

// Takes a piece of the present run. Work, context and the caller's place are of that run.
static bool take_piece(const struct worker *worker, uint32_t *piece) {
    uint64_t run;
    for (struct group *group; (group = find_piece(worker, &run));) {
        *piece = (uint32_t)(run >> 16 & PIECES_MAX);
        if (__atomic_compare_exchange_n(&group->run, &run, run + (1 << 16), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
            return true;
    }
    return false;
}

// 1 + this thread's CPU; 0: unknown.
static uint32_t own_place(void) {
    const int cpu = sched_getcpu();
    return cpu < 0 || cpu >= FARM_BITMAP_BITS ? 0 : (uint32_t)cpu + 1;
}

static void set_place(struct worker *worker, uint32_t place) {
    if (farm_load32_acquire(&worker->place) != place) farm_store32_release(&worker->place, place);
}

// Moves this thread off the CPU of a lower-numbered one of its group (0: the caller) to a CPU that none of them uses;
// the set of CPUs on which it may run stays. A scheduler may wake a thread on its waker's CPU although other CPUs are
// idle, and keep both there for seconds; two threads are then slower than one.
static void spread(struct worker *worker) {
    const struct farm_pool *pool = worker->pool;
    struct farm_bitmap allowed, unused, used = {0};
    const uint32_t place = own_place();
    bool shared = false;
    for (uint32_t i = 0; i < pool->worker_count; i++) {
        const struct worker *other = &pool->workers[i];
        const uint32_t there = farm_load32_acquire(&other->place); // it may sleep a moment later
        if (other->group != worker->group || other == worker || !there) continue;
        farm_bitmap_set(&used, (int)there - 1);
        shared |= other < worker && there == place;
    }
    if (shared && farm_bitmap_pinned(&allowed, NULL) == FARM_OK) {
        unused = allowed;
        farm_bitmap_remove(&unused, &used);
        if (farm_bitmap_pin(&unused, NULL) == FARM_OK) farm_bitmap_pin(&allowed, NULL); // refused if it is empty
    }
    set_place(worker, shared ? own_place() : place);
}

// The last piece's subtraction (release) makes all of them visible to the caller.
static void run_pieces(struct worker *worker) {
    struct farm_pool *pool = worker->pool;
    uint32_t piece;
    while (take_piece(worker, &piece)) {
        if (worker->number) spread(worker);
        pool->work(pool->context, piece, worker->number);
        if (__atomic_sub_fetch(&pool->left, 1, __ATOMIC_ACQ_REL) > 0 || worker->number == 0) continue;
        pthread_mutex_lock(&pool->lock);
        if (pool->waiting) pthread_cond_signal(&pool->finish);
        pthread_mutex_unlock(&pool->lock);
    }
}

static bool all_done(const struct worker *worker) {
    return farm_load_acquire(&worker->pool->left) == 0;
}

// Spins until `ready`, for SPIN_NS at most.
static bool spin(const struct worker *worker, bool (*ready)(const struct worker *)) {
    enum { TURNS = 64 };
    const uint64_t end = farm_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < TURNS; i++) {
            if (ready(worker)) return true;
            farm_cpu_relax();
        }
    } while (farm_now_ns() < end);
    return false;
}

void farm_pool_bind(const struct farm_pool *pool, uint32_t group) {
    const struct farm_bitmap *cpus = pool->groups[group].config.cpus;
    struct farm_error err;
    if (pool->group_count > 1 && cpus && farm_bitmap_pin(cpus, &err))
        farm_log_warn("could not pin a training thread: %s", err.message);
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct farm_pool *pool = worker->pool;
    bool end = false;
    farm_pool_bind(pool, worker->group);
    while (!end) {
        run_pieces(worker);
        if (spin(worker, has_piece)) continue;
        pthread_mutex_lock(&pool->lock);
        set_place(worker, 0);
        farm_fence_full(); // `place` before `run`: farm_pool_run stores and loads them in the other order
        while (!pool->end && !has_piece(worker)) pthread_cond_wait(&worker->start, &pool->lock);
        end = pool->end;
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

enum farm_status farm_pool_create(const struct farm_pool_group *groups, uint32_t count, struct farm_pool **out,
                                  struct farm_error *err) {
    uint32_t threads = 0, i = 0;
    for (uint32_t g = 0; g < count; g++) threads += groups[g].threads;
    const size_t bytes = sizeof(struct farm_pool) + threads * sizeof(struct worker);
    struct farm_pool *pool = aligned_alloc(FARM_CACHE_LINE, (bytes / FARM_CACHE_LINE + 1) * FARM_CACHE_LINE);
    if (!pool) return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    memset(pool, 0, bytes);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->finish, NULL);
    pool->group_count = count;
    for (uint32_t g = 0; g < count; g++) pool->groups[g].config = groups[g];
    for (uint32_t g = 0; g < count; g++)
        for (uint32_t rank = 0; rank < groups[g].threads; rank++, i++)
            pool->workers[i] = (struct worker){.pool = pool, .number = i, .group = g, .rank = rank};
    for (pool->worker_count = 1; pool->worker_count < threads; pool->worker_count++) {
        struct worker *worker = &pool->workers[pool->worker_count];
        pthread_cond_init(&worker->start, NULL);
        errno = farm_thread_start(&worker->thread, "train", worker->number, worker_main, worker);
        if (!errno) continue;
        enum farm_status status =
            farm_fail_errno(err, FARM_E_LIMIT, "training thread %u of %u does not start (train_threads, ulimit -u)",
                            worker->number + 1, threads);
        farm_pool_destroy(pool);
        return status;
    }
    *out = pool;
    return FARM_OK;
}

void farm_pool_destroy(struct farm_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->end = true;
    for (uint32_t i = 1; i < pool->worker_count; i++) pthread_cond_signal(&pool->workers[i].start);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 1; i < pool->worker_count; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->finish);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

struct farm_pool_part farm_pool_part(const struct farm_pool *pool, const uint32_t *pieces, uint32_t piece) {
    struct farm_pool_part part = {.part = piece};
    while (part.part >= (part.parts = pieces ? pieces[part.group] : pool->groups[part.group].used))
        part.part -= part.parts, part.group++;
    return part;
}

// Shares the run's threads out among the groups, as equally as these have them, and publishes the pieces.
static void begin_run(struct farm_pool *pool, uint32_t threads, const uint32_t *pieces, uint32_t count) {
    uint32_t used[FARM_POOL_GROUPS_MAX] = {0}, end = 0;
    for (uint32_t left = threads, rank = 0; left; rank++)
        for (uint32_t g = 0; g < pool->group_count && left; g++)
            if (rank < pool->groups[g].config.threads) used[g]++, left--;
    farm_store_relaxed(&pool->left, count);
    for (uint32_t g = 0; g < pool->group_count; g++) farm_store32_release(&pool->groups[g].used, used[g]);
    pool->number++;
    for (uint32_t g = 0; g < pool->group_count; g++) {
        const uint32_t next = end;
        end += pieces ? pieces[g] : used[g];
        farm_store_release(&pool->groups[g].run, pool->number << 32 | next << 16 | end);
    }
}

static void wake_workers(struct farm_pool *pool) {
    bool locked = false;
    farm_fence_full(); // `run` before `place`
    for (uint32_t i = 1; i < pool->worker_count; i++) {
        struct worker *worker = &pool->workers[i];
        if (worker->rank >= pool->groups[worker->group].used || farm_load32_acquire(&worker->place)) continue;
        if (!locked) pthread_mutex_lock(&pool->lock);
        locked = true;
        pthread_cond_signal(&worker->start);
    }
    if (locked) pthread_mutex_unlock(&pool->lock);
}

void farm_pool_run(struct farm_pool *pool, uint32_t threads, const uint32_t *pieces,
                   void (*work)(void *context, uint32_t piece, uint32_t thread), void *context) {
    uint32_t count = pieces ? 0 : threads;
    for (uint32_t g = 0; g < pool->group_count && pieces; g++) count += pieces[g];
    assert(threads <= pool->worker_count && count <= PIECES_MAX);
    for (uint32_t i = 0; i < count && threads == 1; i++) work(context, i, 0);
    if (threads == 1) return;
    pool->work = work;
    pool->context = context;
    set_place(&pool->workers[0], own_place());
    begin_run(pool, threads, pieces, count);
    if (count > 1 || pool->group_count > 1) wake_workers(pool);
    run_pieces(&pool->workers[0]);
    if (all_done(&pool->workers[0]) || spin(&pool->workers[0], all_done)) return;
    pthread_mutex_lock(&pool->lock);
    pool->waiting = true;
    while (!all_done(&pool->workers[0])) pthread_cond_wait(&pool->finish, &pool->lock);
    pool->waiting = false;
    pthread_mutex_unlock(&pool->lock);
}
