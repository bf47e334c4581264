// See wire.h.
#include "bridge/wire.h"

#include <isa-l/crc.h>
#include <string.h>

uint32_t farm_wire_crc(uint32_t crc, const void *data, size_t bytes) {
    // ISA-L takes and gives the register itself, without the inversions of both ends; it only reads.
    return ~crc32_iscsi((unsigned char *)(uintptr_t)data, (int)bytes, ~crc);
}

// ---- cursors: words and texts, little endian, never beyond the end ----

struct writer {
    uint8_t *at;
    size_t room, used;
    bool short_of_room;
};

static void put(struct writer *out, const void *data, size_t bytes) {
    out->short_of_room |= bytes > out->room - out->used;
    if (out->short_of_room) return;
    memcpy(out->at + out->used, data, bytes);
    out->used += bytes;
}

static void put_word(struct writer *out, uint64_t value, size_t bytes) {
    uint8_t le[8];
    for (size_t i = 0; i < bytes; i++) le[i] = (uint8_t)(value >> 8 * i);
    put(out, le, bytes);
}

static void put_text(struct writer *out, const char *text, size_t text_bytes) {
    const size_t length = strnlen(text, text_bytes - 1);
    put_word(out, length, 2);
    put(out, text, length);
}

static size_t written(const struct writer *out) {
    return out->short_of_room ? 0 : out->used;
}

struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static const uint8_t *get(struct reader *in, size_t bytes) {
    static const uint8_t nothing[FARM_WIRE_NAME_BYTES];
    const uint8_t *at = in->at;
    in->bad |= bytes > in->left;
    if (in->bad) return bytes <= sizeof nothing ? nothing : NULL;
    in->at += bytes;
    in->left -= bytes;
    return at;
}

static uint64_t get_word(struct reader *in, size_t bytes) {
    const uint8_t *le = get(in, bytes);
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)le[i] << 8 * i;
    return value;
}

static uint32_t get_u32(struct reader *in) {
    return (uint32_t)get_word(in, 4);
}

static void get_bytes(struct reader *in, void *to, size_t bytes) {
    const uint8_t *from = get(in, bytes);
    if (in->bad)
        memset(to, 0, bytes);
    else
        memcpy(to, from, bytes);
}

static void get_text(struct reader *in, char *to, size_t room) {
    const size_t length = (size_t)get_word(in, 2);
    in->bad |= length >= room;
    get_bytes(in, to, in->bad ? 0 : length);
    to[in->bad ? 0 : length] = 0;
    for (char *c = to; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f) *c = ' ';
    in->bad |= !in->bad && strlen(to) != length;
}

static enum farm_status all_read(const struct reader *in, const char *what, struct farm_error *err) {
    if (!in->bad && !in->left) return FARM_OK;
    return farm_fail(err, FARM_E_FORMAT, "malformed %s", what);
}

// ---- frames ----

static const struct {
    const char *name;
    bool message, single; // one entry with a payload; one entry without
} types[FARM_WIRE_TYPE_END] = {
    [FARM_WIRE_HELLO] = {"HELLO", .message = true},
    [FARM_WIRE_OFFER] = {"OFFER", .message = true},
    [FARM_WIRE_JOIN] = {"JOIN", .message = true},
    [FARM_WIRE_WELCOME] = {"WELCOME", .message = true},
    [FARM_WIRE_REFUSE] = {"REFUSE", .message = true},
    [FARM_WIRE_LEAVE] = {"LEAVE", .single = true},
    [FARM_WIRE_STEPS] = {.name = "STEPS"},
    [FARM_WIRE_ANSWERS] = {.name = "ANSWERS"},
    [FARM_WIRE_CREDITS] = {.name = "CREDITS"},
    [FARM_WIRE_HEARTBEAT] = {"HEARTBEAT", .single = true},
    [FARM_WIRE_BYE] = {"BYE", .message = true},
};

const char *farm_wire_type_name(enum farm_wire_type type) {
    return type > 0 && type < FARM_WIRE_TYPE_END ? types[type].name : "unknown";
}

bool farm_wire_is_message(enum farm_wire_type type) {
    return types[type].message;
}

