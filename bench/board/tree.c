// See tree.h.
#include "tree.h"

#include <arpa/inet.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../tests/support/rings.h"
#include "../bridge/host.h"
#include "../common.h"
#include "base/log.h"
#include "base/time.h"
#include "board/board.h"
#include "bridge/hub.h"
#include "bridge/node.h"
#include "run/bridges.h"
#include "slow.h"

enum { NODES = 64, VERSIONS_MAX = 4, WARM = 7, FAN_OUT = 2, MB = 1000000, MS = 1000000 };
static const uint64_t LIMIT_NS = 120000000000u;

struct tree {
    uint32_t fan_out; // 0: no caches, the learner sends to all
    uint32_t versions, bytes;
    double bytes_per_s; // that each process sends at most; 0: no limit
    bool in_turn;       // without caches: one node after another
};
struct result {
    double mean_s[VERSIONS_MAX]; // from publication until a node's board has it, mean of the nodes
    double idle;                 // part of all CPUs' time that no process of this benchmark used, until the last node
    double root_bytes;           // that the learner sent, for each version
};

// Shared by all processes; each word has one writer.
struct page {
    struct bench_slow slow;
    uint64_t end;
    uint64_t whole_ns[NODES][WARM + VERSIONS_MAX];
};

static float weight_of(uint64_t version, size_t i) {
    return (float)((i * 2654435761u + version * 97) & 0xffffff);
}

static void sleep_if(bool busy, void (*wait)(void *, uint64_t), void *of) {
    if (!busy) wait(of, 20 * MS);
}

// ---- a node ----

static int listen_on_loopback(char address[64]) {
    struct farm_error err;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    const struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    must_hold(fd >= 0 && bind(fd, (const struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 64) == 0, "listening");
    must(farm_run_bridges_name(fd, address, 64, &err), &err);
    return fd;
}

static void check_version(struct farm_board *board) {
    struct farm_board_reader reader;
    struct farm_error err;
    uint64_t version;
    must(farm_board_attach(board, &reader, NULL, &err), &err);
    const float *params = farm_board_pin(&reader, &version);
    for (size_t i = 0; i < board->count; i++) must_hold(params[i] == weight_of(version, i), "a version's numbers");
    farm_board_unpin(&reader);
}

static void wait_node(void *node, uint64_t timeout_ns) {
    farm_node_wait(node, timeout_ns);
}

static void run_node(const struct tree *tree, const struct bench_host *host, struct page *page, uint32_t number) {
    struct farm_ring ring = make_ring(host->offer.spec, number, true);
    struct farm_node *node;
    struct farm_board *board;
    struct farm_error err;
    char address[64], cache[64] = "";
    int fds[1][2];
    uint64_t seen = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    lend_ring(&ring, fds[0]);
    must(farm_board_create(&(struct farm_board_request){tree->bytes / sizeof(float), 0, FARM_BOARD_BUFFERS, -1}, &board,
                           &err),
         &err);
    snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(host->address.sin_port));
    const struct farm_node_config config = {.address = address,
                                            .key = bench_node_key(),
                                            .session = {1, (uint8_t)number},
                                            .run = {7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}, // bench_offer_make
                                            .name = "bench",
                                            .ring_fds = (const int(*)[2])fds,
                                            .ring_count = 1,
                                            .cache = tree->fan_out ? listen_on_loopback(cache) : -1,
                                            .cache_address = cache,
                                            .boards = &board,
                                            .board_count = 1,
                                            .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
                                            .engine = "auto",
                                            .ops = tree->bytes_per_s > 0 ? &bench_slow_engine : NULL,
                                            .seed = 1 + number};
    must(farm_node_make(&config, &node, &err), &err);
    while (!farm_load_acquire(&page->end)) {
        sleep_if(farm_node_turn(node, farm_now_ns()), wait_node, node);
        const uint64_t newest = farm_load_acquire(&board->head->newest) >> 8; // 1 + the version; 0: none
        for (; seen < newest; seen++) farm_store_release(&page->whole_ns[number][seen], farm_now_ns());
    }
    check_version(board);
    _exit(0);
}

// ---- the learner ----

