// Checkpoints: what is saved comes back bit by bit, the file is what the safetensors README requires, and any other
// file is refused with the reason and changes nothing.
#include "../support/learner.h"

#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "base/crc32c.h"
#include "kernels/random.h"

enum { FILE_MAX = 1 << 20, VECTORS = 3, MARK = 0x5a };

static struct table {
    char folder[256], path[320];
    struct farm_net net;
    float *vectors[VECTORS]; // parameters, first, second moments
    struct farm_backend_state state;
    char *bytes; // the file's
    size_t count;
} table;
static struct farm_error err;

static const char *const PAIRS[][2] = {
    {"env", "native/catch"}, {"frames", "1234567890123"}, {"text", "quotes \" and \xc3\xa4"}};

static size_t vector_bytes(void) {
    return table.net.parameter_count * sizeof(float);
}

static void make_net(int flat, int actions) {
    const struct farm_net_io io = {.stack = 1, .flat = flat, .actions = actions};
    const struct farm_net_spec *mlp = net_spec("mlp");
    cr_assert(mlp != NULL, "%s", err.message);
    cr_assert_eq(farm_net_make(mlp, &io, &table.net, &err), FARM_OK, "%s", err.message);
}

static void read_back(void) {
    FILE *file = fopen(table.path, "rb");
    cr_assert(file != NULL);
    table.count = fread(table.bytes, 1, FILE_MAX, file);
    fclose(file);
}

static void save_file(void) {
    cr_assert_eq(farm_checkpoint_save(table.path, &table.net, &table.state, PAIRS, 3, &err), FARM_OK, "%s",
                 err.message);
    read_back();
}

