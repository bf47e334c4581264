// The wire format: wire.c writes each message as docs/WIRE.md's tables give it, byte for byte, and reads it back; it
// refuses every truncation.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rewrite.h"

TestSuite(wire, .timeout = 30);

// ---- the document ----

struct row {
    char table[64], name[64], bytes[64];
};
static struct row rows[256];
static size_t row_count;

// The text between the first two backticks after *at; *at moves behind them.
static bool take_quoted(const char **at, char *out, size_t bytes) {
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
        if (line[0] == '#') table[0] = 0, take_quoted(&at, table, sizeof table);
        if (strncmp(line, "| `", 3) != 0 || !take_quoted(&at, row->name, sizeof row->name)) continue;
        at = strchr(at, '|'); // behind further names of the field
        cr_assert(at && sscanf(at, "| %63[^ |]", row->bytes) == 1, "%s", line);
        snprintf(row->table, sizeof row->table, "%s", table);
        cr_assert_lt(++row_count, sizeof rows / sizeof *rows);
    }
    fclose(file);
}

// The values of a message, "name=value name=value …" in the order of the document. A table's row: how often it follows.
struct writing {
    const char *next;
    uint8_t out[4096];
    size_t bytes;
};

// The value after "name=", which must come next.
static void take_value(struct writing *writing, const struct row *row, char *value, size_t room) {
    const size_t name = strlen(row->name), bytes = strcspn(writing->next, " ");
    cr_assert(strncmp(writing->next, row->name, name) == 0 && writing->next[name] == '=' && bytes - name <= room,
              "%s has %s where the test has %s", row->table, row->name, writing->next);
    snprintf(value, bytes - name, "%s", writing->next + name + 1);
    writing->next += bytes + (writing->next[bytes] == ' ');
}

static void write_table(struct writing *writing, const char *table) { // NOLINT(misc-no-recursion)
    bool any = false;
    for (size_t r = 0; r < row_count; r++) {
        const struct row *row = &rows[r];
        char text[80];
        if (strcmp(row->table, table) != 0) continue;
        any = true;
        take_value(writing, row, text, sizeof text);
        const uint64_t number = strtoull(text, NULL, 0);
        if (strcmp(row->bytes, "table") == 0) {
            for (uint64_t i = 0; i < number; i++) write_table(writing, row->name);
            continue;
        }
        const bool is_text = strcmp(row->bytes, "text") == 0;
        const uint64_t value = is_text ? strlen(text) : number;
        const size_t bytes = is_text ? 2 : strtoul(row->bytes, NULL, 10);
        for (size_t i = 0; i < bytes; i++)
            writing->out[writing->bytes++] = (uint8_t)(bytes > 8 ? (uint64_t)text[i] : value >> 8 * i);
        for (size_t i = 0; is_text && i < value; i++) writing->out[writing->bytes++] = (uint8_t)text[i];
    }
    cr_assert(any, "the document has no table `%s`", table);
}

static void check_bytes(const char *table, const char *values, const uint8_t *bytes, size_t count) {
    static struct writing writing;
    if (!row_count) read_document();
    writing = (struct writing){.next = values};
    write_table(&writing, table);
    cr_assert_eq(writing.next[0], 0, "the document's %s lacks %s", table, writing.next);
    cr_assert_eq(writing.bytes, count, "the document's %s has %zu bytes, the message %zu", table, writing.bytes, count);
    for (size_t i = 0; i < count; i++)
        cr_assert_eq(writing.out[i], bytes[i], "byte %zu of %s: %d in the document, %d in the message", i, table,
                     writing.out[i], bytes[i]);
}

// ---- one of each message ----

enum { RINGS = 2, LANES = 2 };
static const struct farm_wire_counters counters[RINGS * LANES] = {
    {1, 2, 3, 4}, {5, 6, 7, 8}, {0x1122334455667788, UINT64_MAX, 0, 9}, {10, 11, 12, 13}};
#define SESSION "session-of-a-nod"
#define RUN     "the-run-and-its-"
#define COUNTERS                                                                                                       \
    "counters=4 produced=1 acted=2 consumed=3 generation=4 produced=5 acted=6 consumed=7 generation=8 "                \
    "produced=0x1122334455667788 acted=0xffffffffffffffff consumed=0 generation=9 "                                    \
    "produced=10 acted=11 consumed=12 generation=13"

static uint8_t out[1 << 16], again[1 << 16];

