// See wire.h. A message is a table of fields with their places in the struct, for one writer and one reader.
#include "bridge/wire.h"

#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the wire format is little endian");
_Static_assert(sizeof(struct farm_wire_header) == FARM_WIRE_HEADER_BYTES, "header as on the wire");
_Static_assert(sizeof(struct farm_wire_entry) == FARM_WIRE_ENTRY_BYTES, "entry as on the wire");
enum { COUNTERS_BYTES = sizeof(struct farm_wire_counters) };
_Static_assert(COUNTERS_BYTES == 32, "counters as on the wire");

// ---- cursors: never beyond the end ----

struct writer {
    uint8_t *at;
    size_t room, used;
    bool full;
};

static void put(struct writer *out, const void *data, size_t bytes) {
    out->full |= bytes > out->room - out->used;
    if (out->full || !bytes) return;
    memcpy(out->at + out->used, data, bytes);
    out->used += bytes;
}

static void put_text(struct writer *out, const char *text, size_t text_bytes) {
    const uint16_t length = (uint16_t)strnlen(text, text_bytes - 1);
    put(out, &length, sizeof length);
    put(out, text, length);
}

static size_t bytes_written(const struct writer *out) {
    return out->full ? 0 : out->used;
}

struct reader {
    const uint8_t *at;
    size_t left;
    bool bad;
};

static const uint8_t *skip(struct reader *in, size_t bytes) {
    const uint8_t *at = in->at;
    in->bad |= bytes > in->left;
    if (in->bad) return NULL;
    in->at += bytes;
    in->left -= bytes;
    return at;
}

static void get(struct reader *in, void *to, size_t bytes) {
    const uint8_t *from = skip(in, bytes);
    if (from)
        memcpy(to, from, bytes);
    else
        memset(to, 0, bytes);
}

static void get_text(struct reader *in, char *to, size_t room, bool lines) {
    uint16_t length;
    get(in, &length, sizeof length);
    in->bad |= length >= room;
    if (in->bad) length = 0;
    get(in, to, length);
    to[in->bad ? 0 : length] = 0;
    for (uint8_t *c = (uint8_t *)to; *c; c++)
        if ((*c < ' ' && !(lines && *c == '\n')) || *c == 0x7f || (*c == 0xc2 && c[1] < 0xa0))
            *c = ' '; // UTF-8 has control characters too
    in->bad |= !in->bad && strlen(to) != length;
}

static enum farm_status check_end(const struct reader *in, const char *what, struct farm_error *err) {
    if (!in->bad && !in->left) return FARM_OK;
    return farm_fail(err, FARM_E_FORMAT, "malformed %s", what);
}

// ---- tables of fields ----

// COUNT: a u32 of at most `most`; LINES: a text that keeps its line feeds.
struct field {
    enum { END, BYTES, TEXT, LINES, COUNT, ROWS } kind;
    size_t at, bytes; // ROWS: the first row; from one row to the next
    uint32_t most;
    size_t count_at; // ROWS: the COUNT before it, and the table of a row
    const struct field *row;
};
#define AT(type, member) .at = offsetof(struct type, member), .bytes = sizeof(((struct type *)0)->member)

#define ROWS_AT(type, first, stride, count, table)                                                                     \
    {                                                                                                                  \
        ROWS, .at = offsetof(struct type, first), .bytes = stride, .count_at = offsetof(struct type, count),           \
              .row = table                                                                                             \
    }

static uint32_t count_at(const void *base, size_t at) {
    uint32_t count;
    memcpy(&count, (const uint8_t *)base + at, sizeof count);
    return count;
}

static void put_fields(struct writer *out, const struct field *field, const void *from) { // NOLINT(misc-no-recursion)
    for (; field->kind != END; field++) {
        const uint8_t *at = (const uint8_t *)from + field->at;
        if (field->kind == TEXT || field->kind == LINES)
            put_text(out, (const char *)at, field->bytes);
        else if (field->kind != ROWS)
            put(out, at, field->bytes);
        for (uint32_t i = 0; field->kind == ROWS && i < count_at(from, field->count_at); i++)
            put_fields(out, field->row, at + i * field->bytes);
    }
}