// Saves a checkpoint of an mlp with Adam's moments, or with RMSProp's.
static void set_up_with(bool adam) {
    table = (struct table){.bytes = malloc(FILE_MAX)};
    test_folder_make(table.folder, sizeof table.folder);
    snprintf(table.path, sizeof table.path, "%s/a.safetensors", table.folder);
    make_net(4, 3);
    for (uint64_t v = 0; v < VECTORS; v++) {
        float *vector = table.vectors[v] = malloc(vector_bytes());
        for (size_t i = 0; i < table.net.parameter_count; i++) vector[i] = farm_random_uniform(1, v, i) - 0.5f;
        vector[0] = -0.0f; // bits, not values
        vector[1] = 1e-42f;
    }
    table.state = farm_backend_state_of(table.vectors[0], adam ? table.vectors[1] : NULL, table.vectors[2], 9, 0);
    save_file();
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

// A state to load into, every byte a mark.
static struct farm_backend_state make_blank_state(bool first, bool second) {
    const size_t bytes = vector_bytes();
    const struct farm_backend_state state =
        farm_backend_state_of(malloc(bytes), first ? malloc(bytes) : NULL, second ? malloc(bytes) : NULL, 0, 0);
    for (uint32_t v = 0; v < state.vector_count; v++) memset(state.vectors[v].values, MARK, bytes);
    return state;
}

static void free_state(struct farm_backend_state *state) {
    for (uint32_t v = 0; v < state->vector_count; v++) free(state->vectors[v].values);
}

// No vector of the state from `from` on has been written.
static bool is_untouched(const struct farm_backend_state *state, uint32_t from) {
    for (uint32_t v = from; v < state->vector_count; v++)
        for (size_t i = 0; i < vector_bytes(); i++)
            if (((const uint8_t *)state->vectors[v].values)[i] != MARK) return false;
    return true;
}

// ---- what is saved comes back ----

static void check_metadata(struct farm_checkpoint_metadata *metadata) {
    for (int i = 0; i < 3; i++) cr_assert_str_eq(farm_checkpoint_get(metadata, PAIRS[i][0]), PAIRS[i][1]);
    cr_assert_eq(farm_checkpoint_get_u64(metadata, "frames"), 1234567890123u);
    cr_assert_eq(farm_checkpoint_get_u64(metadata, "env"), 0);
    cr_assert_null(farm_checkpoint_get(metadata, "nothing"));
    farm_checkpoint_metadata_free(metadata);
}

// Returns whether the moments were loaded too.
static bool load_into(struct farm_backend_state *state) {
    struct farm_checkpoint_metadata metadata;
    bool has_optimiser;
    cr_assert_eq(farm_checkpoint_load(table.path, &table.net, state, &has_optimiser, &metadata, &err), FARM_OK, "%s",
                 err.message);
    check_metadata(&metadata);
    return has_optimiser;
}

// Loads into a state with the set "target"; returns it.
static float *load_target(struct farm_backend_state *state) {
    *state = make_blank_state(true, true);
    state->vectors[state->vector_count++] = (struct farm_backend_vector){"target", malloc(vector_bytes())};
    cr_assert(load_into(state));
    return farm_backend_vector(state, "target");
}

Test(learner, a_parameter_set_comes_back_and_begins_as_the_parameters_if_the_file_lacks_it) {
    struct farm_backend_state state;
    for (int held = 0; held < 2; held++) {
        cr_assert_arr_eq(load_target(&state), table.vectors[held], vector_bytes());
        free_state(&state);
        table.state.vectors[table.state.vector_count] = (struct farm_backend_vector){"target", table.vectors[1]};
        table.state.vector_count += !held;
        save_file();
    }
}

// Loads into a state with these moments; they are taken only if the file has exactly the same ones.
static void expect_loads(bool first, bool second, bool with_optimiser) {
    struct farm_backend_state state = make_blank_state(first, second);
    cr_assert_eq(load_into(&state), with_optimiser);
    const uint32_t loaded = with_optimiser ? state.vector_count : 1;
    for (uint32_t v = 0; v < loaded; v++) {
        cr_assert_str_eq(state.vectors[v].name, table.state.vectors[v].name);
        cr_assert_eq(memcmp(state.vectors[v].values, table.state.vectors[v].values, vector_bytes()), 0, "vector %u", v);
    }
    cr_assert(is_untouched(&state, loaded));
    free_state(&state);
}

Test(learner, a_checkpoint_comes_back_bit_by_bit_with_the_moments_of_the_same_optimiser) {
    for (int adam = 0; adam < 2; adam++) {
        struct farm_checkpoint_metadata metadata;
        tear_down();
        set_up_with(adam);
        expect_loads(adam, true, true);
        expect_loads(!adam, true, false);
        expect_loads(false, false, false); // evaluation
        cr_assert_eq(farm_checkpoint_read_metadata(table.path, &metadata, &err), FARM_OK, "%s", err.message);
        check_metadata(&metadata);
    }
}

// ---- the file ----

static uint64_t header_bytes(void) {
    uint64_t length;
    memcpy(&length, table.bytes, sizeof length); // little endian
    return length;
}

Test(learner, the_file_is_what_safetensors_requires) {
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
    uint64_t end = 0; // where the tensor before ends: they stand in the order of their data
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
        cr_assert(from == end && to - from == bytes, "%s: from %lu to %lu, expected from %lu, %lu bytes", name, from,
                  to, end, bytes);
        end = to;
        tensors++;
    }
    cr_assert_eq(end, table.count - 8 - length, "no byte is left over");
    cr_assert_eq(tensors, VECTORS * table.net.tensor_count);
    // One tensor by its name: its values are where its offsets say.
    const json_t *bias = json_object_get(json_object_get(header, "optimiser.second.policy.bias"), "data_offsets");
    cr_assert(bias != NULL);
    int t = 0;
    while (strcmp(table.net.tensors[t].name, "policy.bias") != 0) cr_assert_lt(++t, table.net.tensor_count);
    cr_assert_eq(memcmp(table.bytes + 8 + length + json_integer_value(json_array_get(bias, 0)),
                        table.vectors[2] + table.net.tensors[t].offset, table.net.tensors[t].count * sizeof(float)),
                 0);
    json_decref(header);
}

// ---- refusals ----