struct learner {
    struct bench_host host;
    struct farm_hub *hub;
    struct farm_board *board;
    struct page *page;
    pid_t pids[NODES];
};

static void wait_hub(void *hub, uint64_t timeout_ns) {
    farm_hub_wait(hub, timeout_ns);
}

static void turn(struct learner *learner) {
    bool busy = farm_hub_turn(learner->hub, farm_now_ns());
    busy |= bench_host_serve(&learner->host);
    sleep_if(busy, wait_hub, learner->hub);
}

static void turn_for(struct learner *learner, uint64_t ns) {
    for (const uint64_t start_ns = farm_now_ns(); farm_now_ns() - start_ns < ns;) turn(learner);
}

static uint64_t cpu_ns(clockid_t clock) {
    struct timespec at;
    must_hold(clock_gettime(clock, &at) == 0, "a process's CPU time");
    return (uint64_t)at.tv_sec * 1000000000u + (uint64_t)at.tv_nsec;
}

static uint64_t all_cpu_ns(const struct learner *learner) {
    uint64_t sum = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t n = 0; n < NODES; n++) {
        clockid_t clock;
        must_hold(clock_getcpuclockid(learner->pids[n], &clock) == 0, "a node's clock");
        sum += cpu_ns(clock);
    }
    return sum;
}

static uint64_t bytes_out(const struct learner *learner) {
    uint64_t sum = 0;
    for (uint32_t n = 0; n < NODES; n++) sum += farm_load_relaxed(&learner->host.stats->node[n].bytes_out);
    return sum;
}

// Publishes a version, and waits until every node has it. Returns the sum of the nodes' times, *last_ns the longest.
static uint64_t spread(struct learner *learner, uint64_t version, uint64_t *last_ns) {
    float *params = malloc(learner->board->count * sizeof *params);
    uint64_t sum = 0;
    must_hold(params != NULL, "memory");
    for (size_t i = 0; i < learner->board->count; i++) params[i] = weight_of(version, i);
    const uint64_t start_ns = farm_now_ns();
    must_hold(farm_board_publish(learner->board, params, version), "a free buffer");
    *last_ns = 0;
    for (uint32_t n = 0; n < NODES; n++) {
        uint64_t whole_ns;
        while (!(whole_ns = farm_load_acquire(&learner->page->whole_ns[n][version]))) {
            must_hold(farm_now_ns() - start_ns < LIMIT_NS, "every node receives the version");
            turn(learner);
        }
        sum += whole_ns - start_ns;
        if (whole_ns - start_ns > *last_ns) *last_ns = whole_ns - start_ns;
    }
    free(params);
    return sum;
}

static void measure(struct learner *learner, const struct tree *tree, struct result *result) {
    uint64_t last_ns, cpu = 0, wall = 0;
    // All nodes join, learn their sources, and touch all buffers and stages. The figures are written each 100 ms.
    for (uint64_t version = 0; version < WARM; version++, turn_for(learner, 100 * MS))
        spread(learner, version, &last_ns);
    turn_for(learner, 300 * MS);
    learner->page->slow = (struct bench_slow){tree->bytes_per_s, tree->in_turn};
    const uint64_t sent = bytes_out(learner);
    for (uint32_t v = 0; v < tree->versions; v++) {
        const uint64_t before = all_cpu_ns(learner), sum = spread(learner, WARM + v, &last_ns);
        cpu += all_cpu_ns(learner) - before;
        wall += last_ns;
        result->mean_s[v] = (double)sum * 1e-9 / NODES;
    }
    turn_for(learner, 300 * MS);
    result->root_bytes = (double)(bytes_out(learner) - sent) / tree->versions;
    result->idle = 1 - (double)cpu / ((double)wall * farm_bench_cpus());
}

