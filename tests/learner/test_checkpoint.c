// Checkpoints: what is saved comes back bit by bit; the file is what the safetensors README asks for, as a reader of
// this test's own sees it; whatever is not exactly such a file is refused with its reason and changes nothing.
#include "../support/learner.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "kernels/random.h"
#include "learner/checkpoint.h"

enum { FILE_MAX = 1 << 20, VECTORS = 3 };

static struct table {
    char folder[256], path[320];
    struct farm_net net;
    float *vectors[VECTORS]; // params, first, second
    struct farm_backend_state state;
    char *bytes; // of the file
    size_t count;
} table;

static const char *const PAIRS[][2] = {
    {"env", "native/catch"}, {"frames", "1234567890123"}, {"text", "quotes \" and \xc3\xa4"}};

static float *make_vector(const struct farm_net *net, uint64_t stream) {
    float *vector = malloc(net->parameter_count * sizeof *vector);
    cr_assert(vector != NULL);
    for (size_t i = 0; i < net->parameter_count; i++) vector[i] = farm_random_uniform(1, stream, i) - 0.5f;
    vector[0] = -0.0f; // bits, not values
    vector[1] = 1e-42f;
    return vector;
}

static void read_back(void) {
    FILE *file = fopen(table.path, "rb");
    cr_assert(file != NULL);
    table.count = fread(table.bytes, 1, FILE_MAX, file);
    fclose(file);
}

static void make_net(int flat, int actions) {
    struct farm_error err = {0};
    const struct farm_net_io io = {.stack = 1, .flat = flat, .actions = actions};
    const struct farm_net_spec *mlp = farm_net_find("mlp", &err);
    cr_assert(mlp != NULL, "%s", err.message);
    cr_assert_eq(farm_net_make(mlp, &io, &table.net, &err), FARM_OK, "%s", err.message);
}

static void save(void) {
    struct farm_error err = {0};
    cr_assert_eq(farm_checkpoint_save(table.path, &table.net, &table.state, PAIRS, 3, &err), FARM_OK, "%s",
                 err.message);
    read_back();
}

// A checkpoint of an mlp with Adam's (or RMSProp's) moments lies in the table's folder.
static void set_up_with(bool adam) {
    table = (struct table){.bytes = malloc(FILE_MAX)};
    test_folder_make(table.folder, sizeof table.folder);
    snprintf(table.path, sizeof table.path, "%s/a.safetensors", table.folder);
    make_net(4, 3);
    for (int v = 0; v < VECTORS; v++) table.vectors[v] = make_vector(&table.net, (uint64_t)v);
    table.state = farm_backend_state_of(table.vectors[0], adam ? table.vectors[1] : NULL, table.vectors[2], 9, 0);
    save();
}

static void set_up(void) {
    set_up_with(true);
}

static void tear_down(void) {
    test_folder_remove(table.folder);
    for (int v = 0; v < VECTORS; v++) free(table.vectors[v]);
    free(table.bytes);
}

TestSuite(learner, .init = set_up, .fini = tear_down, .timeout = 30);

// Empty vectors to load into, filled with a mark.
static struct farm_backend_state blank(bool first, bool second) {
    const size_t bytes = table.net.parameter_count * sizeof(float);
    const struct farm_backend_state state =
        farm_backend_state_of(malloc(bytes), first ? malloc(bytes) : NULL, second ? malloc(bytes) : NULL, 0, 0);
    for (uint32_t v = 0; v < state.vector_count; v++) memset(state.vectors[v].values, 0x5a, bytes);
    return state;
}

static float *params_of(const struct farm_backend_state *state) {
    return farm_backend_vector(state, "");
}
static float *first_of(const struct farm_backend_state *state) {
    return farm_backend_vector(state, "optimiser.first");
}
static float *second_of(const struct farm_backend_state *state) {
    return farm_backend_vector(state, "optimiser.second");
}

static void blank_free(struct farm_backend_state *state) {
    for (uint32_t v = 0; v < state->vector_count; v++) free(state->vectors[v].values);
}

static bool untouched(const float *vector) {
    const uint8_t *bytes = (const uint8_t *)vector;
    for (size_t i = 0; vector && i < table.net.parameter_count * sizeof(float); i++)
        if (bytes[i] != 0x5a) return false;
    return true;
}

static void expect_same(const float *ours, const float *saved) {
    cr_assert_eq(memcmp(ours, saved, table.net.parameter_count * sizeof(float)), 0);
}

// ---- what is saved comes back ----