enum { CRC_AT = FARM_WIRE_HEADER_BYTES - 4 };

static uint32_t head_crc(const uint8_t *head, size_t bytes) {
    static const uint8_t zero[4];
    uint32_t crc = farm_wire_crc(0, head, CRC_AT);
    crc = farm_wire_crc(crc, zero, sizeof zero);
    return farm_wire_crc(crc, head + FARM_WIRE_HEADER_BYTES, bytes - FARM_WIRE_HEADER_BYTES);
}

void farm_wire_put(const struct farm_wire_header *header, const struct farm_wire_entry *entries, bool sealed,
                   uint8_t *out) {
    const size_t bytes = farm_wire_head_bytes(header->entries);
    struct writer to = {.at = out, .room = bytes};
    put_word(&to, header->bytes, 4);
    put_word(&to, header->type, 2);
    put_word(&to, header->entries, 2);
    put_word(&to, header->frame, 8);
    put_word(&to, 0, 8);
    put_word(&to, 0, 8);
    for (uint32_t i = 0; i < header->entries; i++) {
        const struct farm_wire_entry *entry = &entries[i];
        put_word(&to, entry->ring, 2);
        put_word(&to, entry->lane, 2);
        put_word(&to, entry->crc, 4);
        put_word(&to, entry->n, 8);
        put_word(&to, entry->third, 8);
        put_word(&to, entry->fourth, 8);
    }
    if (sealed) return;
    struct writer crc = {.at = out + CRC_AT, .room = 4};
    put_word(&crc, head_crc(out, bytes), 4);
}

enum farm_status farm_wire_get_header(const uint8_t *in, struct farm_wire_header *header, struct farm_error *err) {
    struct reader from = {.at = in, .left = FARM_WIRE_HEADER_BYTES};
    header->bytes = get_u32(&from);
    const uint32_t type = (uint32_t)get_word(&from, 2);
    header->entries = (uint16_t)get_word(&from, 2);
    header->frame = get_word(&from, 8);
    const bool zero = !get_word(&from, 8) && !get_word(&from, 4);
    if (!type || type >= FARM_WIRE_TYPE_END)
        return farm_fail(err, FARM_E_FORMAT, "a frame of the unknown type %u", type);
    header->type = (enum farm_wire_type)type;
    const uint64_t least = (uint64_t)header->entries * FARM_WIRE_ENTRY_BYTES;
    const bool one = types[type].message || types[type].single;
    const uint64_t most = types[type].single    ? least
                          : types[type].message ? least + FARM_WIRE_MESSAGE_BYTES_MAX
                                                : least + FARM_WIRE_STEP_BYTES_MAX;
    if (!zero || !header->entries || header->entries > (one ? 1 : FARM_WIRE_ENTRIES_MAX) || header->bytes < least ||
        header->bytes > most)
        return farm_fail(err, FARM_E_FORMAT, "a malformed %s frame: %u entries, %u bytes", types[type].name,
                         header->entries, header->bytes);
    return FARM_OK;
}

enum farm_status farm_wire_get_entries(const uint8_t *in, const struct farm_wire_header *header, bool sealed,
                                       struct farm_wire_entry *entries, struct farm_error *err) {
    const size_t bytes = farm_wire_head_bytes(header->entries);
    struct reader from = {.at = in + CRC_AT, .left = bytes - CRC_AT};
    if (get_u32(&from) != (sealed ? 0 : head_crc(in, bytes)))
        return farm_fail(err, FARM_E_FORMAT, "the checksum of a %s frame's header is wrong",
                         farm_wire_type_name(header->type));
    for (uint32_t i = 0; i < header->entries; i++) {
        struct farm_wire_entry *entry = &entries[i];
        entry->ring = (uint16_t)get_word(&from, 2);
        entry->lane = (uint16_t)get_word(&from, 2);
        entry->crc = get_u32(&from);
        entry->n = get_word(&from, 8);
        entry->third = get_word(&from, 8);
        entry->fourth = get_word(&from, 8);
    }
    return FARM_OK;
}

// ---- counters ----

enum { COUNTERS_BYTES = 4 * 8 };

