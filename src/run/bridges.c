// See bridges.h.
#include "run/bridges.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "bridge/engine.h"
#include "bridge/hub.h"
#include "run/settings.h"

enum { BACKLOG = 1024 };

// ---- listening ----

static enum farm_status fail_to_listen(const char *flag, const char *text, struct farm_error *err) {
    const enum farm_status status = errno == EADDRINUSE ? FARM_E_BUSY
                                    : errno == EACCES   ? FARM_E_PERMISSION
                                                        : FARM_E_USAGE;
    return farm_fail_errno(err, status, "--%s %s", flag, text);
}

// shared: other bridges listen on the same port.
static int listen_on(const struct farm_address *address, bool shared) {
    const int on = 1, off = 0;
    const int fd = socket(address->socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (shared) setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (address->socket.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (bind(fd, (const struct sockaddr *)&address->socket, address->bytes) == 0 && listen(fd, BACKLOG) == 0) return fd;
    const int why = errno;
    close(fd);
    errno = why;
    return -1;
}

// The workers of a killed run end a moment after it and hold its port until then.
static int listen_within(const struct farm_address *address, bool shared) {
    enum { TRIES = 40, PAUSE_NS = 50000000 };
    int fd = listen_on(address, shared);
    for (int i = 0; fd < 0 && errno == EADDRINUSE && i < TRIES; i++) {
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
        fd = listen_on(address, shared);
    }
    return fd;
}

static enum farm_status listen_all(struct farm_run_bridges *bridges, const char *text, struct farm_address address,
                                   struct farm_error *err) {
    for (uint32_t b = 0; b < bridges->count; b++) {
        const int fd = bridges->bridge[b].listener = listen_within(&address, bridges->count > 1);
        address.bytes = sizeof address.socket; // with port 0 the other bridges share the first one's port
        if (fd < 0 || getsockname(fd, (struct sockaddr *)&address.socket, &address.bytes))
            return fail_to_listen("listen", text, err);
    }
    return farm_run_bridges_name(bridges->bridge[0].listener, bridges->address, sizeof bridges->address, err);
}

enum farm_status farm_run_bridges_listen(const char *text, bool encrypted, int *fd, char *address, size_t bytes,
                                         struct farm_error *err) {
    struct farm_address addresses[FARM_ADDRESSES_MAX];
    uint32_t count;
    enum farm_status status = farm_address_find(text, addresses, &count, err);
    if (!status && !encrypted) status = farm_address_check_insecure(text, addresses, 1, err);
    if (status) return farm_fail_in(err, status, "--cache");
    *fd = listen_within(&addresses[0], false);
    return *fd >= 0 ? farm_run_bridges_name(*fd, address, bytes, err) : fail_to_listen("cache", text, err);
}

static bool is_any(const struct sockaddr_storage *socket) {
    if (socket->ss_family == AF_INET) return ((const struct sockaddr_in *)socket)->sin_addr.s_addr == INADDR_ANY;
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)socket)->sin6_addr);
}

static bool is_loopback(const struct sockaddr_storage *socket) {
    if (socket->ss_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)socket)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)socket)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == IN_LOOPBACKNET);
}

// The address of the default route's card: the source of packets to an address of documentation (RFC 5737, RFC 3849).
static bool routed_address(struct sockaddr_storage *out, socklen_t *bytes, bool v6) {
    struct farm_address there;
    return !farm_address_literal(v6 ? "[2001:db8::1]:9" : "192.0.2.1:9", &there, NULL) &&
           farm_address_local(&there, out, bytes) && !is_loopback(out);
}

