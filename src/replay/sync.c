// Synchronous iterations: one window of every lane. See source.h.
#include <stdlib.h>

#include "base/log.h"
#include "base/time.h"
#include "replay/source.h"

static const uint64_t GRACE_NS = 5000000000;

struct place {
    const struct farm_lane *lane; // NULL: vacant
    uint32_t shard;
    bool waits; // its window is pushed
    bool late;  // left out of an iteration: its next window is dropped
    struct farm_window window;
    uint64_t heartbeat, produced, moved_ns; // the actor's, when it last did something
};

struct farm_sync {
    struct farm_window_source source;
    struct farm_window_source_config config;
    uint64_t taken;                  // iterations so far
    bool warned;                     // about a lane that was left out
    uint32_t present, waiting, late; // lanes; those with a window; those left out
    struct place *places;            // [lanes]
};

static struct farm_sync *sync_of(struct farm_window_source *source) {
    return (struct farm_sync *)source;
}

static void destroy(struct farm_window_source *source) {
    free(sync_of(source)->places);
    free(source);
}

static void admit(struct farm_window_source *source, const struct farm_lane *lane, uint32_t lane_id, uint32_t shard) {
    sync_of(source)->places[lane_id] = (struct place){.lane = lane, .shard = shard, .moved_ns = farm_now_ns()};
    sync_of(source)->present++;
}

static void forget(struct farm_window_source *source, const struct farm_ring *ring, uint32_t first_lane) {
    struct farm_sync *sync = sync_of(source);
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        struct place *place = &sync->places[first_lane + l];
        sync->present -= place->lane != NULL;
        sync->waiting -= place->waits;
        sync->late -= place->late;
        *place = (struct place){0};
    }
}

static uint64_t push(struct farm_window_source *source, const struct farm_window *window) {
    struct farm_sync *sync = sync_of(source);
    struct place *place = &sync->places[window->lane_id];
    if (place->waits) abort(); // its ticket is not released
    if (place->late) {         // answered with parameters of two iterations or more
        place->late = false;
        sync->late--;
        source->dropped += window->env_count;
        farm_window_release(&source->shape, window);
        return sync->taken; // the parameters of an iteration in training answer the lane's next window
    }
    place->window = *window;
    place->waits = true;
    sync->waiting++;
    return sync->taken + 1;
}

// Whether the actor of a lane without a window has done nothing for longer than the grace, although its steps are
// answered.
static bool is_hanging(const struct farm_sync *sync, struct place *place, uint64_t now_ns) {
    const uint64_t heartbeat = farm_load_relaxed(&place->lane->up_control->heartbeat);
    const uint64_t produced = farm_lane_produced(place->lane);
    if (heartbeat != place->heartbeat || produced != place->produced || produced != farm_lane_acted(place->lane))
        place->moved_ns = now_ns;
    place->heartbeat = heartbeat;
    place->produced = produced;
    return now_ns - place->moved_ns > sync->config.grace_ns;
}

// Once: `windows_dropped` counts what follows.
static void warn(struct farm_sync *sync) {
    uint32_t l = 0;
    while (!sync->places[l].late) l++;
    farm_log_warn("an iteration is trained on without lane %u, whose actor has done nothing for %.3g s, and its next "
                  "window will be dropped: raise sync_grace_s if environments take so long",
                  l, (double)sync->config.grace_ns * 1e-9);
    sync->warned = true;
}

static bool ready(const struct farm_window_source *source) {
    const struct farm_sync *sync = (const struct farm_sync *)source;
    return sync->waiting + sync->late == sync->present;
}

static uint32_t take(struct farm_window_source *source, uint64_t version, struct farm_window *out) {
    struct farm_sync *sync = sync_of(source);
    const uint64_t now_ns = farm_now_ns();
    uint32_t count = 0, hanging = 0;
    for (uint32_t l = 0; l < sync->config.lanes; l++) {
        struct place *place = &sync->places[l];
        hanging += place->lane && !place->waits && is_hanging(sync, place, now_ns);
    }
    if (!sync->waiting || sync->waiting + hanging < sync->present) return 0;
    sync->taken++;
    sync->late = sync->present - sync->waiting;
    sync->waiting = 0;
    for (uint32_t shard = 0; shard < sync->config.shards; shard++)
        for (uint32_t l = 0; l < sync->config.lanes; l++) {
            struct place *place = &sync->places[l];
            if (!place->lane || place->shard != shard) continue;
            place->late = !place->waits;
            if (place->waits) out[count++] = place->window;
            place->waits = false;
        }
    if (sync->late && !sync->warned) warn(sync);
    return count;
}

static void done(struct farm_window_source *source, const struct farm_window *windows, uint32_t count,
                 const float *priorities) {
    for (uint32_t i = 0; i < count; i++) farm_window_release(&source->shape, &windows[i]);
}

static void published(struct farm_window_source *source) {
    struct farm_sync *sync = sync_of(source);
    const uint64_t now_ns = farm_now_ns();
    for (uint32_t l = 0; l < sync->config.lanes; l++)
        if (!sync->places[l].late) sync->places[l].moved_ns = now_ns; // its actor had to wait until now
    for (uint32_t k = 0; k < sync->config.shards; k++) farm_store_release(&source->released[k], sync->taken);
}

static const struct farm_window_source_ops ops = {destroy, admit, forget, push, ready, take, done, published};

enum farm_status farm_sync_make(const struct farm_window_source_config *config, struct farm_window_source **out,
                                struct farm_error *err) {
    struct farm_sync *sync = calloc(1, sizeof *sync);
    struct place *places = calloc(config->lanes ? config->lanes : 1, sizeof *places);
    if (!sync || !places) {
        free(sync);
        free(places);
        return farm_fail(err, FARM_E_LIMIT, "no memory for iterations of %u lanes", config->lanes);
    }
    sync->config = *config;
    if (!config->grace_ns) sync->config.grace_ns = GRACE_NS;
    sync->places = places;
    sync->source = (struct farm_window_source){
        .ops = &ops, .shape = config->shape, .windows_max = config->lanes, .holds = true, .polls = true};
    *out = &sync->source;
    return FARM_OK;
}