// The path does not load. The message names the file and the reason, and nothing is written into the state.
static void expect_refused(const char *path, enum farm_status wanted, const char *reason, const char *what) {
    struct farm_backend_state state = make_blank_state(true, true);
    struct farm_checkpoint_metadata metadata;
    bool has_optimiser;
    const enum farm_status status = farm_checkpoint_load(path, &table.net, &state, &has_optimiser, &metadata, &err);
    cr_assert(status == wanted && err.status == wanted, "%s: %d (%s)", what, (int)status, err.message);
    cr_assert(strstr(err.message, path) && strstr(err.message, reason), "%s: no path or no '%s' in: %s", what, reason,
              err.message);
    cr_assert(is_untouched(&state, 0), "%s", what);
    free_state(&state);
}

static void write_file(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    cr_assert(file && fwrite(bytes, 1, count, file) == count && fclose(file) == 0, "%s", path);
}

static void refuse_bytes(const void *bytes, size_t count, const char *reason, const char *what) {
    char path[320];
    snprintf(path, sizeof path, "%s/bad.safetensors", table.folder);
    write_file(path, bytes, count);
    expect_refused(path, FARM_E_FORMAT, reason, what);
}

Test(learner, a_checkpoint_cut_off_anywhere_is_refused) {
    const size_t data = 8 + header_bytes(), end = table.count;
    const size_t cuts[] = {
        0, 1, 7, 8, 9, 8 + (data - 8) / 2, data - 1, data, data + 1, data + 4, end - 4, (data + end) / 2, end - 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char what[64];
        snprintf(what, sizeof what, "%zu of %zu bytes", cuts[i], end);
        refuse_bytes(table.bytes, cuts[i], "cut off", what);
    }
    table.bytes[end] = 0;
    refuse_bytes(table.bytes, end + 1, "corrupt", "one byte more");
}

#define TENSOR(shape, from, to) "{\"dtype\":\"F32\",\"shape\":[" #shape "],\"data_offsets\":[" #from "," #to "]}"

Test(learner, a_file_that_is_no_checkpoint_is_refused) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *reason;
    } cases[] = {
        {"[1, 2]", 0, "no JSON object"},
        {"{\"a\": ", 0, "no JSON object"},
        {"{} {}", 0, "no JSON object"},
        {"", 0, "no JSON object"},
        {"{}", 0, "format"},
        {"{\"__metadata__\": {\"format\": \"pt\"}}", 0, "format"},
        {"{\"__metadata__\": {\"format\": \"actorfarm-1\"}}", 0, "missing"},
        {"{\"__metadata__\": 3, \"a\": 3}", 0, "corrupt"},
        {"{\"a\":" TENSOR(1, 0, 4) ",\"a\":" TENSOR(1, 0, 4) "}", 4, "duplicate"},
        {"{\"a\":" TENSOR(1, 8, 4) "}", 8, "corrupt"},                           // its end before its start
        {"{\"a\":" TENSOR(1, -4, 4) "}", 4, "corrupt"},                          // its start below 0
        {"{\"a\":" TENSOR(2, 0, 8) ",\"b\":" TENSOR(1, 4, 8) "}", 8, "corrupt"}, // overlap
        {"{\"a\":" TENSOR(1, 4, 8) ",\"b\":" TENSOR(1, 4, 8) "}", 8, "corrupt"}, // overlap beside a hole of that size
        {"{\"a\":" TENSOR(1, 4, 8) "}", 8, "corrupt"},                           // bytes of no tensor
    };
    char path[320], bytes[512];
    snprintf(path, sizeof path, "%s/nowhere.safetensors", table.folder);
    expect_refused(path, FARM_E_NOT_FOUND, "No such file", "a missing file");
    expect_refused(table.folder, FARM_E_FORMAT, "not a regular file", "a folder");
    refuse_bytes("{\"a\": 1}\n{\"a\": 1}\n{\"a\": 1}\n", 27, "no safetensors file", "a JSON file");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint64_t length = strlen(cases[i].header);
        memset(bytes, 0, sizeof bytes);
        memcpy(bytes, &length, 8);
        memcpy(bytes + 8, cases[i].header, length);
        refuse_bytes(bytes, 8 + length + cases[i].data_bytes, cases[i].reason, cases[i].header);
    }
}

