// The wire format: docs/WIRE.md's tables write each message, byte for byte what wire.c writes; every message is read
// back; every truncation is refused.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bridge/wire.h"

TestSuite(wire, .timeout = 30);

// ---- the document ----

struct row {
    char table[64], name[64], bytes[64];
};
static struct row rows[256];
static size_t row_count;

// What stands between the first two backticks from *at on; *at behind them.
static bool quoted(const char **at, char *out, size_t bytes) {
    const char *from = strchr(*at, '`'), *to = from ? strchr(from + 1, '`') : NULL;
    if (!to || (size_t)(to - from) > bytes) return false;
    snprintf(out, (size_t)(to - from), "%s", from + 1);
    *at = to + 1;
    return true;
}

static void read_document(void) {
    const char *source = getenv("FARM_SOURCE");
    char path[4096], line[1024], table[64] = "";
    snprintf(path, sizeof path, "%s/docs/WIRE.md", source ? source : ".");
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    for (row_count = 0; fgets(line, sizeof line, file);) {
        const char *at = line;
        struct row *row = &rows[row_count];
        if (line[0] == '#') table[0] = 0, quoted(&at, table, sizeof table);
        if (strncmp(line, "| `", 3) != 0 || !quoted(&at, row->name, sizeof row->name)) continue;
        cr_assert_eq(sscanf(at, " | %63[^ |]", row->bytes), 1, "%s", line);
        snprintf(row->table, sizeof row->table, "%s", table);
        cr_assert_lt(++row_count, sizeof rows / sizeof *rows);
    }
    fclose(file);
}

// A value of a message, in the order of the document. A table's row: `value` is how often it stands there.
struct leaf {
    const char *name;
    uint64_t value;
    const char *text; // or the bytes of an id
};

struct writing {
    const struct leaf *next;
    uint8_t out[4096];
    size_t bytes;
};

static void write_table(struct writing *writing, const char *table) {
    bool any = false;
    for (size_t r = 0; r < row_count; r++) {
        const struct row *row = &rows[r];
        if (strcmp(row->table, table) != 0) continue;
        const struct leaf *leaf = writing->next++;
        any = true;
        cr_assert(leaf->name && strcmp(leaf->name, row->name) == 0, "%s has %s where the test has %s", table, row->name,
                  leaf->name ? leaf->name : "its end");
        if (strcmp(row->bytes, "table") == 0) {
            for (uint64_t i = 0; i < leaf->value; i++) write_table(writing, row->name);
            continue;
        }
        const bool text = strcmp(row->bytes, "text") == 0;
        const uint64_t value = text ? strlen(leaf->text) : leaf->value;
        const size_t bytes = text ? 2 : strtoul(row->bytes, NULL, 10);
        for (size_t i = 0; i < bytes; i++)
            writing->out[writing->bytes++] = (uint8_t)(bytes > 8 ? (uint64_t)leaf->text[i] : value >> 8 * i);
        for (size_t i = 0; text && i < value; i++) writing->out[writing->bytes++] = (uint8_t)leaf->text[i];
    }
    cr_assert(any, "the document has no table `%s`", table);
}

static void holds(const char *table, const struct leaf *leaves, const uint8_t *bytes, size_t count) {
    static struct writing writing;
    if (!row_count) read_document();
    writing = (struct writing){.next = leaves};
    write_table(&writing, table);
    cr_assert_null(writing.next->name, "the document's %s lacks %s", table, writing.next->name);
    cr_assert_eq(writing.bytes, count, "the document's %s has %zu bytes, the message %zu", table, writing.bytes, count);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(writing.out[i], bytes[i], "byte %zu of %s: the document says %d, it is %d", i, table,
                     writing.out[i], bytes[i]);
}

// ---- one of each message ----

static const char ID1[17] = "session-of-a-nod", ID2[17] = "the-run-and-its-";
enum { RINGS = 2, LANES = 2 };
static const struct farm_wire_counters counters[RINGS * LANES] = {
    {1, 2, 3, 4}, {5, 6, 7, 8}, {0x1122334455667788, UINT64_MAX, 0, 9}, {10, 11, 12, 13}};
