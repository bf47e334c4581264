// First in, first out, one queue a shard. See source.h.
#include <stdlib.h>

#include "replay/source.h"

// Waiting windows of whole lanes.
struct queue {
    struct farm_window *windows; // [capacity]; env_from: environments already taken
    uint32_t head, count;
    uint64_t waiting, handed; // windows of environments: waiting; pushed so far
};

struct farm_fifo {
    struct farm_window_source source;
    struct farm_window_source_config config;
    struct queue queues[FARM_WINDOW_SHARDS_MAX];
};

static struct farm_fifo *fifo_of(struct farm_window_source *source) {
    return (struct farm_fifo *)source;
}

static void destroy(struct farm_window_source *source) {
    for (uint32_t k = 0; k < fifo_of(source)->config.shards; k++) free(fifo_of(source)->queues[k].windows);
    free(source);
}

static void admit(struct farm_window_source *source, const struct farm_lane *lane, uint32_t lane_id, uint32_t shard) {
    (void)source, (void)lane, (void)lane_id, (void)shard; // any lane may push
}

static void release_tickets(struct farm_window_source *source, uint32_t shard) {
    const struct queue *queue = &fifo_of(source)->queues[shard];
    farm_store_release(&source->released[shard], queue->handed - queue->waiting);
}

static uint64_t push(struct farm_window_source *source, const struct farm_window *window) {
    struct farm_fifo *fifo = fifo_of(source);
    struct queue *queue = &fifo->queues[window->shard];
    if (queue->count == fifo->config.capacity) abort(); // the rings bound the queue
    queue->windows[(queue->head + queue->count++) % fifo->config.capacity] = *window;
    queue->waiting += window->env_count;
    queue->handed += window->env_count;
    const uint64_t most = (uint64_t)fifo->config.max_lag * fifo->config.share[window->shard];
    return most && queue->handed > most ? queue->handed - most : 0;
}

// Whether a window was begun too long ago, and neither it nor an earlier one of its lane is in training, which would
// lose its steps.
static bool is_outdated(const struct farm_fifo *fifo, const struct farm_window *window, uint64_t version) {
    const uint64_t acted = *farm_lane_version(window->lane, window->start + fifo->source.shape.burn_in);
    return !window->env_from && window->cursor->held == window->start && version > acted &&
           version - acted > fifo->config.max_lag;
}

// Drops windows from a shard's queue: those of a ring that leaves, or (NULL) outdated ones.
static void drop_windows(struct farm_fifo *fifo, uint32_t shard, const struct farm_ring *gone, uint64_t version) {
    struct queue *queue = &fifo->queues[shard];
    const uint32_t count = queue->count;
    queue->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_window window = queue->windows[(queue->head + i) % fifo->config.capacity];
        if (gone ? window.ring != gone : !is_outdated(fifo, &window, version)) {
            queue->windows[(queue->head + queue->count++) % fifo->config.capacity] = window;
            continue;
        }
        queue->waiting -= window.env_count;
        if (gone) continue;
        fifo->source.dropped += window.env_count;
        farm_window_release(&fifo->source.shape, &window);
    }
    release_tickets(&fifo->source, shard);
}

// Takes a shard's share, all of which waits.
static uint32_t take_share(struct farm_fifo *fifo, uint32_t shard, struct farm_window *out) {
    struct queue *queue = &fifo->queues[shard];
    uint32_t count = 0;
    for (uint32_t want = fifo->config.share[shard]; want;) {
        struct farm_window *window = &queue->windows[queue->head];
        const uint32_t part = window->env_count < want ? window->env_count : want;
        out[count] = *window;
        out[count++].env_count = part;
        window->env_from += part;
        window->env_count -= part;
        want -= part;
        queue->waiting -= part;
        if (window->env_count) continue;
        queue->head = (queue->head + 1) % fifo->config.capacity;
        queue->count--;
    }
    release_tickets(&fifo->source, shard);
    return count;
}

static bool ready(const struct farm_window_source *source) {
    const struct farm_fifo *fifo = (const struct farm_fifo *)source;
    for (uint32_t k = 0; k < fifo->config.shards; k++)
        if (fifo->queues[k].waiting < fifo->config.share[k]) return false;
    return true;
}

static uint32_t take(struct farm_window_source *source, uint64_t version, struct farm_window *out) {
    struct farm_fifo *fifo = fifo_of(source);
    uint32_t count = 0;
    for (uint32_t k = 0; k < fifo->config.shards && fifo->config.max_lag; k++) drop_windows(fifo, k, NULL, version);
    if (!ready(source)) return 0;
    for (uint32_t k = 0; k < fifo->config.shards; k++) count += take_share(fifo, k, out + count);
    return count;
}

// Parts of a lane's window are taken in order, so the last environments' part ends it.
static void done(struct farm_window_source *source, const struct farm_window *windows, uint32_t count,
                 const float *priorities) {
    for (uint32_t i = 0; i < count; i++)
        if (windows[i].env_from + windows[i].env_count == windows[i].lane->width)
            farm_window_release(&source->shape, &windows[i]);
}

static void forget(struct farm_window_source *source, const struct farm_ring *ring, uint32_t first_lane) {
    for (uint32_t k = 0; k < fifo_of(source)->config.shards; k++) drop_windows(fifo_of(source), k, ring, 0);
}

static void published(struct farm_window_source *source) {
    (void)source;
}

static const struct farm_window_source_ops ops = {destroy, admit, forget, push, ready, take, done, published};

enum farm_status farm_fifo_make(const struct farm_window_source_config *config, struct farm_window_source **out,
                                struct farm_error *err) {
    struct farm_fifo *fifo = calloc(1, sizeof *fifo);
    if (!fifo) return farm_fail(err, FARM_E_LIMIT, "no memory for a queue of windows");
    fifo->config = *config;
    fifo->source.ops = &ops;
    fifo->source.shape = config->shape;
    fifo->source.holds = config->max_lag > 0;
    for (uint32_t k = 0; k < config->shards; k++) {
        fifo->source.windows_max += config->share[k];
        fifo->queues[k].windows = calloc(config->capacity ? config->capacity : 1, sizeof(struct farm_window));
        if (fifo->queues[k].windows) continue;
        destroy(&fifo->source);
        return farm_fail(err, FARM_E_LIMIT, "no memory for a queue of %u windows", config->capacity);
    }
    *out = &fifo->source;
    return FARM_OK;
}