static void get_fields(struct reader *in, const struct field *field, void *to) { // NOLINT(misc-no-recursion)
    for (; field->kind != END; field++) {
        uint8_t *at = (uint8_t *)to + field->at;
        if (field->kind == TEXT || field->kind == LINES)
            get_text(in, (char *)at, field->bytes, field->kind == LINES);
        else if (field->kind != ROWS)
            get(in, at, field->bytes);
        in->bad |= field->kind == COUNT && count_at(at, 0) > field->most;
        for (uint32_t i = 0; field->kind == ROWS && !in->bad && i < count_at(to, field->count_at); i++)
            get_fields(in, field->row, at + i * field->bytes);
    }
}

// ---- frames ----

static const struct {
    const char *name;
    bool message, single; // one entry with a payload; one entry with at most `most` bytes
    uint32_t most;
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
    [FARM_WIRE_VERSION_OFFER] = {"VERSION_OFFER", .message = true},
    [FARM_WIRE_VERSION_CHUNK] = {"VERSION_CHUNK", .single = true, .most = FARM_WIRE_CHUNK_BYTES},
    [FARM_WIRE_VERSION_HAVE] = {"VERSION_HAVE", .message = true},
};

const char *farm_wire_type_name(enum farm_wire_type type) {
    return type > 0 && type < FARM_WIRE_TYPE_END && types[type].name ? types[type].name : "unknown";
}

bool farm_wire_is_message(enum farm_wire_type type) {
    return types[type].message;
}

enum { CRC_AT = offsetof(struct farm_wire_header, crc) };

static uint32_t head_crc(const uint8_t *head, size_t bytes) {
    static const uint8_t zero[4];
    uint32_t crc = farm_crc32c(0, head, CRC_AT);
    crc = farm_crc32c(crc, zero, sizeof zero);
    return farm_crc32c(crc, head + FARM_WIRE_HEADER_BYTES, bytes - FARM_WIRE_HEADER_BYTES);
}

void farm_wire_put(const struct farm_wire_header *header, const struct farm_wire_entry *entries, bool encrypted,
                   uint8_t *out) {
    const size_t bytes = farm_wire_head_bytes(header->entries);
    memcpy(out, header, FARM_WIRE_HEADER_BYTES);
    memset(out + CRC_AT, 0, sizeof header->crc);
    memcpy(out + FARM_WIRE_HEADER_BYTES, entries, bytes - FARM_WIRE_HEADER_BYTES);
    const uint32_t crc = encrypted ? 0 : head_crc(out, bytes);
    memcpy(out + CRC_AT, &crc, sizeof crc);
}

enum farm_status farm_wire_get_header(const uint8_t *in, struct farm_wire_header *header, struct farm_error *err) {
    memcpy(header, in, sizeof *header);
    if (header->type >= FARM_WIRE_TYPE_END || !types[header->type].name)
        return farm_fail(err, FARM_E_FORMAT, "unknown frame type %u%s", header->type,
                         in[0] == 0x16 && in[1] == 3 ? " (TLS: the peer has a key, and this side --insecure)" : "");
    const bool message = types[header->type].message, single = types[header->type].single;
    const uint64_t least = (uint64_t)header->entries * FARM_WIRE_ENTRY_BYTES;
    const uint64_t payload = single    ? types[header->type].most
                             : message ? FARM_WIRE_MESSAGE_BYTES_MAX
                                       : FARM_WIRE_STEP_BYTES_MAX;
    const bool zero = !header->zero[0] && !header->zero[1] && !header->zero[2];
    if (!zero || !header->entries || header->entries > (message || single ? 1 : FARM_WIRE_ENTRIES_MAX) ||
        header->bytes < least || header->bytes > least + payload)
        return farm_fail(err, FARM_E_FORMAT, "malformed %s frame: %u entries, %u bytes", types[header->type].name,
                         header->entries, header->bytes);
    return FARM_OK;
}

