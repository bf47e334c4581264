// See farms.h.
#include "farms.h"

#include <jansson.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../common.h"
#include "actor/random_actions.h"
#include "algo/registry.h"
#include "base/log.h"
#include "base/time.h"
#include "host.h"
#include "ring/wait.h"
#include "run/run.h"

enum { EVERYBODY = BENCH_PLACES + 1, LANES = 2, WIDTH = 16, ACTORS = 1, STEPS = 64, LIMIT_S = 20, MS = 1000000 };

struct page {
    uint64_t open; // 1 + the place whose turn it is; 0: none; EVERYBODY: both
    uint64_t stop, port;
    int learner_cpu;
    struct {
        uint64_t steps, lane_steps, pid; // environment steps answered
        uint64_t pad[13];
    } of[BENCH_PLACES];
};

bool bench_farm_program(char *path, size_t bytes) {
    const ssize_t n = readlink("/proc/self/exe", path, bytes - 1);
    if (n <= 0) return false;
    path[n] = 0;
    for (int up = 0; up < 2; up++) {
        char *slash = strrchr(path, '/');
        if (slash) *slash = 0;
    }
    strncat(path, "/farm", bytes - strlen(path) - 1);
    return access(path, X_OK) == 0;
}

// ---- random answers ----

struct server {
    struct page *page;
    int place;
    struct farm_ring *rings[ACTORS];
    struct farm_doorbells bells;
    struct farm_random_actions source;
};

// Reads the observations, as inference does.
static uint64_t sum_of(const struct farm_lane *lane, uint64_t n) {
    uint64_t sum = 0, word;
    const uint8_t *at = farm_lane_obs(lane, 0, n, 0);
    for (size_t i = 0; i + sizeof word <= lane->width * lane->obs_bytes[0]; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        sum += word;
    }
    return sum;
}

static void answer_ring(struct server *server, struct farm_ring *ring) {
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        struct farm_lane *lane = &ring->lanes[l];
        const uint64_t n = farm_lane_acted(lane);
        if (farm_lane_produced(lane) == n) continue;
        farm_random_actions_draw(&server->source, lane->width, farm_lane_action(lane, n, 0));
        *farm_lane_version(lane, n) = 0;
        server->source.state ^= sum_of(lane, n);
        farm_lane_answer(lane, n);
        farm_lane_release(lane, n + 1);
        farm_store_relaxed(&server->page->of[server->place].steps, server->page->of[server->place].steps + lane->width);
        farm_store_relaxed(&server->page->of[server->place].lane_steps, server->page->of[server->place].lane_steps + 1);
    }
    farm_learner_notify(ring);
}

static void serve_actors(struct server *server, const struct farm_action_spec *action, int bell,
                         struct bench_host *host) {
    struct farm_error err;
    uint32_t rung[ACTORS];
    farm_random_actions_start(action, 1, &server->source);
    must(farm_doorbells_make(&server->bells, server->rings, ACTORS, bell, &err), &err);
    farm_store_release(&server->page->of[server->place].pid, (uint64_t)getpid());
    while (!farm_load_acquire(&server->page->stop)) {
        if (host) bench_host_serve(host);
        const uint64_t open = farm_load_acquire(&server->page->open);
        if (open != EVERYBODY && open != (uint64_t)server->place + 1) {
            usleep(2000);
            continue;
        }
        farm_doorbells_wait(&server->bells, 0, 100 * MS);
        farm_doorbells_poll(&server->bells, rung);
        for (uint32_t a = 0; a < ACTORS; a++) answer_ring(server, server->rings[a]);
    }
}

static void find_env(struct farm_recipe *recipe, struct farm_env *env) {
    struct farm_error err;
    const char *const keys[][2] = {{"env", "ale/Pong"}, {"actors", "1"},      {"envs_per_actor", "32"},
                                   {"lanes", "2"},      {"ring_steps", "64"}, {"pin", "false"}};
    farm_recipe_defaults(recipe, farm_algo_family_at);
    for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
        must(farm_recipe_set(recipe, FARM_LAYER_FLAG, keys[k][0], keys[k][1], &err), &err);
    must(farm_recipe_settle(recipe, &err), &err);
    must(farm_env_find(recipe, env, &err), &err);
}

// ---- the actors of this machine ----