// An address, neither loopback nor link-local, of the first card that is up.
static bool card_address(struct sockaddr_storage *out, socklen_t *bytes, bool v6) {
    struct ifaddrs *cards = NULL;
    bool found = false;
    if (getifaddrs(&cards)) return false;
    for (const struct ifaddrs *card = cards; card && !found; card = card->ifa_next) {
        if (!card->ifa_addr || card->ifa_addr->sa_family != (v6 ? AF_INET6 : AF_INET) || !(card->ifa_flags & IFF_UP) ||
            card->ifa_flags & IFF_LOOPBACK)
            continue;
        if (v6 && IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)card->ifa_addr)->sin6_addr)) continue;
        *bytes = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
        memcpy(out, card->ifa_addr, *bytes);
        found = true;
    }
    freeifaddrs(cards);
    return found;
}

// An address by which nodes reach this machine; IPv4 first.
static bool own_address(struct sockaddr_storage *out, socklen_t *bytes, bool v6) {
    return routed_address(out, bytes, false) || (v6 && routed_address(out, bytes, true)) ||
           card_address(out, bytes, false) || (v6 && card_address(out, bytes, true));
}

enum farm_status farm_run_bridges_name(int listener, char *text, size_t text_bytes, struct farm_error *err) {
    struct sockaddr_storage bound, own;
    socklen_t bytes = sizeof bound, own_bytes;
    char host[NI_MAXHOST] = "", port[NI_MAXSERV] = "";
    if (getsockname(listener, (struct sockaddr *)&bound, &bytes))
        return farm_fail_errno(err, FARM_E_IO, "the listening socket");
    int failed = getnameinfo((const struct sockaddr *)&bound, bytes, host, sizeof host, port, sizeof port,
                             NI_NUMERICHOST | NI_NUMERICSERV);
    if (!failed && is_any(&bound)) {
        if (own_address(&own, &own_bytes, bound.ss_family == AF_INET6))
            failed = getnameinfo((const struct sockaddr *)&own, own_bytes, host, sizeof host, NULL, 0, NI_NUMERICHOST);
        else
            snprintf(host, sizeof host, "127.0.0.1"); // no network
    }
    if (failed) return farm_fail(err, FARM_E_IO, "the listening socket: %s", gai_strerror(failed));
    const int n = snprintf(text, text_bytes, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    return n > 0 && (size_t)n < text_bytes ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "the address %s is too long", host);
}

// Many systems resolve their own name to a loopback address (127.0.1.1 in /etc/hosts). A literal address or "localhost"
// is taken as intended.
static void warn_of_loopback(const char *text, const struct farm_address *address) {
    const char *port = strrchr(text, ':');
    char host[INET6_ADDRSTRLEN];
    if (!is_loopback(&address->socket) || (text[0] >= '0' && text[0] <= '9') || text[0] == '[' ||
        strncmp(text, "localhost", strlen("localhost")) == 0 ||
        getnameinfo((const struct sockaddr *)&address->socket, address->bytes, host, sizeof host, NULL, 0,
                    NI_NUMERICHOST))
        return;
    farm_log_warn("--listen %s: nodes on other machines cannot reach %s: --listen 0.0.0.0%s", text, host, port);
}

static enum farm_status check_request(const struct farm_run_listen *listen, struct farm_error *err) {
    if (listen->address[0] == '@')
        return farm_fail(err, FARM_E_USAGE, "--listen %s: an address to listen on, HOST:PORT", listen->address);
    if (listen->bridges > FARM_RUN_BRIDGES_MAX)
        return farm_fail(err, FARM_E_USAGE, "--bridges %u: between 1 and %d", listen->bridges, FARM_RUN_BRIDGES_MAX);
    return listen->engine ? farm_engine_check_word(listen->engine, err) : FARM_OK;
}

