// A consumer of this process (farm/consumer.h) with random actions, against the responder of `farm fps`, which lives
// inside the farm, over the same actors, lanes and environments: steps/s, and CPU time of a step (actors and answers).
// Needs build/farm beside this program's folder, or FARM_PROGRAM.
#include <dirent.h>
#include <farm/consumer.h>
#include <farm/step.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "actor/random_actions.h"
#include "base/time.h"
#include "common.h"

enum { SAMPLES_MAX = 64, ACTORS_MAX = 256 };
static const double WARM_S = 0.4, TURN_S = 1.5, FPS_S = 3;

static struct setting {
    const char *env, *width, *name, *cpu_name;
    double ours[SAMPLES_MAX], theirs[SAMPLES_MAX], our_cpu[SAMPLES_MAX], their_cpu[SAMPLES_MAX];
    size_t count;
} settings[] = {
    {.env = "ale/Pong", .width = "16", .name = "consumer_pong", .cpu_name = "consumer_pong_cpu"},
    {.env = "mujoco/HalfCheetah-v5",
     .width = "64",
     .name = "consumer_halfcheetah",
     .cpu_name = "consumer_halfcheetah_cpu"},
    {.env = "native/cartpole", .width = "2048", .name = "consumer_cartpole", .cpu_name = "consumer_cartpole_cpu"},
};
enum { SETTINGS = sizeof settings / sizeof *settings };

static struct {
    struct farm_consumer *farm;
    struct farm_ready *ready;
    uint32_t *lanes;
    struct farm_random_actions source;
    uint32_t width;
    int actors[ACTORS_MAX], actor_count;
} loop;

// Answers until `end_ns`; returns the transitions.
static uint64_t answer_until(uint64_t end_ns) {
    uint64_t steps = 0;
    const unsigned places = farm_consumer_places(loop.farm);
    while (farm_now_ns() < end_ns) {
        const int count = farm_consumer_recv(loop.farm, 1, places, 1000000000, loop.ready);
        must_hold(count >= 0, farm_consumer_error(loop.farm));
        for (int i = 0; i < count; i++) {
            const struct farm_ready *at = &loop.ready[i];
            const uint8_t *flags = farm_consumer_field(loop.farm, at->lane, at->step, 1, FARM_VIEW_FLAGS);
            for (uint32_t e = 0; e < loop.width; e++) steps += !(flags[e] & FARM_STEP_FIRST);
            farm_random_actions_draw(&loop.source, loop.width,
                                     farm_consumer_answer_field(loop.farm, at->lane, FARM_VIEW_ACTION));
            loop.lanes[i] = at->lane;
        }
        must_hold(farm_consumer_answer(loop.farm, loop.lanes, (unsigned)count), farm_consumer_error(loop.farm));
    }
    return steps;
}

// The processes that step environments: children of the supervisor.
static void find_actors(int supervisor) {
    DIR *folder = opendir("/proc");
    loop.actor_count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], name[16] = "";
        int parent = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = atoi(entry->d_name) ? fopen(path, "r") : NULL;
        if (file && fscanf(file, "%*d (%15[^)]) %*c %d", name, &parent) == 2 && parent == supervisor &&
            strcmp(name, "forker") != 0 && loop.actor_count < ACTORS_MAX)
            loop.actors[loop.actor_count++] = atoi(entry->d_name);
        if (file) fclose(file);
    }
    if (folder) closedir(folder);
}

static uint64_t cpu_ns(void) {
    uint64_t sum = farm_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (int i = 0; i < loop.actor_count; i++) {
        clockid_t clock;
        if (!clock_getcpuclockid(loop.actors[i], &clock)) sum += farm_clock_ns(clock);
    }
    return sum;
}

