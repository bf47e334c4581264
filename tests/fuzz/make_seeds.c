// Writes the seeds that are bytes of the program's own structs and files (attach, spec, checkpoint) with the program's
// own functions: make_seeds FOLDER, in which corpus/TARGET/ is. `make fuzz-seeds` runs it after a layout, a format or
// a target's way of reading its input has changed. All other seeds are texts, written by hand.
#include <stdio.h>
#include <unistd.h>

#include "../support/rings.h"
#include "base/file.h"
#include "fuzz.h"
#include "fuzz_attach.h"
#include "fuzz_net.h"
#include "learner/checkpoint.h"

struct seed {
    uint8_t bytes[65536];
    size_t count;
};

static void append(struct seed *seed, const void *data, size_t bytes) {
    assert(seed->count + bytes <= sizeof seed->bytes);
    memcpy(seed->bytes + seed->count, data, bytes);
    seed->count += bytes;
}

static void save(const char *folder, const char *target, const char *name, struct seed *seed) {
    char path[512];
    struct farm_error err = {0};
    snprintf(path, sizeof path, "%s/corpus/%s", folder, target);
    enum farm_status status = farm_folder_make(path, &err);
    snprintf(path, sizeof path, "%s/corpus/%s/seed-%s", folder, target, name);
    if (!status) status = farm_file_replace(path, seed->bytes, seed->count, &err);
    if (status) {
        fprintf(stderr, "make_seeds: %s\n", err.message);
        exit(1);
    }
    seed->count = 0;
}

// ---- attach, spec ----

static void save_attach(const char *folder, const char *name, const struct fuzz_attach *plan, const void *fill,
                        const struct farm_ring_spec *spec) {
    struct seed seed = {.count = 0};
    append(&seed, plan, sizeof *plan);
    append(&seed, fill, plan->fill_bytes);
    append(&seed, spec, sizeof *spec);
    save(folder, "attach", name, &seed);
}

static void save_spec(const char *folder, const char *name, const struct farm_ring_spec *spec) {
    struct seed seed = {.count = 0};
    append(&seed, spec, sizeof *spec);
    save(folder, "spec", name, &seed);
}

enum spec { PLAIN, RICH, CONTINUOUS, LOCAL, LOCAL_STATE, LARGE, SPECS };
enum fill { ONE, NOT_NUMBERS, COUNTED, UNKNOWN_FLAGS, FILLS };

static const struct {
    const char *name;
    struct fuzz_segment up; // what differs from an honest one
    uint8_t side, fill_bytes, descriptors, turn, counters[3];
    enum fill fill;
    enum spec spec;
} attaches[] = {
    {"actor", {0}, .side = 0x10, .spec = PLAIN},
    {"learner", {0}, .side = 0x24 | 1, .fill_bytes = 8, .spec = RICH},
    {"observer", {0}, .side = 0x30 | 2, .fill_bytes = 200, .spec = CONTINUOUS},
    {"unsealed", {.seals = 4}, .side = 0x30 | 2, .spec = PLAIN},
    {"short", {.seals = FUZZ_READ_ONLY, .size_delta = -64}, .side = 0x30 | 2, .spec = PLAIN},
    {"hash", {.spoil = FUZZ_SPOIL_HASH, .word = 1}, .side = 0x30 | 2, .spec = PLAIN},
    {"scribbled", {.spoil = FUZZ_SPOIL_SPEC, .word = 0xff0003}, .side = 0x20 | 1, .fill_bytes = 200, .spec = RICH},
    {"bytes", {.spoil = FUZZ_SPOIL_BYTES, .word = 1 << 20}, .side = 0x10, .fill_bytes = 200, .spec = PLAIN},
    {"not-numbers", {0}, .side = 1, .fill_bytes = 200, .fill = NOT_NUMBERS, .spec = RICH},
    {"absurd-counters", {0}, .fill_bytes = 200, .turn = 9, .fill = COUNTED, .spec = PLAIN},
    {"a-lie", {0}, .side = 8, .fill_bytes = 1, .counters = {7, 2, 1}, .spec = PLAIN},
    {"sound", {0}, .side = 8 | 2, .fill_bytes = 1, .counters = {4, 4, 0}, .spec = PLAIN}, // every flag is FIRST
    {"unknown-flags", {0}, .side = 8 | 2, .fill_bytes = 1, .counters = {4, 4, 0}, .fill = UNKNOWN_FLAGS, .spec = PLAIN},
    {"unanswered", {0}, .side = 8 | 2, .fill_bytes = 1, .counters = {4, 2, 0}, .spec = PLAIN},
    {"swapped", {0}, .descriptors = FUZZ_SWAPPED, .counters = {4, 2, 0}, .spec = PLAIN},
    {"local", {0}, .side = 1, .fill_bytes = 200, .spec = LOCAL},
    {"local-state", {0}, .side = 1, .fill_bytes = 200, .fill = UNKNOWN_FLAGS, .spec = LOCAL_STATE},
    {"local-ahead", {0}, .side = 8, .fill_bytes = 200, .counters = {4, 1, 0}, .spec = LOCAL},
};

