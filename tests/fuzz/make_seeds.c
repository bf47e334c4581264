// Writes the seeds that are bytes of the program's own structs and files (attach, spec, checkpoint) with the program's
// own functions: make_seeds FOLDER, which holds corpus/ of tests/fuzz. `make fuzz-seeds` runs it after a layout, a
// format or a target's way of reading its input has changed. All other seeds are texts, written by hand.
#include <stdio.h>
#include <unistd.h>

#include "../support/specs.h"
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

static struct farm_ring_spec spec_continuous(void) {
    struct farm_ring_spec spec = spec_of(2, 3, 8);
    spec.env.action =
        (struct farm_action_spec){.kind = FARM_ACTION_CONTINUOUS, .dims = 2, .low = {-1, -2}, .high = {1, 2}};
    farm_ring_spec_answers(&spec);
    return spec;
}

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

static void make_layouts(const char *folder) {
    const struct fuzz_segment honest = {.seals = FUZZ_ALL_SEALS};
    const struct farm_ring_spec plain = spec_of(2, 3, 8), rich = spec_rich(1, 2, 5), continuous = spec_continuous();
    static const uint8_t fill[200] = {1};
    struct fuzz_attach plan = {.up = honest, .down = honest, .text_bytes = 200, .side = 0x10};
    save_attach(folder, "actor", &plan, fill, &plain);
    plan.side = 0x24 | 1;
    plan.fill_bytes = 8;
    save_attach(folder, "learner", &plan, fill, &rich);
    plan.side = 0x30 | 2;
    plan.fill_bytes = 200;
    save_attach(folder, "observer", &plan, fill, &continuous);
    plan.fill_bytes = 0;
    plan.up.seals = 3;
    save_attach(folder, "unsealed", &plan, fill, &plain);
    plan.up = (struct fuzz_segment){.seals = FUZZ_ALL_SEALS | FUZZ_READ_ONLY, .size_delta = -64};
    save_attach(folder, "short", &plan, fill, &plain);
    plan.up = (struct fuzz_segment){.seals = FUZZ_ALL_SEALS, .spoil = FUZZ_SPOIL_HASH, .word = 1};
    save_attach(folder, "hash", &plan, fill, &plain);
    plan.up = (struct fuzz_segment){.seals = FUZZ_ALL_SEALS, .spoil = FUZZ_SPOIL_SPEC, .word = 0xff0003};
    plan.fill_bytes = 200;
    plan.side = 0x20 | 1;
    save_attach(folder, "scribbled", &plan, fill, &rich);
    plan.up = (struct fuzz_segment){.seals = FUZZ_ALL_SEALS, .spoil = FUZZ_SPOIL_BYTES, .word = 1 << 20};
    plan.side = 0x10;
    save_attach(folder, "bytes", &plan, fill, &plain);
    plan.up = honest;
    uint8_t numbers[200];
    for (int i = 0; i < 200; i++) numbers[i] = i % 4 == 3 ? 0x7f : i % 4 == 2 ? 0xc0 : 0; // f32 NaN
    plan.side = 1;
    save_attach(folder, "not-numbers", &plan, numbers, &rich);
    for (int i = 0; i < 200; i++) numbers[i] = (uint8_t)i;
    plan.side = 0;
    plan.turn = 9;
    save_attach(folder, "absurd-counters", &plan, numbers, &plain);
    plan.turn = 0;
    plan.fill_bytes = 1;
    plan.side = 8;
    memcpy(plan.counters, (uint8_t[]){7, 2, 1}, 3);
    save_attach(folder, "a-lie", &plan, fill, &plain);
    plan.side = 8 | 2;
    memcpy(plan.counters, (uint8_t[]){4, 4, 0}, 3);
    save_attach(folder, "sound", &plan, fill, &plain); // every flag is FIRST
    numbers[0] = 0x20 | FARM_STEP_FIRST;
    save_attach(folder, "unknown-flags", &plan, numbers, &plain);
    memcpy(plan.counters, (uint8_t[]){4, 2, 0}, 3);
    save_attach(folder, "unanswered", &plan, fill, &plain);
    plan.side = 0;
    plan.fill_bytes = 0;
    plan.descriptors = FUZZ_SWAPPED;
    save_attach(folder, "swapped", &plan, fill, &plain);
    struct farm_ring_spec local = rich, state = continuous;
    local.answers = state.answers = FARM_ANSWERS_LOCAL;
    state.answer[state.answer_count++] = (struct farm_answer_spec){"state", FARM_F32, 3, 4, 0};
    plan = (struct fuzz_attach){.up = honest, .down = honest, .text_bytes = 200, .side = 1, .fill_bytes = 200};
    save_attach(folder, "local", &plan, fill, &local);
    save_attach(folder, "local-state", &plan, numbers, &state);
    plan.side = 8;
    memcpy(plan.counters, (uint8_t[]){4, 1, 0}, 3);
    save_attach(folder, "local-ahead", &plan, fill, &local);
    save_spec(folder, "local-state", &state);
    save_spec(folder, "plain", &plain);
    save_spec(folder, "rich", &rich);
    save_spec(folder, "continuous", &continuous);
    struct farm_ring_spec large = rich;
    large.lanes = FARM_LANES_MAX;
    large.width = FARM_WIDTH_MAX;
    large.steps = 1 << 24;
    save_spec(folder, "large", &large);
}

// ---- checkpoint ----

static void make_checkpoint(const char *folder, const char *name, uint8_t mode, bool first, bool second) {
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
    make_checkpoint(argv[1], "raw", 1 | 2 | 4, true, true);
    make_checkpoint(argv[1], "parts", 4, false, true);
    make_checkpoint(argv[1], "plain", 0, false, false);
    make_checkpoint(argv[1], "both", 2 | 4, true, true);
    return 0;
}