static void round_trip(bool adam) {
    tear_down();
    set_up_with(adam);
    struct farm_backend_state state = blank(adam, true);
    struct farm_checkpoint_metadata metadata;
    struct farm_error err = {0};
    bool has_optimiser = false;
    cr_assert_eq(farm_checkpoint_load(table.path, &table.net, &state, &has_optimiser, &metadata, &err), FARM_OK, "%s",
                 err.message);
    cr_assert(has_optimiser);
    expect_same(params_of(&state), table.vectors[0]);
    if (adam) expect_same(first_of(&state), table.vectors[1]);
    expect_same(second_of(&state), table.vectors[2]);
    cr_assert_str_eq(farm_checkpoint_get(&metadata, "env"), "native/catch");
    cr_assert_str_eq(farm_checkpoint_get(&metadata, "text"), PAIRS[2][1]);
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "frames"), 1234567890123u);
    cr_assert_eq(farm_checkpoint_get_u64(&metadata, "env"), 0);
    cr_assert_null(farm_checkpoint_get(&metadata, "nothing"));
    farm_checkpoint_metadata_free(&metadata);
    cr_assert_eq(farm_checkpoint_read_metadata(table.path, &metadata, &err), FARM_OK, "%s", err.message);
    cr_assert_str_eq(farm_checkpoint_get(&metadata, "env"), "native/catch");
    farm_checkpoint_metadata_free(&metadata);
    blank_free(&state);
}

Test(learner, checkpoint_with_adam_comes_back_bit_by_bit) {
    round_trip(true);
}

Test(learner, checkpoint_with_rmsprop_comes_back_bit_by_bit) {
    round_trip(false);
}

Test(learner, the_moments_of_another_optimiser_are_left_alone) {
    for (int adam = 0; adam < 2; adam++) {
        tear_down();
        set_up_with(adam);
        struct farm_backend_state state = blank(!adam, true), bare = blank(false, false);
        struct farm_checkpoint_metadata metadata;
        struct farm_error err = {0};
        bool has_optimiser = true;
        cr_assert_eq(farm_checkpoint_load(table.path, &table.net, &state, &has_optimiser, &metadata, &err), FARM_OK,
                     "%s", err.message);
        farm_checkpoint_metadata_free(&metadata);
        cr_assert_not(has_optimiser);
        expect_same(params_of(&state), table.vectors[0]);
        cr_assert(untouched(first_of(&state)) && untouched(second_of(&state)));
        has_optimiser = true;
        cr_assert_eq(farm_checkpoint_load(table.path, &table.net, &bare, &has_optimiser, &metadata, &err), FARM_OK,
                     "%s", err.message);
        farm_checkpoint_metadata_free(&metadata);
        cr_assert_not(has_optimiser, "evaluation wants none");
        expect_same(params_of(&bare), table.vectors[0]);
        blank_free(&state);
        blank_free(&bare);
    }
}

// ---- the file ----

static uint64_t header_bytes(void) {
    uint64_t length;
    memcpy(&length, table.bytes, sizeof length); // little endian, as every machine this runs on
    return length;
}

Test(learner, the_file_is_what_safetensors_asks_for) {
    const uint64_t length = header_bytes();
    cr_assert_lt(length, table.count - 8);
    cr_assert_eq((8 + length) % 8, 0, "data start at a multiple of 8");
    cr_assert_eq(table.bytes[8], '{');
    json_error_t where;
    json_t *header = json_loadb(table.bytes + 8, length, JSON_REJECT_DUPLICATES, &where), *entry;
    cr_assert(json_is_object(header), "%s", where.text);
    const char *name, *key;
    json_t *text;
    json_object_foreach(json_object_get(header, "__metadata__"), key, text)
        cr_assert(json_is_string(text), "metadata %s", key);
    uint64_t end = 0; // tensors stand in the order of their data: each starts where the one before ended
    int tensors = 0;
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        const json_t *offsets = json_object_get(entry, "data_offsets"), *shape = json_object_get(entry, "shape");
        const uint64_t from = (uint64_t)json_integer_value(json_array_get(offsets, 0));
        const uint64_t to = (uint64_t)json_integer_value(json_array_get(offsets, 1));
        uint64_t bytes = 4;
        for (size_t d = 0; d < json_array_size(shape); d++)
            bytes *= (uint64_t)json_integer_value(json_array_get(shape, d));
        cr_assert_str_eq(json_string_value(json_object_get(entry, "dtype")), "F32");
        cr_assert_eq(json_object_size(entry), 3);
        cr_assert_eq(from, end, "%s starts at %lu, not at %lu", name, from, end);
        cr_assert_eq(to - from, bytes, "%s", name);
        end = to;
        tensors++;
    }
    cr_assert_eq(end, table.count - 8 - length, "no byte is left over");
    cr_assert_eq(tensors, 3 * table.net.tensor_count);
    // One weight by its name: values are where its offsets say.
    const json_t *bias = json_object_get(json_object_get(header, "optimiser.second.policy.bias"), "data_offsets");
    cr_assert(bias != NULL);
    const struct farm_tensor *tensor = NULL;
    for (int t = 0; t < table.net.tensor_count; t++)
        if (strcmp(table.net.tensors[t].name, "policy.bias") == 0) tensor = &table.net.tensors[t];
    cr_assert(tensor != NULL);
    cr_assert_eq(memcmp(table.bytes + 8 + length + json_integer_value(json_array_get(bias, 0)),
                        table.vectors[2] + tensor->offset, tensor->count * sizeof(float)),
                 0);
    json_decref(header);
}

