// Two hostile descriptors: the input gives sizes, seals, access, kinds, headers, the spec and every counter. What
// farm_segment_open and farm_ring_open accept is readable to the last byte of every array, and writable on its own side
// only. What they refuse still belongs to the caller, and nothing stays mapped. The learner's copies of such a segment
// are valid, and what the supervisor restores is sound.
#include "fuzz_attach.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/number.h"
#include "fuzz.h"
#include "intake/validator.h"
#include "ring/ring.h"
#include "ring/window.h"

enum { FILE_BYTES_MAX = 128 << 10 };

static const int seal_bits[] = {F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL};

static int seals_of(uint8_t plan) {
    int seals = 0;
    for (int i = 0; i < 3; i++)
        if (plan & 1 << i) seals |= seal_bits[i];
    return seals;
}

// An honest creator's header, except for what the plan spoils.
static struct farm_segment_header make_header(const struct fuzz_segment *plan, const struct farm_ring_spec *spec,
                                              enum farm_segment_kind kind, uint64_t file_bytes, uint64_t hash) {
    struct farm_segment_header header = {.magic = FARM_SEGMENT_MAGIC,
                                         .version = FARM_SEGMENT_VERSION,
                                         .kind = kind,
                                         .bytes = file_bytes,
                                         .layout_hash = hash,
                                         .owner = plan->owner,
                                         .node = (int8_t)plan->node,
                                         .pages = plan->pages,
                                         .placement = plan->placement};
    if (plan->spoil & FUZZ_SPOIL_MAGIC) header.magic = plan->word;
    if (plan->spoil & FUZZ_SPOIL_VERSION) header.version = (uint32_t)plan->word;
    if (plan->spoil & FUZZ_SPOIL_KIND) header.kind = (uint32_t)plan->word;
    if (plan->spoil & FUZZ_SPOIL_BYTES) header.bytes = plan->word;
    if (plan->spoil & FUZZ_SPOIL_HASH) header.layout_hash = plan->word;
    memcpy(header.user, spec, sizeof *spec);
    if (plan->spoil & FUZZ_SPOIL_SPEC) header.user[(uint16_t)plan->word % sizeof *spec] ^= (uint8_t)(plan->word >> 16);
    return header;
}

// Counters that are close together, which a fill rarely has.
static void set_counters(const struct fuzz_attach *plan, const struct farm_ring_layout *layout, uint32_t lanes,
                         enum farm_segment_kind kind, uint8_t *content, size_t bytes) {
    for (uint32_t l = 0; l < lanes; l++) {
        size_t at = kind == FARM_SEGMENT_UP ? layout->up_lanes + l * sizeof(struct farm_up_lane)
                                            : layout->down_lanes + l * sizeof(struct farm_down_lane);
        struct farm_up_lane up = {.produced = plan->counters[0]};
        struct farm_down_lane down = {.acted = plan->counters[1], .consumed = plan->counters[2]};
        size_t length = kind == FARM_SEGMENT_UP ? sizeof up : sizeof down;
        if (at + length <= bytes) memcpy(content + at, kind == FARM_SEGMENT_UP ? (void *)&up : (void *)&down, length);
    }
}

