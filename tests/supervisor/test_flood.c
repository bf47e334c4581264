// A worker that writes without end, binary and without a newline: the supervisor reads it at a bounded rate, makes it
// harmless for a terminal, and meanwhile hears, starts again and ends the others as ever.
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../support/must.h"
#include "base/time.h"
#include "supervisor/supervisor.h"

enum { FLOOD, CLOCK, MORTAL, WORKERS };
static const uint64_t PLAY_NS = 700000000u, TURN_NS = 50000000u, TURN_BYTES = 65536,
                      PIPE_BYTES = 1048576; // at most: what is left in it at the end

struct scene {
    uint64_t start_ns, suppressed, bytes[WORKERS], lines[WORKERS], control_characters, longest;
    uint64_t starts;
    uint64_t bytes_at_death, most_before_start; // what the flood had written
    volatile uint64_t *written;                 // by the flood, shared
};

static int flood(void *context, struct farm_error *err) {
    const struct scene *scene = context;
    unsigned char junk[1 << 16];
    for (size_t i = 0; i < sizeof junk; i++) junk[i] = (unsigned char)(i * 131 % 256 == '\n' ? 0 : i * 131 % 256);
    signal(SIGTERM, SIG_IGN);
    for (ssize_t n; (n = write(STDERR_FILENO, junk, sizeof junk)) > 0;) *scene->written += (uint64_t)n;
    return 1;
}

static int tick(void *context, struct farm_error *err) {
    while (dprintf(STDERR_FILENO, "tick\ttock\n") > 0) usleep(10000);
    return 1;
}

static int die_soon(void *context, struct farm_error *err) {
    usleep(20000);
    return 1;
}

static void on_line(void *context, size_t worker, const char *line) {
    struct scene *scene = context;
    const size_t length = strlen(line);
    unsigned long long suppressed;
    if (sscanf(line, "farm: warning: %llu lines of flood suppressed", &suppressed) == 1)
        scene->suppressed += suppressed;
    scene->lines[worker]++;
    scene->bytes[worker] += length;
    if (length > scene->longest) scene->longest = length;
    for (size_t i = 0; i < length; i++)
        scene->control_characters += ((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 0x7f;
}

static void on_death(void *context, size_t worker, const struct farm_death *death) {
    struct scene *scene = context;
    scene->bytes_at_death = scene->bytes[FLOOD];
}

static void before_start(void *context, size_t worker, uint64_t starts) {
    struct scene *scene = context;
    if (worker != MORTAL || !starts) return;
    const uint64_t bytes = scene->bytes[FLOOD] - scene->bytes_at_death;
    scene->starts = starts;
    if (bytes > scene->most_before_start) scene->most_before_start = bytes;
}

static enum farm_supervisor_turn on_tick(void *context) {
    const struct scene *scene = context;
    const bool all = scene->lines[FLOOD] > 10 && scene->lines[CLOCK] > 20 && scene->starts > 5;
    return all && farm_now_ns() - scene->start_ns > PLAY_NS ? FARM_TURN_STOP : FARM_TURN_ON;
}

static uint64_t progress(void *context, size_t worker) {
    return farm_now_ns(); // no life is fruitless
}

Test(supervisor, a_worker_that_floods_its_output_waits_and_the_others_do_not, .timeout = 30) {
    struct scene scene = {.start_ns = farm_now_ns()};
    scene.written = shared_memory(sizeof *scene.written);
    const struct farm_supervisor_config config = {.context = &scene,
                                                  .before_start = before_start,
                                                  .on_line = on_line,
                                                  .on_death = on_death,
                                                  .on_tick = on_tick,
                                                  .progress = progress,
                                                  .tick_ms = 10,
                                                  .grace_ms = 200,
                                                  .backoff_max_ms = 1};
    struct farm_supervisor *supervisor;
    struct farm_error err = {0};
    cr_assert_eq(farm_supervisor_make(&config, &supervisor, &err), FARM_OK, "%s", err.message);
    const struct farm_worker_spec specs[WORKERS] = {
        {.name = "flood", .body = flood, .context = &scene, .memory_node = -1},
        {.name = "clock", .body = tick, .context = &scene, .memory_node = -1},
        {.name = "mortal", .body = die_soon, .context = &scene, .memory_node = -1}};
    for (int i = 0; i < WORKERS; i++)
        cr_assert_eq(farm_supervisor_add(supervisor, &specs[i], &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_OK, "%s", err.message);
    const uint64_t spent = farm_now_ns() - scene.start_ns;
    farm_supervisor_free(supervisor);

    const uint64_t bytes_most = (spent / TURN_NS + 4) * TURN_BYTES + PIPE_BYTES; // a limit that holds for any time
    cr_assert_leq(scene.bytes[FLOOD], bytes_most, "%lu bytes", scene.bytes[FLOOD]);
    cr_assert_leq(*scene.written, bytes_most, "it was let write %lu bytes", *scene.written);
    cr_assert_leq(scene.lines[FLOOD], 100 + 2 * (spent / 1000000000u + 2), "it is passed on no more than this");
    cr_assert_gt(scene.suppressed, 0);
    cr_assert_eq(scene.control_characters, 0);
    cr_assert_lt(scene.longest, FARM_WORKER_LINE_MAX);
    cr_assert_eq(scene.bytes[CLOCK], scene.lines[CLOCK] * strlen("tick\ttock"));
    cr_assert_leq(scene.most_before_start, 4 * TURN_BYTES,
                  "%lu bytes of the flood are read between a death and a start", scene.most_before_start);
}

static int flood_and_end(void *context, struct farm_error *err) {
    const char line[1024] = "";
    for (int i = 0; i < 160; i++)
        if (write(STDERR_FILENO, line, sizeof line) < 0) return 1;
    return 0;
}

static enum farm_supervisor_turn on_late_tick(void *context) {
    return farm_now_ns() - *(uint64_t *)context > PLAY_NS ? FARM_TURN_STOP : FARM_TURN_ON;
}

static void ignore_line(void *context, size_t worker, const char *line) {}

Test(supervisor, sleeps_after_a_worker_that_flooded_its_output_has_ended, .timeout = 30) {
    uint64_t start_ns = farm_now_ns();
    const struct farm_supervisor_config config = {
        .context = &start_ns, .on_line = ignore_line, .on_tick = on_late_tick};
    struct farm_supervisor *supervisor;
    struct farm_error err = {0};
    cr_assert_eq(farm_supervisor_make(&config, &supervisor, &err), FARM_OK, "%s", err.message);
    const struct farm_worker_spec flood_once = {
        .name = "flood", .body = flood_and_end, .once = true, .memory_node = -1};
    cr_assert_eq(farm_supervisor_add(supervisor, &flood_once, &err), FARM_OK, "%s", err.message);
    cr_assert_eq(farm_supervisor_run(supervisor, NULL, &err), FARM_OK, "%s", err.message);
    farm_supervisor_free(supervisor);
    struct timespec cpu;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    cr_assert_lt(cpu.tv_sec * 1000000000ll + cpu.tv_nsec, (long long)PLAY_NS / 4);
}