enum farm_status farm_wire_get_entries(const uint8_t *in, const struct farm_wire_header *header, bool encrypted,
                                       struct farm_wire_entry *entries, struct farm_error *err) {
    const size_t bytes = farm_wire_head_bytes(header->entries);
    if (header->crc != (encrypted ? 0 : head_crc(in, bytes)))
        return farm_fail(err, FARM_E_FORMAT, "wrong checksum of a %s frame's header",
                         farm_wire_type_name(header->type));
    memcpy(entries, in + FARM_WIRE_HEADER_BYTES, bytes - FARM_WIRE_HEADER_BYTES);
    return FARM_OK;
}

// ---- HELLO ----

void farm_wire_get_counters(const uint8_t *counters, size_t i, struct farm_wire_counters *out) {
    memcpy(out, counters + i * COUNTERS_BYTES, COUNTERS_BYTES);
}

static const struct field versions[] = {
    {BYTES, AT(farm_wire_hello, version)},
    {BYTES, AT(farm_wire_hello, segment_version)},
    {.kind = END},
};
static const struct field hello_fields[] = {
    {BYTES, AT(farm_wire_hello, session)},
    {BYTES, AT(farm_wire_hello, run)},
    {BYTES, AT(farm_wire_hello, machine)},
    {TEXT, AT(farm_wire_hello, name)},
    {TEXT, AT(farm_wire_hello, cache)},
    {COUNT, AT(farm_wire_hello, rings), .most = FARM_WIRE_RINGS_MAX},
    {COUNT, AT(farm_wire_hello, lanes), .most = FARM_LANES_MAX},
    {.kind = END},
};

size_t farm_wire_put_hello(const struct farm_wire_hello *hello, const struct farm_wire_counters *counters, uint8_t *out,
                           size_t room) {
    struct writer to = {.at = out, .room = room};
    const uint64_t magic = FARM_WIRE_MAGIC;
    put(&to, &magic, sizeof magic);
    put_fields(&to, versions, hello);
    put_fields(&to, hello_fields, hello);
    put(&to, counters, (size_t)hello->rings * hello->lanes * COUNTERS_BYTES);
    return bytes_written(&to);
}

enum farm_status farm_wire_get_hello(const uint8_t *in, size_t bytes, struct farm_wire_hello *hello,
                                     struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    uint64_t magic;
    get(&from, &magic, sizeof magic);
    if (magic != FARM_WIRE_MAGIC) return farm_fail(err, FARM_E_FORMAT, "the peer is not a farm bridge");
    get_fields(&from, versions, hello);
    if (!from.bad && (hello->version != FARM_WIRE_VERSION || hello->segment_version != FARM_SEGMENT_VERSION))
        return farm_fail(err, FARM_E_UNSUPPORTED,
                         "the node has version %u with layout %u, the learner version %d with layout %u: install the "
                         "same farm on both",
                         hello->version, hello->segment_version, FARM_WIRE_VERSION, FARM_SEGMENT_VERSION);
    get_fields(&from, hello_fields, hello);
    hello->counters = from.bad ? NULL : skip(&from, (size_t)hello->rings * hello->lanes * COUNTERS_BYTES);
    return check_end(&from, "HELLO", err);
}

// ---- OFFER ----

