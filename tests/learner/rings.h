// What the learner's tests share: rings of a small flat environment, seen from both sides in one process, and folders
// that go away again. Each test file includes it once.
#ifndef TESTS_LEARNER_RINGS_H
#define TESTS_LEARNER_RINGS_H

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ring/ring.h"

struct test_ring {
    struct farm_ring made;           // the supervisor's: holds the descriptors
    struct farm_ring actor, learner; // both sides' views, of this process
};

static inline struct farm_ring_spec test_ring_spec(uint32_t lanes, uint32_t width, uint32_t steps, uint32_t flat,
                                                   uint32_t actions) {
    struct farm_ring_spec spec = {.lanes = lanes, .width = width, .steps = steps};
    spec.env.obs_count = 1;
    spec.env.obs[0] = (struct farm_field_spec){.name = "obs", .dtype = FARM_F32, .rank = 1, .dims = {flat}};
    spec.env.action = (struct farm_action_spec){.kind = FARM_ACTION_DISCRETE, .dims = 1, .sizes = {actions}};
    spec.env.frames_per_step = 1;
    farm_ring_spec_answers(&spec);
    return spec;
}

// A view of this process; a process that was forked has to open its own.
static inline void test_ring_view(const struct farm_ring *made, enum farm_ring_side side, struct farm_ring *view) {
    struct farm_error err = {0};
    const bool actor = side == FARM_RING_ACTOR;
    const int up = dup(actor ? made->up.fd : made->up.fd_readonly),
              down = dup(actor ? made->down.fd_readonly : made->down.fd);
    cr_assert_eq(farm_ring_open(up, down, side, view, &err), FARM_OK, "%s", err.message);
}

static inline void test_ring_open(const struct farm_ring_spec *spec, struct test_ring *ring) {
    struct farm_error err = {0};
    cr_assert_eq(farm_ring_create(spec, 0, -1, false, &ring->made, &err), FARM_OK, "%s", err.message);
    test_ring_view(&ring->made, FARM_RING_ACTOR, &ring->actor);
    test_ring_view(&ring->made, FARM_RING_LEARNER, &ring->learner);
}

static inline void test_ring_close(struct test_ring *ring) {
    farm_ring_close(&ring->actor);
    farm_ring_close(&ring->learner);
    farm_ring_close(&ring->made);
}

static inline void test_folder_make(char *path, size_t bytes) {
    const char *base = getenv("TMPDIR");
    snprintf(path, bytes, "%s/farm-learner-XXXXXX", base ? base : "/tmp");
    cr_assert(mkdtemp(path) != NULL);
}

// Files in a folder; the alphabetically last name of a checkpoint into `last` (may be NULL).
static inline int test_folder_files(const char *folder, char *last, size_t bytes) {
    int count = 0;
    DIR *open = opendir(folder);
    cr_assert(open != NULL);
    if (last) last[0] = 0;
    for (struct dirent *entry; (entry = readdir(open));) {
        if (entry->d_name[0] == '.') continue;
        count++;
        const char *dot = strrchr(entry->d_name, '.');
        if (last && dot && strcmp(dot, ".safetensors") == 0 && strcmp(entry->d_name, last) > 0)
            snprintf(last, bytes, "%s", entry->d_name);
    }
    closedir(open);
    return count;
}

static inline void test_folder_remove(const char *folder) {
    DIR *open = opendir(folder);
    for (struct dirent *entry; open && (entry = readdir(open));) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.') unlink(path);
    }
    if (open) closedir(open);
    rmdir(folder);
}

#endif