// `bytes` in `out` read back; each shorter block and a longer one is refused.
static void check_both_ways(enum farm_wire_type type, size_t bytes) {
    cr_assert_gt(bytes, 0);
    cr_assert_eq(rewrite_message(type, out, bytes, again, sizeof again, NULL), bytes);
    cr_assert_arr_eq(again, out, bytes);
    for (size_t less = 0; less < bytes; less++) {
        uint8_t *exact = malloc(less + 1);
        memcpy(exact, out, less);
        cr_assert_eq(rewrite_message(type, exact, less, again, sizeof again, NULL), 0, "%zu of %zu bytes are accepted",
                     less, bytes);
        free(exact);
    }
    cr_assert_eq(rewrite_message(type, out, bytes + 1, again, sizeof again, NULL), 0);
}

Test(wire, hello_has_the_documents_bytes_and_reads_back) {
    struct farm_wire_hello hello = {.version = FARM_WIRE_VERSION,
                                    .segment_version = FARM_SEGMENT_VERSION,
                                    .machine = 77,
                                    .name = "node-1",
                                    .cache = "10.0.0.5:4100",
                                    .rings = RINGS,
                                    .lanes = LANES};
    char values[1024];
    memcpy(hello.session, SESSION, sizeof hello.session);
    memcpy(hello.run, RUN, sizeof hello.run);
    snprintf(values, sizeof values,
             "magic=%llu version=%d segment_version=%d session=" SESSION " run=" RUN
             " machine=77 name=node-1 cache=10.0.0.5:4100 rings=2 lanes=2 " COUNTERS,
             FARM_WIRE_MAGIC, FARM_WIRE_VERSION, FARM_SEGMENT_VERSION);
    const size_t bytes = farm_wire_put_hello(&hello, counters, out, sizeof out);
    check_bytes("HELLO", values, out, bytes);
    check_both_ways(FARM_WIRE_HELLO, bytes);
    cr_assert_eq(farm_wire_put_hello(&hello, counters, again, bytes - 1), 0);
}

Test(wire, offer_has_the_documents_bytes_and_reads_back) {
    static struct farm_wire_offer offer = {.signature =
                                               "signed-by-the-learner-on-this-connection-and-on-no-other-at-all!",
                                           .seed = 99,
                                           .window = 20,
                                           .env = "ale/Pong",
                                           .bad_values = "count",
                                           .net = "net=mlp\nwidth=64"};
    struct farm_ring_spec *spec = &offer.spec;
    *spec = (struct farm_ring_spec){.lanes = 3, .width = 4, .steps = 64};
    spec->env = (struct farm_env_spec){.obs_count = 2, .frames_per_step = 4, .agents = 1};
    spec->env.obs[0] = (struct farm_field_spec){.name = "screen", .dtype = FARM_U8, .rank = 2, .dims = {84, 83}};
    spec->env.obs[1] =
        (struct farm_field_spec){.name = "state", .dtype = FARM_I32, .rank = 1, .dims = {7}, .choices = 9};
    spec->env.action =
        (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -2.5f}, .high = {1, 1e30f}};
    farm_ring_spec_answers(spec);
    spec->number_count = 1;
    strcpy(spec->numbers[0], "gravity");
    memcpy(offer.run, RUN, sizeof offer.run);
    offer.option_count = 1;
    strcpy(offer.options[0][0], "sticky");
    strcpy(offer.options[0][1], "0.25");
    char values[2048];
    int used = snprintf(
        values, sizeof values,
        "signature=signed-by-the-learner-on-this-connection-and-on-no-other-at-all! run=" RUN
        " lanes=3 width=4 steps=64 answers=%d frames_per_step=4 agents=1 obs_count=2 observation=2 "
        "name=screen dtype=%d rank=2 dim=2 size=84 size=83 choices=0 name=state dtype=%d rank=1 dim=1 size=7 choices=9 "
        "action_kind=%d action_dims=2 action=2 size=0 low=0xbf800000 high=0x3f800000 size=0 "
        "low=0xc0200000 high=0x7149f2ca answer_count=4 answer=4 ",
        FARM_ANSWERS_CENTRAL, FARM_U8, FARM_I32, FARM_ACTION_CONTINUOUS);
    for (int i = 0; i < 4; i++)
        used += snprintf(values + used, sizeof values - (size_t)used, "name=%s dtype=%u values=%u every=1 per_step=%u ",
                         spec->answer[i].name, spec->answer[i].dtype, spec->answer[i].values, spec->answer[i].per_step);
    snprintf(values + used, sizeof values - (size_t)used,
             "number_count=1 number=1 name=gravity seed=99 window=20 env=ale/Pong bad_values=count "
             "net=net=mlp\nwidth=64 option_count=1 option=1 key=sticky "
             "value=0.25");
    const size_t bytes = farm_wire_put_offer(&offer, out, sizeof out);
    check_bytes("OFFER", values, out, bytes);
    check_both_ways(FARM_WIRE_OFFER, bytes);
}

