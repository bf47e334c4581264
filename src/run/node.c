// See node.h.
#include "run/node.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/time.h"
#include "learner/boards.h"
#include "run/offer.h"
#include "run/settings.h"

enum { NAP_MS = 100, SLOTS_MAX = 1024 };
static const uint64_t first_report_ns = 1000000000u, report_every_ns = 10000000000u, second_ns = 1000000000u;

// ---- identity ----

static uint64_t hash(uint64_t value, const void *data, size_t bytes) { // FNV-1a
    for (size_t i = 0; i < bytes; i++) value = (value ^ ((const uint8_t *)data)[i]) * 0x100000001b3ull;
    return value;
}

// Binds *fd to the lowest slot that no living node of this user has. An abstract socket's name belongs to the network
// namespace, so containers that share one share the slots; the kernel frees it when the process ends in any way.
static uint32_t bind_slot(int *fd) {
    struct sockaddr_un name = {.sun_family = AF_UNIX}; // its path begins with a zero: abstract, see unix(7)
    uint32_t slot = 0;
    *fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (; *fd >= 0 && slot < SLOTS_MAX; slot++) {
        const int bytes =
            snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "actorfarm-node-%u-%u", (unsigned)getuid(), slot);
        const socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)bytes);
        if (bind(*fd, (struct sockaddr *)&name, length) == 0) return slot;
        if (errno != EADDRINUSE) break;
    }
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return 0;
}

// A hash of boot, network namespace, user and slot, by which the learner recognises a restarted node. 0:
// unknown; the node then counts as another one.
static uint64_t make_identity(int *slot_fd) {
    char boot[64];
    struct stat network;
    const uid_t user = getuid();
    const uint32_t slot = bind_slot(slot_fd);
    if (*slot_fd < 0 || stat("/proc/self/ns/net", &network) ||
        !farm_file_line(boot, sizeof boot, "/proc/sys/kernel/random/boot_id"))
        return 0;
    uint64_t value = hash(0xcbf29ce484222325ull, boot, strlen(boot));
    value = hash(value, &network.st_ino, sizeof network.st_ino);
    value = hash(value, &user, sizeof user);
    return hash(value, &slot, sizeof slot);
}

// ---- start and end ----

enum farm_status farm_run_node_make(const struct farm_run_node_request *request, struct farm_run_node **out,
                                    struct farm_error *err) {
    struct farm_run_node *node = calloc(1, sizeof *node);
    void *shared = mmap(NULL, sizeof *node->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!node || shared == MAP_FAILED) {
        enum farm_status status = farm_fail_errno(err, FARM_E_LIMIT, "no memory for the node");
        if (shared != MAP_FAILED) munmap(shared, sizeof *node->shared);
        free(node);
        return status;
    }
    sigset_t blocked = farm_ending_signals();
    sigaddset(&blocked, SIGPIPE);
    sigprocmask(SIG_BLOCK, &blocked, &node->mask_before);
    node->request = *request;
    node->request.node.machine = make_identity(&node->slot_fd);
    node->probe_fd = node->key = node->cache = -1;
    node->shared = shared;
    *out = node;
    return !request->cache ? FARM_OK
                           : farm_run_bridges_listen(request->cache, request->node.key, &node->cache,
                                                     node->cache_address, sizeof node->cache_address, err);
}

void farm_run_node_free(struct farm_run_node *node) {
    if (!node) return;
    const sigset_t ending = farm_ending_signals();
    farm_run_node_leave(node);
    while (sigtimedwait(&ending, NULL, &(struct timespec){0}) > 0)
        continue; // a pending signal would end this process once unblocked
    sigprocmask(SIG_SETMASK, &node->mask_before, NULL);
    munmap(node->shared, sizeof *node->shared);
    if (node->slot_fd >= 0) close(node->slot_fd);
    if (node->key >= 0) close(node->key);
    if (node->cache >= 0) close(node->cache);
    free(node);
}

// ---- waiting for the learner ----

struct waiting {
    uint64_t start_ns, report_ns; // report_ns: when the next report is due
};

static struct waiting begin_waiting(void) {
    const uint64_t now = farm_now_ns();
    return (struct waiting){now, now + first_report_ns};
}

