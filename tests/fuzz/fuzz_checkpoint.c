// Checkpoints of any bytes. The first byte selects how the rest becomes a file and which vectors the run has. A file
// that loads is finite and equal after saving and loading it again; a refused file changes nothing.
//
//   bit 0  the rest is the file; otherwise it is `n` (a byte), n bytes of data, then the header's text
//   bit 1, 2  the run wants the first and the second moments
//   bit 3  with bit 0 unset: the checksums in the header are made to fit, so that inputs get past them
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "fuzz.h"
#include "fuzz_net.h"
#include "learner/checkpoint.h"

enum { RAW_FILE = 1, WANTS_FIRST = 2, WANTS_SECOND = 4, SUMS_FIT = 8, MARK = 0x5a };

struct vectors {
    float data[3][FUZZ_NET_PARAMETERS];
    struct farm_backend_state state;
};

static void vectors_make(struct vectors *vectors, uint8_t mode) {
    memset(vectors->data, MARK, sizeof vectors->data);
    vectors->state = farm_backend_state_of(vectors->data[0], mode & WANTS_FIRST ? vectors->data[1] : NULL,
                                           mode & WANTS_SECOND ? vectors->data[2] : NULL, 0, 0);
}

static bool is_untouched(const float *vector) {
    for (size_t i = 0; i < FUZZ_NET_PARAMETERS * sizeof *vector; i++)
        if (((const uint8_t *)vector)[i] != MARK) return false;
    return true;
}

static void write_file(int fd, const void *data, size_t bytes) {
    assert(!bytes || write(fd, data, bytes) == (ssize_t)bytes);
}

static json_t *sum_of(const void *data, size_t bytes) {
    return json_sprintf("%08" PRIx32, farm_crc32c(0, data, bytes));
}

