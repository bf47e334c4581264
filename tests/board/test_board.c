// The parameter board with a writer and readers that run at the same time, in this process and in others. Its
// interleavings: tests/model/board_model.c.
#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "../support/must.h"
#include "base/time.h"
#include "board/board.h"

enum { COUNT = 1000, VERSIONS = 3000, READERS = 3, PROCESSES = 16 };

static struct farm_error err;

static void fill(float *params, uint64_t version) {
    for (int i = 0; i < COUNT; i++) params[i] = (float)version;
}

static struct farm_board *make_for(uint32_t buffers, size_t packed_max) {
    const struct farm_board_request request = {
        .count = COUNT, .buffers = buffers, .packed_max = packed_max, .node = -1};
    struct farm_board *board = NULL;
    cr_assert_eq(farm_board_create(&request, &board, &err), FARM_OK, "%s", err.message);
    return board;
}
static struct farm_board *make(uint32_t buffers) {
    return make_for(buffers, 0);
}

// Another view, as in another process.
static struct farm_board *open_again(const struct farm_board *made, bool writer) {
    struct farm_board *board = NULL;
    const int fd = dup(writer ? made->segment.fd : made->segment.fd_readonly);
    cr_assert_eq(farm_board_open(fd, writer, &board, &err), FARM_OK, "%s", err.message);
    return board;
}

Test(board, refuses_boards_that_are_none) {
    struct farm_board *board;
    const struct farm_board_request requests[] = {
        {.count = COUNT, .buffers = 2},
        {.count = 0, .buffers = 3},
        {.count = 1ull << 62, .buffers = 3},
        {.count = COUNT, .packed_max = UINT64_MAX - 64, .buffers = 3},
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++)
        cr_assert_eq(farm_board_create(&requests[i], &board, &err), FARM_E_FORMAT, "%zu", i);
    const struct farm_board_request large = {.count = 1ull << 50, .buffers = 4, .node = -1};
    cr_assert_eq(farm_board_create(&large, &board, &err), FARM_E_LIMIT);
    cr_assert(strstr(err.message, "18014398509494272 bytes"), "%s", err.message); // the sum
}

// A header whose writer lies is refused, and the descriptor stays the caller's.
Test(board, refuses_a_header_that_does_not_fit_its_segment) {
    struct farm_board *board, *made = make_for(4, 640);
    struct farm_board_request *shape = (void *)made->segment.header->user, valid = *shape;
    const struct farm_board_request lies[] = {
        {.count = COUNT, .packed_max = 640, .buffers = 5},
        {.count = COUNT, .packed_max = 640, .buffers = 2},
        {.count = COUNT, .packed_max = 640, .buffers = FARM_BOARD_BUFFERS_MAX + 1},
        {.count = 2000, .packed_max = 640, .buffers = 4},
        {.count = 0, .packed_max = 640, .buffers = 4},
        {.count = UINT64_MAX / 4 + COUNT + 1, .packed_max = 640, .buffers = 4},
        {.count = COUNT, .packed_max = 641, .buffers = 4},
        {.count = COUNT, .packed_max = 8192, .buffers = 4},
        {.count = COUNT, .packed_max = UINT64_MAX - 63, .buffers = 4},
    };
    const int fd = made->segment.fd_readonly;
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
        *shape = lies[i];
        cr_assert_eq(farm_board_open(fd, false, &board, &err), FARM_E_FORMAT, "%zu", i);
    }
    *shape = valid;
    cr_assert_eq(farm_board_open(fd, true, &board, &err), FARM_E_PERMISSION);
    cr_assert_eq(farm_board_open(fd, false, &board, &err), FARM_OK, "%s", err.message);
    made->head->newest = 1ull << 8 | 200; // a buffer that does not exist
    struct farm_board_reader reader;
    uint64_t version, own = 0;
    float copy[COUNT];
    farm_board_attach(board, &reader, &own, &err);
    cr_assert_null(farm_board_pin(&reader, &version));
    cr_assert_not(farm_board_copy(board, copy, &version));
}

