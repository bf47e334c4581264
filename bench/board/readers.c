// See readers.h.
#include "readers.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../common.h"

// Reads a version; returns how many numbers are not those of version `version`.
static uint64_t read_params(const float *params, uint64_t count, uint64_t version) {
    const float right = readers_number(version);
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < count; i++) wrong += params[i] != right;
    return wrong;
}

static void read_versions(const struct readers *all, struct farm_board *board, uint32_t process, bool checks) {
    struct readers_shared *shared = all->shared;
    struct farm_board_reader readers[READERS / PROCESSES];
    struct farm_error err;
    for (uint32_t r = 0; r < READERS / PROCESSES; r++)
        must(farm_board_attach(board, &readers[r], (uint64_t *)shared->using[r * PROCESSES + process], &err), &err);
    uint64_t mode, version;
    for (uint32_t turn = 0; (mode = farm_load_acquire(&shared->mode)) != READERS_STOP; turn++) {
        if (mode == READERS_PAUSE) usleep(500);
        if (mode == READERS_READ_COPY) must_hold(read_params(all->copy, board->count, 0) == 0, "a changed copy");
        if (mode != READERS_READ) continue;
        struct farm_board_reader *reader = &readers[turn % (READERS / PROCESSES)];
        const float *params = farm_board_pin(reader, &version);
        const uint64_t wrong = params ? read_params(params, board->count, version) : 0;
        farm_board_unpin(reader);
        farm_add_relaxed(&shared->wrong, checks ? wrong : wrong > board->count);
        farm_add_relaxed(&shared->pins, params != NULL);
    }
}

void readers_start(struct readers *readers, size_t count, size_t packed_max, bool checks) {
    const struct farm_board_request request = {
        .count = count, .packed_max = packed_max, .buffers = FARM_BOARD_BUFFERS, .node = -1};
    struct farm_error err;
    must(farm_board_create(&request, &readers->board, &err), &err);
    readers->shared = shared_memory(sizeof *readers->shared);
    readers->copy = shared_memory(count * sizeof(float));
    for (size_t i = 0; i < count; i++) readers->copy[i] = readers_number(0);
    for (uint32_t r = 0; r < READERS; r++)
        must(farm_board_watch(readers->board, (uint64_t *)readers->shared->using[r], &err), &err);
    for (uint32_t p = 0; p < PROCESSES; p++) {
        readers->processes[p] = fork();
        must_hold(readers->processes[p] >= 0, "fork");
        if (readers->processes[p]) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        farm_bench_pin(0);
        struct farm_board *board;
        must(farm_board_open(dup(readers->board->segment.fd_readonly), false, &board, &err), &err);
        read_versions(readers, board, p, checks);
        _exit(0);
    }
    must_hold(farm_bench_pin(farm_bench_cpus() - 1), "cannot bind to one CPU");
}

void readers_set(struct readers *readers, enum readers_mode mode) {
    farm_store_release(&readers->shared->mode, mode);
    for (uint32_t r = 0; r < READERS && mode != READERS_READ; r++)
        while (farm_load_acquire((uint64_t *)readers->shared->using[r])) usleep(100);
}

void readers_stop(struct readers *readers) {
    readers_set(readers, READERS_STOP);
    for (uint32_t p = 0; p < PROCESSES; p++)
        must_hold(wait_for(readers->processes[p]) == 0, "a reading process failed");
    must_hold(farm_load_relaxed(&readers->shared->pins) > 0, "nothing was read");
    must_hold(farm_load_relaxed(&readers->shared->wrong) == 0, "a torn version");
    munmap(readers->shared, sizeof *readers->shared);
    munmap(readers->copy, readers->board->count * sizeof(float));
    farm_board_free(readers->board);
}