// ---- refusals ----

static void write_file(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    cr_assert(file != NULL);
    cr_assert_eq(fwrite(bytes, 1, count, file), count);
    fclose(file);
}

// The path does not load, with this reason in the sentence and the file's name, and nothing is written into the state.
static void expect_refused(const char *path, enum farm_status wanted, const char *reason, const char *what) {
    struct farm_backend_state state = blank(true, true);
    struct farm_checkpoint_metadata metadata;
    struct farm_error err = {0};
    bool has_optimiser;
    const enum farm_status status = farm_checkpoint_load(path, &table.net, &state, &has_optimiser, &metadata, &err);
    cr_assert_eq(status, wanted, "%s: %s (%s)", what, farm_status_name(status), err.message);
    cr_assert_eq(err.status, wanted, "%s", what);
    cr_assert(strstr(err.message, path) != NULL, "%s: the file is not named: %s", what, err.message);
    cr_assert(strstr(err.message, reason) != NULL, "%s: no '%s' in: %s", what, reason, err.message);
    cr_assert(untouched(params_of(&state)) && untouched(first_of(&state)) && untouched(second_of(&state)), "%s", what);
    blank_free(&state);
}

// The same of bytes: a header (any text) and data behind it.
static void refuse_bytes(const void *bytes, size_t count, const char *reason, const char *what) {
    char path[320];
    snprintf(path, sizeof path, "%s/bad.safetensors", table.folder);
    write_file(path, bytes, count);
    expect_refused(path, FARM_E_FORMAT, reason, what);
}

static void refuse_header(const char *header, size_t data_bytes, const char *reason, const char *what) {
    const uint64_t length = strlen(header);
    char *bytes = calloc(1, 8 + length + data_bytes);
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, length);
    refuse_bytes(bytes, 8 + length + data_bytes, reason, what);
    free(bytes);
}

Test(learner, a_checkpoint_cut_off_anywhere_is_refused) {
    const size_t data = 8 + header_bytes();
    const size_t cuts[] = {0,
                           1,
                           7,
                           8,
                           9,
                           8 + (data - 8) / 2,
                           data - 1,
                           data,
                           data + 1,
                           data + 4,
                           (data + table.count) / 2,
                           table.count - 4,
                           table.count - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char what[64];
        snprintf(what, sizeof what, "%zu of %zu bytes", cuts[i], table.count);
        refuse_bytes(table.bytes, cuts[i], "cut off", what);
    }
    table.bytes[table.count] = 0;
    refuse_bytes(table.bytes, table.count + 1, "corrupt", "one byte more");
}

Test(learner, what_is_no_checkpoint_is_refused) {
    char path[320];
    snprintf(path, sizeof path, "%s/nowhere.safetensors", table.folder);
    expect_refused(path, FARM_E_NOT_FOUND, "No such file", "a missing file");
    expect_refused(table.folder, FARM_E_FORMAT, "not a regular file", "a folder");
    refuse_bytes("{\"a\": 1}\n{\"a\": 1}\n{\"a\": 1}\n", 27, "no safetensors file", "a JSON file");
    refuse_header("[1, 2]", 0, "no JSON object", "a list");
    refuse_header("{\"a\": ", 0, "no JSON object", "half an object");
    refuse_header("{} {}", 0, "no JSON object", "two objects");
    refuse_header("", 0, "no JSON object", "no header");
    refuse_header("{}", 0, "format", "an empty header");
    refuse_header("{\"__metadata__\": {\"format\": \"pt\"}}", 0, "format", "somebody else's file");
    refuse_header("{\"__metadata__\": {\"format\": \"actorfarm-1\"}}", 0, "missing", "no tensors");
    refuse_header("{\"__metadata__\": 3, \"a\": 3}", 0, "corrupt", "entries that are no objects");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"F32\",\"shape\":["
                  "1],\"data_offsets\":[0,4]}}",
                  4, "duplicate", "a name given twice");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,4]}}", 8, "corrupt",
                  "an end before its start");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,4]}}", 4, "corrupt", "a start below 0");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":["
                  "1],\"data_offsets\":[4,8]}}",
                  8, "corrupt", "tensors that overlap");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]},\"b\":{\"dtype\":\"F32\",\"shape\":["
                  "1],\"data_offsets\":[4,8]}}",
                  8, "corrupt", "tensors that overlap beside a hole of their size");
    refuse_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "corrupt",
                  "bytes that are nobody's");
}

