// See cache.h. One link to the source, as a client, and one to each node that this one feeds, as a server.
#include "bridge/cache.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "bridge/address.h"

// A chunk of an announced version comes within LIMIT_NS, and LEVEL_NS for each cache before the source, so that a node
// gives up its source before those that it feeds do: together less than a second. The whole version comes at 1 MB/s.
enum { LEVELS_MAX = 8, HANDSHAKES_IN_A_ROW = 100 };
static const uint64_t LIMIT_NS = 700000000, LEVEL_NS = 30000000, TICK_NS = 25000000, HANDSHAKE_NS = 20000000,
                      BYTE_NS = 1000;

struct peer {
    struct farm_link link;
    struct farm_version_sender sender; // not the source's
    struct farm_cache *cache;
};

struct farm_cache {
    struct farm_cache_config config;
    struct farm_tls_context *server;
    struct farm_wire_source from; // as the learner has announced; "": the learner sends the versions
    struct farm_address address;  // its
    uint64_t chunk_ns, whole_ns;  // left for its next chunk, and for the version after `done`
    uint64_t done;
    bool asks; // the learner, once the source is vacant
    uint64_t now_ns, tick_ns, paid_ns;
    uint32_t peer_count;
    struct peer peers[]; // [peer_count] the source; nodes that this one feeds
};

// ---- links ----

static void expect_chunk(struct farm_cache *cache) {
    cache->chunk_ns = LIMIT_NS + (cache->from.depth < LEVELS_MAX ? cache->from.depth : LEVELS_MAX) * LEVEL_NS;
}

static void expect_version(struct farm_cache *cache) {
    expect_chunk(cache);
    cache->whole_ns = cache->chunk_ns + cache->config.receiver->boards[0]->count * sizeof(float) * BYTE_NS;
    cache->done = cache->config.receiver->done;
}

static void pass_time(struct farm_cache *cache, uint64_t ns) {
    const struct farm_version_receiver *receiver = cache->config.receiver;
    if (!cache->from.address[0] || farm_version_is_done(receiver) || cache->done != receiver->done)
        expect_version(cache);
    else if (cache->chunk_ns <= ns || cache->whole_ns <= ns)
        farm_cache_ask_learner(cache, cache->chunk_ns <= ns ? "no chunk in time" : "less than 1 MB/s");
    else
        cache->chunk_ns -= ns, cache->whole_ns -= ns;
}

static bool place(void *context, const struct farm_wire_header *header, const struct farm_wire_entry *entry,
                  struct iovec *parts, uint32_t room, uint32_t *count, struct farm_error *err) {
    const struct peer *peer = context;
    (void)room;
    if (header->type != FARM_WIRE_VERSION_CHUNK || peer != peer->cache->peers)
        return header->type == FARM_WIRE_HEARTBEAT || farm_link_refuse(header, err);
    *count = 1;
    return farm_version_place_chunk(peer->cache->config.receiver, &peer->link, header, entry, parts, err);
}

static bool arrived(void *context, struct farm_link *link, const struct farm_wire_header *header,
                    const struct farm_wire_entry *entries, struct farm_error *err) {
    struct peer *peer = context;
    struct farm_cache *cache = peer->cache;
    const bool source = peer == cache->peers;
    if (header->type == FARM_WIRE_HEARTBEAT)
        return farm_link_handle_heartbeat(link, entries, cache->now_ns, NULL), true;
    if (header->type == FARM_WIRE_VERSION_CHUNK) {
        expect_chunk(cache);
        return farm_version_take_chunk(cache->config.receiver, link, header, entries, err);
    }
    if (header->type == FARM_WIRE_VERSION_OFFER && source)
        return farm_version_take_offer(cache->config.receiver, link, err);
    if (header->type != FARM_WIRE_VERSION_HAVE || source) return farm_link_refuse(header, err);
    link->known = true;
    return farm_version_sender_ask(&peer->sender, link, err);
}

// Owns fd.
static bool open_link(struct farm_cache *cache, struct peer *peer, int fd, struct farm_error *err) {
    const struct farm_cache_config *config = &cache->config;
    const uint32_t number = config->socket + (uint32_t)(peer - cache->peers);
    const struct farm_tls_context *tls = number == config->socket ? config->client : cache->server;
    const struct farm_link_owner owner = {place, arrived, peer};
    if (farm_link_make(&peer->link, config->ops, config->engine, number, number != config->socket, tls, &owner, err))
        return close(fd), false;
    peer->cache = cache;
    peer->link.known = number == config->socket;
    farm_link_begin(&peer->link, fd, peer->link.known ? &cache->address : NULL, cache->now_ns);
    return true;
}

// ---- the source ----

// What it has brought of a version may be wrong, which would be found out with the last byte only.
static void leave_source(struct farm_cache *cache) {
    farm_version_leave(cache->config.receiver, cache->from.address[0] != 0);
    farm_link_close(&cache->peers->link, NULL);
    cache->peers->link.why[0] = 0;
}

void farm_cache_ask_learner(struct farm_cache *cache, const char *why) {
    if (cache->from.address[0]) farm_log_info("parameters come from the learner, no longer from another node: %s", why);
    leave_source(cache);
    cache->from.address[0] = 0;
    cache->asks = true;
}

void farm_cache_follow(struct farm_cache *cache, const struct farm_wire_source *source) {
    const bool same = strcmp(cache->from.address, source->address) == 0;
    if (!same) leave_source(cache);
    cache->from = *source;
    cache->asks = false;
    if (!same) expect_version(cache);
}