static void put_counters(struct writer *out, const struct farm_wire_counters *counters, size_t count) {
    for (size_t i = 0; i < count; i++) {
        put_word(out, counters[i].produced, 8);
        put_word(out, counters[i].acted, 8);
        put_word(out, counters[i].consumed, 8);
        put_word(out, counters[i].generation, 8);
    }
}

void farm_wire_get_counters(const uint8_t *counters, size_t i, struct farm_wire_counters *out) {
    struct reader in = {.at = counters + i * COUNTERS_BYTES, .left = COUNTERS_BYTES};
    out->produced = get_word(&in, 8);
    out->acted = get_word(&in, 8);
    out->consumed = get_word(&in, 8);
    out->generation = get_word(&in, 8);
}

// Rings and lanes, bounded, so that their product and what follows it are too.
static void get_shape(struct reader *in, uint32_t *rings, uint32_t *lanes, bool none_allowed) {
    *rings = get_u32(in);
    *lanes = get_u32(in);
    in->bad |= *rings > FARM_WIRE_RINGS_MAX || *lanes > FARM_LANES_MAX || (!none_allowed && (!*rings || !*lanes));
}

// ---- HELLO ----

size_t farm_wire_put_hello(const struct farm_wire_hello *hello, const struct farm_wire_counters *counters, uint8_t *out,
                           size_t room) {
    struct writer to = {.at = out, .room = room};
    put_word(&to, FARM_WIRE_MAGIC, 8);
    put_word(&to, hello->version, 4);
    put_word(&to, hello->segment_version, 4);
    put(&to, hello->session, FARM_WIRE_ID_BYTES);
    put(&to, hello->run, FARM_WIRE_ID_BYTES);
    put_word(&to, hello->machine, 8);
    put_text(&to, hello->name, sizeof hello->name);
    put_word(&to, hello->rings, 4);
    put_word(&to, hello->lanes, 4);
    put_counters(&to, counters, (size_t)hello->rings * hello->lanes);
    return written(&to);
}

enum farm_status farm_wire_get_hello(const uint8_t *in, size_t bytes, struct farm_wire_hello *hello,
                                     struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    const bool ours = get_word(&from, 8) == FARM_WIRE_MAGIC;
    if (!ours || from.bad) return farm_fail(err, FARM_E_FORMAT, "the peer is not a farm bridge");
    hello->version = get_u32(&from);
    hello->segment_version = get_u32(&from);
    if (!from.bad && (hello->version != FARM_WIRE_VERSION || hello->segment_version != FARM_SEGMENT_VERSION))
        return farm_fail(
            err, FARM_E_UNSUPPORTED,
            "the node speaks version %u with layout %u, the learner version %d with layout %u: install the "
            "same farm on both",
            hello->version, hello->segment_version, FARM_WIRE_VERSION, FARM_SEGMENT_VERSION);
    get_bytes(&from, hello->session, FARM_WIRE_ID_BYTES);
    get_bytes(&from, hello->run, FARM_WIRE_ID_BYTES);
    hello->machine = get_word(&from, 8);
    get_text(&from, hello->name, sizeof hello->name);
    get_shape(&from, &hello->rings, &hello->lanes, true);
    hello->counters = from.at;
    if (!from.bad) get(&from, (size_t)hello->rings * hello->lanes * COUNTERS_BYTES);
    return all_read(&from, "HELLO", err);
}

// ---- OFFER ----

static void put_spec(struct writer *to, const struct farm_ring_spec *spec) {
    put_word(to, spec->lanes, 4);
    put_word(to, spec->width, 4);
    put_word(to, spec->steps, 4);
    put_word(to, spec->answers, 4);
    put_word(to, spec->env.frames_per_step, 4);
    put_word(to, spec->env.obs_count, 4);
    for (uint32_t f = 0; f < spec->env.obs_count; f++) {
        const struct farm_field_spec *field = &spec->env.obs[f];
        put_text(to, field->name, sizeof field->name);
        put_word(to, field->dtype, 4);
        put_word(to, field->rank, 4);
        for (uint32_t d = 0; d < field->rank; d++) put_word(to, field->dims[d], 4);
    }
    const struct farm_action_spec *action = &spec->env.action;
    put_word(to, action->kind, 4);
    put_word(to, action->dims, 4);
    for (uint32_t d = 0; d < action->dims; d++) {
        uint32_t bounds[2];
        memcpy(&bounds[0], &action->low[d], 4);
        memcpy(&bounds[1], &action->high[d], 4);
        put_word(to, action->sizes[d], 4);
        put_word(to, bounds[0], 4);
        put_word(to, bounds[1], 4);
    }
    put_word(to, spec->answer_count, 4);
    for (uint32_t f = 0; f < spec->answer_count; f++) {
        const struct farm_answer_spec *answer = &spec->answer[f];
        put_text(to, answer->name, sizeof answer->name);
        put_word(to, answer->dtype, 4);
        put_word(to, answer->values, 4);
        put_word(to, answer->every, 4);
        put_word(to, answer->per_step, 4);
    }
}