Test(learner, a_header_longer_than_the_file_is_refused) {
    const uint64_t lengths[] = {UINT64_MAX, UINT64_MAX - 7, 1ull << 63, 200ull << 20, table.count, table.count - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memcpy(table.bytes, &lengths[i], sizeof lengths[i]);
        refuse_bytes(table.bytes, table.count, "within its header", "a huge header");
    }
}

static size_t allocated;

static void *count_bytes(size_t bytes) {
    allocated += bytes;
    return malloc(bytes);
}

// The header is a text and many of these.
static void refuse_many(const char *one, size_t count, const char *reason) {
    const size_t bytes = strlen(one), length = 1 + count * bytes + 3;
    char *file = malloc(8 + length);
    memcpy(file, &(uint64_t){length}, 8);
    file[8] = '[';
    for (size_t i = 0; i < count; i++) memcpy(file + 9 + i * bytes, one, bytes);
    memcpy(file + 8 + length - 3, "{}]", 3);
    allocated = 0;
    json_set_alloc_funcs(count_bytes, free);
    refuse_bytes(file, 8 + length, reason, one);
    json_set_alloc_funcs(malloc, free);
    cr_assert_leq(allocated, 64 << 20, "%zu bytes for a header of %zu", allocated, length);
    free(file);
}

Test(learner, a_header_that_would_take_much_memory_is_refused) {
    refuse_many("{},", 1300000, "more than 131072 values");
    refuse_many("[1],", 60000, "no JSON object");
    refuse_many("\"\\\"{[,\",", 130000, "no JSON object");
    refuse_many("\"0123456789abcdef0123456789abcdef\",", 120000, "more than 4194304 bytes");
    refuse_many("{},", 65000, "no JSON object");
}

Test(learner, a_long_header_is_refused_before_the_file_is_read) {
    char path[320];
    snprintf(path, sizeof path, "%s/bad.safetensors", table.folder);
    write_file(path, &(uint64_t){24000000}, 8);
    cr_assert_eq(truncate(path, 64ll << 30), 0); // which is not read
    expect_refused(path, FARM_E_FORMAT, "header of 24000000 bytes has more than 4194304 bytes", "a file of 64 GiB");
}

// The text in the header, which is not in the data.
static char *in_header(const char *text) {
    char *at = memmem(table.bytes + 8, header_bytes(), text, strlen(text));
    cr_assert(at != NULL, "no %s in the header", text);
    return at;
}

Test(learner, a_checkpoint_whose_bytes_have_changed_is_refused) {
    static const char *const texts[] = {"native/catch", "1234567890123", "actorfarm-1", "F32", "crc32c.policy.bias"};
    cr_assert_eq(farm_crc32c(farm_crc32c(0, "1234", 4), "56789", 5), 0xe3069283, "the value of RFC 3720");
    char *const data = table.bytes + 8 + header_bytes();
    for (uint32_t v = 0; v < VECTORS; v++)
        for (int t = 0; t < table.net.tensor_count; t++) {
            const struct farm_tensor *tensor = &table.net.tensors[t];
            char reason[160], *at = data + v * vector_bytes() + (tensor->offset + tensor->count / 2) * sizeof(float);
            snprintf(reason, sizeof reason, "tensor %s%s%s does not match its checksum", table.state.vectors[v].name,
                     v ? "." : "", tensor->name);
            *at ^= 1; // the value stays finite
            refuse_bytes(table.bytes, table.count, reason, reason);
            *at ^= 1;
        }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char *at = in_header(texts[i]);
        *at ^= 1;
        refuse_bytes(table.bytes, table.count, i == 2 ? "format" : "header does not match its checksum", texts[i]);
        *at ^= 1;
    }
}

// Makes the file one of an older version: its header is not verified.
static void drop_header_sum(void) {
    memcpy(in_header("\"crc32c\""), "\"crc_no\"", 8);
}

static bool is_verified(void) {
    struct farm_checkpoint_metadata metadata;
    cr_assert_eq(farm_checkpoint_read_metadata(table.path, &metadata, &err), FARM_OK, "%s", err.message);
    farm_checkpoint_metadata_free(&metadata);
    return metadata.verified;
}

Test(learner, a_checkpoint_of_a_version_without_checksums_loads_and_is_not_verified) {
    cr_assert(is_verified());
    drop_header_sum();
    write_file(table.path, table.bytes, table.count);
    expect_loads(true, true, true);
    cr_assert(!is_verified());
}