// Reports the reason from time to time. FARM_E_DEAD: the wait has taken too long.
static enum farm_status check_waiting(const struct farm_run_node *node, struct waiting *waiting, const char *why,
                                      struct farm_error *err) {
    const struct farm_run_node_request *request = &node->request;
    const uint64_t now = farm_now_ns();
    const double waited_s = (double)(now - waiting->start_ns) * 1e-9;
    const char *gap = why[0] ? ": " : "";
    if (request->retry_s > 0 && waited_s >= request->retry_s)
        return farm_fail(err, FARM_E_DEAD, "no learner at %s within %.3g s (--retry-s)%s%s", request->node.address,
                         request->retry_s, gap, why);
    if (now < waiting->report_ns) return FARM_OK;
    farm_run_note(&request->caller, "waiting for the learner at %s%s%s", request->node.address, gap, why);
    waiting->report_ns = now + report_every_ns;
    return FARM_OK;
}

// Waits for the address file or for the name to resolve.
static enum farm_status find_learner(struct farm_run_node *node, enum farm_run_node_state *state,
                                     struct farm_error *err) {
    const char *text = node->request.node.address;
    struct waiting waiting = begin_waiting();
    struct farm_error why;
    enum farm_status status;
    node->learner_count = 0;
    while ((status = farm_address_find(text, node->learner, &node->learner_count, &why)) == FARM_E_NOT_FOUND) {
        if (farm_ending_pending()) {
            *state = FARM_RUN_NODE_STOPPED;
            return FARM_OK;
        }
        if ((status = check_waiting(node, &waiting, why.message, err))) return status;
        nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000}, NULL);
    }
    if (status) return farm_fail(err, status, "%s", why.message);
    node->remote.network_node = node->learner_count ? farm_address_node(&node->learner[0]) : -1;
    return node->request.node.key ? FARM_OK
                                  : farm_address_check_insecure(text, node->learner, node->learner_count, err);
}

// In state OFFERED: repeats the request for places, unless the offer is another run's.
static bool request_places(const struct farm_run_node *node, struct farm_node *bridge) {
    if (memcmp(farm_node_offer(bridge)->run, node->offer.run, sizeof node->offer.run) != 0) return false;
    farm_node_join(bridge, node->run.plan.actors);
    return true;
}

// Serves the connection until it reaches the state `wanted` (*state stays JOINED), or until the session ends.
static enum farm_status await_state(struct farm_run_node *node, struct farm_node *bridge, enum farm_node_state wanted,
                                    enum farm_run_node_state *state, struct farm_error *err) {
    struct waiting waiting = begin_waiting();
    for (;;) {
        const bool busy = farm_node_turn(bridge, farm_now_ns());
        const enum farm_node_state now = farm_node_state(bridge);
        if (now == wanted) return FARM_OK;
        if (now == FARM_NODE_REFUSED)
            return farm_fail(err, FARM_E_DEAD, "the learner at %s refuses: %s", node->request.node.address,
                             farm_node_why(bridge));
        *state = now == FARM_NODE_ENDED     ? FARM_RUN_NODE_ENDED
                 : now == FARM_NODE_STRANGE ? FARM_RUN_NODE_STRANGE
                 : farm_ending_pending()    ? FARM_RUN_NODE_STOPPED
                                            : FARM_RUN_NODE_JOINED;
        if (now == FARM_NODE_OFFERED && !request_places(node, bridge)) *state = FARM_RUN_NODE_STRANGE;
        if (*state != FARM_RUN_NODE_JOINED) return FARM_OK;
        const enum farm_status status = check_waiting(node, &waiting, farm_node_why(bridge), err);
        if (status) return status;
        if (!busy) farm_node_wait(bridge, NAP_MS * 1000000u);
    }
}

// ---- a learner that has ended ----

// Whether the run has removed its address file: the file is missing, but its folder exists.
static bool file_is_gone(const char *text) {
    char folder[FARM_RUN_PATH_MAX];
    if (text[0] != '@' || strlen(text) > sizeof folder) return false;
    snprintf(folder, sizeof folder, "%s", text + 1);
    if (access(folder, F_OK) == 0 || errno != ENOENT) return false;
    char *slash = strrchr(folder, '/');
    if (slash) slash[slash == folder] = 0;
    return access(slash ? folder : ".", F_OK) == 0;
}

