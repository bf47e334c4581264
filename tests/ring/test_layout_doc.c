// Compares docs/shm-layout.md with the structs and the layout function: every row must be right, and no row may be
// missing or unknown.
#include <criterion/criterion.h>
#include <farm/step.h>
#include <stdlib.h>

#include "../support/rings.h"
#include "board/board.h"

TestSuite(ring, .timeout = 30);

// A row of a table of the document, under the heading "### `table`". A constant has a value and no bytes.
struct row {
    const char *table, *name;
    size_t value, bytes; // offset and bytes of a field
    bool seen;
};

#define FIELD(type, field)                                                                                             \
    { #type, #field, offsetof(type, field), sizeof((type *)0)->field, false }
#define CONSTANT(table, value)                                                                                         \
    { table, #value, (size_t)(value), 0, false }

// EACH(macro, first, a, b, ...): macro(first, a), macro(first, b), ...
#define EACH_1(macro, first, a)                                         macro(first, a)
#define EACH_2(macro, first, a, ...)                                    macro(first, a), EACH_1(macro, first, __VA_ARGS__)
#define EACH_3(macro, first, a, ...)                                    macro(first, a), EACH_2(macro, first, __VA_ARGS__)
#define EACH_4(macro, first, a, ...)                                    macro(first, a), EACH_3(macro, first, __VA_ARGS__)
#define EACH_5(macro, first, a, ...)                                    macro(first, a), EACH_4(macro, first, __VA_ARGS__)
#define EACH_6(macro, first, a, ...)                                    macro(first, a), EACH_5(macro, first, __VA_ARGS__)
#define EACH_7(macro, first, a, ...)                                    macro(first, a), EACH_6(macro, first, __VA_ARGS__)
#define EACH_8(macro, first, a, ...)                                    macro(first, a), EACH_7(macro, first, __VA_ARGS__)
#define EACH_9(macro, first, a, ...)                                    macro(first, a), EACH_8(macro, first, __VA_ARGS__)
#define EACH_10(macro, first, a, ...)                                   macro(first, a), EACH_9(macro, first, __VA_ARGS__)
#define EACH_11(macro, first, a, ...)                                   macro(first, a), EACH_10(macro, first, __VA_ARGS__)
#define PICK(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, chosen, ...) chosen
#define EACH(macro, first, ...)                                                                                        \
    PICK(__VA_ARGS__, EACH_11, EACH_10, EACH_9, EACH_8, EACH_7, EACH_6, EACH_5, EACH_4, EACH_3, EACH_2, EACH_1, )      \
    (macro, first, __VA_ARGS__)
// A struct's fields, and a row without a name that has its size.
#define FIELDS(type, ...)                                                                                              \
    EACH(FIELD, type, __VA_ARGS__), {                                                                                  \
#type, "", sizeof(type), 0, true                                                                               \
    }
#define CONSTANTS(table, ...) EACH(CONSTANT, table, __VA_ARGS__)

static struct row rows[] = {
    FIELDS(struct farm_segment_header, magic, version, kind, bytes, layout_hash, owner, node, pages, placement,
           reserved, user),
    FIELDS(struct farm_ring_spec, lanes, width, steps, answers, env, answer_count, answer, leaf_every, autoreset,
           number_count, numbers),
    FIELDS(struct farm_answer_spec, name, dtype, values, every, per_step),
    FIELDS(struct farm_env_spec, obs_count, obs, action, frames_per_step, agents),
    FIELDS(struct farm_field_spec, name, dtype, rank, dims, choices),
    FIELDS(struct farm_action_spec, kind, dims, sizes, low, high),
    FIELDS(struct farm_up_control, doorbell, pad0, asleep, pad1, heartbeat, abandoned, pad2, using, pad3),
    FIELDS(struct farm_up_lane, produced, pad0),
    FIELDS(struct farm_down_control, wake, pad0, asleep, pad1, stop, pad2),
    FIELDS(struct farm_down_lane, acted, pad0, granted, pad1, consumed, pad2, generation, pad3),
    FIELDS(struct farm_board_request, count, packed_max, buffers, node),
    FIELDS(struct farm_board_head, newest, pad0, skipped, described, pad1, description),
    FIELDS(struct farm_board_description, packed_bytes, packed_layout, text),
    CONSTANTS("enum farm_segment_kind", FARM_SEGMENT_UP, FARM_SEGMENT_DOWN, FARM_SEGMENT_STATS, FARM_SEGMENT_BOARD),
    CONSTANTS("enum farm_pages", FARM_PAGES_SMALL, FARM_PAGES_TRANSPARENT, FARM_PAGES_HUGE),
    CONSTANTS("enum farm_placement", FARM_PLACEMENT_NONE, FARM_PLACEMENT_BOUND, FARM_PLACEMENT_FIRST_TOUCH,
              FARM_PLACEMENT_MISPLACED, FARM_PLACEMENT_UNVERIFIED),
    CONSTANTS("enum farm_dtype", FARM_U8, FARM_I32, FARM_F32, FARM_U64),
    CONSTANTS("enum farm_answers", FARM_ANSWERS_CENTRAL, FARM_ANSWERS_LOCAL),
    CONSTANTS("enum farm_autoreset", FARM_AUTORESET_NEXT_STEP, FARM_AUTORESET_SAME_STEP),
    CONSTANTS("enum farm_action_kind", FARM_ACTION_DISCRETE, FARM_ACTION_MULTI_DISCRETE, FARM_ACTION_CONTINUOUS),
    // Macros, which EACH would expand.
    CONSTANT("step flags", FARM_STEP_FIRST),
    CONSTANT("step flags", FARM_STEP_LAST),
    CONSTANT("step flags", FARM_STEP_TERMINATED),
    CONSTANT("step flags", FARM_STEP_TRUNCATED),
    CONSTANT("step flags", FARM_STEP_GAME_END),
    CONSTANT("bounds", FARM_SEGMENT_VERSION),
    CONSTANTS("bounds", FARM_LANES_MAX, FARM_WIDTH_MAX, FARM_OBS_FIELDS_MAX, FARM_ANSWER_FIELDS_MAX,
              FARM_FIELD_NAME_MAX, FARM_FIELD_RANK_MAX, FARM_ACTION_DIMS_MAX, FARM_AGENTS_MAX),
};
enum { ROWS = sizeof rows / sizeof *rows, ROWS_MAX = ROWS + 32 };

// The document's example: 2 lanes of 4 environments, 64 steps, a grey image and 7 floats, 6 actions.
static struct farm_ring_spec example(void) {
    struct farm_ring_spec spec = {.lanes = 2, .width = 4, .steps = 64};
    spec.env.obs_count = 2;
    spec.env.frames_per_step = 4;
    spec.env.agents = 1;
    spec.env.obs[0] = (struct farm_field_spec){.name = "screen", .dtype = FARM_U8, .rank = 2, .dims = {84, 84}};
    spec.env.obs[1] = (struct farm_field_spec){.name = "state", .dtype = FARM_F32, .rank = 1, .dims = {7}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {6}};
    farm_ring_spec_answers(&spec);
    return spec;
}

// The example's areas: offsets from the layout function, bytes from the definition in the document's text.
static size_t example_rows(struct row *out) {
    struct farm_ring_spec spec = example();
    struct farm_ring_layout l;
    struct farm_error err = {0};
    cr_assert_eq(farm_ring_layout_make(&spec, &l, &err), FARM_OK, "%s", err.message);
    const size_t slots = 64 * 4, up1 = l.up_arrays + l.up_stride, down1 = l.down_arrays + l.down_stride;
    const struct row example_areas[] = {
        {"example up", "header", 0, 4096, false},
        {"example up", "farm_up_control", l.up_control, sizeof(struct farm_up_control), false},
        {"example up", "farm_up_lane[2]", l.up_lanes, 2 * sizeof(struct farm_up_lane), false},
        {"example up", "lane 0 screen", l.up_arrays + l.obs[0], slots * 84 * 84, false},
        {"example up", "lane 0 state", l.up_arrays + l.obs[1], slots * 7 * 4, false},
        {"example up", "lane 0 reward", l.up_arrays + l.reward, slots * 4, false},
        {"example up", "lane 0 flags", l.up_arrays + l.flags, slots, false},
        {"example up", "lane 1 screen", up1 + l.obs[0], slots * 84 * 84, false},
        {"example up", "end", l.up_bytes, 0, false},
        {"example down", "header", 0, 4096, false},
        {"example down", "farm_down_control", l.down_control, sizeof(struct farm_down_control), false},
        {"example down", "farm_down_lane[2]", l.down_lanes, 2 * sizeof(struct farm_down_lane), false},
        {"example down", "lane 0 action", l.down_arrays + l.answer[0], slots * 4, false},
        {"example down", "lane 0 policy", l.down_arrays + l.answer[1], slots * 6 * 4, false},
        {"example down", "lane 0 value", l.down_arrays + l.answer[2], slots * 4, false},
        {"example down", "lane 0 version", l.down_arrays + l.answer[3], 64 * 8, false},
        {"example down", "lane 1 action", down1 + l.answer[0], slots * 4, false},
        {"example down", "end", l.down_bytes, 0, false},
    };
    memcpy(out, example_areas, sizeof example_areas);
    return sizeof example_areas / sizeof *example_areas;
}

// Copies the text between the first two backticks; false if there are none.
static bool quoted(const char *text, char *out, size_t bytes) {
    const char *from = strchr(text, '`'), *to = from ? strchr(from + 1, '`') : NULL;
    if (!to || (size_t)(to - from) > bytes) return false;
    memcpy(out, from + 1, (size_t)(to - from - 1));
    out[to - from - 1] = 0;
    return true;
}

// Parses the number in the next column of a row, "1,048,576", and advances *column; false if there is other text.
static bool parse_number(const char **column, size_t *value) {
    const char *at = strchr(*column, '|');
    size_t number = 0;
    bool any = false;
    if (!at) return false;
    for (at++; *at && *at != '|'; at++) {
        if (*at == ' ' || *at == ',') continue;
        if (*at < '0' || *at > '9') return false;
        number = number * 10 + (size_t)(*at - '0');
        any = true;
    }
    *column = at;
    if (any) *value = number;
    return any;
}

static FILE *open_document(void) {
    char path[4096];
    const char *source = getenv("FARM_SOURCE");
    snprintf(path, sizeof path, "%s/docs/shm-layout.md", source ? source : ".");
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    return file;
}

Test(ring, every_row_of_the_layout_document_is_right_and_none_is_missing) {
    static struct row all[ROWS_MAX];
    char line[1024], table[128] = "", name[128];
    memcpy(all, rows, sizeof rows);
    size_t count = ROWS + example_rows(all + ROWS);
    cr_assert_leq(count, ROWS_MAX);
    FILE *file = open_document();
    while (fgets(line, sizeof line, file)) {
        if (line[0] == '#') {
            table[0] = 0;
            quoted(line, table, sizeof table);
        }
        if (!table[0] || strncmp(line, "| `", 3) != 0) continue;
        const char *column = line + 1;
        size_t value = 0, bytes = 0;
        cr_assert(quoted(line, name, sizeof name) && parse_number(&column, &value), "no number in: %s", line);
        bool known = false;
        parse_number(&column, &bytes); // constants have none
        for (size_t i = 0; i < count; i++) {
            if (strcmp(all[i].table, table) != 0 || strcmp(all[i].name, name) != 0) continue;
            known = true;
            cr_expect_not(all[i].seen, "%s.%s has two rows", table, name);
            cr_expect_eq(value, all[i].value, "%s.%s: %zu in the document, %zu in the code", table, name, value,
                         all[i].value);
            cr_expect_eq(bytes, all[i].bytes, "%s.%s: %zu bytes in the document, %zu in the code", table, name, bytes,
                         all[i].bytes);
            all[i].seen = true;
        }
        cr_expect(known, "the document has a row `%s` in `%s`, which does not exist", name, table);
    }
    fclose(file);
    for (size_t i = 0; i < count; i++)
        cr_expect(all[i].seen, "the document has no row %s.%s", all[i].table, all[i].name);
}

// A field that is missing in the table above would leave a hole.
Test(ring, the_rows_cover_every_byte_of_every_struct) {
    size_t end = 0;
    for (size_t i = 0; i < ROWS; i++) {
        const bool ends = !rows[i].name[0];
        if (!rows[i].bytes && !ends) continue; // a constant
        cr_assert_eq(rows[i].value, end, "a hole before %s.%s", rows[i].table, ends ? "the end" : rows[i].name);
        end = ends ? 0 : end + rows[i].bytes;
    }
}

// Counters with different writers never share a cache line.
Test(ring, every_counter_has_its_own_cache_line) {
    static const char *const tables[] = {"struct farm_up_control", "struct farm_up_lane", "struct farm_down_control",
                                         "struct farm_down_lane"};
    for (size_t t = 0; t < 4; t++)
        for (size_t i = 0; i < ROWS; i++)
            if (strcmp(rows[i].table, tables[t]) == 0 && strncmp(rows[i].name, "pad", 3) != 0 &&
                strcmp(rows[i].name, "abandoned") != 0) // rarely written, by the writer of its neighbour
                cr_assert_eq(rows[i].value % FARM_CACHE_LINE, 0, "%s.%s", rows[i].table, rows[i].name);
}

// The hash changes if bytes of a layout move without a new version.
Test(ring, the_example_keeps_its_hash) {
    struct farm_ring_spec spec = example();
    struct farm_ring_layout layout;
    char line[1024], wanted[64];
    bool found = false;
    cr_assert_eq(farm_ring_layout_make(&spec, &layout, NULL), FARM_OK);
    snprintf(wanted, sizeof wanted, "`%016llx`", (unsigned long long)layout.hash);
    FILE *file = open_document();
    while (fgets(line, sizeof line, file)) found |= strstr(line, wanted) != NULL;
    fclose(file);
    cr_assert(found, "the document does not give the example's layout hash %s", wanted);
}