#define COUNTERS                                                                                                       \
    {"counters", 4, NULL}, {"produced", 1, NULL}, {"acted", 2, NULL}, {"consumed", 3, NULL}, {"generation", 4, NULL},  \
        {"produced", 5, NULL}, {"acted", 6, NULL}, {"consumed", 7, NULL}, {"generation", 8, NULL},                     \
        {"produced", 0x1122334455667788, NULL}, {"acted", UINT64_MAX, NULL}, {"consumed", 0, NULL},                    \
        {"generation", 9, NULL}, {"produced", 10, NULL}, {"acted", 11, NULL}, {"consumed", 12, NULL}, {                \
        "generation", 13, NULL                                                                                         \
    }

static uint8_t out[1 << 16], again[1 << 16];

// Reads what was written, writes that: the same bytes.
static size_t again_hello(const uint8_t *in, size_t bytes) {
    struct farm_wire_hello hello;
    struct farm_wire_counters read[RINGS * LANES];
    if (farm_wire_get_hello(in, bytes, &hello, NULL)) return 0;
    for (size_t i = 0; i < RINGS * LANES; i++) farm_wire_get_counters(hello.counters, i, &read[i]);
    return farm_wire_put_hello(&hello, read, again, sizeof again);
}
static size_t again_offer(const uint8_t *in, size_t bytes) {
    static struct farm_wire_offer offer;
    if (farm_wire_get_offer(in, bytes, &offer, NULL)) return 0;
    return farm_wire_put_offer(&offer, again, sizeof again);
}
static size_t again_join(const uint8_t *in, size_t bytes) {
    uint32_t rings;
    return farm_wire_get_join(in, bytes, &rings, NULL) ? 0 : farm_wire_put_join(rings, again, sizeof again);
}
static size_t again_welcome(const uint8_t *in, size_t bytes) {
    struct farm_wire_welcome welcome;
    struct farm_wire_counters read[RINGS * LANES];
    uint32_t actors[RINGS];
    if (farm_wire_get_welcome(in, bytes, &welcome, NULL)) return 0;
    for (uint32_t r = 0; r < RINGS; r++) actors[r] = farm_wire_welcome_actor(&welcome, r);
    for (uint32_t i = 0; i < RINGS * LANES; i++) farm_wire_welcome_counters(&welcome, i / LANES, i % LANES, &read[i]);
    return farm_wire_put_welcome(welcome.rings, welcome.lanes, welcome.steps, actors, read, again, sizeof again);
}
static size_t again_reason(const uint8_t *in, size_t bytes) {
    enum farm_wire_reason reason;
    char text[FARM_WIRE_TEXT_BYTES];
    if (farm_wire_get_reason(in, bytes, &reason, text, NULL)) return 0;
    return farm_wire_put_reason(reason, text, again, sizeof again);
}

// `bytes` lie in `out`. Each shorter block, and a longer one, is refused; nothing is written where there is no room.
static void there_and_back(size_t bytes, size_t (*repeat)(const uint8_t *, size_t)) {
    cr_assert_gt(bytes, 0);
    cr_assert_eq(repeat(out, bytes), bytes);
    cr_assert_arr_eq(again, out, bytes);
    for (size_t less = 0; less < bytes; less++) {
        uint8_t *exact = malloc(less + 1);
        memcpy(exact, out, less);
        cr_assert_eq(repeat(exact, less), 0, "%zu of %zu bytes were taken", less, bytes);
        free(exact);
    }
    cr_assert_eq(repeat(out, bytes + 1), 0);
}

