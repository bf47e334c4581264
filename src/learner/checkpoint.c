// See checkpoint.h.
#include "learner/checkpoint.h"

#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/json.h"

#define SUM "crc32c"
enum {
    LENGTH_BYTES = 8,
    NAME_MAX_BYTES = FARM_TENSOR_NAME_MAX + 32,
    SUM_MAX_BYTES = 16,
    KEY_MAX_BYTES = NAME_MAX_BYTES + sizeof SUM,
    // Our largest has some 150 KiB: FARM_TENSORS_MAX tensors in FARM_BACKEND_VECTORS_MAX vectors, 10 values each.
    HEADER_BYTES_MAX = 4 << 20,
    HEADER_VALUES_MAX = 1 << 17
};
static const uint64_t FILE_BYTES_MAX = 16ull << 30;

// "VECTOR.TENSOR"; the tensors of the parameters' vector have no prefix.
static const char *tensor_name(const char *vector, const struct farm_tensor *tensor, char name[NAME_MAX_BYTES]) {
    snprintf(name, NAME_MAX_BYTES, "%s%s%s", vector, vector[0] ? "." : "", tensor->name);
    return name;
}

const char *farm_checkpoint_get(const struct farm_checkpoint_metadata *metadata, const char *key) {
    for (uint32_t i = 0; i < metadata->count; i++)
        if (strcmp(metadata->keys[i], key) == 0) return metadata->values[i];
    return NULL;
}

uint64_t farm_checkpoint_get_u64(const struct farm_checkpoint_metadata *metadata, const char *key) {
    const char *text = farm_checkpoint_get(metadata, key);
    return text ? strtoull(text, NULL, 10) : 0;
}

struct farm_totals farm_checkpoint_totals(const struct farm_checkpoint_metadata *metadata) {
    const char *wall_s = farm_checkpoint_get(metadata, "wall_s");
    return (struct farm_totals){.wall_s = wall_s ? strtod(wall_s, NULL) : 0,
                                .frames = farm_checkpoint_get_u64(metadata, "frames"),
                                .agent_steps = farm_checkpoint_get_u64(metadata, "agent_steps"),
                                .updates = farm_checkpoint_get_u64(metadata, "updates"),
                                .episodes = farm_checkpoint_get_u64(metadata, "episodes")};
}

void farm_checkpoint_metadata_free(struct farm_checkpoint_metadata *metadata) {
    for (uint32_t i = 0; i < metadata->count; i++) {
        free(metadata->keys[i]);
        free(metadata->values[i]);
    }
    metadata->count = 0;
}

// ---- checksums ----

// The metadata's key of a tensor's checksum. A longer name than this program's tensors have is cut off.
static const char *sum_key(const char *tensor, char key[KEY_MAX_BYTES]) {
    snprintf(key, KEY_MAX_BYTES, SUM ".%s", tensor);
    return key;
}

static const char *sum_text(const void *data, size_t bytes, char text[SUM_MAX_BYTES]) {
    snprintf(text, SUM_MAX_BYTES, "%08" PRIx32, farm_crc32c(0, data, bytes));
    return text;
}

// Of a header that holds no sum of itself. False: no memory.
static bool header_sum(const json_t *header, char text[SUM_MAX_BYTES]) {
    char *all = json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS);
    if (!all) return false;
    sum_text(all, strlen(all), text);
    free(all);
    return true;
}

// ---- writing ----

