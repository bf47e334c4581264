// See pool.h.
#include "learner/pool.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/thread.h"

struct worker {
    struct farm_pool *pool;
    uint32_t number;
    pthread_t thread;
};

struct farm_pool {
    pthread_mutex_t lock;
    pthread_cond_t start, finish;
    void (*work)(void *context, uint32_t piece, uint32_t thread);
    void *context;
    uint32_t pieces, next, running; // next: first piece not taken; running: pieces taken and not done
    bool end;
    uint32_t worker_count;
    struct worker workers[];
};

// Runs pieces until none is left. With the lock held on entry and return.
static void run_pieces(struct farm_pool *pool, uint32_t thread) {
    while (pool->next < pool->pieces) {
        uint32_t piece = pool->next++;
        pool->running++;
        pthread_mutex_unlock(&pool->lock);
        pool->work(pool->context, piece, thread);
        pthread_mutex_lock(&pool->lock);
        pool->running--;
    }
}

static void *worker_main(void *argument) {
    struct worker *worker = argument;
    struct farm_pool *pool = worker->pool;
    pthread_mutex_lock(&pool->lock);
    while (!pool->end) {
        run_pieces(pool, worker->number);
        if (!pool->running) pthread_cond_signal(&pool->finish);
        pthread_cond_wait(&pool->start, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

enum farm_status farm_pool_create(uint32_t threads, struct farm_pool **out, struct farm_error *err) {
    struct farm_pool *pool = calloc(1, sizeof *pool + threads * sizeof pool->workers[0]);
    if (!pool) return farm_fail(err, FARM_E_LIMIT, "no memory for %u training threads", threads);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->finish, NULL);
    for (uint32_t i = 1; i < threads; i++) {
        struct worker *worker = &pool->workers[pool->worker_count];
        *worker = (struct worker){.pool = pool, .number = i};
        errno = farm_thread_start(&worker->thread, worker_main, worker);
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
    for (uint32_t i = 0; i < pool->worker_count; i++) pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->start);
    pthread_cond_destroy(&pool->finish);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void farm_pool_run(struct farm_pool *pool, uint32_t pieces,
                   void (*work)(void *context, uint32_t piece, uint32_t thread), void *context) {
    pthread_mutex_lock(&pool->lock);
    pool->work = work;
    pool->context = context;
    pool->pieces = pieces;
    pool->next = 0;
    if (pool->worker_count) pthread_cond_broadcast(&pool->start);
    run_pieces(pool, 0);
    while (pool->running) pthread_cond_wait(&pool->finish, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}