Test(wire, hello_is_as_the_document_says_and_comes_back) {
    struct farm_wire_hello hello = {.version = FARM_WIRE_VERSION,
                                    .segment_version = FARM_SEGMENT_VERSION,
                                    .machine = 77,
                                    .name = "node-1",
                                    .rings = RINGS,
                                    .lanes = LANES};
    memcpy(hello.session, ID1, sizeof hello.session);
    memcpy(hello.run, ID2, sizeof hello.run);
    const size_t bytes = farm_wire_put_hello(&hello, counters, out, sizeof out);
    const struct leaf leaves[] = {{"magic", FARM_WIRE_MAGIC, NULL},
                                  {"version", 1, NULL},
                                  {"segment_version", FARM_SEGMENT_VERSION, NULL},
                                  {"session", 0, ID1},
                                  {"run", 0, ID2},
                                  {"machine", 77, NULL},
                                  {"name", 0, "node-1"},
                                  {"rings", RINGS, NULL},
                                  {"lanes", LANES, NULL},
                                  COUNTERS,
                                  {0}};
    holds("HELLO", leaves, out, bytes);
    there_and_back(bytes, again_hello);
    cr_assert_eq(farm_wire_put_hello(&hello, counters, again, bytes - 1), 0);
}

static uint64_t bits(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

Test(wire, offer_is_as_the_document_says_and_comes_back) {
    static struct farm_wire_offer offer = {.seed = 99, .window = 20, .env = "ale/Pong", .bad_values = "count"};
    struct farm_ring_spec *spec = &offer.spec;
    *spec = (struct farm_ring_spec){.lanes = 3, .width = 4, .steps = 64};
    spec->env = (struct farm_env_spec){.obs_count = 2, .frames_per_step = 4};
    spec->env.obs[0] = (struct farm_field_spec){.name = "screen", .dtype = FARM_U8, .rank = 2, .dims = {84, 83}};
    spec->env.obs[1] = (struct farm_field_spec){.name = "state", .dtype = FARM_F32, .rank = 1, .dims = {7}};
    spec->env.action =
        (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -2.5f}, .high = {1, 1e30f}};
    farm_ring_spec_answers(spec);
    memcpy(offer.run, ID2, sizeof offer.run);
    offer.option_count = 1;
    strcpy(offer.options[0][0], "sticky");
    strcpy(offer.options[0][1], "0.25");
    const size_t bytes = farm_wire_put_offer(&offer, out, sizeof out);
#define ANSWER(i)                                                                                                      \
    {"name", 0, spec->answer[i].name}, {"dtype", spec->answer[i].dtype, NULL},                                         \
        {"values", spec->answer[i].values, NULL}, {"every", 1, NULL}, {                                                \
        "per_step", spec->answer[i].per_step, NULL                                                                     \
    }
    const struct leaf leaves[] = {{"run", 0, ID2},
                                  {"lanes", 3, NULL},
                                  {"width", 4, NULL},
                                  {"steps", 64, NULL},
                                  {"answers", FARM_ANSWERS_CENTRAL, NULL},
                                  {"frames_per_step", 4, NULL},
                                  {"obs_count", 2, NULL},
                                  {"observation", 2, NULL},
                                  {"name", 0, "screen"},
                                  {"dtype", FARM_U8, NULL},
                                  {"rank", 2, NULL},
                                  {"dim", 2, NULL},
                                  {"size", 84, NULL},
                                  {"size", 83, NULL},
                                  {"name", 0, "state"},
                                  {"dtype", FARM_F32, NULL},
                                  {"rank", 1, NULL},
                                  {"dim", 1, NULL},
                                  {"size", 7, NULL},
                                  {"action_kind", FARM_ACTION_CONTINUOUS, NULL},
                                  {"action_dims", 2, NULL},
                                  {"action", 2, NULL},
                                  {"size", 0, NULL},
                                  {"low", bits(-1), NULL},
                                  {"high", bits(1), NULL},
                                  {"size", 0, NULL},
                                  {"low", bits(-2.5f), NULL},
                                  {"high", bits(1e30f), NULL},
                                  {"answer_count", 4, NULL},
                                  {"answer", 4, NULL},
                                  ANSWER(0),
                                  ANSWER(1),
                                  ANSWER(2),
                                  ANSWER(3),
                                  {"seed", 99, NULL},
                                  {"window", 20, NULL},
                                  {"env", 0, "ale/Pong"},
                                  {"bad_values", 0, "count"},
                                  {"option_count", 1, NULL},
                                  {"option", 1, NULL},
                                  {"key", 0, "sticky"},
                                  {"value", 0, "0.25"},
                                  {0}};
    holds("OFFER", leaves, out, bytes);
    there_and_back(bytes, again_offer);
}