static const struct field dim_fields[] = {{BYTES, .bytes = sizeof(uint32_t)}, {.kind = END}};
static const struct field observation_fields[] = {
    {TEXT, AT(farm_field_spec, name)},
    {BYTES, AT(farm_field_spec, dtype)},
    {COUNT, AT(farm_field_spec, rank), .most = FARM_FIELD_RANK_MAX},
    ROWS_AT(farm_field_spec, dims, sizeof(uint32_t), rank, dim_fields),
    {BYTES, AT(farm_field_spec, choices)},
    {.kind = END},
};
// One row is one element of each of three arrays.
static const struct field action_fields[] = {
    {BYTES, .at = offsetof(struct farm_action_spec, sizes), .bytes = sizeof(uint32_t)},
    {BYTES, .at = offsetof(struct farm_action_spec, low), .bytes = sizeof(float)},
    {BYTES, .at = offsetof(struct farm_action_spec, high), .bytes = sizeof(float)},
    {.kind = END},
};
static const struct field answer_fields[] = {
    {TEXT, AT(farm_answer_spec, name)},      {BYTES, AT(farm_answer_spec, dtype)},
    {BYTES, AT(farm_answer_spec, values)},   {BYTES, AT(farm_answer_spec, every)},
    {BYTES, AT(farm_answer_spec, per_step)}, {.kind = END},
};
static const struct field number_fields[] = {{TEXT, .bytes = FARM_FIELD_NAME_MAX}, {.kind = END}};
static const struct field option_fields[] = {
    {TEXT, .bytes = FARM_WIRE_OPTION_BYTES},
    {TEXT, .at = FARM_WIRE_OPTION_BYTES, .bytes = FARM_WIRE_OPTION_BYTES},
    {.kind = END},
};
#define OFFER(member) AT(farm_wire_offer, member)
static const struct field offer_fields[] = {
    {BYTES, OFFER(signature)},
    {BYTES, OFFER(run)},
    {BYTES, OFFER(spec.lanes)},
    {BYTES, OFFER(spec.width)},
    {BYTES, OFFER(spec.steps)},
    {BYTES, OFFER(spec.answers)},
    {BYTES, OFFER(spec.env.frames_per_step)},
    {BYTES, OFFER(spec.env.agents)},
    {COUNT, OFFER(spec.env.obs_count), .most = FARM_OBS_FIELDS_MAX},
    ROWS_AT(farm_wire_offer, spec.env.obs, sizeof(struct farm_field_spec), spec.env.obs_count, observation_fields),
    {BYTES, OFFER(spec.env.action.kind)},
    {COUNT, OFFER(spec.env.action.dims), .most = FARM_ACTION_DIMS_MAX},
    ROWS_AT(farm_wire_offer, spec.env.action, sizeof(uint32_t), spec.env.action.dims, action_fields),
    {COUNT, OFFER(spec.answer_count), .most = FARM_ANSWER_FIELDS_MAX},
    ROWS_AT(farm_wire_offer, spec.answer, sizeof(struct farm_answer_spec), spec.answer_count, answer_fields),
    {COUNT, OFFER(spec.number_count), .most = FARM_CONTROL_NUMBERS_MAX},
    ROWS_AT(farm_wire_offer, spec.numbers, FARM_FIELD_NAME_MAX, spec.number_count, number_fields),
    {BYTES, OFFER(seed)},
    {BYTES, OFFER(window)},
    {TEXT, OFFER(env)},
    {TEXT, OFFER(bad_values)},
    {LINES, OFFER(net)},
    {COUNT, OFFER(option_count), .most = FARM_WIRE_OPTIONS_MAX},
    ROWS_AT(farm_wire_offer, options, 2 * FARM_WIRE_OPTION_BYTES, option_count, option_fields),
    {.kind = END},
};

enum farm_status farm_wire_check_step(const struct farm_ring_spec *spec, struct farm_error *err) {
    uint64_t bytes = sizeof(float) + 1; // reward and flags
    for (uint32_t f = 0; f < spec->env.obs_count; f++) bytes += farm_field_bytes(&spec->env.obs[f]);
    for (uint32_t f = 0; f < spec->answer_count && spec->answers == FARM_ANSWERS_LOCAL; f++)
        bytes += (uint64_t)spec->answer[f].values * sizeof(uint64_t); // at most
    bytes *= spec->width;
    if (bytes <= FARM_WIRE_STEP_BYTES_MAX) return FARM_OK;
    return farm_fail(
        err, FARM_E_LIMIT,
        "a lane step has %.3g MiB, and a bridge carries at most %d: use fewer --envs-per-actor or more --lanes",
        (double)bytes / (1 << 20), FARM_WIRE_STEP_BYTES_MAX >> 20);
}

size_t farm_wire_put_offer(const struct farm_wire_offer *offer, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    put_fields(&to, offer_fields, offer);
    return bytes_written(&to);
}