char *farm_checkpoint_spaces(const struct farm_env_spec *env) {
    static const char *const dtypes[] = {"?", "u8", "i32", "f32"};
    static const char *const kinds[] = {"?", "discrete", "multi_discrete", "continuous"};
    json_t *obs = json_array(), *sizes = json_array(), *low = json_array(), *high = json_array();
    for (uint32_t f = 0; f < env->obs_count; f++) {
        const struct farm_field_spec *field = &env->obs[f];
        json_t *dims = json_array(), *name = json_string_nocheck(field->name);
        for (uint32_t i = 0; i < field->rank; i++) farm_json_append(dims, json_integer(field->dims[i]));
        farm_json_append(obs, json_pack("{s:o, s:s, s:o, s:I}", "name", name, "dtype", dtypes[field->dtype], "dims",
                                        dims, "choices", (json_int_t)field->choices));
    }
    for (uint32_t d = 0; d < env->action.dims; d++) {
        farm_json_append(sizes, json_integer(env->action.sizes[d]));
        const double least = (double)env->action.low[d], most = (double)env->action.high[d];
        farm_json_append(low, isfinite(least) ? json_real(least) : json_null());
        farm_json_append(high, isfinite(most) ? json_real(most) : json_null());
    }
    json_t *spaces = json_pack("{s:o, s:{s:s, s:o, s:o, s:o}}", "obs", obs, "action", "kind", kinds[env->action.kind],
                               "sizes", sizes, "low", low, "high", high);
    char *text = json_dumps(spaces, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(spaces);
    return text;
}

// NULL: no memory.
static json_t *describe_tensor(const struct farm_tensor *tensor, uint64_t offset) {
    json_t *shape = json_array();
    bool failed = false;
    for (int d = 0; d < tensor->rank; d++) failed |= json_array_append_new(shape, json_integer(tensor->dims[d])) != 0;
    if (failed) {
        json_decref(shape);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", shape, "data_offsets", (json_int_t)offset,
                     (json_int_t)(offset + tensor->count * sizeof(float)));
}

// Takes the reference. False: no memory.
static bool put(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

// Describes a vector's tensors, whose data begin at `base`, and adds their checksums to the metadata. False: no memory.
static bool add_vector(json_t *header, json_t *metadata, const struct farm_net *net,
                       const struct farm_backend_vector *vector, uint64_t base) {
    bool good = true;
    for (int t = 0; t < net->tensor_count; t++) {
        const struct farm_tensor *tensor = &net->tensors[t];
        char name[NAME_MAX_BYTES], key[KEY_MAX_BYTES], sum[SUM_MAX_BYTES];
        tensor_name(vector->name, tensor, name);
        good &= put(header, name, describe_tensor(tensor, base + tensor->offset * sizeof(float)));
        sum_text(vector->values + tensor->offset, tensor->count * sizeof(float), sum);
        good &= put(metadata, sum_key(name, key), json_string(sum));
    }
    return good;
}

// The header's text, padded with spaces to a multiple of 8; malloc'd, NULL without memory.
static char *make_header(const struct farm_net *net, const struct farm_backend_state *state,
                         const char *const (*pairs)[2], uint32_t pair_count, size_t *bytes) {
    json_t *header = json_object(), *metadata = json_object();
    bool good = put(metadata, "format", json_string("actorfarm-1"));
    for (uint32_t i = 0; i < pair_count; i++) {
        json_t *text = json_string(pairs[i][1]), *bytes_only = text ? NULL : json_string_nocheck(pairs[i][1]);
        if (!bytes_only) good &= put(metadata, pairs[i][0], text);
        json_decref(bytes_only); // not UTF-8, which JSON cannot hold: left out
    }
    good &= put(header, "__metadata__", metadata);
    const uint64_t vector_bytes = net->parameter_count * sizeof(float);
    for (uint32_t v = 0; v < state->vector_count && good; v++)
        good = add_vector(header, metadata, net, &state->vectors[v], v * vector_bytes);
    char sum[SUM_MAX_BYTES];
    good = good && header_sum(header, sum) && put(metadata, SUM, json_string(sum));
    char *text = good ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    if (!text) return NULL;
    size_t length = strlen(text);
    *bytes = (length + 7) / 8 * 8;
    char *padded = realloc(text, *bytes + 1);
    if (padded)
        memset(padded + length, ' ', *bytes - length);
    else
        free(text);
    return padded;
}

enum farm_status farm_checkpoint_save(const char *path, const struct farm_net *net,
                                      const struct farm_backend_state *state, const char *const (*pairs)[2],
                                      uint32_t pair_count, struct farm_error *err) {
    size_t header_bytes = 0, vector_bytes = net->parameter_count * sizeof(float), bytes;
    char *header = make_header(net, state, pairs, pair_count, &header_bytes);
    bytes = LENGTH_BYTES + header_bytes + state->vector_count * vector_bytes;
    uint8_t *file = header ? malloc(bytes) : NULL;
    if (!file) {
        free(header);
        return farm_fail(err, FARM_E_LIMIT, "no memory for a checkpoint of %zu parameters", net->parameter_count);
    }
    uint64_t length = header_bytes;
    for (int i = 0; i < LENGTH_BYTES; i++) file[i] = (uint8_t)(length >> 8 * i);
    memcpy(file + LENGTH_BYTES, header, header_bytes);
    uint8_t *const at = file + LENGTH_BYTES + header_bytes;
    for (uint32_t v = 0; v < state->vector_count; v++)
        memcpy(at + v * vector_bytes, state->vectors[v].values, vector_bytes);
    enum farm_status status = farm_file_replace_own(path, file, bytes, true, err);
    free(file);
    free(header);
    return status;
}

// ---- reading ----

// A file in memory whose length and header have been checked.
struct image {
    char *bytes;
    const float *data; // behind the header
    size_t data_bytes;
    json_t *header;
    bool verified; // it holds its checksum
};

static void image_free(struct image *image) {
    free(image->bytes);
    json_decref(image->header);
}

static int by_start(const void *a, const void *b) {
    const json_int_t *x = a, *y = b;
    int i = x[0] == y[0];
    return (x[i] > y[i]) - (x[i] < y[i]);
}

// The header's bytes of data. False if the tensors do not fill them one after another without holes or overlaps, or if
// there is no memory for the check.
static bool data_end(const json_t *header, uint64_t *end) {
    json_int_t(*offsets)[2] = malloc((json_object_size(header) + 1) * sizeof *offsets);
    size_t count = 0;
    bool good = offsets != NULL;
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)(uintptr_t)header, name, entry) {
        if (!good || strcmp(name, "__metadata__") == 0) continue;
        const json_t *pair = json_object_get(entry, "data_offsets");
        good = json_array_size(pair) == 2;
        for (size_t i = 0; i < 2 && good; i++) offsets[count][i] = json_integer_value(json_array_get(pair, i));
        count++;
    }
    json_int_t at = 0;
    if (good) qsort(offsets, count, sizeof *offsets, by_start);
    for (size_t i = 0; i < count && good; i++) {
        good = offsets[i][0] == at && offsets[i][1] >= at;
        at = offsets[i][1];
    }
    free(offsets);
    *end = (uint64_t)at;
    return good;
}