static int run_responder(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                         struct farm_error *err) {
    static struct farm_ring ring;
    struct server server = {.page = context, .place = BENCH_LOCAL, .rings = {&ring}};
    (void)stats;
    must(farm_bitmap_pin_to(server.page->learner_cpu, err), err); // the actors run on the node's CPU
    must(farm_ring_open(workers->ring_fds[0][0], workers->ring_fds[0][1], FARM_RING_LEARNER, &ring, err), err);
    serve_actors(&server, &workers->plan->env.spec.action, workers->rings->bells[0], NULL);
    farm_store_release(&stats->done, 1);
    return 0;
}

static _Noreturn void run_local_farm(struct page *page) {
    static struct farm_run run;
    static struct farm_recipe recipe;
    static struct farm_env env;
    struct farm_error err;
    bool interrupted;
    farm_log_set_level(FARM_LOG_ERROR);
    find_env(&recipe, &env);
    const struct farm_run_request request = {
        .recipe = &recipe, .quiet = true, .responder = {run_responder, page, NULL}};
    must(farm_run_make(&run, &request, &err), &err);
    must(farm_run_build(&run, &err), &err);
    must(farm_run_execute(&run, &interrupted, &err), &err);
    farm_run_free(&run);
    exit(0);
}

// ---- the learner of the remote actors ----

static _Noreturn void serve_remote_farm(const struct bench_net *net, struct page *page, const char *key,
                                        const char *engine) {
    static struct farm_recipe recipe;
    static struct farm_env env;
    static struct bench_host host;
    struct farm_error err;
    farm_log_set_level(FARM_LOG_ERROR);
    find_env(&recipe, &env);
    bench_offer_make(LANES, WIDTH, 1, STEPS, &host.offer);
    host.offer.spec.env = env.spec;
    host.offer.spec.answer_count = 0;
    farm_ring_spec_answers(&host.offer.spec);
    host.offer.seed = 1;
    host.offer.window = 21;
    strcpy(host.offer.env, "ale/Pong");
    bench_host_make(&host, net, ACTORS, true, engine);
    const pid_t hub = bench_net_fork(net, BENCH_LEARNER);
    if (hub == 0) {
        struct farm_key *loaded; // here, because a fork does not inherit it
        must(farm_key_load(key, FARM_KEY_LEARNER, &loaded, NULL, &err), &err);
        host.config.key = loaded;
        exit(farm_hub_run(&host.config, &err));
    }
    farm_store_release(&page->port, ntohs(host.address.sin_port));
    while (!host.session_count && !farm_load_acquire(&page->stop)) {
        bench_host_serve(&host);
        usleep(1000);
    }
    struct server server = {.page = page, .place = BENCH_REMOTE, .rings = {&host.view[0]}};
    if (host.session_count) serve_actors(&server, &env.spec.action, host.bell, &host);
    bench_net_end(hub);
    exit(0);
}

// ---- turns ----

static bool await_word(const uint64_t *word) {
    const uint64_t start = farm_now_ns();
    while (!farm_load_acquire(word)) {
        if (farm_now_ns() - start > LIMIT_S * 1000000000ull) return false;
        usleep(1000);
    }
    return true;
}

static uint64_t cpu_of(uint64_t pid) {
    clockid_t clock;
    return clock_getcpuclockid((pid_t)pid, &clock) ? 0 : farm_clock_ns(clock);
}

// Rates go into round r of *rates; r < 0: nowhere.
static void take_turn(struct page *page, enum bench_place place, double seconds, int r, struct bench_rates *rates) {
    const uint64_t *steps = &page->of[place].steps, *lane_steps = &page->of[place].lane_steps;
    farm_store_release(&page->open, (uint64_t)place + 1);
    usleep(150000);
    const uint64_t start = farm_now_ns(), from = farm_load_relaxed(steps), lane_from = farm_load_relaxed(lane_steps),
                   cpu_from = cpu_of(page->of[place].pid);
    usleep((useconds_t)(seconds * 1e6));
    const double passed_s = (double)(farm_now_ns() - start) * 1e-9,
                 cpu_ns = (double)(cpu_of(page->of[place].pid) - cpu_from);
    if (r >= 0) {
        rates->steps_per_s[place][r] = (double)(farm_load_relaxed(steps) - from) / passed_s;
        rates->cpu_us[place][r] = cpu_ns * 1e-3 / (double)(farm_load_relaxed(lane_steps) - lane_from);
    }
    farm_store_release(&page->open, 0);
    usleep(50000); // until the steps in flight have ended
}

