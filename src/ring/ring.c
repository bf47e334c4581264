// See ring.h.
#include "ring/ring.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "shm/place.h"

static const struct farm_ring closed_ring = {
    .up = {.fd = -1, .fd_readonly = -1}, .down = {.fd = -1, .fd_readonly = -1}, .wake_fd = -1};

static enum farm_status make_lanes(struct farm_ring *ring, struct farm_error *err) {
    const struct farm_ring_layout *layout = &ring->layout;
    uint8_t *up = (uint8_t *)ring->up.header, *down = (uint8_t *)ring->down.header;
    ring->up_control = (struct farm_up_control *)(up + layout->up_control);
    ring->down_control = (struct farm_down_control *)(down + layout->down_control);
    ring->lanes = calloc(ring->spec.lanes, sizeof *ring->lanes);
    if (!ring->lanes) return farm_fail(err, FARM_E_LIMIT, "no memory for %u lanes", ring->spec.lanes);
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        struct farm_lane *lane = &ring->lanes[l];
        uint8_t *u = up + layout->up_arrays + l * layout->up_stride;
        uint8_t *d = down + layout->down_arrays + l * layout->down_stride;
        *lane = (struct farm_lane){
            .up_control = ring->up_control,
            .up = (struct farm_up_lane *)(up + layout->up_lanes) + l,
            .down = (struct farm_down_lane *)(down + layout->down_lanes) + l,
            .reward = (float *)(u + layout->reward),
            .flags = u + layout->flags,
            .obs_count = ring->spec.env.obs_count,
            .answer_count = ring->spec.answer_count,
            .control = farm_ring_spec_find(&ring->spec, "control"),
            .state = farm_ring_spec_find(&ring->spec, "state"),
            .local = ring->spec.answers == FARM_ANSWERS_LOCAL,
            .width = ring->spec.width,
            .steps = ring->spec.steps,
        };
        lane->leaf_every = ring->spec.leaf_every;
        lane->leaf_slots = farm_leaf_slots(&ring->spec);
        if (lane->leaf_every) lane->leaf = (float *)(d + layout->leaf);
        for (uint32_t f = 0; f < lane->obs_count; f++) {
            lane->obs[f] = u + layout->obs[f];
            lane->obs_bytes[f] = layout->obs_bytes[f];
            if (ring->spec.autoreset) lane->last[f] = u + layout->last[f];
        }
        for (uint32_t f = 0; f < lane->answer_count; f++)
            lane->answer[f] = (struct farm_answer_array){.at = (lane->local ? u : d) + layout->answer[f],
                                                         .bytes = layout->answer_bytes[f],
                                                         .every = ring->spec.answer[f].every,
                                                         .slots = farm_answer_slots(&ring->spec, f),
                                                         .rows = farm_answer_rows(&ring->spec, f),
                                                         .values = ring->spec.answer[f].values};
        lane->produced_local = farm_load_acquire(&lane->up->produced);
        lane->consumed_seen = farm_load_acquire(&lane->down->consumed);
    }
    return FARM_OK;
}

// ---- long rings ----

enum { PARTS = 128, PARTS_AHEAD = 2 };

// Part `part` of an array.
static void place_part(struct farm_segment *segment, const void *array, size_t bytes, uint64_t part,
                       struct farm_error *err) {
    const size_t at = (size_t)((const uint8_t *)array - (const uint8_t *)segment->header),
                 to = at + bytes * (part + 1) / PARTS;
    size_t from = at + bytes * part / PARTS;
    if (part) from = (from + FARM_PLACE_HUGE_BYTES - 1) / FARM_PLACE_HUGE_BYTES * FARM_PLACE_HUGE_BYTES;
    if (segment->later && from < to && !err->status) farm_segment_place(segment, from, to - from, err);
}

static void place_lane(struct farm_ring *ring, const struct farm_lane *lane, uint64_t part, struct farm_error *err) {
    const size_t rows = (size_t)lane->steps * lane->width;
    for (uint32_t f = 0; f < lane->obs_count; f++)
        place_part(&ring->up, lane->obs[f], rows * lane->obs_bytes[f], part, err);
    place_part(&ring->up, lane->reward, rows * sizeof(float), part, err);
    place_part(&ring->up, lane->flags, rows, part, err);
    for (const struct farm_answer_array *a = lane->answer; a < lane->answer + lane->answer_count; a++)
        place_part(lane->local ? &ring->up : &ring->down, a->at, (size_t)a->slots * a->rows * a->bytes, part, err);
    const size_t leaves = (size_t)lane->leaf_slots * lane->width;
    if (leaves) place_part(&ring->down, lane->leaf, leaves * sizeof(float), part, err);
}