static void run_tree(const struct tree *tree, struct result *result) {
    static struct learner learner;
    const struct bench_net net = {.loopback = true, .address = {"127.0.0.1", "127.0.0.1"}};
    struct farm_error err;
    memset(&learner, 0, sizeof learner);
    learner.page = mmap(NULL, sizeof *learner.page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must_hold(learner.page != MAP_FAILED, "memory");
    bench_slow_share(&learner.page->slow);
    farm_log_set_level(FARM_LOG_ERROR); // a node that waits ten seconds for its turn is cut off, and joins again
    bench_offer_make(1, 1, 16, 4, &learner.host.offer);
    learner.host.offer.spec.answers = FARM_ANSWERS_LOCAL;
    bench_host_make(&learner.host, &net, 1, true, "auto");
    for (uint32_t n = 0; n < NODES; n++)
        if (!(learner.pids[n] = fork())) run_node(tree, &learner.host, learner.page, n);
    must(farm_board_create(&(struct farm_board_request){tree->bytes / sizeof(float), 0, FARM_BOARD_BUFFERS, -1},
                           &learner.board, &err),
         &err);
    must_hold(farm_board_describe(learner.board, "bench", 0, 0), "a description");
    learner.host.config.board = learner.board;
    learner.host.config.fan_out = tree->fan_out;
    if (tree->bytes_per_s > 0) learner.host.config.ops = &bench_slow_engine;
    must(farm_hub_make(&learner.host.config, &learner.hub, &err), &err);
    measure(&learner, tree, result);
    farm_store_release(&learner.page->end, 1);
    for (uint32_t n = 0; n < NODES; n++) {
        int status;
        must_hold(waitpid(learner.pids[n], &status, 0) == learner.pids[n] && status == 0, "a node");
    }
    farm_hub_free(learner.hub);
    farm_board_free(learner.board);
    close(learner.host.config.listener);
    munmap(learner.page, sizeof *learner.page);
}

// ---- rows ----

// The better of the learner's ways to send directly: to all nodes in turn, a chunk each, or one node after another.
static void measure_limited(struct farm_bench *bench) {
    struct tree tree = {.fan_out = FAN_OUT, .versions = 3, .bytes = 4 * MB, .bytes_per_s = 25 * MB};
    struct tree direct = {.versions = 1, .bytes = 4 * MB, .bytes_per_s = 25 * MB};
    struct result by_tree[2], directly[2];
    double ours[6];
    for (int i = 0; i < 2; i++) {
        direct.in_turn = i;
        run_tree(&direct, &directly[i]);
        run_tree(&tree, &by_tree[i]);
        memcpy(&ours[3 * i], by_tree[i].mean_s, 3 * sizeof *ours);
    }
    const bool in_turn = directly[1].mean_s[0] < directly[0].mean_s[0];
    farm_bench_add(bench, "tree_latency", "s", "lower", ours, 6,
                   in_turn ? "the learner sends to one node after another" : "the learner sends to all nodes at once",
                   directly[in_turn].mean_s, 1, 0.25);
    farm_bench_add(bench, "tree_idle", "of CPUs", "higher", (double[]){by_tree[0].idle, by_tree[1].idle}, 2,
                   "while the learner sends directly", (double[]){directly[0].idle, directly[1].idle}, 2, NAN);
}

static void measure_unlimited(struct farm_bench *bench) {
    const struct tree tree = {.fan_out = FAN_OUT, .versions = 3, .bytes = 16 * MB};
    const struct tree direct = {.versions = 3, .bytes = 16 * MB};
    struct result by_tree[2], directly[2];
    double ours[6], theirs[6];
    for (int i = 0; i < 2; i++) {
        run_tree(&direct, &directly[i]);
        run_tree(&tree, &by_tree[i]);
        memcpy(&ours[3 * i], by_tree[i].mean_s, 3 * sizeof *ours);
        memcpy(&theirs[3 * i], directly[i].mean_s, 3 * sizeof *theirs);
    }
    farm_bench_add(bench, "tree_unlimited", "s", "lower", ours, 6, "the learner sends to all nodes", theirs, 6, 1);
    farm_bench_add(bench, "root_bytes", "B", "lower", (double[]){by_tree[0].root_bytes, by_tree[1].root_bytes}, 2,
                   "the version's size x fan-out", &(double){(double)FAN_OUT * 16 * MB}, 1, 1.02);
}

void bench_tree(struct farm_bench *bench) {
    measure_limited(bench);
    measure_unlimited(bench);
}
