// A node's exchange of versions with other nodes: takes them from the source that the learner has announced, and, if
// it listens (--cache), passes them on as they arrive. Both only carry what the learner has signed (bridge/versions.h).
// A source that is lost, or brings no chunk of an announced version in time, is given up: versions then come from the
// learner. Serves VERSION_OFFER, CHUNK and HAVE only, to holders of this node's key. Belongs to the node's thread.
#ifndef FARM_BRIDGE_CACHE_H
#define FARM_BRIDGE_CACHE_H

#include "bridge/versions.h"

enum {
    FARM_CACHE_STRANGERS_MAX = 8, // connections without HAVE
    FARM_CACHE_SOCKETS = 1 + 64,  // the source's, and others'
};

struct farm_cache;

struct farm_cache_config {
    const struct farm_engine_ops *ops;
    struct farm_engine *engine;             // ACCEPTED is for farm_cache_accept
    uint32_t socket;                        // the first of its FARM_CACHE_SOCKETS
    const struct farm_tls_context *client;  // with the node's key; NULL: in the clear
    struct farm_version_receiver *receiver; // its key, too; staged: serves other nodes, else it has one socket
    struct farm_link *learner;
};

// FARM_E_LIMIT, FARM_E_UNSUPPORTED.
enum farm_status farm_cache_make(const struct farm_cache_config *config, struct farm_cache **out,
                                 struct farm_error *err);
// Closes all links, whose events still come. Whether nothing is in flight any more: then farm_cache_free (NULL:
// allowed).
bool farm_cache_close(struct farm_cache *cache);
void farm_cache_free(struct farm_cache *cache);

// Versions come from there, and the learner announces them.
void farm_cache_follow(struct farm_cache *cache, const struct farm_wire_source *source);
// Requests versions from the learner once nothing of a source is in flight.
void farm_cache_ask_learner(struct farm_cache *cache, const char *why);

void farm_cache_accept(struct farm_cache *cache, int fd, uint64_t now_ns); // owns fd
void farm_cache_event(struct farm_cache *cache, const struct farm_engine_event *event, uint64_t now_ns);
bool farm_cache_turn(struct farm_cache *cache, uint64_t now_ns); // sends, and checks times; whether there was work

#endif