Test(learner, a_checkpoint_of_another_network_is_refused) {
    static const struct {
        const char *from, *to, *reason; // texts of one length in the header
    } edits[] = {
        {"\"policy.weight\"", "\"police.weight\"", "policy.weight is missing"},
        {"\"optimiser.second.policy.bias\"", "\"optimiser.second.police.bias\"",
         "optimiser.second.policy.bias is missing"},
        {"[64,4]", "[4,64]", "type or shape"},
        {"\"F32\"", "\"I32\"", "type or shape"},
    };
    const struct farm_net own = table.net;
    make_net(4, 4);
    expect_refused(table.path, FARM_E_FORMAT, "policy.weight has another type or shape, F32 [3,64], not F32 [4,64]",
                   "one action more");
    make_net(5, 3);
    expect_refused(table.path, FARM_E_FORMAT, "another network", "another input");
    table.net = own;
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        save_file();
        drop_header_sum();
        memcpy(in_header(edits[i].from), edits[i].to, strlen(edits[i].to));
        refuse_bytes(table.bytes, table.count, edits[i].reason, edits[i].to);
    }
}

Test(learner, values_that_are_not_finite_are_refused) {
    const float values[] = {NAN, INFINITY, -INFINITY};
    for (int v = 0; v < VECTORS; v++)
        for (int i = 0; i < 3; i++) {
            float *at = &table.vectors[v][table.net.parameter_count - 1 - (size_t)i], before = *at;
            *at = values[i];
            save_file();
            expect_refused(table.path, FARM_E_FORMAT, "not finite", "a value");
            *at = before;
        }
}

// ---- crash safety ----

Test(learner, a_save_that_cannot_be_written_leaves_the_old_file_whole) {
    const size_t limits[] = {0, 100, table.count / 2, table.count - 1}, count = table.count;
    char *old = malloc(count);
    struct rlimit before, tight;
    memcpy(old, table.bytes, count);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        tight = before;
        tight.rlim_cur = limits[i];
        table.vectors[0][3] += 1;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &tight), 0);
        const enum farm_status status = farm_checkpoint_save(table.path, &table.net, &table.state, PAIRS, 3, &err);
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
        cr_assert_eq(status, FARM_E_IO, "%zu bytes allowed: %d", limits[i], (int)status);
        cr_assert_eq(err.sys_errno, EFBIG);
        read_back();
        cr_assert(table.count == count && memcmp(old, table.bytes, count) == 0, "the old file changed");
        cr_assert_eq(test_folder_files(table.folder, NULL, 0), 1, "a temporary file was left");
    }
    free(old);
}

static int allocations_left;

static void *allocate_some(size_t bytes) {
    return allocations_left-- > 0 ? malloc(bytes) : NULL;
}

Test(learner, a_save_without_memory_for_its_header_fails_and_writes_nothing) {
    char path[400];
    snprintf(path, sizeof path, "%s/b.safetensors", table.folder);
    json_set_alloc_funcs(allocate_some, free);
    int allocations = -1;
    for (enum farm_status status = FARM_E_LIMIT; status;) {
        allocations_left = ++allocations;
        cr_assert_lt(allocations, 10000);
        status = farm_checkpoint_save(path, &table.net, &table.state, PAIRS, 3, &err);
        if (!status) break;
        cr_assert_eq(status, FARM_E_LIMIT, "%d allocations: %d", allocations, (int)status);
        cr_assert_neq(access(path, F_OK), 0);
    }
    json_set_alloc_funcs(malloc, free);
    cr_assert_gt(allocations, 20);
    struct farm_checkpoint_metadata metadata;
    cr_assert_eq(farm_checkpoint_read_metadata(path, &metadata, &err), FARM_OK, "%s", err.message);
    farm_checkpoint_metadata_free(&metadata);
    unlink(path);
}