static void measure_ours(struct setting *setting) {
    char error[512];
    const char *const words[] = {"--env", setting->env, "--envs-per-actor", setting->width, "--quiet", NULL};
    loop.farm = farm_consumer_start(words, NULL, 0, error, sizeof error);
    must_hold(loop.farm != NULL, error);
    const unsigned places = farm_consumer_places(loop.farm);
    struct farm_consumer_shape shape;
    farm_consumer_shape(loop.farm, &shape);
    loop.width = shape.width;
    loop.ready = realloc(loop.ready, places * sizeof *loop.ready);
    loop.lanes = realloc(loop.lanes, places * sizeof *loop.lanes);
    must_hold(loop.ready && loop.lanes, "no memory");
    farm_random_actions_start(&farm_consumer_env(loop.farm)->action, 1, &loop.source);
    while (!answer_until(farm_now_ns() + 50000000)) continue; // until the environments are made
    answer_until(farm_now_ns() + (uint64_t)(WARM_S * 1e9));
    find_actors(farm_consumer_pid(loop.farm));
    const uint64_t start = farm_now_ns(), cpu = cpu_ns(), steps = answer_until(start + (uint64_t)(TURN_S * 1e9));
    setting->ours[setting->count] = (double)steps * 1e9 / (double)(farm_now_ns() - start);
    setting->our_cpu[setting->count] = (double)(cpu_ns() - cpu) / (double)steps;
    must_hold(farm_consumer_close(loop.farm) == 0, "the farm fails");
}

static void measure_theirs(struct setting *setting) {
    char command[512];
    snprintf(command, sizeof command, "'%s' fps --env %s --envs-per-actor %s --ladder off --seconds %g --json --quiet",
             getenv("FARM_PROGRAM"), setting->env, setting->width, FPS_S);
    FILE *output = popen(command, "r");
    json_t *document = output ? json_loadf(output, 0, NULL) : NULL;
    must_hold(output && pclose(output) == 0 && document, "farm fps fails");
    setting->theirs[setting->count] = json_number_value(json_object_get(document, "agent_steps_per_s"));
    setting->their_cpu[setting->count] = json_number_value(json_object_get(document, "cpu_ns_per_agent_step"));
    json_decref(document);
}

int main(int argc, char **argv) {
    const char *only = NULL;
    const struct farm_cli_flag flags[] = {{"only", FARM_CLI_STRING, &only, "ENV", "one environment [all]"}};
    struct farm_bench bench = {.name = "consumer",
                               .about =
                                   "Answers farms from another process: steps/s against the responder of `farm fps`.",
                               .flags = flags,
                               .flag_count = 1};
    farm_bench_start(&bench, argc, argv, 40);
    char program[4096];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 16);
    must_hold(length > 0, "/proc/self/exe");
    program[length] = 0;
    strcpy(strrchr(program, '/'), "/../farm");
    setenv("FARM_PROGRAM", program, 0);
    const uint64_t end = farm_now_ns() + (uint64_t)(bench.seconds * 1e9);
    for (uint64_t round = 0, began = farm_now_ns(); round < SAMPLES_MAX; round++) {
        for (struct setting *s = settings; s < settings + SETTINGS; s++) {
            if (only && strcmp(only, s->env) != 0) continue;
            if (round % 2) measure_theirs(s);
            measure_ours(s);
            if (!(round % 2)) measure_theirs(s);
            s->count++;
        }
        if (farm_now_ns() + (farm_now_ns() - began) / (round + 1) > end) break;
    }
    for (struct setting *s = settings; s < settings + SETTINGS; s++) {
        if (!s->count) continue;
        farm_bench_add(&bench, s->name, "steps/s", "higher", s->ours, s->count, "responder of farm fps", s->theirs,
                       s->count, 0.95);
        farm_bench_add(&bench, s->cpu_name, "ns/step", "lower", s->our_cpu, s->count, "responder of farm fps",
                       s->their_cpu, s->count, NAN);
    }
    free(loop.ready);
    free(loop.lanes);
    return farm_bench_finish(&bench);
}