// The header with the sums that checkpoint.h describes, in place of those that it has; NULL: it is no header.
static char *fit_sums(const struct fuzz_input *input, const uint8_t *data, size_t data_bytes) {
    json_t *header = json_loadb((const char *)input->at, input->left, JSON_REJECT_DUPLICATES, NULL), *entry;
    json_t *metadata = json_object_get(header, "__metadata__");
    const char *name;
    char key[128];
    json_object_foreach(header, name, entry) {
        const json_t *pair = json_object_get(entry, "data_offsets");
        const size_t from = (size_t)json_integer_value(json_array_get(pair, 0)),
                     to = (size_t)json_integer_value(json_array_get(pair, 1));
        snprintf(key, sizeof key, "crc32c.%s", name);
        if (from <= to && to <= data_bytes && json_object_get(metadata, key))
            json_object_set_new(metadata, key, sum_of(data + from, to - from));
    }
    if (json_object_del(metadata, "crc32c") == 0) {
        char *all = json_dumps(header, JSON_COMPACT | JSON_SORT_KEYS);
        json_object_set_new(metadata, "crc32c", sum_of(all, strlen(all)));
        free(all);
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

// The input as a file in memory.
static int make_file(struct fuzz_input *input, uint8_t mode) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    assert(fd >= 0);
    if (!(mode & RAW_FILE)) {
        uint8_t data_bytes, data[255];
        fuzz_take(input, &data_bytes, 1);
        fuzz_take(input, data, data_bytes);
        char *fitting = mode & SUMS_FIT ? fit_sums(input, data, data_bytes) : NULL;
        const uint64_t length = fitting ? strlen(fitting) : input->left;
        write_file(fd, &length, sizeof length); // little endian, as the tests' machines are
        write_file(fd, fitting ? (const void *)fitting : input->at, length);
        write_file(fd, data, data_bytes);
        free(fitting);
    } else {
        write_file(fd, input->at, input->left);
    }
    return fd;
}

static int by_start(const void *a, const void *b) {
    const json_int_t *x = a, *y = b;
    int i = x[0] == y[0];
    return (x[i] > y[i]) - (x[i] < y[i]);
}

// As the format's README requires: tensors fill the data without holes or overlap.
static void check_tiles(int fd) {
    enum { TENSORS_MAX = 256 };
    static char file[1 << 16];
    json_int_t offsets[TENSORS_MAX][2], end = 0;
    size_t count = 0;
    ssize_t bytes = pread(fd, file, sizeof file, 0);
    uint64_t length;
    memcpy(&length, file, sizeof length);
    json_t *header = json_loadb(file + sizeof length, length, 0, NULL), *entry;
    const char *name;
    assert(header);
    json_object_foreach(header, name, entry) {
        if (strcmp(name, "__metadata__") == 0 || count == TENSORS_MAX) continue;
        json_t *pair = json_object_get(entry, "data_offsets");
        for (size_t i = 0; i < 2; i++) offsets[count][i] = json_integer_value(json_array_get(pair, i));
        count++;
    }
    json_decref(header);
    qsort(offsets, count, sizeof offsets[0], by_start);
    for (size_t i = 0; i < count; i++) {
        assert(offsets[i][0] == end);
        end = offsets[i][1];
    }
    assert(count == TENSORS_MAX || (uint64_t)end == (uint64_t)bytes - sizeof length - length);
}

static void check_same_pairs(const struct farm_checkpoint_metadata *a, const struct farm_checkpoint_metadata *b) {
    assert(a->count == b->count);
    for (uint32_t i = 0; i < a->count; i++) {
        const char *value = farm_checkpoint_get(b, a->keys[i]);
        assert(value && strcmp(value, a->values[i]) == 0);
    }
}

// Saves what was loaded and loads it again.
static void check_round_trip(const struct farm_net *net, uint8_t mode, const struct vectors *loaded, bool has_optimiser,
                             const struct farm_checkpoint_metadata *metadata) {
    static char path[128];
    if (!path[0])
        snprintf(path, sizeof path, "%s/%ld.safetensors", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (long)getpid());
    const char *pairs[FARM_CHECKPOINT_PAIRS_MAX][2];
    struct farm_checkpoint_metadata again;
    struct farm_error err = {0};
    struct vectors back;
    bool back_has_optimiser = false;
    struct farm_backend_state state = loaded->state;
    if (!has_optimiser) state.vector_count = 1;
    for (uint32_t i = 0; i < metadata->count; i++) pairs[i][0] = metadata->keys[i], pairs[i][1] = metadata->values[i];
    assert(farm_checkpoint_save(path, net, &state, (const char *const(*)[2])pairs, metadata->count, &err) == FARM_OK);
    vectors_make(&back, mode);
    assert(farm_checkpoint_load(path, net, &back.state, &back_has_optimiser, &again, &err) == FARM_OK);
    assert(back_has_optimiser == has_optimiser && memcmp(back.data, loaded->data, sizeof back.data) == 0);
    check_same_pairs(metadata, &again);
    farm_checkpoint_metadata_free(&again);
    unlink(path);
}

static void check_loaded(const struct vectors *vectors, bool has_optimiser) {
    for (size_t i = 0; i < FUZZ_NET_PARAMETERS; i++) assert(isfinite(vectors->data[0][i]));
    assert(!has_optimiser || vectors->state.vector_count > 1);
    for (int v = 1; v < 3; v++) {
        const bool taken =
            has_optimiser && farm_backend_vector(&vectors->state, v == 1 ? "optimiser.first" : "optimiser.second");
        assert(taken || is_untouched(vectors->data[v]));
        for (size_t i = 0; taken && i < FUZZ_NET_PARAMETERS; i++) assert(isfinite(vectors->data[v][i]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct fuzz_input input = {data, bytes};
    struct farm_checkpoint_metadata metadata, alone;
    struct farm_error err = {0};
    struct farm_net net = fuzz_net_make();
    struct vectors vectors;
    bool has_optimiser = false;
    char path[64];
    uint8_t mode;
    fuzz_take(&input, &mode, 1);
    int fd = make_file(&input, mode);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    vectors_make(&vectors, mode);
    enum farm_status status = farm_checkpoint_load(path, &net, &vectors.state, &has_optimiser, &metadata, &err);
    enum farm_status status_alone = farm_checkpoint_read_metadata(path, &alone, NULL);
    if (status) {
        assert(status == FARM_E_FORMAT);
        fuzz_check_refusal(status, &err);
        for (int v = 0; v < 3; v++) assert(is_untouched(vectors.data[v]));
    } else {
        assert(status_alone == FARM_OK);
        check_same_pairs(&metadata, &alone);
        check_tiles(fd);
        check_loaded(&vectors, has_optimiser);
        check_round_trip(&net, mode, &vectors, has_optimiser, &metadata);
        farm_checkpoint_metadata_free(&metadata);
    }
    if (!status_alone) farm_checkpoint_metadata_free(&alone);
    close(fd);
    return 0;
}