static void dial(struct farm_cache *cache) {
    struct farm_error err = {.message = "its address is not private"};
    const bool may = !farm_address_literal(cache->from.address, &cache->address, &err) &&
                     (cache->config.client || farm_address_private(&cache->address));
    const int fd = may ? socket(cache->address.socket.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0) : -1;
    if (may && fd < 0) farm_fail_errno(&err, FARM_E_LIMIT, "no socket");
    if (fd < 0 || !open_link(cache, cache->peers, fd, &err)) farm_cache_ask_learner(cache, err.message);
}

// ---- nodes that this one feeds ----

void farm_cache_accept(struct farm_cache *cache, int fd, uint64_t now_ns) {
    const uint64_t owed_ns = cache->paid_ns > now_ns ? cache->paid_ns - now_ns : 0;
    struct peer *vacant = NULL;
    struct farm_error err;
    uint32_t strangers = 0;
    for (uint32_t p = 1; p < cache->peer_count; p++)
        if (cache->peers[p].link.state == FARM_LINK_VACANT)
            vacant = &cache->peers[p];
        else
            strangers += !cache->peers[p].link.known;
    if (!vacant || strangers >= FARM_CACHE_STRANGERS_MAX || owed_ns > HANDSHAKES_IN_A_ROW * HANDSHAKE_NS) {
        close(fd);
        return;
    }
    cache->now_ns = now_ns;
    cache->paid_ns = now_ns + owed_ns + HANDSHAKE_NS;
    if (!open_link(cache, vacant, fd, &err)) farm_log_warn("cannot feed a node: %s", err.message);
}

// If versions that are sent hold every stage, those who are behind read too slowly.
static bool serve_peer(const struct farm_cache *cache, struct peer *peer) {
    const struct farm_version_receiver *receiver = cache->config.receiver;
    uint32_t held = 0;
    for (uint32_t s = 0; s < FARM_VERSION_STAGES_MAX; s++) held += receiver->stages[s].users > 0;
    if (held == FARM_VERSION_STAGES_MAX && peer->sender.stage && peer->sender.stage != receiver->stage)
        farm_link_close(&peer->link, "it reads too slowly");
    return peer->link.state == FARM_LINK_OPEN && farm_link_can_send(&peer->link) &&
           farm_version_send(&peer->sender, &peer->link, receiver->stage, cache->now_ns);
}

// ---- the turn ----

void farm_cache_event(struct farm_cache *cache, const struct farm_engine_event *event, uint64_t now_ns) {
    struct peer *peer = &cache->peers[event->number - cache->config.socket];
    const bool source = peer == cache->peers, opens = peer->link.state != FARM_LINK_OPEN;
    cache->now_ns = now_ns;
    farm_link_event(&peer->link, event, now_ns);
    if (source && opens && peer->link.state == FARM_LINK_OPEN) {
        farm_log_info("parameters come from the node at %s", cache->from.address);
        farm_version_request(cache->config.receiver, &peer->link);
    }
    if (event->kind != FARM_ENGINE_CLOSED) return;
    if (source && cache->from.address[0] && peer->link.why[0]) farm_cache_ask_learner(cache, peer->link.why);
    farm_version_sender_end(&peer->sender);
}

bool farm_cache_turn(struct farm_cache *cache, uint64_t now_ns) {
    const uint64_t since_ns = now_ns - cache->tick_ns;
    const bool ticks = since_ns >= TICK_NS;
    // If more time has passed, this process may have been stopped meanwhile.
    const uint64_t passed_ns = !ticks ? 0 : since_ns < 2 * TICK_NS ? since_ns : 2 * TICK_NS;
    bool busy = false;
    cache->now_ns = now_ns;
    if (ticks) cache->tick_ns = now_ns;
    pass_time(cache, passed_ns);
    if (cache->from.address[0] && cache->peers->link.state == FARM_LINK_VACANT) dial(cache);
    if (cache->asks && cache->peers->link.state == FARM_LINK_VACANT) {
        cache->asks = false;
        farm_version_request(cache->config.receiver, cache->config.learner);
    }
    for (uint32_t p = 0; p < cache->peer_count; p++) {
        struct farm_link *link = &cache->peers[p].link;
        busy |= p && serve_peer(cache, &cache->peers[p]);
        if (!ticks) continue;
        farm_link_tick(link, now_ns, FARM_LINK_BEAT_NS);
        farm_version_sender_tick(&cache->peers[p].sender, link, now_ns);
    }
    return busy;
}

// ---- start and end ----

enum farm_status farm_cache_make(const struct farm_cache_config *config, struct farm_cache **out,
                                 struct farm_error *err) {
    const bool serves = config->receiver->staged;
    const uint32_t peers = serves ? FARM_CACHE_SOCKETS : 1;
    struct farm_cache *cache = *out = calloc(1, sizeof *cache + peers * sizeof *cache->peers);
    if (!cache) return farm_fail(err, FARM_E_LIMIT, "no memory for the links to other nodes");
    cache->config = *config;
    cache->peer_count = peers;
    return serves && config->client ? farm_tls_context_make(config->receiver->key, true, &cache->server, err) : FARM_OK;
}

bool farm_cache_close(struct farm_cache *cache) {
    bool closed = true;
    cache->from.address[0] = 0;
    for (uint32_t p = 0; p < cache->peer_count; p++) {
        farm_link_close(&cache->peers[p].link, NULL);
        closed &= cache->peers[p].link.state == FARM_LINK_VACANT;
    }
    return closed;
}

void farm_cache_free(struct farm_cache *cache) {
    if (cache) farm_tls_context_free(cache->server);
    free(cache);
}
