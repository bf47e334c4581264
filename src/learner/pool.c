// See pool.h.
#include "learner/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/atomics.h"
#include "base/bitmap.h"
#include "base/thread.h"
#include "base/time.h"

struct worker {
    struct farm_pool *pool;
    uint32_t number;
    uint32_t place; // 1 + the CPU on which it took its newest piece; 0: it sleeps. Atomic; others take it as a hint
    pthread_t thread;
};

// Runs follow one another within microseconds (a pass of PPO has three of them), so threads spin a while before they
// sleep. `run` is the whole state of a run, so that a thread that comes late takes no piece of another run: its number,
// the next piece, the pieces.
struct farm_pool {
    uint64_t run;  // number << 32 | next << 16 | pieces
    uint64_t left; // pieces that are not done
    void (*work)(void *context, uint32_t piece, uint32_t thread);
    void *context;
    pthread_mutex_t lock; // for sleeping only
    pthread_cond_t start, finish;
    uint64_t asleep; // threads; changed with the lock held
    bool waiting;    // the caller sleeps; with the lock held
    bool end;
    uint32_t worker_count;
    struct worker workers[]; // [worker_count], the caller first
};

enum { SPIN_NS = 50000, PIECES_MAX = 0xffff };

static bool is_left(uint64_t run) {
    return (run >> 16 & PIECES_MAX) < (run & PIECES_MAX);
}

// Takes a piece of the present run, if one is left. A release store of `run` precedes: work, context and the
// caller's place are its own.
static bool take_piece(struct farm_pool *pool, uint32_t *piece) {
    uint64_t run = farm_load_acquire(&pool->run);
    while (is_left(run))
        if (__atomic_compare_exchange_n(&pool->run, &run, run + (1 << 16), false, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE)) {
            *piece = (uint32_t)(run >> 16 & PIECES_MAX);
            return true;
        }
    return false;
}

// 1 + this thread's CPU; 0: unknown.
static uint32_t own_place(void) {
    const int cpu = sched_getcpu();
    return cpu < 0 || cpu >= FARM_BITMAP_BITS ? 0 : (uint32_t)cpu + 1;
}

static uint32_t place_of(const struct farm_pool *pool, uint32_t thread) {
    return farm_load32_acquire(&pool->workers[thread].place);
}

static void set_place(struct farm_pool *pool, uint32_t thread, uint32_t place) {
    if (place_of(pool, thread) != place) farm_store32_release(&pool->workers[thread].place, place);
}

// Moves this thread off the CPU of a lower-numbered one (0: the caller) to a CPU that no thread of the pool uses; the
// set of CPUs on which it may run stays. A scheduler may wake a thread on its waker's CPU although other CPUs are idle,
// and keep both there for seconds; two threads are then slower than one.
static void spread(struct farm_pool *pool, uint32_t thread) {
    struct farm_bitmap allowed, unused, used = {0};
    const uint32_t place = own_place();
    bool shared = false;
    for (uint32_t i = 0; i < pool->worker_count; i++) {
        const uint32_t other = place_of(pool, i); // it may sleep a moment later
        if (i == thread || !other) continue;
        farm_bitmap_set(&used, (int)other - 1);
        shared |= i < thread && other == place;
    }
    if (shared && farm_bitmap_pinned(&allowed, NULL) == FARM_OK) {
        unused = allowed;
        farm_bitmap_remove(&unused, &used);
        if (farm_bitmap_pin(&unused, NULL) == FARM_OK) farm_bitmap_pin(&allowed, NULL); // refused if it is empty
    }
    set_place(pool, thread, shared ? own_place() : place);
}

// The last piece's subtraction (release) makes all of them visible to the caller.
static void run_pieces(struct farm_pool *pool, uint32_t thread) {
    uint32_t piece;
    while (take_piece(pool, &piece)) {
        if (thread) spread(pool, thread);
        pool->work(pool->context, piece, thread);
        if (__atomic_sub_fetch(&pool->left, 1, __ATOMIC_ACQ_REL) > 0 || thread == 0) continue;
        pthread_mutex_lock(&pool->lock);
        if (pool->waiting) pthread_cond_signal(&pool->finish);
        pthread_mutex_unlock(&pool->lock);
    }
}

