// See published.h.
#include "policy/published.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomics.h"
#include "shm/heap.h"

struct farm_published {
    struct farm_heap *heap;
    pthread_rwlock_t lock; // policies read together
    float *params;
    size_t count;
    uint64_t version; // atomic; written under the lock
};

enum farm_status farm_published_make(int node, size_t count, struct farm_published **out, struct farm_error *err) {
    struct farm_heap *heap;
    const enum farm_status status = farm_heap_open(node, &heap, err);
    if (status) return status;
    struct farm_published *published = calloc(1, sizeof *published);
    float *params = published ? farm_heap_alloc(heap, count * sizeof *params, FARM_CACHE_LINE) : NULL;
    if (!params) {
        free(published);
        farm_heap_close(heap);
        return farm_fail(err, FARM_E_LIMIT, "no memory for %zu parameters", count);
    }
    *published = (struct farm_published){.heap = heap, .params = params, .count = count};
    pthread_rwlock_init(&published->lock, NULL);
    *out = published;
    return FARM_OK;
}

void farm_published_free(struct farm_published *published) {
    if (!published) return;
    farm_heap_free(published->heap, published->params, published->count * sizeof *published->params, FARM_CACHE_LINE);
    farm_heap_close(published->heap);
    pthread_rwlock_destroy(&published->lock);
    free(published);
}

void farm_published_write(struct farm_published *published, const float *params, uint64_t version) {
    pthread_rwlock_wrlock(&published->lock);
    memcpy(published->params, params, published->count * sizeof *params);
    farm_store_release(&published->version, version);
    pthread_rwlock_unlock(&published->lock);
}

void farm_published_load(struct farm_published *published, struct farm_executor *executor, uint64_t *version) {
    if (farm_load_acquire(&published->version) == *version) return;
    pthread_rwlock_rdlock(&published->lock);
    *version = farm_load_relaxed(&published->version);
    farm_executor_load(executor, published->params);
    pthread_rwlock_unlock(&published->lock);
}