enum farm_status farm_run_bridges_open(struct farm_run_bridges *bridges, const struct farm_run_listen *listen,
                                       const char *env, struct farm_error *err) {
    struct farm_address addresses[FARM_ADDRESSES_MAX];
    uint32_t count;
    *bridges = (struct farm_run_bridges){.network_node = -1, .key_path = listen->key};
    if (!listen->address) return FARM_OK;
    enum farm_status status = check_request(listen, err);
    if (!status) status = farm_address_find(listen->address, addresses, &count, err);
    if (status) return farm_fail_in(err, status, "--listen");
    if (!listen->key) status = farm_address_check_insecure(listen->address, addresses, 1, err);
    if (!status && listen->key) {
        (void)stat(listen->key, &bridges->key_file); // before it is read: a later change is noticed
        status = farm_key_load(listen->key, FARM_KEY_LEARNER, &bridges->key, &bridges->withdrawn, err);
    }
    if (status) return status;
    bridges->count = bridges->listening = listen->bridges ? listen->bridges : 1;
    snprintf(bridges->env, sizeof bridges->env, "%s", env);
    for (uint32_t b = 0; b < bridges->count; b++)
        bridges->bridge[b] = (struct farm_run_bridge){.all = bridges,
                                                      .listener = -1,
                                                      .control = -1,
                                                      .end = -1,
                                                      .wake = -1,
                                                      .keep = {-1},
                                                      .engine = listen->engine ? listen->engine : "auto"};
    bridges->network_node = farm_address_node(&addresses[0]);
    warn_of_loopback(listen->address, &addresses[0]);
    if ((status = listen_all(bridges, listen->address, addresses[0], err)) || listen->key) return status;
    farm_log_warn("--insecure: any machine that reaches %s can join, and read and change what is sent",
                  bridges->address);
    return FARM_OK;
}

// ---- offer, figures, control sockets ----

static enum farm_status make_offer(struct farm_run_bridges *bridges, struct farm_error *err) {
    const struct farm_run_plan *plan = bridges->workers->plan;
    const struct farm_recipe *recipe = &plan->recipe;
    struct farm_wire_offer *offer = calloc(1, sizeof *offer);
    bridges->offer = offer;
    if (!offer) return farm_fail(err, FARM_E_LIMIT, "no memory for the offer to nodes");
    if (getrandom(offer->run, sizeof offer->run, 0) != sizeof offer->run)
        return farm_fail_errno(err, FARM_E_IO, "no random numbers");
    offer->spec = plan->ring_spec;
    if (offer->spec.answers == FARM_ANSWERS_CENTRAL) farm_ring_spec_answers(&offer->spec); // those alone travel
    if (plan->served) farm_ring_spec_control(&offer->spec);
    offer->seed = farm_run_workers_seed(bridges->workers);
    offer->window = plan->passes.shape.length;
    snprintf(offer->env, sizeof offer->env, "%s", bridges->env);
    snprintf(offer->bad_values, sizeof offer->bad_values, "%.15s", recipe->bad_values);
    for (size_t i = 0; i < recipe->option_count + FARM_ENV_KEYS; i++) {
        const struct farm_recipe_option *given = i < recipe->option_count ? &recipe->options[i] : NULL;
        const struct farm_env_option option =
            given ? (struct farm_env_option){given->key, given->value} : farm_env_key(recipe, i - recipe->option_count);
        if (!given && strcmp(option.value, "none") == 0) continue;
        if (offer->option_count == FARM_WIRE_OPTIONS_MAX)
            return farm_fail(err, FARM_E_LIMIT, "an offer to nodes holds at most %d options of the environment",
                             FARM_WIRE_OPTIONS_MAX);
        char(*to)[FARM_WIRE_OPTION_BYTES] = offer->options[offer->option_count++];
        snprintf(to[0], FARM_WIRE_OPTION_BYTES, "%s", option.key);
        snprintf(to[1], FARM_WIRE_OPTION_BYTES, "%s", option.value);
    }
    return FARM_OK;
}

static struct farm_bridge_stats *stats_of(const struct farm_segment *segment) {
    return (struct farm_bridge_stats *)((char *)segment->header + FARM_SEGMENT_HEADER_BYTES);
}