Test(board, is_described_once_and_alike_by_every_writer) {
    struct farm_board *made = make_for(3, 100), *reader = open_again(made, false);
    static struct farm_board_description seen;
    static char long_text[FARM_BOARD_TEXT_BYTES + 1];
    memset(long_text, 'x', FARM_BOARD_TEXT_BYTES);
    cr_assert_not(farm_board_described(reader, &seen));
    cr_assert_not(farm_board_describe(made, long_text, 0, 0));
    cr_assert(farm_board_describe(made, "net=mlp", 128, 7));
    struct farm_board *later = open_again(made, true);
    cr_assert(farm_board_describe(later, "net=mlp", 128, 7));
    cr_assert_not(farm_board_describe(later, "net=lite", 128, 7));
    cr_assert_not(farm_board_describe(later, "net=mlp", 128, 8));
    cr_assert(farm_board_described(reader, &seen));
    cr_assert(!strcmp(seen.text, "net=mlp") && seen.packed_bytes == 128 && seen.packed_layout == 7);
    memset(made->head->description.text, 'x', FARM_BOARD_TEXT_BYTES); // not terminated
    made->head->description.packed_bytes = 1 << 20;                   // beyond the buffer
    cr_assert(farm_board_described(reader, &seen));
    cr_assert(strlen(seen.text) == FARM_BOARD_TEXT_BYTES - 1 && !seen.packed_bytes);
    struct farm_board *flat = make(3);
    cr_assert(farm_board_describe(flat, "net=mlp", 128, 7) && farm_board_described(flat, &seen));
    cr_assert(!seen.packed_bytes && !seen.packed_layout && !farm_board_packed(flat, flat->buffer[0]));
}

static void pack_negative(void *context, const float *params, void *packed) {
    for (int i = 0; i < COUNT; i++) ((float *)packed)[i] = -params[i];
    ++*(int *)context;
}

Test(board, packs_a_version_beside_its_flat_parameters_and_a_later_writer_continues) {
    struct farm_board *made = make_for(3, COUNT * sizeof(float)), *reading = open_again(made, false);
    struct farm_board_reader reader;
    uint64_t version, using = 0;
    float params[COUNT], copy[COUNT];
    int packs = 0;
    cr_assert_not(farm_board_copy(reading, copy, &version));
    farm_board_attach(reading, &reader, &using, &err);
    for (uint64_t life = 1; life < 4; life++) {
        struct farm_board *writer = open_again(made, true);
        cr_assert_eq(farm_board_watch(writer, &using, &err), FARM_OK);
        writer->pack = pack_negative;
        writer->pack_context = &packs;
        fill(params, life);
        cr_assert(farm_board_publish(writer, params, life));
        const float *flat = farm_board_pin(&reader, &version), *packed = farm_board_packed(reading, flat);
        cr_assert(version == life && flat[COUNT - 1] == life && packed[0] == -flat[0]);
        cr_assert_eq((uintptr_t)packed % FARM_CACHE_LINE, 0);
        cr_assert(farm_board_copy(reading, copy, &version) && version == life && copy[COUNT - 1] == life);
        farm_board_unpin(&reader);
        farm_board_free(writer);
    }
    cr_assert_eq(packs, 3);
}

Test(board, ignores_impossible_announcements_and_unwatched_ones) {
    struct farm_board *board = make(3);
    static const uint64_t impossible[] = {4, 63, 64, 65, 1ull << 32, UINT64_MAX};
    uint64_t using[2] = {0};
    float params[COUNT] = {0};
    for (size_t i = 0; i < sizeof impossible / sizeof *impossible; i++)
        cr_assert_eq(farm_board_watch(board, &impossible[i], &err), FARM_OK);
    for (int i = 0; i < 2; i++) cr_assert_eq(farm_board_watch(board, &using[i], &err), FARM_OK);
    cr_assert(farm_board_publish(board, params, 0)); // buffer 0
    using[0] = 2;
    using[1] = 3;
    cr_assert_not(farm_board_publish(board, params, 1));
    farm_board_unwatch(board, &using[1]);
    cr_assert(farm_board_publish(board, params, 2));
    cr_assert_eq(board->head->newest, 3ull << 8 | 2);
}

Test(board, shows_the_newest_version_and_keeps_a_pinned_one) {
    struct farm_board *board = make(3);
    struct farm_board_reader reader;
    float params[COUNT];
    uint64_t version;
    cr_assert_eq(farm_board_attach(board, &reader, NULL, &err), FARM_OK);
    cr_assert_null(farm_board_pin(&reader, &version));
    cr_assert_eq(version, UINT64_MAX);
    farm_board_unpin(&reader);
    fill(params, 7);
    cr_assert(farm_board_publish(board, params, 7));
    const float *pinned = farm_board_pin(&reader, &version);
    for (uint64_t next = 8; next < 20; next++) {
        fill(params, next);
        cr_assert(farm_board_publish(board, params, next));
        cr_assert_eq(farm_board_version(&reader), next);
    }
    cr_assert(version == 7 && pinned[0] == 7 && pinned[COUNT - 1] == 7);
    farm_board_unpin(&reader);
    cr_assert_eq(farm_board_pin(&reader, &version)[0], 19);
    farm_board_unpin(&reader);
    farm_board_free(board);
}

static void *read_all(void *argument) {
    struct farm_board_reader *reader = argument;
    uint64_t version = 0, last = 0, torn = 0;
    while (version != VERSIONS - 1) {
        const float *params = farm_board_pin(reader, &version);
        for (int i = 0; i < COUNT && params; i++) torn += params[i] != (float)version;
        torn += params && version < last;
        last = params ? version : last;
        farm_board_unpin(reader);
    }
    return (void *)torn;
}