Test(wire, join_welcome_and_reasons_are_as_the_document_says_and_come_back) {
    const uint32_t actors[RINGS] = {14, 15};
    size_t bytes = farm_wire_put_join(RINGS, out, sizeof out);
    holds("JOIN", (const struct leaf[]){{"rings", RINGS, NULL}, {0}}, out, bytes);
    there_and_back(bytes, again_join);
    bytes = farm_wire_put_welcome(RINGS, LANES, 64, actors, counters, out, sizeof out);
    const struct leaf leaves[] = {{"rings", RINGS, NULL},
                                  {"lanes", LANES, NULL},
                                  {"steps", 64, NULL},
                                  {"actor", 2, NULL},
                                  {"number", 14, NULL},
                                  {"number", 15, NULL},
                                  COUNTERS,
                                  {0}};
    holds("WELCOME", leaves, out, bytes);
    there_and_back(bytes, again_welcome);
    bytes = farm_wire_put_reason(FARM_WIRE_REFUSE_LATER, "no room", out, sizeof out);
    holds("REFUSE", (const struct leaf[]){{"reason", 3, NULL}, {"text", 0, "no room"}, {0}}, out, bytes);
    there_and_back(bytes, again_reason);
}

Test(wire, header_and_entry_are_as_the_document_says_and_come_back) {
    const struct farm_wire_header header = {.bytes = 70, .type = FARM_WIRE_ANSWERS, .entries = 1, .frame = 1ull << 40};
    const struct farm_wire_entry entry = {3, 4, 5, 6, 7, 8};
    for (int sealed = 0; sealed < 2; sealed++) {
        struct farm_wire_header read;
        struct farm_wire_entry entries[FARM_WIRE_ENTRIES_MAX];
        farm_wire_put(&header, &entry, sealed, out);
        uint32_t crc = 0;
        memcpy(&crc, out + 28, 4);
        cr_assert_eq(sealed, crc == 0);
        const struct leaf head[] = {{"bytes", 70, NULL},
                                    {"type", FARM_WIRE_ANSWERS, NULL},
                                    {"zero", 0, NULL},
                                    {"entries", 1, NULL},
                                    {"frame", 1ull << 40, NULL},
                                    {"zero", 0, NULL},
                                    {"zero", 0, NULL},
                                    {"crc", crc, NULL},
                                    {0}};
        holds("header", head, out, FARM_WIRE_HEADER_BYTES);
        const struct leaf one[] = {{"ring", 3, NULL},
                                   {"lane", 4, NULL},
                                   {"crc", 5, NULL},
                                   {"n", 6, NULL},
                                   {"third", 7, NULL},
                                   {"fourth", 8, NULL},
                                   {0}};
        holds("entry", one, out + FARM_WIRE_HEADER_BYTES, FARM_WIRE_ENTRY_BYTES);
        cr_assert_eq(farm_wire_get_header(out, &read, NULL), FARM_OK);
        cr_assert_eq(farm_wire_get_entries(out, &read, sealed, entries, NULL), FARM_OK);
        cr_assert(read.bytes == header.bytes && read.type == header.type && read.frame == header.frame);
        cr_assert_arr_eq(&entries[0], &entry, sizeof entry);
        for (size_t bit = 0; !sealed && bit < 8 * farm_wire_head_bytes(1); bit++) { // each bit is vouched for
            out[bit / 8] ^= (uint8_t)(1u << bit % 8);
            const bool good = !farm_wire_get_header(out, &read, NULL) && read.entries == 1 &&
                              !farm_wire_get_entries(out, &read, sealed, entries, NULL);
            cr_assert_not(good, "bit %zu", bit);
            out[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

#define CONSTANT(name)                                                                                                 \
    { #name, name }
Test(wire, every_constant_of_the_document_is_right_and_no_row_is_left_over) {
    static const struct {
        const char *name;
        uint64_t value;
    } constants[] = {
        CONSTANT(FARM_WIRE_HELLO),
        CONSTANT(FARM_WIRE_OFFER),
        CONSTANT(FARM_WIRE_JOIN),
        CONSTANT(FARM_WIRE_WELCOME),
        CONSTANT(FARM_WIRE_REFUSE),
        CONSTANT(FARM_WIRE_LEAVE),
        CONSTANT(FARM_WIRE_STEPS),
        CONSTANT(FARM_WIRE_ANSWERS),
        CONSTANT(FARM_WIRE_CREDITS),
        CONSTANT(FARM_WIRE_HEARTBEAT),
        CONSTANT(FARM_WIRE_BYE),
        CONSTANT(FARM_WIRE_VERSION),
        CONSTANT(FARM_WIRE_ENTRIES_MAX),
        CONSTANT(FARM_WIRE_FRAME_BYTES),
        CONSTANT(FARM_WIRE_STEP_BYTES_MAX),
        CONSTANT(FARM_WIRE_RINGS_MAX),
        CONSTANT(FARM_WIRE_OPTIONS_MAX),
        CONSTANT(FARM_WIRE_MESSAGE_BYTES_MAX),
        CONSTANT(FARM_WIRE_NAME_BYTES),
        CONSTANT(FARM_WIRE_OPTION_BYTES),
        CONSTANT(FARM_WIRE_TEXT_BYTES),
        CONSTANT(FARM_WIRE_BYE_END),
        CONSTANT(FARM_WIRE_REFUSE_FOR_GOOD),
        CONSTANT(FARM_WIRE_REFUSE_AGAIN),
        CONSTANT(FARM_WIRE_REFUSE_LATER),
        CONSTANT(FARM_WIRE_REFUSE_SESSION),
        CONSTANT(FARM_WIRE_SESSION_LANES_MAX),
    };
    size_t found = 0;
    read_document();
    for (size_t r = 0; r < row_count; r++) {
        if (rows[r].table[0]) { // a message's: the tests above go through these
            cr_assert_not_null(strstr(" header entry HELLO counters OFFER observation dim action answer option JOIN "
                                      "WELCOME actor REFUSE ",
                                      rows[r].table),
                               "%s", rows[r].table);
            continue;
        }
        uint64_t value = 0;
        for (const char *c = rows[r].bytes; *c; c++)
            if (*c != ',') value = value * 10 + (uint64_t)(*c - '0');
        size_t i = 0;
        while (i < sizeof constants / sizeof *constants && strcmp(constants[i].name, rows[r].name) != 0) i++;
        cr_assert_lt(i, sizeof constants / sizeof *constants, "the document has `%s`, which the test lacks",
                     rows[r].name);
        cr_assert_eq(value, constants[i].value, "`%s`", rows[r].name);
        found++;
    }
    cr_assert_eq(found, sizeof constants / sizeof *constants);
    cr_assert_eq(FARM_WIRE_TYPE_END, FARM_WIRE_BYE + 1);
}

// So many lanes fit HELLO and WELCOME, whatever the rings' shape.
Test(wire, the_largest_session_fits_a_message) {
    static uint8_t large[FARM_WIRE_MESSAGE_BYTES_MAX];
    static const uint32_t actors[FARM_WIRE_RINGS_MAX];
    struct farm_wire_counters *many = calloc(FARM_WIRE_SESSION_LANES_MAX, sizeof *many);
    const struct farm_wire_hello hello = {.rings = 500, .lanes = FARM_LANES_MAX, .version = FARM_WIRE_VERSION};
    cr_assert_eq(500 * FARM_LANES_MAX, FARM_WIRE_SESSION_LANES_MAX);
    cr_assert_gt(farm_wire_put_hello(&hello, many, large, sizeof large), 0);
    cr_assert_gt(farm_wire_put_welcome(FARM_WIRE_RINGS_MAX, 31, 64, actors, many, large, sizeof large), 0);
    free(many);
}