// A sealed file: the header, then the input's fill, repeated. Too short for layouts beyond FILE_BYTES_MAX.
static int make_segment(const struct fuzz_attach *whole, enum farm_segment_kind kind, const struct farm_ring_spec *spec,
                        const struct farm_ring_layout *layout, const uint8_t *fill) {
    const struct fuzz_segment *plan = kind == FARM_SEGMENT_UP ? &whole->up : &whole->down;
    const size_t fill_bytes = whole->fill_bytes;
    size_t layout_bytes = kind == FARM_SEGMENT_UP ? layout->up_bytes : layout->down_bytes;
    static uint8_t content[FILE_BYTES_MAX];
    size_t bytes = layout_bytes <= FILE_BYTES_MAX ? layout_bytes : FARM_SEGMENT_HEADER_BYTES;
    if (plan->size_delta) bytes = (bytes + FILE_BYTES_MAX + (size_t)(plan->size_delta * 16)) % FILE_BYTES_MAX;
    struct farm_segment_header header = make_header(plan, spec, kind, bytes, layout->hash);
    memset(content, 0, bytes);
    memcpy(content, &header, bytes < sizeof header ? bytes : sizeof header);
    for (size_t at = sizeof header; fill_bytes && at < bytes; at += fill_bytes)
        memcpy(content + at, fill, fill_bytes < bytes - at ? fill_bytes : bytes - at);

    if (whole->side & 8) set_counters(whole, layout, layout->hash ? spec->lanes : 0, kind, content, bytes);
    int fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0 && pwrite(fd, content, bytes, 0) == (ssize_t)bytes);
    assert(fcntl(fd, F_ADD_SEALS, seals_of(plan->seals)) == 0);
    if (!(plan->seals & FUZZ_READ_ONLY)) return fd;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int readonly = open(path, O_RDONLY | O_CLOEXEC);
    assert(readonly >= 0);
    close(fd);
    return readonly;
}

static bool is_open(int fd) {
    return fcntl(fd, F_GETFD) >= 0;
}

static void check_inside(const struct farm_segment *segment, const void *array, size_t bytes) {
    const uint8_t *start = (const uint8_t *)segment->header, *at = array;
    assert(at >= start + FARM_SEGMENT_HEADER_BYTES && bytes <= segment->bytes);
    assert(at <= start + segment->bytes - bytes);
    volatile uint8_t first = at[0], last = at[bytes - 1];
    (void)first, (void)last;
}

static void check_lane(const struct farm_ring *ring, const struct farm_lane *lane) {
    size_t slots = (size_t)lane->steps * lane->width;
    check_inside(&ring->up, lane->up, sizeof *lane->up);
    check_inside(&ring->down, lane->down, sizeof *lane->down);
    for (uint32_t f = 0; f < lane->obs_count; f++) check_inside(&ring->up, lane->obs[f], slots * lane->obs_bytes[f]);
    check_inside(&ring->up, lane->reward, slots * sizeof(float));
    check_inside(&ring->up, lane->flags, slots);
    // Every step number has a slot, whatever the counters are.
    uint64_t n = farm_lane_produced(lane);
    for (uint32_t f = 0; f < lane->answer_count; f++) {
        const struct farm_answer_array *answer = &lane->answer[f];
        const struct farm_segment *segment = lane->local ? &ring->up : &ring->down;
        check_inside(segment, answer->at, (size_t)answer->slots * answer->rows * answer->bytes);
        check_inside(segment, farm_lane_answer_at(lane, f, n, answer->rows - 1), answer->bytes);
    }
    const void *rows[4];
    farm_lane_stack(lane, 0, n, lane->width - 1, 4, rows);
    assert(rows[3]);
    for (int k = 0; k < 4; k++)
        if (rows[k]) check_inside(&ring->up, rows[k], lane->obs_bytes[0]);
}

// A second implementation of farm_ring_counters_sound: as many steps as are answered, or one more (LOCAL: C more),
// within the ring.
static bool counters_sound(const struct farm_ring *ring) {
    bool sound = true;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        const struct farm_lane *lane = &ring->lanes[l];
        uint64_t produced = lane->up->produced, acted = lane->down->acted;
        const uint64_t most = lane->local ? lane->steps : 1;
        sound = sound && acted <= UINT64_MAX - most && produced >= acted && produced <= acted + most &&
                (int64_t)(produced - lane->down->consumed) <= lane->steps;
    }
    return sound;
}