// The header's sum, then the tensors', which lie within the data. Removes the header's from the metadata.
static enum farm_status check_sums(const char *path, struct image *image, struct farm_error *err) {
    json_t *metadata = json_object_get(image->header, "__metadata__"), *given = json_object_get(metadata, SUM), *entry;
    char wanted[SUM_MAX_BYTES], sum[SUM_MAX_BYTES] = "none";
    const char *name;
    image->verified = given != NULL;
    snprintf(wanted, sizeof wanted, "%s", json_is_string(given) ? json_string_value(given) : "");
    json_object_del(metadata, SUM);
    if (image->verified && (!header_sum(image->header, sum) || strcmp(sum, wanted) != 0))
        return farm_fail(err, FARM_E_FORMAT, "%s: corrupt: the header does not match its checksum", path);
    json_object_foreach(image->header, name, entry) {
        char key[KEY_MAX_BYTES];
        given = json_object_get(metadata, sum_key(name, key));
        if (strcmp(name, "__metadata__") == 0 || !given) continue;
        const json_t *offsets = json_object_get(entry, "data_offsets");
        const size_t from = (size_t)json_integer_value(json_array_get(offsets, 0));
        const size_t to = (size_t)json_integer_value(json_array_get(offsets, 1));
        sum_text((const char *)image->data + from, to - from, sum);
        if (!json_is_string(given) || strcmp(json_string_value(given), sum) != 0)
            return farm_fail(err, FARM_E_FORMAT, "%s: corrupt: tensor %s does not match its checksum", path, name);
    }
    return FARM_OK;
}

static enum farm_status fail_header(const char *path, uint64_t length, const char *unit, int most,
                                    struct farm_error *err) {
    return farm_fail(err, FARM_E_FORMAT,
                     "%s: its header of %" PRIu64
                     " bytes has more than %d %s: write the tensors that are needed into a "
                     "file of their own",
                     path, length, most, unit);
}

// The header's length, from the first bytes of a file of `bytes`.
static enum farm_status read_length(const char *path, const char *head, size_t bytes, uint64_t *length,
                                    struct farm_error *err) {
    *length = 0;
    for (int i = 0; i < LENGTH_BYTES && bytes >= LENGTH_BYTES; i++) *length |= (uint64_t)(uint8_t)head[i] << 8 * i;
    if (bytes < LENGTH_BYTES || *length > bytes - LENGTH_BYTES)
        return farm_fail(err, FARM_E_FORMAT, "%s: no safetensors file, or cut off within its header (%zu bytes)", path,
                         bytes);
    return *length <= HEADER_BYTES_MAX ? FARM_OK : fail_header(path, *length, "bytes", HEADER_BYTES_MAX, err);
}