static void stop_probing(struct farm_run_node *node) {
    if (node->probe_fd >= 0) close(node->probe_fd);
    node->probe_fd = -1;
}

// Tests each second, without blocking, whether the learner's machine refuses the connection.
static bool probe_refused(struct farm_run_node *node, uint64_t now_ns) {
    int why = 0;
    if (node->probe_fd >= 0) {
        struct pollfd look = {.fd = node->probe_fd, .events = POLLOUT};
        if (poll(&look, 1, 0) == 1) getsockopt(node->probe_fd, SOL_SOCKET, SO_ERROR, &why, &(socklen_t){sizeof why});
    }
    if (why != ECONNREFUSED && node->learner_count && now_ns - node->probed_ns >= second_ns) {
        const struct farm_address *at = &node->learner[node->probes++ % node->learner_count];
        stop_probing(node);
        node->probed_ns = now_ns;
        node->probe_fd = socket(at->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (node->probe_fd >= 0 && connect(node->probe_fd, (const struct sockaddr *)&at->socket, at->bytes))
            why = errno;
    }
    return why == ECONNREFUSED;
}

// Whether the run has ended while this node was cut off.
static bool is_run_over(struct farm_run_node *node, uint64_t now_ns) {
    if (file_is_gone(node->request.node.address)) return probe_refused(node, now_ns);
    stop_probing(node);
    return false;
}

// ---- the bridge's process ----

static int lend_key(void *context) {
    struct farm_run_node *node = context;
    farm_key_lend(node->request.node.key, &node->key);
    return node->key;
}

// LOCAL: opens and describes the boards; this process packs the versions that it receives.
static enum farm_status open_boards(const struct farm_run_node *node, const struct farm_run_workers *workers,
                                    struct farm_board **boards, struct farm_executor **packer, struct farm_error *err) {
    const struct farm_executor_config config = {
        .net = &node->policy.net, .batch_max = (int)workers->plan->width, .arithmetic = &node->policy.arithmetic};
    enum farm_status status = farm_executor_create(&config, packer, err);
    for (uint32_t b = 0; b < workers->learner.boards.count && !status; b++) {
        status = farm_board_open(workers->learner.boards.fds[b], true, &boards[b], err);
        if (!status) status = farm_boards_describe(boards[b], node->offer.net, *packer, err);
    }
    return status;
}

static int bridge_body(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                       struct farm_error *err) {
    (void)stats; // the supervisor copies node->shared's figures there
    struct farm_run_node *node = context;
    const struct farm_run_plan *plan = workers->plan;
    struct farm_node_config config = node->request.node;
    struct farm_key *key = NULL; // the supervisor's page is empty here
    if (config.key && farm_key_borrow(node->key, &key, err)) return 1;
    config.key = key;
    memcpy(config.session, node->session, sizeof config.session);
    memcpy(config.run, node->offer.run, sizeof config.run);
    memcpy(&config.seed, node->session, sizeof config.seed);
    config.ring_fds = (const int(*)[2])workers->ring_fds;
    config.ring_count = plan->actors;
    struct farm_executor *packer = NULL;
    struct farm_board *boards[FARM_NODES_MAX];
    config.boards = boards;
    config.board_count = workers->learner.boards.count;
    if (config.board_count && open_boards(node, workers, boards, &packer, err)) return 1;
    config.bell = workers->rings->bells[0];
    config.cache = node->cache;
    config.cache_address = node->cache_address;
    const char *engine = node->shared->poll ? "poll" : config.engine;
    config.engine = farm_run_next_engine(engine, &node->shared->bridge_ns, NULL);
    node->shared->poll = strcmp(config.engine, "poll") == 0;
    config.stats = &node->shared->stats;
    config.spin_ns = farm_run_spin_ns(&plan->recipe, farm_run_shares_cpus(plan));
    const int status = farm_node_run(&config, err);
    farm_key_free(key);
    farm_executor_destroy(packer);
    if (status != FARM_NODE_EXIT_STRANGE) return status;
    farm_store_release(&node->shared->strange, 1);
    return 0;
}

static void clear_line(void *context) {
    const struct farm_run_caller *caller = &((struct farm_run_node *)context)->request.caller;
    if (caller->clear_line) caller->clear_line(caller->context);
}

static enum farm_supervisor_turn on_tick(void *context, uint64_t now_ns) {
    struct farm_run_node *node = context;
    const struct farm_run_caller *caller = &node->request.caller;
    struct farm_run_node_figures figures;
    farm_store_relaxed(&node->run.rings.stats->agent_steps, farm_load_relaxed(&node->shared->stats.node[0].steps));
    farm_run_node_figures(node, now_ns, &figures);
    if (figures.connected) {
        node->connected_ns = now_ns;
        stop_probing(node);
    } else {
        node->over = is_run_over(node, now_ns);
    }
    node->given_up = !node->over && node->request.retry_s > 0 && figures.away_s >= node->request.retry_s;
    if (node->over)
        farm_run_note(caller, "the learner's run has ended: %s is gone, and its port is closed",
                      node->request.node.address + 1);
    if (node->given_up || node->over) return FARM_TURN_STOP;
    return caller->on_tick ? caller->on_tick(caller->context, now_ns) : FARM_TURN_ON;
}

// ---- a session ----

static enum farm_status make_run(struct farm_run_node *node, bool quiet, struct farm_error *err) {
    const struct farm_run_request request = {.recipe = &node->recipe,
                                             .quiet = quiet,
                                             .responder = {bridge_body, node, &node->remote, lend_key, node->cache}};
    return farm_run_make(&node->run, &request, err);
}

// The learner has room for `joined` of the planned actors: plans those alone, which frees the CPUs of the others.
static enum farm_status plan_fewer(struct farm_run_node *node, uint32_t joined, const char *why,
                                   struct farm_error *err) {
    farm_run_note(&node->request.caller, "%u of this machine's %u actors have joined; at the learner: %s", joined,
                  node->run.plan.actors, why);
    farm_run_free(&node->run);
    node->recipe.actors = joined;
    return make_run(node, true, err);
}

static enum farm_status plan_session(struct farm_run_node *node, struct farm_error *err) {
    node->recipe = *node->request.recipe;
    enum farm_status status = farm_run_offer_apply(&node->offer, &node->recipe, err);
    const bool local = node->offer.spec.answers == FARM_ANSWERS_LOCAL;
    if (!status && local) status = farm_run_offer_policy(&node->offer, &node->policy, err);
    if (status) return status;
    node->remote.parameters = local ? node->policy.net.parameter_count : 0;
    node->remote.spec = &node->offer.spec;
    node->remote.actors = node->actors;
    status = make_run(node, node->request.quiet, err);
    if (status || node->run.plan.actors <= FARM_WIRE_RINGS_MAX) return status;
    return farm_fail(err, FARM_E_USAGE, "--actors %u: a node has at most %d", node->run.plan.actors,
                     FARM_WIRE_RINGS_MAX);
}

static enum farm_status join_session(struct farm_run_node *node, struct farm_node *bridge,
                                     enum farm_run_node_state *state, struct farm_error *err) {
    enum farm_status status = await_state(node, bridge, FARM_NODE_OFFERED, state, err);
    if (status || *state != FARM_RUN_NODE_JOINED) return status;
    node->offer = *farm_node_offer(bridge);
    status = plan_session(node, err);
    if (!status) status = await_state(node, bridge, FARM_NODE_JOINED, state, err);
    if (status || *state != FARM_RUN_NODE_JOINED) return status;
    const uint32_t joined = farm_node_places(bridge);
    if (joined < node->run.plan.actors && (status = plan_fewer(node, joined, farm_node_why(bridge), err)))
        return status;
    memcpy(node->actors, farm_node_actors(bridge), node->run.plan.actors * sizeof *node->actors);
    node->run.caller = (struct farm_run_caller){.context = node, .clear_line = clear_line, .on_tick = on_tick};
    return farm_run_build(&node->run, err);
}

enum farm_status farm_run_node_join(struct farm_run_node *node, enum farm_run_node_state *state,
                                    struct farm_error *err) {
    struct farm_node *bridge = NULL;
    *state = FARM_RUN_NODE_JOINED;
    node->remote = (struct farm_run_remote){.network_node = -1};
    node->past.sessions++;
    enum farm_status status = find_learner(node, state, err);
    if (status || *state != FARM_RUN_NODE_JOINED) return status;
    if (getrandom(node->session, sizeof node->session, 0) != (ssize_t)sizeof node->session)
        return farm_fail_errno(err, FARM_E_IO, "getrandom");
    struct farm_node_config config = node->request.node;
    memcpy(config.session, node->session, sizeof config.session);
    memcpy(&config.seed, node->session, sizeof config.seed);
    config.bell = -1;
    config.engine = "poll"; // io_uring's memory must not exist when workers are forked
    if ((status = farm_node_make(&config, &bridge, err))) return status;
    status = join_session(node, bridge, state, err);
    const bool joined = !status && *state == FARM_RUN_NODE_JOINED;
    farm_node_free(bridge, !joined);
    node->connected_ns = farm_now_ns();
    return status;
}

enum farm_status farm_run_node_execute(struct farm_run_node *node, enum farm_run_node_state *state,
                                       struct farm_error *err) {
    const struct farm_run_node_request *request = &node->request;
    bool stopped;
    enum farm_status status = farm_supervisor_fork_apart(node->run.workers.supervisor, err);
    if (!status) status = farm_run_execute(&node->run, &stopped, err);
    if (status) return status;
    if (node->given_up)
        return farm_fail(err, FARM_E_DEAD, "no connection to the learner at %s for %.3g s (--retry-s)",
                         request->node.address, request->retry_s);
    *state = stopped                                     ? FARM_RUN_NODE_STOPPED
             : farm_load_acquire(&node->shared->strange) ? FARM_RUN_NODE_STRANGE
                                                         : FARM_RUN_NODE_ENDED;
    return FARM_OK;
}

void farm_run_node_leave(struct farm_run_node *node) {
    struct farm_run_node_figures figures;
    farm_run_node_figures(node, farm_now_ns(), &figures);
    node->past = figures;
    farm_run_free(&node->run);
    memset(&node->run, 0, sizeof node->run);
    memset(node->shared, 0, sizeof *node->shared);
    node->connected_ns = 0;
    node->over = node->given_up = false;
    stop_probing(node);
}

void farm_run_node_figures(const struct farm_run_node *node, uint64_t now_ns, struct farm_run_node_figures *figures) {
    const struct farm_bridge_stats *stats = &node->shared->stats;
    const struct farm_bridge_node_stats *row = &stats->node[0];
    const uint64_t connections = farm_load_relaxed(&row->connections), since_ns = node->connected_ns;
    *figures = node->past;
    figures->wall_s += farm_run_events_wall_s(&node->run.events);
    figures->steps += farm_load_relaxed(&row->steps);
    figures->lane_steps += farm_load_relaxed(&row->lane_steps);
    figures->bytes_in += farm_load_relaxed(&row->bytes_in);
    figures->bytes_out += farm_load_relaxed(&row->bytes_out);
    figures->copied_bytes += farm_load_relaxed(&row->copied_bytes);
    figures->frames += farm_load_relaxed(&stats->frames);
    figures->system_calls += farm_load_relaxed(&stats->system_calls);
    figures->reconnects += connections > 1 ? connections - 1 : 0;
    figures->actor_restarts += node->run.change.restarts;
    figures->bridge_restarts += node->run.learners.restarts;
    figures->connected = farm_load_relaxed(&row->state) == FARM_NODE_CONNECTED;
    figures->uring |= farm_load_relaxed(&stats->uring);
    figures->away_s = figures->connected || !since_ns || now_ns < since_ns ? 0 : (double)(now_ns - since_ns) * 1e-9;
    const uint64_t round_trip_ns = farm_load_relaxed(&row->round_trip_ns);
    if (round_trip_ns) figures->round_trip_s = (double)round_trip_ns * 1e-9;
    figures->actors = node->run.workers.count;
}