// A count that bounds a loop; 0 where it is more than there can be.
static uint32_t get_count(struct reader *from, uint32_t most) {
    const uint32_t count = get_u32(from);
    from->bad |= count > most;
    return from->bad ? 0 : count;
}

static void get_spec(struct reader *from, struct farm_ring_spec *spec) {
    memset(spec, 0, sizeof *spec);
    spec->lanes = get_u32(from);
    spec->width = get_u32(from);
    spec->steps = get_u32(from);
    spec->answers = get_u32(from);
    spec->env.frames_per_step = get_u32(from);
    spec->env.obs_count = get_count(from, FARM_OBS_FIELDS_MAX);
    for (uint32_t f = 0; f < spec->env.obs_count; f++) {
        struct farm_field_spec *field = &spec->env.obs[f];
        get_text(from, field->name, sizeof field->name);
        field->dtype = get_u32(from);
        field->rank = get_count(from, FARM_FIELD_RANK_MAX);
        for (uint32_t d = 0; d < field->rank; d++) field->dims[d] = get_u32(from);
    }
    struct farm_action_spec *action = &spec->env.action;
    action->kind = get_u32(from);
    action->dims = get_count(from, FARM_ACTION_DIMS_MAX);
    for (uint32_t d = 0; d < action->dims; d++) {
        action->sizes[d] = get_u32(from);
        const uint32_t low = get_u32(from), high = get_u32(from);
        memcpy(&action->low[d], &low, 4);
        memcpy(&action->high[d], &high, 4);
    }
    spec->answer_count = get_count(from, FARM_ANSWER_FIELDS_MAX);
    for (uint32_t f = 0; f < spec->answer_count; f++) {
        struct farm_answer_spec *answer = &spec->answer[f];
        get_text(from, answer->name, sizeof answer->name);
        answer->dtype = get_u32(from);
        answer->values = get_u32(from);
        answer->every = get_u32(from);
        answer->per_step = get_u32(from);
    }
}

enum farm_status farm_wire_check_step(const struct farm_ring_spec *spec, struct farm_error *err) {
    uint64_t bytes = sizeof(float) + 1; // reward and flags
    for (uint32_t f = 0; f < spec->env.obs_count; f++) bytes += farm_field_bytes(&spec->env.obs[f]);
    for (uint32_t f = 0; f < spec->answer_count && spec->answers == FARM_ANSWERS_LOCAL; f++)
        bytes += (uint64_t)spec->answer[f].values * sizeof(uint64_t); // at most
    bytes *= spec->width;
    if (bytes <= FARM_WIRE_STEP_BYTES_MAX) return FARM_OK;
    return farm_fail(err, FARM_E_LIMIT,
                     "a step of a lane has %.3g MiB, of which a bridge carries %d at most: fewer --envs-per-actor, or "
                     "more --lanes",
                     (double)bytes / (1 << 20), FARM_WIRE_STEP_BYTES_MAX >> 20);
}

size_t farm_wire_put_offer(const struct farm_wire_offer *offer, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    put(&to, offer->run, FARM_WIRE_ID_BYTES);
    put_spec(&to, &offer->spec);
    put_word(&to, offer->seed, 8);
    put_word(&to, offer->window, 4);
    put_text(&to, offer->env, sizeof offer->env);
    put_text(&to, offer->bad_values, sizeof offer->bad_values);
    put_word(&to, offer->option_count, 4);
    for (uint32_t i = 0; i < offer->option_count; i++) {
        put_text(&to, offer->options[i][0], FARM_WIRE_OPTION_BYTES);
        put_text(&to, offer->options[i][1], FARM_WIRE_OPTION_BYTES);
    }
    return written(&to);
}