// any: of every program, else only ours.
static enum farm_status check_image(const char *path, struct image *image, size_t bytes, bool any,
                                    struct farm_error *err) {
    uint64_t length = 0, end = 0;
    json_error_t where;
    enum farm_status status = read_length(path, image->bytes, bytes, &length, err);
    if (status) return status;
    if (!farm_json_has_at_most(image->bytes + LENGTH_BYTES, length, HEADER_VALUES_MAX))
        return fail_header(path, length, "values", HEADER_VALUES_MAX, err);
    image->header = json_loadb(image->bytes + LENGTH_BYTES, length, JSON_REJECT_DUPLICATES, &where);
    if (!json_is_object(image->header))
        return farm_fail(err, FARM_E_FORMAT, "%s: the header is no JSON object: %s", path, where.text);
    image->data_bytes = bytes - LENGTH_BYTES - length;
    image->data = (const float *)(const void *)(image->bytes + LENGTH_BYTES + length);
    if (!data_end(image->header, &end) || end != image->data_bytes)
        return farm_fail(err, FARM_E_FORMAT, "%s: %s (%zu bytes of data, %" PRIu64 " in the header)", path,
                         end > image->data_bytes ? "cut off" : "corrupt", image->data_bytes, end);
    const char *format = json_string_value(json_object_get(json_object_get(image->header, "__metadata__"), "format"));
    if (!any && (!format || strcmp(format, "actorfarm-1") != 0))
        return farm_fail(err, FARM_E_FORMAT, "%s: its metadata has the format %.40s; this build reads actorfarm-1",
                         path, format ? format : "(none)");
    return check_sums(path, image, err);
}

static enum farm_status image_read(const char *path, bool any, struct image *image, struct farm_error *err) {
    char head[LENGTH_BYTES] = {0};
    struct stat info;
    size_t bytes = 0;
    uint64_t length;
    enum farm_status status = FARM_OK;
    *image = (struct image){0};
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0 && !fstat(fd, &info) && S_ISREG(info.st_mode) && pread(fd, head, sizeof head, 0) >= 0)
        status = read_length(path, head, (size_t)info.st_size, &length, err);
    if (fd >= 0) close(fd);
    if (!status) status = farm_file_read(path, FILE_BYTES_MAX, &image->bytes, &bytes, err);
    if (status) return status;
    status = check_image(path, image, bytes, any, err);
    if (status) image_free(image);
    return status;
}

static enum farm_status copy_metadata(const struct image *image, struct farm_checkpoint_metadata *metadata,
                                      struct farm_error *err) {
    const char *key;
    json_t *value;
    metadata->count = 0;
    metadata->verified = image->verified;
    json_object_foreach(json_object_get(image->header, "__metadata__"), key, value) {
        if (metadata->count == FARM_CHECKPOINT_PAIRS_MAX || !json_is_string(value)) continue;
        if (strncmp(key, SUM ".", sizeof SUM) == 0) continue;
        char *k = strdup(key), *v = strdup(json_string_value(value));
        if (!k || !v) {
            free(k);
            free(v);
            farm_checkpoint_metadata_free(metadata);
            return farm_fail(err, FARM_E_LIMIT, "no memory for a checkpoint's metadata");
        }
        metadata->keys[metadata->count] = k;
        metadata->values[metadata->count++] = v;
    }
    return FARM_OK;
}

enum farm_status farm_checkpoint_read_metadata(const char *path, struct farm_checkpoint_metadata *metadata,
                                               struct farm_error *err) {
    struct image image;
    enum farm_status status = image_read(path, false, &image, err);
    if (status) return status;
    status = copy_metadata(&image, metadata, err);
    image_free(&image);
    return status;
}

// Names both shapes.
static void fail_shape(const char *path, const char *name, const char *dtype, const json_t *shape,
                       const struct farm_tensor *tensor, struct farm_error *err) {
    char *there = json_dumps(shape, JSON_COMPACT | JSON_ENCODE_ANY), here[64];
    int length = 0;
    for (int d = 0; d < tensor->rank; d++)
        length += snprintf(here + length, sizeof here - (size_t)length, "%c%d", d ? ',' : '[', tensor->dims[d]);
    farm_fail(err, FARM_E_FORMAT,
              "%s: tensor %s has another type or shape, %.8s %.64s, not F32 %s]: a checkpoint of another network or of "
              "other actions",
              path, name, dtype ? dtype : "?", there ? there : "?", here);
    free(there);
}