static enum farm_status make_bridge(struct farm_run_bridge *bridge, struct farm_error *err) {
    const struct farm_segment_request request = {.kind = FARM_SEGMENT_STATS,
                                                 .bytes = FARM_SEGMENT_HEADER_BYTES + sizeof(struct farm_bridge_stats),
                                                 .node = -1,
                                                 .layout_hash = sizeof(struct farm_bridge_stats)};
    enum farm_status status = farm_control_make(&bridge->control, &bridge->end, err);
    if (!status) status = farm_segment_create(&request, &bridge->segment, err);
    if (status) return status;
    bridge->stats = stats_of(&bridge->segment);
    bridge->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return bridge->wake >= 0 ? FARM_OK
                             : farm_fail_errno(err, FARM_E_LIMIT, "no descriptor to wake a bridge (ulimit -n)");
}

enum farm_status farm_run_bridges_make(struct farm_run_bridges *bridges, struct farm_run_workers *workers,
                                       struct farm_error *err) {
    bridges->workers = workers;
    enum farm_status status = bridges->count ? make_offer(bridges, err) : FARM_OK;
    for (uint32_t b = 0; b < bridges->count && !status; b++) status = make_bridge(&bridges->bridge[b], err);
    return status;
}

void farm_run_bridges_lose(struct farm_run_bridges *bridges, uint32_t b) {
    struct farm_run_bridge *bridge = &bridges->bridge[b];
    close(bridge->listener);
    bridge->listener = -1;
    bridge->lost = true;
    bridges->listening--;
}

void farm_run_bridges_free(struct farm_run_bridges *bridges) {
    for (uint32_t b = 0; b < bridges->count; b++) {
        struct farm_run_bridge *bridge = &bridges->bridge[b];
        const int fds[] = {bridge->listener, bridge->control, bridge->end, bridge->wake, bridge->keep[0]};
        for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
            if (fds[i] > 0) close(fds[i]);
        if (bridge->segment.header) farm_segment_close(&bridge->segment);
    }
    free((void *)bridges->offer);
    farm_key_free(bridges->key);
    bridges->key = NULL;
    bridges->count = 0;
}

// ---- the key ----

bool farm_run_bridges_read_withdrawn(struct farm_run_bridges *bridges) {
    const uint32_t count = bridges->withdrawn.count;
    const struct farm_run_caller *caller = bridges->workers->caller;
    struct stat now = {0};
    struct farm_key *key = NULL;
    struct farm_key_names names;
    struct farm_error err;
    if (!bridges->key) return false;
    if (stat(bridges->key_path, &now) == 0 && now.st_size == bridges->key_file.st_size &&
        memcmp(&now.st_ctim, &bridges->key_file.st_ctim, sizeof now.st_ctim) == 0)
        return false;
    enum farm_status status = farm_key_load(bridges->key_path, FARM_KEY_LEARNER, &key, &names, &err);
    if (!status && memcmp(key->secret, bridges->key->secret, sizeof key->secret) != 0)
        status = farm_fail(&err, FARM_E_INVALID, "%s has another key now", bridges->key_path);
    farm_key_free(key);
    if (status && !bridges->key_warned)
        farm_run_warn(caller, "%s; the run goes on with its key, and withdraws no other before this is mended",
                      err.message);
    bridges->key_warned = status;
    if (status) return false;
    bridges->key_file = now;
    for (uint32_t i = 0; i < names.count; i++)
        if (farm_key_names_add(&bridges->withdrawn, names.name[i]))
            farm_run_warn(caller, "the key of node %s is withdrawn", names.name[i]);
    return bridges->withdrawn.count > count;
}

// ---- the workers ----