static void make_layouts(const char *folder) {
    struct farm_ring_spec specs[SPECS] = {[PLAIN] = spec_of(2, 3, 8), [RICH] = spec_rich(1, 2, 5)};
    uint8_t fills[FILLS][200] = {{1}};
    specs[CONTINUOUS] = specs[PLAIN];
    specs[CONTINUOUS].env.action =
        (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -2}, .high = {1, 2}};
    farm_ring_spec_answers(&specs[CONTINUOUS]);
    specs[LOCAL] = specs[LARGE] = specs[RICH];
    specs[LOCAL_STATE] = specs[CONTINUOUS];
    specs[LOCAL].answers = specs[LOCAL_STATE].answers = FARM_ANSWERS_LOCAL;
    specs[LOCAL_STATE].answer[specs[LOCAL_STATE].answer_count++] =
        (struct farm_answer_spec){"state", FARM_F32, 3, 4, 0};
    specs[LARGE].lanes = FARM_LANES_MAX;
    specs[LARGE].width = FARM_WIDTH_MAX;
    specs[LARGE].steps = 1 << 24;
    for (int i = 0; i < 200; i++) {
        fills[NOT_NUMBERS][i] = i % 4 == 3 ? 0x7f : i % 4 == 2 ? 0xc0 : 0; // f32 NaN
        fills[COUNTED][i] = fills[UNKNOWN_FLAGS][i] = (uint8_t)i;
    }
    fills[UNKNOWN_FLAGS][0] = 0x20 | FARM_STEP_FIRST;
    for (size_t i = 0; i < sizeof attaches / sizeof *attaches; i++) {
        struct fuzz_attach plan = {.up = attaches[i].up,
                                   .down = {.seals = FUZZ_ALL_SEALS},
                                   .side = attaches[i].side,
                                   .fill_bytes = attaches[i].fill_bytes,
                                   .descriptors = attaches[i].descriptors,
                                   .turn = attaches[i].turn};
        plan.up.seals ^= FUZZ_ALL_SEALS;
        memcpy(plan.counters, attaches[i].counters, sizeof plan.counters);
        save_attach(folder, attaches[i].name, &plan, fills[attaches[i].fill], &specs[attaches[i].spec]);
    }
    static const char *const names[SPECS] = {[PLAIN] = "plain",
                                             [RICH] = "rich",
                                             [CONTINUOUS] = "continuous",
                                             [LOCAL_STATE] = "local-state",
                                             [LARGE] = "large"};
    for (int i = 0; i < SPECS; i++)
        if (names[i]) save_spec(folder, names[i], &specs[i]);
}

// ---- checkpoint ----

// older: as written before there were checksums, so that inputs made from it get past them.
static void make_checkpoint(const char *folder, const char *name, uint8_t mode, bool older, bool first, bool second) {
    float vectors[3][FUZZ_NET_PARAMETERS] = {{1, -0.0f, 1e-42f, 3}, {0.5f}, {0.25f}};
    const char *const pairs[][2] = {{"env", "native/catch"}, {"frames", "1234567890123"}};
    const struct farm_backend_state state =
        farm_backend_state_of(vectors[0], first ? vectors[1] : NULL, second ? vectors[2] : NULL, 0, 0);
    const struct farm_net net = fuzz_net_make();
    struct farm_error err = {0};
    struct seed seed = {.count = 0};
    char path[512], *file = NULL;
    size_t bytes = 0;
    snprintf(path, sizeof path, "%s/corpus/seed.safetensors", folder);
    enum farm_status status = farm_checkpoint_save(path, &net, &state, pairs, 2, &err);
    if (!status) status = farm_file_read(path, sizeof seed.bytes, &file, &bytes, &err);
    assert(!status);
    for (char *at = file; older && (at = memmem(at, bytes - (size_t)(at - file), "crc32c", 6));)
        memcpy(at, "crc_no", 6);
    append(&seed, &mode, 1);
    if (mode & 1) {
        append(&seed, file, bytes);
    } else { // the data first, then the header's text
        uint8_t header_bytes = (uint8_t)file[0], data_bytes;
        size_t header = (size_t)header_bytes + ((size_t)(uint8_t)file[1] << 8);
        data_bytes = (uint8_t)(bytes - 8 - header);
        append(&seed, &data_bytes, 1);
        append(&seed, file + 8 + header, data_bytes);
        append(&seed, file + 8, header);
    }
    save(folder, "checkpoint", name, &seed);
    free(file);
    unlink(path);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: make_seeds tests/fuzz\n");
        return 2;
    }
    make_layouts(argv[1]);
    make_checkpoint(argv[1], "raw", 1 | 2 | 4, false, true, true);
    make_checkpoint(argv[1], "parts", 4, false, false, true);
    make_checkpoint(argv[1], "plain", 0, false, false, false);
    make_checkpoint(argv[1], "both", 2 | 4, false, true, true);
    make_checkpoint(argv[1], "older", 2 | 4, true, true, true);
    make_checkpoint(argv[1], "sums", 2 | 4 | 8, false, true, true);
    make_checkpoint(argv[1], "sums-plain", 8, false, false, false);
    return 0;
}