static void take_turns(struct page *page, int rounds, double seconds, struct bench_rates *rates) {
    farm_store_release(&page->open, 0);
    usleep(100000);
    for (int r = -1; r < rounds; r++) // the first one wakes both farms
        for (int turn = 0; turn < BENCH_PLACES; turn++)
            take_turn(page, (enum bench_place)((turn + r + 1) % BENCH_PLACES), r < 0 ? 0.1 : seconds, r, rates);
    rates->rounds = rounds;
}

static bool make_key(const struct bench_net *net, const char *program, const char *path) {
    const char *argv[] = {program, "bridge", "keygen", path, NULL};
    char node[80];
    snprintf(node, sizeof node, "%.70s.node", path);
    unlink(node);
    unlink(path);
    return bench_net_run(net, BENCH_LEARNER, argv, NULL, 0);
}

static pid_t start_node(const struct bench_net *net, const char *program, const char *address, const char *key,
                        const char *engine) {
    char node[80];
    snprintf(node, sizeof node, "%.70s.node", key);
    const char *argv[] = {program, "bridge", "--connect", address,   "--key",           node,   "--actors",
                          "1",     "--pin",  "no",        "--quiet", "--bridge-engine", engine, NULL};
    return bench_net_start(net, BENCH_NODE, false, NULL, argv);
}

// Pins a process and its descendants, except one.
static void pin_tree(pid_t pid, int cpu, pid_t except) {
    char path[64];
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((unsigned)cpu, &set);
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", pid, pid);
    if (pid != except) sched_setaffinity(pid, sizeof set, &set);
    FILE *file = fopen(path, "r");
    for (int child; file && fscanf(file, "%d", &child) == 1;) pin_tree(child, cpu, except);
    if (file) fclose(file);
}

bool bench_random_rates(const struct bench_net *net, const char *engine, int rounds, double seconds,
                        struct bench_rates *rates) {
    struct page *page = shared_memory(sizeof *page);
    struct bench_net anywhere = *net; // environments are made on all CPUs
    char program[4096], folder[] = "/tmp/farm-bench-XXXXXX", path[64], address[64];
    must_hold(mkdtemp(folder) != NULL, "set-up");
    page->learner_cpu = net->cpu[BENCH_LEARNER];
    anywhere.cpu[BENCH_NODE] = -1;
    snprintf(path, sizeof path, "%s/key", folder);
    bool good = bench_farm_program(program, sizeof program) && make_key(net, program, path);
    if (good) {
        const pid_t learner = bench_net_fork(net, BENCH_LEARNER);
        if (learner == 0) serve_remote_farm(net, page, path, engine);
        good = await_word(&page->port);
        snprintf(address, sizeof address, "%s:%u", net->address[BENCH_LEARNER], (unsigned)page->port);
        const pid_t node = start_node(&anywhere, program, address, path, engine),
                    own = bench_net_fork(&anywhere, BENCH_NODE);
        if (own == 0) run_local_farm(page);
        page->open = EVERYBODY; // until the environments have been made
        good = good && await_word(&page->of[BENCH_LOCAL].steps) && await_word(&page->of[BENCH_REMOTE].steps);
        pin_tree(node, net->cpu[BENCH_NODE], -1);
        pin_tree(own, net->cpu[BENCH_NODE], (pid_t)page->of[BENCH_LOCAL].pid);
        if (good) take_turns(page, rounds, seconds, rates);
        farm_store_release(&page->stop, 1);
        bench_net_end(node);
        bench_net_end(own);
        bench_net_end(learner);
    }
    bench_net_run(net, BENCH_LEARNER, (const char *const[]){"rm", "-rf", folder, NULL}, NULL, 0);
    munmap(page, sizeof *page);
    return good;
}

// ---- training ----

// A run of `farm train`, with a node if it is remote. Each is a process group, stopped between its turns.
struct training {
    char run[64], key[64], metrics[96];
    pid_t groups[2]; // learner, node; 0: none
};

struct line {
    double wall_s, steps;
};

// The last line of metrics.jsonl.
static struct line last_line(const struct training *training) {
    char text[8192], *from;
    struct line line = {0, 0};
    FILE *file = fopen(training->metrics, "r");
    if (!file) return line;
    if (fseek(file, -(long)sizeof text / 2, SEEK_END) != 0) rewind(file);
    const size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[bytes] = 0;
    char *end = strrchr(text, '\n');
    if (!end) return line;
    *end = 0;
    from = strrchr(text, '\n');
    json_t *document = json_loads(from ? from + 1 : text, 0, NULL);
    line.wall_s = json_number_value(json_object_get(document, "wall_s"));
    line.steps = json_number_value(json_object_get(document, "agent_steps"));
    json_decref(document);
    return line;
}