Test(board, is_never_torn_and_never_skips_with_two_buffers_more_than_readers, .timeout = 60) {
    struct farm_board *board = make(READERS + 2);
    struct farm_board_reader readers[READERS];
    pthread_t threads[READERS];
    float params[COUNT];
    for (int r = 0; r < READERS; r++) {
        cr_assert_eq(farm_board_attach(board, &readers[r], NULL, &err), FARM_OK);
        cr_assert_eq(pthread_create(&threads[r], NULL, read_all, &readers[r]), 0);
    }
    for (uint64_t v = 0; v < VERSIONS; v++) {
        fill(params, v);
        cr_assert(farm_board_publish(board, params, v));
    }
    for (int r = 0; r < READERS; r++) {
        void *torn;
        pthread_join(threads[r], &torn);
        cr_assert_null(torn);
    }
    farm_board_free(board);
}

// ---- processes ----

// What reading processes and the test share.
struct shared {
    _Alignas(128) uint64_t using[PROCESSES][16]; // an announcement each
    uint64_t reads, released;                    // whole versions so far; 1: held versions may go
    uint64_t held[PROCESSES];                    // 1: it holds a version
};

// Version v: numbers of its own, and their sum.
static void fill_summed(float *params, uint64_t version) {
    uint32_t words[COUNT] = {0};
    for (uint32_t i = 0; i < COUNT - 1; i++) {
        words[i] = ((uint32_t)version * 2654435761u + i) * 2246822519u;
        words[COUNT - 1] += words[i];
    }
    memcpy(params, words, sizeof words);
}

static bool is_whole(const float *params, uint64_t version) {
    float right[COUNT];
    uint32_t words[COUNT], sum = 0;
    fill_summed(right, version);
    memcpy(words, params, sizeof words);
    for (uint32_t i = 0; i < COUNT - 1; i++) sum += words[i];
    return sum == words[COUNT - 1] && memcmp(params, right, sizeof right) == 0;
}

// Reads whole versions until the last one, every fourth process by copies.
static int read_to_the_end(struct farm_board *board, struct shared *shared, uint32_t p) {
    struct farm_board_reader reader;
    float copy[COUNT];
    uint64_t last = 0, version = 0;
    farm_board_attach(board, &reader, shared->using[p], NULL);
    while (last != VERSIONS) {
        const float *params = copy;
        if (p % 4 != 3) params = farm_board_pin(&reader, &version);
        if (p % 4 == 3 && !farm_board_copy(board, copy, &version)) continue;
        if (params && (!is_whole(params, version) || version < last)) return 1;
        if (params) last = version;
        farm_board_unpin(&reader);
        farm_add_relaxed(&shared->reads, 1);
        usleep(100); // an actor's environments
    }
    return 0;
}

// Holds the newest version, and checks it when it may go.
static int hold_one(struct farm_board *board, struct shared *shared, uint32_t p) {
    struct farm_board_reader reader;
    uint64_t version;
    farm_board_attach(board, &reader, shared->using[p], NULL);
    const float *params = farm_board_pin(&reader, &version);
    farm_store_release(&shared->held[p], 1);
    while (!farm_load_acquire(&shared->released)) usleep(1000);
    const bool whole = is_whole(params, version);
    farm_board_unpin(&reader);
    return whole ? 0 : 1;
}

static pid_t start(const struct farm_board *made, struct shared *shared, uint32_t p,
                   int (*body)(struct farm_board *, struct shared *, uint32_t)) {
    const pid_t child = fork();
    if (child) return child;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct farm_board *board;
    if (farm_board_open(dup(made->segment.fd_readonly), false, &board, NULL)) _exit(3);
    _exit(body(board, shared, p));
}

static void watch_all(struct farm_board *board, struct shared *shared, uint32_t count) {
    for (uint32_t p = 0; p < count; p++)
        cr_assert_eq(farm_board_watch(board, shared->using[p], &err), FARM_OK, "%s", err.message);
}

// As the supervisor does: the death is reaped, then the announcement is cleared.
static void kill_one(struct shared *shared, uint32_t p, pid_t child) {
    kill(child, SIGKILL);
    cr_assert_eq(wait_for(child), 256 + SIGKILL);
    farm_store_release(shared->using[p], 0);
}