Test(wire, smaller_messages_have_the_documents_bytes_and_read_back) {
    const uint32_t actors[RINGS] = {14, 15};
    size_t bytes = farm_wire_put_join(RINGS, out, sizeof out);
    check_bytes("JOIN", "rings=2", out, bytes);
    check_both_ways(FARM_WIRE_JOIN, bytes);
    bytes = farm_wire_put_welcome(RINGS, LANES, 64, "no-room", actors, counters, out, sizeof out);
    check_bytes("WELCOME", "rings=2 lanes=2 steps=64 note=no-room actor=2 number=14 number=15 " COUNTERS, out, bytes);
    check_both_ways(FARM_WIRE_WELCOME, bytes);
    bytes = farm_wire_put_reason(FARM_WIRE_REFUSE_LATER, "no-room", out, sizeof out);
    check_bytes("REFUSE", "reason=3 text=no-room", out, bytes);
    check_both_ways(FARM_WIRE_REFUSE, bytes);
    struct farm_wire_version version = {.version = 77, .bytes = 4000};
    memcpy(version.signature, "signed-by-the-learner-on-this-connection-and-on-no-other-at-all!", 64);
    memcpy(version.run, RUN, sizeof version.run);
    memcpy(version.sha256, "the-digest-of-all-its-parameters", sizeof version.sha256);
    check_bytes("VERSION_OFFER",
                "signature=signed-by-the-learner-on-this-connection-and-on-no-other-at-all! run=" RUN
                " version=77 bytes=4000 sha256=the-digest-of-all-its-parameters source=0",
                (const uint8_t *)&version, sizeof version);
    const struct farm_wire_source source = {"ten-times-six-letters-and-then-four-make-it-full:4100-4100-4100-", 3};
    check_bytes("source", "address=ten-times-six-letters-and-then-four-make-it-full:4100-4100-4100- depth=3",
                (const uint8_t *)&source, sizeof source);
    const struct farm_wire_have have = {UINT64_MAX, 5};
    check_bytes("VERSION_HAVE", "version=0xffffffffffffffff bytes=5", (const uint8_t *)&have, sizeof have);
}

Test(wire, a_text_keeps_no_control_character_of_ASCII_or_UTF_8) {
    enum farm_wire_reason reason;
    char text[FARM_WIRE_TEXT_BYTES];
    const size_t bytes = farm_wire_put_reason(FARM_WIRE_BYE_END,
                                              "a\x1b[1m\x7f\xc2\x9b"
                                              "31m\xc3\xa9",
                                              out, sizeof out);
    cr_assert_eq(farm_wire_get_reason(out, bytes, &reason, text, NULL), FARM_OK);
    cr_expect_str_eq(text, "a [1m  \x9b"
                           "31m\xc3\xa9");
}