Test(learner, a_save_into_a_missing_or_read_only_folder_fails_with_the_reason) {
    char path[400];
    snprintf(path, sizeof path, "%s/nowhere/b.safetensors", table.folder);
    cr_assert_neq(farm_checkpoint_save(path, &table.net, &table.state, PAIRS, 3, &err), FARM_OK);
    cr_assert(strstr(err.message, path) != NULL, "%s", err.message);
    cr_assert_eq(chmod(table.folder, 0500), 0);
    const uid_t before = geteuid();
    if (before == 0) cr_assert_eq(seteuid(65534), 0); // root may write everywhere
    const enum farm_status status = farm_checkpoint_save(table.path, &table.net, &table.state, PAIRS, 3, &err);
    cr_assert_eq(seteuid(before), 0);
    cr_assert_eq(status, FARM_E_PERMISSION, "%d", (int)status);
    cr_assert_eq(chmod(table.folder, 0700), 0);
    cr_assert_eq(test_folder_files(table.folder, NULL, 0), 1);
}

// ---- parts of another network ----

// The layers whose names and shapes fit are copied, whole layers only, and a policy of the same head only.
Test(learner, a_network_takes_the_layers_that_fit) {
    static const char *const of_three[][2] = {{"head", "categorical 3"}};
    static const struct {
        int flat, actions;
        const char *head, *taken, *fresh;
    } cases[] = {{4, 3, "categorical 3", "layers.0, layers.1, policy, value", ""},
                 {4, 2, "categorical 2", "layers.0, layers.1, value", "policy"},
                 {4, 3, "categorical 1x2", "layers.0, layers.1, value", "policy"},
                 {5, 3, "categorical 3", "layers.1, policy, value", "layers.0"}};
    cr_assert_eq(farm_checkpoint_save(table.path, &table.net, &table.state, of_three, 1, &err), FARM_OK);
    const struct farm_net source = table.net;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_checkpoint_taken taken;
        make_net(cases[i].flat, cases[i].actions);
        struct farm_backend_state state = make_blank_state(false, false);
        float *params = state.vectors[0].values;
        cr_assert_eq(farm_checkpoint_take(table.path, &table.net, cases[i].head, params, &taken, &err), FARM_OK, "%s",
                     err.message);
        cr_assert_str_eq(taken.taken, cases[i].taken);
        cr_assert_str_eq(taken.fresh, cases[i].fresh);
        cr_assert_str_eq(taken.head, "categorical 3");
        for (int t = 0; t < table.net.tensor_count; t++) {
            const struct farm_tensor *tensor = &table.net.tensors[t];
            char layer[FARM_TENSOR_NAME_MAX];
            snprintf(layer, sizeof layer, "%.*s", (int)(strrchr(tensor->name, '.') - tensor->name), tensor->name);
            if (strstr(taken.taken, layer))
                cr_assert_arr_eq(params + tensor->offset, table.vectors[0] + source.tensors[t].offset,
                                 tensor->count * sizeof(float));
            else
                cr_assert_eq(*(const uint8_t *)(params + tensor->offset), MARK, "%s", tensor->name);
        }
        free_state(&state);
    }
}

Test(learner, a_file_without_a_layer_that_fits_or_with_nan_is_not_taken) {
    struct farm_checkpoint_taken taken;
    struct farm_net joined;
    const struct farm_net_io io = {.stack = 1, .flat = 4, .actions = 3};
    struct farm_backend_state state = make_blank_state(false, false);
    cr_assert_eq(farm_net_make(net_spec("mlp"), &io, &joined, &err), FARM_OK);
    for (int t = 0; t < joined.tensor_count; t++) joined.tensors[t].name[0] = 'x';
    cr_assert_eq(farm_checkpoint_take(table.path, &joined, "", state.vectors[0].values, &taken, &err), FARM_E_FORMAT);
    cr_assert(strstr(err.message, "has no layer of the names and shapes") && is_untouched(&state, 0), "%s",
              err.message);
    table.vectors[0][table.net.parameter_count - 1] = NAN;
    save_file();
    cr_assert_eq(farm_checkpoint_take(table.path, &table.net, "", state.vectors[0].values, &taken, &err),
                 FARM_E_FORMAT);
    cr_assert(strstr(err.message, "not finite") && is_untouched(&state, 0), "%s", err.message);
    free_state(&state);
}