Test(board, gives_sixteen_processes_whole_versions_while_some_are_killed, .timeout = 60) {
    struct farm_board *board = make(FARM_BOARD_BUFFERS);
    struct shared *shared = shared_memory(sizeof *shared);
    pid_t children[PROCESSES];
    float params[COUNT];
    watch_all(board, shared, PROCESSES);
    for (uint32_t p = 0; p < PROCESSES; p++) children[p] = start(board, shared, p, read_to_the_end);
    uint64_t published = 0;
    for (uint64_t v = 0; v < VERSIONS; v++) {
        fill_summed(params, v);
        published += farm_board_publish(board, params, v);
        if (v % 8 == 0) usleep(100);
        if (v % 150) continue;
        const uint32_t p = (uint32_t)(v / 150 * 7 % PROCESSES);
        kill_one(shared, p, children[p]);
        children[p] = start(board, shared, p, read_to_the_end);
    }
    fill_summed(params, VERSIONS);
    while (!farm_board_publish(board, params, VERSIONS)) usleep(100);
    cr_assert_geq(published + board->head->skipped, VERSIONS);
    cr_assert_geq(published, VERSIONS / 10);
    for (uint32_t p = 0; p < PROCESSES; p++) cr_assert_eq(wait_for(children[p]), 0, "process %u", p);
    cr_assert_geq(shared->reads, PROCESSES);
    farm_board_free(board);
}

Test(board, skips_counts_and_warns_once_while_stopped_processes_hold_all_buffers, .timeout = 60) {
    enum { HOLDERS = FARM_BOARD_BUFFERS, SKIPS = 100 };
    struct farm_board *board = make(FARM_BOARD_BUFFERS);
    struct shared *shared = shared_memory(sizeof *shared);
    pid_t children[HOLDERS];
    float params[COUNT];
    char log[4096] = {0};
    const int errors = memfd_create("stderr", 0), before = dup(STDERR_FILENO);
    watch_all(board, shared, HOLDERS);
    for (uint32_t p = 0; p < HOLDERS; p++) {
        fill_summed(params, p);
        cr_assert(farm_board_publish(board, params, p));
        children[p] = start(board, shared, p, hold_one);
        while (!farm_load_acquire(&shared->held[p])) usleep(100);
        kill(children[p], SIGSTOP);
    }
    dup2(errors, STDERR_FILENO);
    for (uint64_t v = HOLDERS; v < HOLDERS + SKIPS; v++) cr_assert_not(farm_board_publish(board, params, v));
    dup2(before, STDERR_FILENO);
    cr_assert_eq(board->head->skipped, SKIPS);
    cr_assert_eq(board->head->newest >> 8, HOLDERS);
    cr_assert(pread(errors, log, sizeof log - 1, 0) > 0 && strstr(log, "a version of the parameters is skipped"));
    cr_assert_eq(strchr(log, '\n')[1], 0, "more than one line: %s", log);
    kill(children[0], SIGKILL); // a death frees the buffer when it has been reaped
    cr_assert_not(farm_board_publish(board, params, 999));
    kill_one(shared, 0, children[0]);
    for (uint64_t v = 1000; v < 1010; v++) {
        fill_summed(params, v);
        cr_assert_eq(farm_board_publish(board, params, v), v == 1000, "%lu", v); // then the newest is the fourth
    }
    farm_store_release(&shared->released, 1);
    for (uint32_t p = 1; p < HOLDERS; p++) {
        kill(children[p], SIGCONT);
        cr_assert_eq(wait_for(children[p]), 0, "process %u", p);
    }
    cr_assert(farm_board_publish(board, params, 2000));
    farm_board_free(board);
}

// An admission thread watches and unwatches a thousand announcements while the writer publishes.
static void *join_and_leave(void *argument) {
    struct farm_board *board = argument;
    static uint64_t using[1500];
    struct farm_error error;
    for (int turn = 0; turn < 5; turn++) {
        for (int i = 0; i < 1500; i++)
            if (farm_board_watch(board, &using[i], &error)) return board;
        for (int i = 0; i < 1500; i++) farm_board_unwatch(board, &using[i]);
    }
    return NULL;
}

Test(board, watches_thousands_of_readers_that_come_and_go_while_it_publishes, .timeout = 60) {
    struct farm_board *board = make(FARM_BOARD_BUFFERS);
    struct farm_board_reader reader;
    pthread_t thread;
    float params[COUNT];
    uint64_t version;
    void *failed;
    fill(params, 1);
    farm_board_attach(board, &reader, NULL, &err);
    cr_assert(farm_board_publish(board, params, 1));
    const float *pinned = farm_board_pin(&reader, &version);
    pthread_create(&thread, NULL, join_and_leave, board);
    for (uint64_t v = 2; v < VERSIONS; v++) {
        fill(params, v);
        cr_assert(farm_board_publish(board, params, v));
        cr_assert_eq(pinned[v % COUNT], 1);
    }
    pthread_join(thread, &failed);
    cr_assert_null(failed);
    cr_assert_eq(board->watched, 1);
    farm_board_free(board);
}