enum farm_status farm_wire_get_offer(const uint8_t *in, size_t bytes, struct farm_wire_offer *offer,
                                     struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    struct farm_ring_layout layout;
    get_bytes(&from, offer->run, FARM_WIRE_ID_BYTES);
    get_spec(&from, &offer->spec);
    offer->seed = get_word(&from, 8);
    offer->window = get_u32(&from);
    get_text(&from, offer->env, sizeof offer->env);
    get_text(&from, offer->bad_values, sizeof offer->bad_values);
    offer->option_count = get_count(&from, FARM_WIRE_OPTIONS_MAX);
    for (uint32_t i = 0; i < offer->option_count; i++) {
        get_text(&from, offer->options[i][0], FARM_WIRE_OPTION_BYTES);
        get_text(&from, offer->options[i][1], FARM_WIRE_OPTION_BYTES);
    }
    enum farm_status status = all_read(&from, "OFFER", err);
    if (!status && farm_ring_layout_make(&offer->spec, &layout, err))
        status = farm_fail_in(err, FARM_E_FORMAT, "malformed OFFER");
    return status ? status : farm_wire_check_step(&offer->spec, err);
}

// ---- the rest ----

size_t farm_wire_put_welcome(uint32_t rings, uint32_t lanes, uint32_t steps, const uint32_t *actors,
                             const struct farm_wire_counters *counters, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    put_word(&to, rings, 4);
    put_word(&to, lanes, 4);
    put_word(&to, steps, 4);
    for (uint32_t r = 0; r < rings; r++) put_word(&to, actors[r], 4);
    put_counters(&to, counters, (size_t)rings * lanes);
    return written(&to);
}

enum farm_status farm_wire_get_welcome(const uint8_t *in, size_t bytes, struct farm_wire_welcome *welcome,
                                       struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    get_shape(&from, &welcome->rings, &welcome->lanes, false);
    welcome->steps = get_u32(&from);
    from.bad |= welcome->steps < 2;
    welcome->rest = from.at;
    if (!from.bad) get(&from, (size_t)welcome->rings * (4 + (size_t)welcome->lanes * COUNTERS_BYTES));
    return all_read(&from, "WELCOME", err);
}

uint32_t farm_wire_welcome_actor(const struct farm_wire_welcome *welcome, uint32_t ring) {
    struct reader in = {.at = welcome->rest + (size_t)ring * 4, .left = 4};
    return get_u32(&in);
}

void farm_wire_welcome_counters(const struct farm_wire_welcome *welcome, uint32_t ring, uint32_t lane,
                                struct farm_wire_counters *out) {
    farm_wire_get_counters(welcome->rest + (size_t)welcome->rings * 4, (size_t)ring * welcome->lanes + lane, out);
}

size_t farm_wire_put_join(uint32_t rings, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    put_word(&to, rings, 4);
    return written(&to);
}

enum farm_status farm_wire_get_join(const uint8_t *in, size_t bytes, uint32_t *rings, struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    *rings = get_u32(&from);
    from.bad |= !*rings || *rings > FARM_WIRE_RINGS_MAX;
    return all_read(&from, "JOIN", err);
}

size_t farm_wire_put_reason(enum farm_wire_reason reason, const char *text, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    put_word(&to, reason, 4);
    put_text(&to, text, FARM_WIRE_TEXT_BYTES);
    return written(&to);
}

enum farm_status farm_wire_get_reason(const uint8_t *in, size_t bytes, enum farm_wire_reason *reason,
                                      char text[FARM_WIRE_TEXT_BYTES], struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    const uint32_t word = get_u32(&from);
    from.bad |= word > FARM_WIRE_REFUSE_SESSION;
    *reason = (enum farm_wire_reason)word;
    get_text(&from, text, FARM_WIRE_TEXT_BYTES);
    return all_read(&from, "reason", err);
}