enum farm_status farm_wire_get_offer(const uint8_t *in, size_t bytes, struct farm_wire_offer *offer,
                                     struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    struct farm_ring_layout layout;
    memset(offer, 0, sizeof *offer);
    get_fields(&from, offer_fields, offer);
    enum farm_status status = check_end(&from, "OFFER", err);
    if (!status && farm_ring_layout_make(&offer->spec, &layout, err))
        status = farm_fail_in(err, FARM_E_FORMAT, "malformed OFFER");
    return status ? status : farm_wire_check_step(&offer->spec, err);
}

// ---- WELCOME, JOIN, REFUSE, BYE ----

static const struct field welcome_fields[] = {
    {COUNT, AT(farm_wire_welcome, rings), .most = FARM_WIRE_RINGS_MAX},
    {COUNT, AT(farm_wire_welcome, lanes), .most = FARM_LANES_MAX},
    {BYTES, AT(farm_wire_welcome, steps)},
    {TEXT, AT(farm_wire_welcome, note)},
    {.kind = END},
};

size_t farm_wire_put_welcome(uint32_t rings, uint32_t lanes, uint32_t steps, const char *note, const uint32_t *actors,
                             const struct farm_wire_counters *counters, uint8_t *out, size_t room) {
    struct farm_wire_welcome welcome = {.rings = rings, .lanes = lanes, .steps = steps};
    snprintf(welcome.note, sizeof welcome.note, "%s", note);
    struct writer to = {.at = out, .room = room};
    put_fields(&to, welcome_fields, &welcome);
    put(&to, actors, (size_t)rings * sizeof *actors);
    put(&to, counters, (size_t)rings * lanes * COUNTERS_BYTES);
    return bytes_written(&to);
}

enum farm_status farm_wire_get_welcome(const uint8_t *in, size_t bytes, struct farm_wire_welcome *welcome,
                                       struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    get_fields(&from, welcome_fields, welcome);
    from.bad |= !welcome->rings || !welcome->lanes || welcome->steps < 2;
    welcome->actors = from.bad ? NULL : skip(&from, (size_t)welcome->rings * sizeof(uint32_t));
    welcome->counters = from.bad ? NULL : skip(&from, (size_t)welcome->rings * welcome->lanes * COUNTERS_BYTES);
    return check_end(&from, "WELCOME", err);
}

size_t farm_wire_put_join(uint32_t rings, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    put(&to, &rings, sizeof rings);
    return bytes_written(&to);
}

enum farm_status farm_wire_get_join(const uint8_t *in, size_t bytes, uint32_t *rings, struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    get(&from, rings, sizeof *rings);
    from.bad |= !*rings || *rings > FARM_WIRE_RINGS_MAX;
    return check_end(&from, "JOIN", err);
}

size_t farm_wire_put_reason(enum farm_wire_reason reason, const char *text, uint8_t *out, size_t room) {
    struct writer to = {.at = out, .room = room};
    const uint32_t word = reason;
    put(&to, &word, sizeof word);
    put_text(&to, text, FARM_WIRE_TEXT_BYTES);
    return bytes_written(&to);
}

enum farm_status farm_wire_get_reason(const uint8_t *in, size_t bytes, enum farm_wire_reason *reason,
                                      char text[FARM_WIRE_TEXT_BYTES], struct farm_error *err) {
    struct reader from = {.at = in, .left = bytes};
    uint32_t word;
    get(&from, &word, sizeof word);
    from.bad |= word > FARM_WIRE_REFUSE_SESSION;
    *reason = (enum farm_wire_reason)word;
    get_text(&from, text, FARM_WIRE_TEXT_BYTES, false);
    return check_end(&from, "reason", err);
}

// ---- VERSION_OFFER, VERSION_HAVE: the structs travel as they are ----

_Static_assert(sizeof(struct farm_wire_version) == 64 + 16 + 2 * 8 + 32, "VERSION_OFFER as on the wire");
_Static_assert(sizeof(struct farm_wire_source) == 64 + 4, "behind VERSION_OFFER as on the wire");
_Static_assert(sizeof(struct farm_wire_have) == 16, "VERSION_HAVE as on the wire");