static bool has_shape(const json_t *entry, const struct farm_tensor *tensor) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    bool same = dtype && strcmp(dtype, "F32") == 0 && (int)json_array_size(shape) == tensor->rank;
    for (int d = 0; same && d < tensor->rank; d++)
        same = json_integer_value(json_array_get(shape, (size_t)d)) == tensor->dims[d];
    return same;
}

// A tensor's checked data, which may lie anywhere in a file of others, or NULL with the reason.
static const void *find_tensor(const struct image *image, const char *path, const char *vector,
                               const struct farm_tensor *tensor, struct farm_error *err) {
    char name[NAME_MAX_BYTES];
    tensor_name(vector, tensor, name);
    json_t *entry = json_object_get(image->header, name);
    if (!entry) {
        farm_fail(err, FARM_E_FORMAT, "%s: tensor %s is missing: a checkpoint of another network", path, name);
        return NULL;
    }
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t from = (uint64_t)json_integer_value(json_array_get(offsets, 0));
    uint64_t to = (uint64_t)json_integer_value(json_array_get(offsets, 1));
    if (!has_shape(entry, tensor) || to - from != tensor->count * sizeof(float) || from % sizeof(float)) {
        fail_shape(path, name, dtype, shape, tensor, err);
        return NULL;
    }
    const char *data = (const char *)image->data + from;
    for (size_t i = 0; i < tensor->count; i++) {
        float value;
        memcpy(&value, data + i * sizeof value, sizeof value);
        if (!isfinite(value)) {
            farm_fail(err, FARM_E_FORMAT, "%s: tensor %s holds values that are not finite", path, name);
            return NULL;
        }
    }
    return data;
}

// Whether the file has this vector.
static bool has_vector(const struct image *image, const struct farm_net *net, const char *vector) {
    char name[NAME_MAX_BYTES];
    return json_object_get(image->header, tensor_name(vector, &net->tensors[0], name)) != NULL;
}

static bool is_optimiser(const char *vector) {
    return strncmp(vector, "optimiser.", strlen("optimiser.")) == 0;
}

// Whether the file has exactly the state's optimiser vectors.
static bool has_optimiser_of(const struct image *image, const struct farm_net *net,
                             const struct farm_backend_state *state) {
    static const char *const known[] = {"optimiser.first", "optimiser.second"};
    bool any = false, same = true;
    for (size_t k = 0; k < sizeof known / sizeof *known; k++) {
        const bool wanted = farm_backend_vector(state, known[k]) != NULL;
        any |= wanted;
        same &= has_vector(image, net, known[k]) == wanted;
    }
    return any && same;
}

enum farm_status farm_checkpoint_load(const char *path, const struct farm_net *net, struct farm_backend_state *state,
                                      bool *has_optimiser, struct farm_checkpoint_metadata *metadata,
                                      struct farm_error *err) {
    struct image image;
    const void *found[FARM_BACKEND_VECTORS_MAX][FARM_TENSORS_MAX];
    const struct farm_backend_vector *vectors[FARM_BACKEND_VECTORS_MAX];
    enum farm_status status = image_read(path, false, &image, err);
    if (status) return status;
    *has_optimiser = has_optimiser_of(&image, net, state);
    uint32_t count = 0; // vectors to be read
    for (uint32_t v = 0; v < state->vector_count; v++)
        if (*has_optimiser || !is_optimiser(state->vectors[v].name)) vectors[count++] = &state->vectors[v];
    for (uint32_t v = 0; v < count && !status; v++) {
        const char *name = has_vector(&image, net, vectors[v]->name) ? vectors[v]->name : "";
        for (int t = 0; t < net->tensor_count && !status; t++) {
            found[v][t] = find_tensor(&image, path, name, &net->tensors[t], err);
            if (!found[v][t]) status = FARM_E_FORMAT;
        }
    }
    if (!status) status = copy_metadata(&image, metadata, err);
    for (uint32_t v = 0; v < count && !status; v++)
        for (int t = 0; t < net->tensor_count; t++)
            memcpy(vectors[v]->values + net->tensors[t].offset, found[v][t], net->tensors[t].count * sizeof(float));
    image_free(&image);
    return status;
}