static int bridge_body(void *context, struct farm_error *err) {
    const struct farm_run_bridge *bridge = context;
    const struct farm_run_bridges *all = bridge->all;
    const struct farm_run_plan *plan = all->workers->plan;
    struct farm_segment segment;
    struct farm_key *key = NULL; // the supervisor's page is empty here
    if (all->key && farm_key_borrow(bridge->keep[0], &key, err)) return 1;
    if (farm_segment_open(bridge->segment.fd, true, FARM_SEGMENT_STATS, sizeof(struct farm_bridge_stats), &segment,
                          err))
        return 1;
    struct farm_board *board = NULL;
    if (bridge->board >= 0 && farm_board_open(bridge->board, false, &board, err)) return 1;
    const struct farm_hub_config config = {.listener = bridge->listener,
                                           .control = bridge->end,
                                           .wake = bridge->wake,
                                           .bells = all->workers->rings->bells,
                                           .bell_count = all->workers->rings->bell_count,
                                           .key = key,
                                           .withdrawn = &all->withdrawn,
                                           .offer = all->offer,
                                           .board = board,
                                           .fan_out = (uint32_t)plan->recipe.fan_out,
                                           .stats = stats_of(&segment),
                                           .engine = bridge->engine,
                                           .spin_ns = farm_run_spin_ns(&plan->recipe, !all->own_cores)};
    const int status = farm_hub_run(&config, err);
    farm_key_free(key);
    return status;
}

// The CPUs of the b-th core that the plan reserves for bridges.
static struct farm_bitmap core_of(const struct farm_run_plan *plan, uint32_t b) {
    struct farm_bitmap left = plan->placement->bridge_cpus, cpus;
    for (uint32_t i = 0;; i++) {
        cpus = (struct farm_bitmap){0};
        const int first = farm_bitmap_next(&left, 0);
        if (first < 0) return cpus;
        const int core = farm_machine_cpu(plan->machine, first)->core;
        for (int cpu = first; cpu >= 0; cpu = farm_bitmap_next(&left, cpu + 1))
            if (farm_machine_cpu(plan->machine, cpu)->core == core) farm_bitmap_set(&cpus, cpu);
        if (i == b) return cpus;
        farm_bitmap_remove(&left, &cpus);
    }
}

static enum farm_status add_worker(struct farm_run_bridges *bridges, uint32_t b, size_t worker,
                                   struct farm_error *err) {
    const struct farm_run_plan *plan = bridges->workers->plan;
    const struct farm_run_rings *rings = bridges->workers->rings;
    struct farm_run_bridge *bridge = &bridges->bridge[b];
    size_t kept = 1;
    bridge->cpus = bridges->own_cores ? core_of(plan, b) : plan->placement->actor_cpus;
    bridge->board = rings->board_count ? rings->boards[0]->segment.fd_readonly : -1;
    const int fds[] = {bridge->listener, bridge->end, bridge->wake, bridge->segment.fd, bridge->board};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) bridge->keep[kept++] = fds[i];
    for (uint32_t k = 0; k < rings->bell_count && k < FARM_LEARNER_SHARDS_MAX; k++)
        bridge->keep[kept++] = rings->bells[k];
    const bool pinned = plan->recipe.pin && farm_bitmap_count(&bridge->cpus);
    struct farm_worker_spec spec = {.body = bridge_body,
                                    .context = bridge,
                                    .keep = bridge->keep,
                                    .keep_count = kept,
                                    .cpus = pinned ? &bridge->cpus : NULL,
                                    .memory_node = plan->recipe.numa && bridges->own_cores ? bridges->network_node : -1,
                                    .expendable = true, // sessions.h decides whether the run goes on without it
                                    .stop_phase = FARM_RUN_PHASE_ACTORS};
    snprintf(spec.name, sizeof spec.name, bridges->count > 1 ? "bridge %u" : "bridge", b);
    bridges->workers->worker[worker].fd = bridge->control;
    return farm_supervisor_enlist(bridges->workers->supervisor, worker, &spec, err);
}

enum farm_status farm_run_bridges_add(struct farm_run_bridges *bridges, const struct farm_run_worker_ops *ops,
                                      void *owner, struct farm_error *err) {
    size_t first;
    enum farm_status status = farm_run_workers_reserve(bridges->workers, ops, owner, bridges->count, &first, err);
    const struct farm_bitmap last = core_of(bridges->workers->plan, bridges->count - 1);
    bridges->own_cores = farm_bitmap_count(&last) > 0;
    for (uint32_t b = 0; b < bridges->count && !status; b++) status = add_worker(bridges, b, first + b, err);
    return status;
}