Test(learner, a_header_longer_than_the_file_is_refused) {
    const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, 1ull << 63, 200ull << 20, table.count, table.count - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(table.bytes, &lengths[i], sizeof lengths[i]);
        refuse_bytes(table.bytes, table.count, "within its header", "a huge header");
    }
}

// Replaces a text in the header by one of the same length.
static void edit(const char *from, const char *to) {
    cr_assert_eq(strlen(from), strlen(to));
    char *at = memmem(table.bytes + 8, header_bytes(), from, strlen(from));
    cr_assert(at != NULL, "no %s in the header", from);
    memcpy(at, to, strlen(to));
}

Test(learner, a_checkpoint_of_another_network_is_refused) {
    struct farm_net own = table.net;
    make_net(4, 4);
    expect_refused(table.path, FARM_E_FORMAT, "another network", "one action more");
    make_net(5, 3);
    expect_refused(table.path, FARM_E_FORMAT, "another network", "another input");
    table.net = own;
    edit("\"policy.weight\"", "\"police.weight\"");
    refuse_bytes(table.bytes, table.count, "policy.weight is missing", "a missing tensor");
    save();
    edit("\"optimiser.second.policy.bias\"", "\"optimiser.second.police.bias\"");
    refuse_bytes(table.bytes, table.count, "optimiser.second.policy.bias is missing", "a missing moment");
    save();
    edit("[64,4]", "[4,64]");
    refuse_bytes(table.bytes, table.count, "type or shape", "a transposed shape");
    save();
    edit("\"F32\"", "\"I32\"");
    refuse_bytes(table.bytes, table.count, "type or shape", "integers");
}

Test(learner, values_that_are_not_finite_are_refused) {
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int v = 0; v < VECTORS; v++)
        for (int i = 0; i < 3; i++) {
            float *at = &table.vectors[v][table.net.parameter_count - 1 - (size_t)i], before = *at;
            *at = values[i];
            save();
            expect_refused(table.path, FARM_E_FORMAT, "not finite", "a value");
            *at = before;
        }
}

// ---- crash safety ----

Test(learner, a_save_that_cannot_be_written_leaves_the_old_file_whole) {
    struct rlimit before, tight;
    struct farm_error err = {0};
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    const size_t limits[] = {0, 100, table.count / 2, table.count - 1};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        tight = before;
        tight.rlim_cur = limits[i];
        table.vectors[0][3] += 1;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
        const enum farm_status status = farm_checkpoint_save(table.path, &table.net, &table.state, PAIRS, 3, &err);
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
        cr_assert_eq(status, FARM_E_IO, "%zu bytes allowed: %s", limits[i], farm_status_name(status));
        cr_assert_eq(err.sys_errno, EFBIG);
        char *old = malloc(table.count);
        const size_t old_count = table.count;
        memcpy(old, table.bytes, old_count);
        read_back();
        cr_assert(table.count == old_count && memcmp(old, table.bytes, old_count) == 0, "the old file changed");
        free(old);
        cr_assert_eq(test_folder_files(table.folder, NULL, 0), 1, "a temporary file was left");
    }
}

Test(learner, a_save_into_no_folder_says_so) {
    struct farm_error err = {0};
    char path[400];
    snprintf(path, sizeof path, "%s/nowhere/b.safetensors", table.folder);
    cr_assert_neq(farm_checkpoint_save(path, &table.net, &table.state, PAIRS, 3, &err), FARM_OK);
    cr_assert(strstr(err.message, path) != NULL, "%s", err.message);
}

Test(learner, a_save_into_a_read_only_folder_says_so) {
    struct farm_error err = {0};
    cr_assert_eq(chmod(table.folder, 0500), 0);
    const uid_t before = geteuid();
    if (before == 0) cr_assert_eq(seteuid(65534), 0); // root may write everywhere
    const enum farm_status status = farm_checkpoint_save(table.path, &table.net, &table.state, PAIRS, 3, &err);
    cr_assert_eq(seteuid(before), 0);
    cr_assert_eq(status, FARM_E_PERMISSION, "%s", farm_status_name(status));
    cr_assert_eq(chmod(table.folder, 0700), 0);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 1);
}
