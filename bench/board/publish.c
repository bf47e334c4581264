// What a version costs its writer, and what a reader pays to see that the version is unchanged.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "readers.h"
#include "rows.h"

enum { SAMPLES = 41, SEES = 1000000, COUNT_16MB = 4 << 20 };

// Nanoseconds a call; the board's version stands still.
void board_row_see(struct farm_bench *bench) {
    const struct farm_board_request request = {.count = 1000, .buffers = 3, .node = -1};
    struct farm_board_reader reader;
    struct farm_board *board;
    struct farm_error err;
    double ours[SAMPLES], theirs[SAMPLES];
    uint64_t sum = 0, *word = aligned_alloc(FARM_CACHE_LINE, FARM_CACHE_LINE);
    must(farm_board_create(&request, &board, &err), &err);
    must(farm_board_attach(board, &reader, NULL, &err), &err);
    farm_board_commit(board, 0, *word = 7);
    const uint64_t begin = farm_now_ns();
    int s = 0;
    for (; board_goes_on(s, SAMPLES, begin, bench->seconds / 50); s++) {
        uint64_t start = farm_thread_cpu_ns();
        for (int i = 0; i < SEES; i++) sum += farm_load_acquire(word);
        theirs[s] = (double)(farm_thread_cpu_ns() - start) / SEES;
        start = farm_thread_cpu_ns();
        for (int i = 0; i < SEES; i++) sum += farm_board_version(&reader);
        ours[s] = (double)(farm_thread_cpu_ns() - start) / SEES;
    }
    must_hold(sum == 2ull * (uint64_t)s * SEES * 7, "versions");
    farm_bench_add(bench, "see_version", "ns", "lower", ours, (size_t)s, "acquire load", theirs, (size_t)s, 2);
    farm_board_free(board);
    free(word);
}

// The writer's CPU time, on a CPU of its own, while the processes read on another; the reference is the bare copy into
// the buffers of a board like it in turn, while they pause.
void board_row_publish(struct farm_bench *bench) {
    const struct farm_board_request request = {.count = COUNT_16MB, .buffers = FARM_BOARD_BUFFERS, .node = -1};
    static struct readers readers;
    struct farm_board *bare;
    struct farm_error err;
    double ours[SAMPLES], theirs[SAMPLES];
    float *params = malloc(COUNT_16MB * sizeof *params);
    must_hold(params != NULL, "no memory");
    readers_start(&readers, COUNT_16MB, 0, true);
    must(farm_board_create(&request, &bare, &err), &err);
    uint64_t version = 0, skips = 0;
    const uint64_t begin = farm_now_ns();
    int s = -FARM_BOARD_BUFFERS; // the first ones touch the memory
    for (; board_goes_on(s, SAMPLES, begin, bench->seconds * 0.16); s++) {
        const int at = s < 0 ? 0 : s;
        for (bool published = false; !published;) {
            for (size_t i = 0; i < COUNT_16MB; i++) params[i] = readers_number(version);
            const uint64_t start = farm_thread_cpu_ns();
            published = farm_board_publish(readers.board, params, version);
            ours[at] = 1e-6 * (double)(farm_thread_cpu_ns() - start);
            skips += !published;
            version += published;
            if (!published) usleep(1000);
        }
        readers_set(&readers, READERS_PAUSE);
        const uint64_t start = farm_thread_cpu_ns();
        memcpy(bare->buffer[(s + FARM_BOARD_BUFFERS) % FARM_BOARD_BUFFERS], params, COUNT_16MB * sizeof *params);
        theirs[at] = 1e-6 * (double)(farm_thread_cpu_ns() - start);
        readers_set(&readers, READERS_READ);
        usleep(20000); // the processes read
    }
    const double skipped = (double)skips / (double)(version + skips);
    readers_stop(&readers);
    farm_bench_add(bench, "publish_16mb", "ms", "lower", ours, (size_t)s, "memcpy into such buffers, no readers",
                   theirs, (size_t)s, 1.3);
    farm_bench_add(bench, "publish_16mb_skipped", "share", "lower", (double[]){skipped}, 1, NULL, NULL, 0, NAN);
    farm_board_free(bare);
    free(params);
}