static bool has_pieces(const struct farm_pool *pool) {
    return is_left(farm_load_acquire(&pool->run));
}

static bool all_done(const struct farm_pool *pool) {
    return farm_load_acquire(&pool->left) == 0;
}

// Spins until `ready`, for SPIN_NS at most.
static bool spin(const struct farm_pool *pool, bool (*ready)(const struct farm_pool *)) {
    enum { TURNS = 64 };
    const uint64_t end = farm_now_ns() + SPIN_NS;
    do {
        for (int i = 0; i < TURNS; i++) {
            if (ready(pool)) return true;
            farm_cpu_relax();
        }
    } while (farm_now_ns() < end);
    return false;
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct farm_pool *pool = worker->pool;
    bool end = false;
    while (!end) {
        run_pieces(pool, worker->number);
        if (spin(pool, has_pieces)) continue;
        set_place(pool, worker->number, 0);
        pthread_mutex_lock(&pool->lock);
        farm_add_relaxed(&pool->asleep, 1);
        farm_fence_full(); // `asleep` before `run`: farm_pool_run stores and loads them in the other order
        while (!pool->end && !has_pieces(pool)) pthread_cond_wait(&pool->start, &pool->lock);
        farm_add_relaxed(&pool->asleep, UINT64_MAX);
        end = pool->end;
        pthread_mutex_unlock(&pool->lock);
    }
    return NULL;
}

enum farm_status farm_pool_create(uint32_t threads, struct farm_pool **out, struct farm_error *err) {
    struct farm_pool *pool = calloc(1, sizeof *pool + threads * sizeof pool->workers[0]);
    if (!pool) return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->finish, NULL);
    pool->worker_count = 1;
    for (uint32_t i = 1; i < threads; i++) {
        struct worker *worker = &pool->workers[i];
        *worker = (struct worker){.pool = pool, .number = i};
        errno = farm_thread_start(&worker->thread, "train", i, worker_main, worker);
        if (errno) {
            enum farm_status status =
                farm_fail_errno(err, FARM_E_LIMIT, "training thread %u of %u does not start (train_threads, ulimit -u)",
                                i + 1, threads);
            farm_pool_destroy(pool);
            return status;
        }
        pool->worker_count++;
    }
    *out = pool;
    return FARM_OK;
}

void farm_pool_destroy(struct farm_pool *pool) {
    if (!pool) return;
    pthread_mutex_lock(&pool->lock);
    pool->end = true;
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 1; i < pool->worker_count; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->start);
    pthread_cond_destroy(&pool->finish);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void farm_pool_run(struct farm_pool *pool, uint32_t pieces,
                   void (*work)(void *context, uint32_t piece, uint32_t thread), void *context) {
    for (uint32_t i = 0; i < pieces && !pool; i++) work(context, i, 0);
    if (!pool) return;
    assert(pieces <= PIECES_MAX);
    pool->work = work;
    pool->context = context;
    set_place(pool, 0, own_place());
    farm_store_relaxed(&pool->left, pieces);
    farm_store_release(&pool->run, ((farm_load_relaxed(&pool->run) >> 32) + 1) << 32 | pieces);
    farm_fence_full(); // `run` before `asleep`
    if (pieces > 1 && farm_load_relaxed(&pool->asleep)) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->start);
        pthread_mutex_unlock(&pool->lock);
    }
    run_pieces(pool, 0);
    if (all_done(pool) || spin(pool, all_done)) return;
    pthread_mutex_lock(&pool->lock);
    pool->waiting = true;
    while (!all_done(pool)) pthread_cond_wait(&pool->finish, &pool->lock);
    pool->waiting = false;
    pthread_mutex_unlock(&pool->lock);
}