// ---- taking parts ----

// Length of the layer's name in a tensor's: "layers.0" of "layers.0.weight", "normalise", but "normalise.return".
static size_t layer_length(const char *tensor) {
    const char *dot = strrchr(tensor, '.');
    return !dot || strcmp(tensor, "normalise.return") == 0 ? strlen(tensor) : (size_t)(dot - tensor);
}

static bool is_of_layer(const char *tensor, const char *layer) {
    const size_t length = layer_length(layer);
    return layer_length(tensor) == length && strncmp(tensor, layer, length) == 0;
}

// Adds a tensor's layer to a list, once.
static void list_layer(char list[512], const char *tensor) {
    const size_t length = layer_length(tensor), used = strlen(list);
    for (const char *at = list; at && *at; at = strchr(at, ' '), at += at != NULL)
        if (strcspn(at, ",") == length && strncmp(at, tensor, length) == 0) return;
    snprintf(list + used, 512 - used, "%s%.*s", used ? ", " : "", (int)length, tensor);
}

// Whether outputs of the file's policy mean what they mean here: the same head, and the same source of sigma.
static bool has_head(const struct image *image, const struct farm_net *net, const char *head) {
    const json_t *metadata = json_object_get(image->header, "__metadata__");
    const char *there = json_string_value(json_object_get(metadata, "head"));
    const char *sigma = json_string_value(json_object_get(metadata, "recipe.sigma"));
    const char *here = net->io.free_outputs ? "free" : "state";
    return (!there || strcmp(there, head) == 0) && (!sigma || !net->io.biased_outputs || strcmp(sigma, here) == 0);
}

static bool has_layer(const struct image *image, const struct farm_net *net, const char *head, const char *layer) {
    bool all = strncmp(layer, "policy.", 7) != 0 || has_head(image, net, head);
    for (int t = 0; t < net->tensor_count && all; t++)
        if (is_of_layer(net->tensors[t].name, layer))
            all = has_shape(json_object_get(image->header, net->tensors[t].name), &net->tensors[t]);
    return all;
}

static void list_left(const struct image *image, const struct farm_net *net, char list[512]) {
    const char *name;
    json_t *entry;
    json_object_foreach(image->header, name, entry) {
        bool known = strcmp(name, "__metadata__") == 0 || is_optimiser(name);
        for (int t = 0; t < net->tensor_count && !known; t++) known = strcmp(name, net->tensors[t].name) == 0;
        if (!known) list_layer(list, name);
    }
}

static enum farm_status fail_nothing(const char *path, const struct image *image, const char *wanted,
                                     struct farm_error *err) {
    const json_t *metadata = json_object_get(image->header, "__metadata__");
    const char *net = json_string_value(json_object_get(metadata, "recipe.net"));
    return farm_fail(err, FARM_E_FORMAT,
                     "%s has no layer of the names and shapes of this run's network (%.200s)%s%.255s", path, wanted,
                     net ? ": it was trained with --net " : ": it is not of farm train", net ? net : "");
}

enum farm_status farm_checkpoint_take(const char *path, const struct farm_net *net, const char *head, float *params,
                                      struct farm_checkpoint_taken *taken, struct farm_error *err) {
    struct image image;
    const void *found[FARM_TENSORS_MAX] = {NULL};
    enum farm_status status = image_read(path, true, &image, err);
    *taken = (struct farm_checkpoint_taken){0};
    if (status) return status;
    for (int t = 0; t < net->tensor_count && !status; t++) {
        const char *name = net->tensors[t].name;
        const bool fits = has_layer(&image, net, head, name);
        list_layer(fits ? taken->taken : taken->fresh, name);
        if (fits && !(found[t] = find_tensor(&image, path, "", &net->tensors[t], err))) status = FARM_E_FORMAT;
    }
    list_left(&image, net, taken->left);
    const char *there = json_string_value(json_object_get(json_object_get(image.header, "__metadata__"), "head"));
    snprintf(taken->head, sizeof taken->head, "%s", there ? there : "");
    if (!status && !taken->taken[0]) status = fail_nothing(path, &image, taken->fresh, err);
    for (int t = 0; t < net->tensor_count && !status; t++)
        if (found[t]) memcpy(params + net->tensors[t].offset, found[t], net->tensors[t].count * sizeof(float));
    image_free(&image);
    return status;
}