// The answer of a LOCAL lane's step that was checked when version 7 was the newest.
static void check_answer(const struct farm_action_spec *action, const struct farm_lane *lane, uint64_t n, uint32_t e) {
    const int32_t *chosen = farm_lane_action(lane, n, e);
    const float *policy = farm_lane_policy(lane, n, e), *number = farm_lane_action(lane, n, e);
    assert(*farm_lane_version(lane, n) <= 7 && fabsf(farm_lane_value(lane, n)[e]) <= FARM_NUMBER_MAX);
    for (uint32_t d = 0; d < action->dims; policy += action->sizes[d++]) {
        if (action->kind == FARM_ACTION_CONTINUOUS) {
            assert(fabsf(number[d]) <= FARM_NUMBER_MAX);
            continue;
        }
        assert(chosen[d] >= 0 && (uint32_t)chosen[d] < action->sizes[d]);
        assert(fabsf(policy[chosen[d]]) <= FARM_NUMBER_MAX);
        for (uint32_t i = 0; i < action->sizes[d]; i++) assert(policy[i] <= FARM_NUMBER_MAX);
    }
}

// The learner's copies of a few steps are valid, whatever the actor's memory holds.
static void check_validator(struct farm_ring *ring) {
    struct farm_validator validator;
    assert(farm_validator_open(ring, ring->spec.lanes - 1, &validator, NULL) == FARM_OK);
    const struct farm_lane *lane = &validator.checked;
    for (uint64_t n = 0; n < 3; n++) {
        uint64_t bad = farm_validator_step(&validator, n, 7), senseless = 0;
        for (uint32_t e = 0; e < lane->width; e++) {
            unsigned flags = farm_lane_flags(lane, n)[e];
            float reward = farm_lane_reward(lane, n)[e];
            assert(fabsf(reward) <= FARM_NUMBER_MAX && !(flags & ~(FARM_STEP_ALL | FARM_STEP_SENSELESS)));
            senseless += flags & FARM_STEP_SENSELESS ? 1 : 0;
            if (flags & FARM_STEP_SENSELESS) assert(reward == 0 && flags & FARM_STEP_FIRST && flags & FARM_STEP_LAST);
            for (uint32_t f = 0; f < lane->obs_count; f++)
                assert(farm_field_is_valid(&ring->spec.env.obs[f], farm_lane_obs(lane, f, n, e)));
            if (lane->local) check_answer(&ring->spec.env.action, lane, n, e);
        }
        assert((senseless > 0) == (bad > 0) && (lane->local || senseless <= bad)); // one version for all environments
    }
    farm_validator_close(&validator);
}

// The supervisor's repair makes the counters sound, and a second repair changes nothing.
static void check_restore(struct farm_ring *ring) {
    for (uint32_t l = 0; l < ring->spec.lanes; l++) { // the learner's own words are trusted
        uint64_t acted = ring->lanes[l].down->acted, consumed = ring->lanes[l].down->consumed;
        if (acted == UINT64_MAX || consumed > acted || acted - consumed > ring->spec.steps) return;
    }
    bool sound = counters_sound(ring), changed = farm_ring_restore(ring);
    assert(changed || sound);
    assert(counters_sound(ring) && farm_ring_counters_sound(ring, NULL) && !farm_ring_restore(ring));
}

static void check_ring(struct farm_ring *ring, enum farm_ring_side side) {
    check_inside(&ring->up, ring->up_control, sizeof *ring->up_control);
    check_inside(&ring->down, ring->down_control, sizeof *ring->down_control);
    for (uint32_t l = 0; l < ring->spec.lanes; l++) check_lane(ring, &ring->lanes[l]);
    assert(ring->up.writable == (side == FARM_RING_ACTOR) && ring->down.writable == (side == FARM_RING_LEARNER));
    const struct farm_lane *last = &ring->lanes[ring->spec.lanes - 1];
    if (ring->up.writable) last->flags[(size_t)last->steps * last->width - 1] ^= 1;
    if (ring->down.writable && !last->local) *farm_lane_version(last, last->steps - 1) ^= 1;
    uint32_t unsound = UINT32_MAX;
    assert(farm_ring_counters_sound(ring, &unsound) == counters_sound(ring));
    assert(unsound == UINT32_MAX || unsound < ring->spec.lanes);
    if (side == FARM_RING_LEARNER) check_validator(ring);
    if (side == FARM_RING_ACTOR) check_restore(ring);
}