Test(wire, header_and_entry_have_the_documents_bytes_and_read_back) {
    const struct farm_wire_header header = {.bytes = 70, .type = FARM_WIRE_ANSWERS, .entries = 1, .frame = 1ull << 40};
    const struct farm_wire_entry entry = {3, 4, 5, {6}, {7}, {8}};
    for (int encrypted = 0; encrypted < 2; encrypted++) {
        struct farm_wire_header read;
        struct farm_wire_entry entries[FARM_WIRE_ENTRIES_MAX];
        char values[256];
        farm_wire_put(&header, &entry, encrypted, out);
        uint32_t crc = 0;
        memcpy(&crc, out + 28, 4);
        cr_assert_eq(encrypted, crc == 0);
        snprintf(values, sizeof values, "bytes=70 type=%d zero=0 entries=1 frame=0x10000000000 zero=0 zero=0 crc=%u",
                 FARM_WIRE_ANSWERS, crc);
        check_bytes("header", values, out, FARM_WIRE_HEADER_BYTES);
        check_bytes("entry", "ring=3 lane=4 crc=5 n=6 generation=7 heartbeat=8", out + FARM_WIRE_HEADER_BYTES,
                    FARM_WIRE_ENTRY_BYTES);
        cr_assert_eq(farm_wire_get_header(out, &read, NULL), FARM_OK);
        cr_assert_eq(farm_wire_get_entries(out, &read, encrypted, entries, NULL), FARM_OK);
        cr_assert(read.bytes == header.bytes && read.type == header.type && read.frame == header.frame);
        cr_assert_arr_eq(&entries[0], &entry, sizeof entry);
        for (size_t bit = 0; !encrypted && bit < 8 * farm_wire_head_bytes(1); bit++) { // the CRC protects each bit
            out[bit / 8] ^= (uint8_t)(1u << bit % 8);
            const bool good = !farm_wire_get_header(out, &read, NULL) && read.entries == 1 &&
                              !farm_wire_get_entries(out, &read, encrypted, entries, NULL);
            cr_assert_not(good, "bit %zu", bit);
            out[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

#define CONSTANTS(...)                                                                                                 \
    static const uint64_t values[] = {__VA_ARGS__};                                                                    \
    static char text[] = #__VA_ARGS__
Test(wire, every_constant_of_the_document_is_right_and_no_row_is_left_over) {
    CONSTANTS(FARM_WIRE_HELLO, FARM_WIRE_OFFER, FARM_WIRE_JOIN, FARM_WIRE_WELCOME, FARM_WIRE_REFUSE, FARM_WIRE_LEAVE,
              FARM_WIRE_STEPS, FARM_WIRE_ANSWERS, FARM_WIRE_CREDITS, FARM_WIRE_HEARTBEAT, FARM_WIRE_BYE,
              FARM_WIRE_VERSION, FARM_WIRE_ENTRIES_MAX, FARM_WIRE_FRAME_BYTES, FARM_WIRE_STEP_BYTES_MAX,
              FARM_WIRE_RINGS_MAX, FARM_WIRE_OPTIONS_MAX, FARM_WIRE_MESSAGE_BYTES_MAX, FARM_WIRE_NAME_BYTES,
              FARM_WIRE_OPTION_BYTES, FARM_WIRE_GENERATION_MAX, FARM_WIRE_TEXT_BYTES, FARM_WIRE_BYE_END,
              FARM_WIRE_REFUSE_FOR_GOOD, FARM_WIRE_REFUSE_AGAIN, FARM_WIRE_REFUSE_LATER, FARM_WIRE_REFUSE_SESSION,
              FARM_WIRE_SESSION_LANES_MAX, FARM_WIRE_VERSION_OFFER, FARM_WIRE_VERSION_CHUNK, FARM_WIRE_VERSION_HAVE,
              FARM_WIRE_NET_BYTES, FARM_WIRE_CHUNK_BYTES);
    enum { COUNT = sizeof values / sizeof *values };
    const char *names[COUNT];
    for (size_t i = 0; i < COUNT; i++) names[i] = strtok(i ? NULL : text, ", ");
    size_t found = 0;
    read_document();
    for (size_t r = 0; r < row_count; r++) {
        if (rows[r].table[0]) { // a message's: the tests above go through these
            cr_assert_not_null(
                strstr(" header entry HELLO counters OFFER observation dim action answer number option JOIN "
                       "WELCOME actor REFUSE VERSION_OFFER source VERSION_HAVE ",
                       rows[r].table),
                "%s", rows[r].table);
            continue;
        }
        uint64_t value = 0;
        for (const char *c = rows[r].bytes; *c; c++)
            if (*c != ',') value = value * 10 + (uint64_t)(*c - '0');
        size_t i = 0;
        while (i < COUNT && strcmp(names[i], rows[r].name) != 0) i++;
        cr_assert_lt(i, COUNT, "the document has `%s`, which the test lacks", rows[r].name);
        cr_assert_eq(value, values[i], "`%s`", rows[r].name);
        found++;
    }
    cr_assert_eq(found, COUNT);
    cr_assert_eq(FARM_WIRE_TYPE_END, FARM_WIRE_VERSION_HAVE + 1);
}

// So many lanes fit HELLO and WELCOME, whatever the rings' shape.
Test(wire, the_largest_session_fits_a_message) {
    static uint8_t large[FARM_WIRE_MESSAGE_BYTES_MAX];
    static const uint32_t actors[FARM_WIRE_RINGS_MAX];
    struct farm_wire_counters *many = calloc(FARM_WIRE_SESSION_LANES_MAX, sizeof *many);
    const struct farm_wire_hello hello = {.rings = 500, .lanes = FARM_LANES_MAX, .version = FARM_WIRE_VERSION};
    cr_assert_eq(500 * FARM_LANES_MAX, FARM_WIRE_SESSION_LANES_MAX);
    cr_assert_gt(farm_wire_put_hello(&hello, many, large, sizeof large), 0);
    cr_assert_gt(farm_wire_put_welcome(FARM_WIRE_RINGS_MAX, 31, 64, "", actors, many, large, sizeof large), 0);
    free(many);
}