bool farm_ring_place_next(struct farm_ring *ring, struct farm_error *err) {
    err->status = FARM_OK;
    if (!ring->up.later && !ring->down.later) return false;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        const uint64_t part = ring->placed[l];
        if (part == PARTS) continue;
        const uint64_t steps = ring->spec.steps, produced = farm_lane_produced(&ring->lanes[l]);
        if (part * steps >= (produced < steps ? produced : steps) * PARTS + PARTS_AHEAD * steps) continue;
        ring->placed[l]++;
        place_lane(ring, &ring->lanes[l], part, err);
        return !err->status;
    }
    return false;
}

enum farm_status farm_ring_create(const struct farm_ring_spec *spec, uint32_t actor, int node, bool huge,
                                  struct farm_ring *ring, struct farm_error *err) {
    *ring = closed_ring;
    ring->spec = *spec;
    enum farm_status status = farm_ring_layout_make(spec, &ring->layout, err);
    if (status) return status;
    struct farm_segment_request request = {.kind = FARM_SEGMENT_UP,
                                           .owner = actor,
                                           .bytes = ring->layout.up_bytes,
                                           .node = node,
                                           .layout_hash = ring->layout.hash,
                                           .user = spec,
                                           .user_bytes = sizeof *spec,
                                           .huge = huge,
                                           .later = true};
    status = farm_segment_create(&request, &ring->up, err);
    if (!status) {
        request.kind = FARM_SEGMENT_DOWN;
        request.bytes = ring->layout.down_bytes;
        status = farm_segment_create(&request, &ring->down, err);
    }
    if (!status) status = make_lanes(ring, err);
    struct farm_error why = {0};
    while (!status && farm_ring_place_next(ring, &why)) {
    }
    if (!status && (status = why.status)) *err = why;
    if (status) farm_ring_close(ring);
    return status;
}

enum farm_status farm_ring_create_private(const struct farm_ring_spec *spec, uint32_t actor, struct farm_ring *ring,
                                          struct farm_error *err) {
    *ring = closed_ring;
    ring->spec = *spec;
    if (farm_ring_layout_make(spec, &ring->layout, err)) return err->status;
    const size_t bytes = ring->up.bytes = ring->layout.up_bytes + ring->layout.down_bytes; // `down` ends with `up`
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return farm_fail_errno(err, FARM_E_LIMIT, "no memory for a ring of %zu bytes", bytes);
    ring->up.header = memory;
    ring->down.header = (void *)((uint8_t *)memory + ring->layout.up_bytes);
    ring->down.header->owner = actor;
    return make_lanes(ring, err);
}

static enum farm_status check_size(const struct farm_segment *segment, size_t wanted, uint32_t owner,
                                   struct farm_error *err) {
    if (segment->bytes >= wanted) return FARM_OK;
    return farm_fail(err, FARM_E_FORMAT, "ring of actor %u: segment of %zu bytes is smaller than its layout, %zu bytes",
                     owner, segment->bytes, wanted);
}

// Opens the second segment. On failure the descriptor still belongs to the caller.
static enum farm_status open_segment(int fd, bool writable, enum farm_segment_kind kind, const struct farm_ring *ring,
                                     struct farm_segment *segment, size_t bytes_wanted, struct farm_error *err) {
    enum farm_status status = farm_segment_open(fd, writable, kind, ring->layout.hash, segment, err);
    if (status) return status;
    status = check_size(segment, bytes_wanted, segment->header->owner, err);
    if (!status && segment->header->owner != ring->up.header->owner)
        status =
            farm_fail(err, FARM_E_FORMAT, "segments belong to different actors: 'up' of actor %u, 'down' of actor %u",
                      ring->up.header->owner, segment->header->owner);
    if (status) {
        segment->fd = -1;
        farm_segment_close(segment);
    }
    return status;
}

// Copies the shape from a segment's header (its peer may overwrite it), makes the layout and compares the hash.
static enum farm_status read_shape(const struct farm_segment *segment, struct farm_ring *ring, struct farm_error *err) {
    struct farm_segment_header header;
    memcpy(&header, segment->header, sizeof header);
    memcpy(&ring->spec, header.user, sizeof ring->spec);
    if (farm_ring_layout_make(&ring->spec, &ring->layout, err))
        return farm_fail_in(err, FARM_E_FORMAT, "ring of actor %u", header.owner);
    if (header.layout_hash != ring->layout.hash)
        return farm_fail(err, FARM_E_FORMAT, "ring of actor %u: layout hash %016llx, this build expects %016llx",
                         header.owner, (unsigned long long)header.layout_hash, (unsigned long long)ring->layout.hash);
    return FARM_OK;
}