// A descriptor alone, as a stats or as either half of a ring.
static void try_segment(int fd, const struct fuzz_attach *plan) {
    struct farm_segment segment;
    struct farm_error err = {0};
    bool writable = plan->side & 4;
    enum farm_segment_kind kind = (enum farm_segment_kind)(plan->side >> 4);
    char text[300];
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    assert(own >= 0);
    enum farm_status status = farm_segment_open(own, writable, kind, plan->hash, &segment, &err);
    if (status) {
        fuzz_check_refusal(status, &err);
        assert(is_open(own) && !segment.header && segment.fd == -1);
        close(own);
        return;
    }
    int seals = fcntl(own, F_GET_SEALS);
    assert(segment.fd == own && seals >= 0 && (seals & seals_of(7)) == seals_of(7));
    assert(segment.header->bytes == segment.bytes && segment.header->kind == (uint32_t)kind);
    assert(!plan->hash || segment.header->layout_hash == plan->hash);
    volatile uint8_t last = ((const uint8_t *)segment.header)[segment.bytes - 1];
    (void)last;
    if (writable) ((uint8_t *)segment.header)[segment.bytes - 1] = last;
    farm_segment_describe(&segment, text, sizeof text);
    assert(memchr(text, 0, sizeof text));
    farm_segment_close(&segment);
    assert(!is_open(own));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct fuzz_attach plan;
    struct farm_ring_spec spec;
    struct farm_ring_layout layout = {.hash = 0};
    uint8_t fill[256];
    fuzz_take(&input, &plan, sizeof plan);
    fuzz_take(&input, fill, plan.fill_bytes);
    fuzz_take(&input, &spec, sizeof spec);
    bool valid = farm_ring_layout_make(&spec, &layout, NULL) == FARM_OK;
    if (!valid) layout = (struct farm_ring_layout){.up_bytes = 65536, .down_bytes = 65536};
    uint8_t turned[256];
    for (int i = 0; i < plan.fill_bytes; i++) turned[i] = fill[(i + plan.turn) % plan.fill_bytes];
    int up = make_segment(&plan, FARM_SEGMENT_UP, &spec, &layout, fill);
    int down = make_segment(&plan, FARM_SEGMENT_DOWN, &spec, &layout, turned);
    try_segment(up, &plan);
    try_segment(down, &plan);

    struct farm_ring ring;
    struct farm_error err = {0};
    enum farm_ring_side side = (enum farm_ring_side)((plan.side & 3) % 3);
    // An actor cannot cause one descriptor for both, and the learner checks the kind of `down` only.
    if (side == FARM_RING_LEARNER) plan.descriptors &= (uint8_t)~FUZZ_SAME;
    int given[2] = {up, down};
    if (plan.descriptors & FUZZ_SWAPPED) given[0] = down, given[1] = up;
    if (plan.descriptors & FUZZ_SAME) given[1] = given[0];
    if (plan.descriptors & FUZZ_CLOSED) given[plan.descriptors & 1] = 1000000;
    enum farm_status status = farm_ring_open(given[0], given[1], side, &ring, &err);
    if (status) {
        fuzz_check_refusal(status, &err);
        assert(!ring.lanes && !ring.up.header && !ring.down.header && is_open(up) && is_open(down));
        close(up);
        close(down);
        return 0;
    }
    const uint8_t refused = FUZZ_SWAPPED | FUZZ_SAME | FUZZ_CLOSED;
    assert(valid && !(plan.descriptors & refused) && memcmp(&ring.spec, &spec, sizeof spec) == 0);
    assert(ring.up.bytes >= layout.up_bytes && ring.down.bytes >= layout.down_bytes);
    check_ring(&ring, side);
    farm_ring_close(&ring);
    assert(!is_open(up) && !is_open(down));
    return 0;
}