static void signal_groups(const struct training *training, int number) {
    for (int g = 0; g < 2; g++)
        if (training->groups[g]) kill(-training->groups[g], number);
}

static void start_training(const struct bench_net *net, const char *program, const char *folder, const char *engine,
                           bool remote, struct training *training) {
    char at[80], listen[64];
    snprintf(training->key, sizeof training->key, "%.40s/key", folder);
    snprintf(training->run, sizeof training->run, "%.40s/%s", folder, remote ? "remote" : "local");
    snprintf(training->metrics, sizeof training->metrics, "%.60s/metrics.jsonl", training->run);
    snprintf(at, sizeof at, "@%.60s/bridge.addr", training->run);
    snprintf(listen, sizeof listen, "%s:0", net->address[BENCH_LEARNER]);
    const char *argv[] = {program, "train", "--env", "native/breakout", "--run", training->run, "--quiet", "--pin",
                          "no", "--metrics-every", "0.1", "--seconds", "600", "--actors", remote ? "0" : "1",
                          // the remote run only
                          remote ? "--listen" : NULL, listen, "--key", training->key, "--expect-actors", "1",
                          "--bridge-engine", engine, NULL};
    training->groups[0] = bench_net_start(net, BENCH_LEARNER, true, NULL, argv);
    if (remote) training->groups[1] = start_node(net, program, at, training->key, engine);
}

static bool await_training(const struct training *training) {
    const uint64_t start = farm_now_ns();
    while (last_line(training).wall_s < 0.5) {
        if (farm_now_ns() - start > LIMIT_S * 1000000000ull) return false;
        usleep(10000);
    }
    signal_groups(training, SIGSTOP);
    return true;
}

// NAN: no new line of metrics.
static double measure_training_rate(const struct training *training, double seconds) {
    signal_groups(training, SIGCONT);
    usleep(150000);
    const struct line from = last_line(training);
    usleep((useconds_t)(seconds * 1e6));
    struct line to = last_line(training);
    for (int naps = 0; to.wall_s <= from.wall_s && naps < 300; naps++) { // a line is late on a busy machine
        usleep(10000);
        to = last_line(training);
    }
    signal_groups(training, SIGSTOP);
    return (to.steps - from.steps) / (to.wall_s - from.wall_s);
}

static void end_training(const struct training *training) {
    signal_groups(training, SIGKILL);
    for (int g = 0; g < 2; g++)
        if (training->groups[g]) waitpid(training->groups[g], NULL, 0);
}

bool bench_training_rates(const struct bench_net *net, const char *engine, int rounds, double seconds,
                          struct bench_rates *rates) {
    struct bench_net anywhere = *net; // both sides on all CPUs
    struct training trainings[BENCH_PLACES] = {0};
    char program[4096], folder[] = "/tmp/farm-bench-XXXXXX", key[64];
    must_hold(mkdtemp(folder) != NULL, "set-up");
    snprintf(key, sizeof key, "%s/key", folder);
    anywhere.cpu[BENCH_LEARNER] = anywhere.cpu[BENCH_NODE] = -1;
    bool good = bench_farm_program(program, sizeof program) && make_key(net, program, key);
    for (int place = BENCH_LOCAL; good && place < BENCH_PLACES; place++) {
        start_training(&anywhere, program, folder, engine, place == BENCH_REMOTE, &trainings[place]);
        good = await_training(&trainings[place]);
    }
    rates->rounds = 0;
    for (int r = 0; good && r < rounds; r++) {
        double rate[BENCH_PLACES];
        for (int turn = 0; turn < BENCH_PLACES; turn++) {
            const int place = (turn + r) % BENCH_PLACES;
            rate[place] = measure_training_rate(&trainings[place], seconds);
        }
        if (isnan(rate[BENCH_LOCAL]) || isnan(rate[BENCH_REMOTE])) continue;
        for (int place = 0; place < BENCH_PLACES; place++) rates->steps_per_s[place][rates->rounds] = rate[place];
        rates->rounds++;
    }
    for (int place = BENCH_LOCAL; place < BENCH_PLACES; place++) end_training(&trainings[place]);
    bench_net_run(net, BENCH_LEARNER, (const char *const[]){"rm", "-rf", folder, NULL}, NULL, 0);
    return good;
}