// `up` first, with any hash: its shape gives the hash that `down` must have.
static enum farm_status open_up_first(int up_fd, int down_fd, bool up_writable, struct farm_ring *ring,
                                      struct farm_error *err) {
    enum farm_status status = farm_segment_open(up_fd, up_writable, FARM_SEGMENT_UP, 0, &ring->up, err);
    if (status) return status;
    status = read_shape(&ring->up, ring, err);
    if (!status) status = check_size(&ring->up, ring->layout.up_bytes, ring->up.header->owner, err);
    if (!status)
        status = open_segment(down_fd, false, FARM_SEGMENT_DOWN, ring, &ring->down, ring->layout.down_bytes, err);
    return status;
}

static enum farm_status open_down_first(int up_fd, int down_fd, struct farm_ring *ring, struct farm_error *err) {
    enum farm_status status = farm_segment_open(down_fd, true, FARM_SEGMENT_DOWN, 0, &ring->down, err);
    if (status) return status;
    status = read_shape(&ring->down, ring, err);
    if (!status) status = check_size(&ring->down, ring->layout.down_bytes, ring->down.header->owner, err);
    if (!status)
        status = farm_segment_open_unread(up_fd, false, FARM_SEGMENT_UP, ring->layout.up_bytes, &ring->up, err);
    return status;
}

enum farm_status farm_ring_open(int up_fd, int down_fd, enum farm_ring_side side, struct farm_ring *ring,
                                struct farm_error *err) {
    *ring = closed_ring;
    enum farm_status status = side == FARM_RING_LEARNER
                                  ? open_down_first(up_fd, down_fd, ring, err)
                                  : open_up_first(up_fd, down_fd, side == FARM_RING_ACTOR, ring, err);
    if (!status) status = make_lanes(ring, err);
    if (status) {
        ring->up.fd = ring->down.fd = -1; // the descriptors belong to the caller
        farm_ring_close(ring);
    } else if (side != FARM_RING_ACTOR) {
        farm_ring_populate(ring);
    }
    return status;
}

enum farm_status farm_ring_view(const struct farm_ring *made, enum farm_ring_side side, struct farm_ring *view,
                                struct farm_error *err) {
    const int up = dup(side == FARM_RING_ACTOR ? made->up.fd : made->up.fd_readonly),
              down = dup(side == FARM_RING_LEARNER ? made->down.fd : made->down.fd_readonly);
    *view = closed_ring;
    enum farm_status status =
        up < 0 || down < 0 ? farm_fail_errno(err, FARM_E_LIMIT, "dup") : farm_ring_open(up, down, side, view, err);
    if (status && up >= 0) close(up);
    if (status && down >= 0) close(down);
    return status;
}

void farm_ring_populate(const struct farm_ring *ring) {
    if (ring->layout.up_bytes < FARM_SEGMENT_LATER_BYTES) farm_segment_populate(&ring->up);
    if (ring->layout.down_bytes < FARM_SEGMENT_LATER_BYTES) farm_segment_populate(&ring->down);
}

void farm_ring_close(struct farm_ring *ring) {
    free(ring->lanes);
    farm_segment_close(&ring->up);
    farm_segment_close(&ring->down);
    *ring = closed_ring;
}

bool farm_ring_counters_sound(const struct farm_ring *ring, uint32_t *lane) {
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        if (farm_lane_sound(&ring->lanes[l])) continue;
        if (lane) *lane = l;
        return false;
    }
    return true;
}

bool farm_ring_restore(struct farm_ring *ring) {
    struct farm_segment_header header;
    memcpy(&header, ring->down.header, sizeof header); // equal except for these fields
    header.kind = FARM_SEGMENT_UP;
    header.bytes = ring->up.bytes;
    header.pages = ring->up.pages;
    header.placement = ring->up.placement;
    bool wrong = memcmp(ring->up.header, &header, sizeof header) != 0;
    if (wrong) memcpy(ring->up.header, &header, sizeof header);
    for (uint32_t l = 0; l < ring->spec.lanes; l++) wrong |= farm_lane_restore(&ring->lanes[l]);
    farm_store_release(&ring->up_control->using, 0); // the dead actor reads no parameters
    return wrong;
}
