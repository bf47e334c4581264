// The bridges of a run that listens for remote nodes (bridge/hub.h is what each does): listening sockets, key, offer,
// figures, and the workers as the supervisor gets them described. All of it belongs to the supervisor process, so that
// a bridge that dies loses neither a waiting connection nor a node. sessions.h says who has come.
#ifndef FARM_RUN_BRIDGES_H
#define FARM_RUN_BRIDGES_H

#include "bridge/address.h"
#include "bridge/control.h"
#include "bridge/key.h"
#include "bridge/stats.h"
#include "run/workers.h"

enum { FARM_RUN_BRIDGES_MAX = 8 };

struct farm_run_bridges;

struct farm_run_bridge {
    struct farm_run_bridges *all;
    int listener;     // of several bridges each has one on the same port (SO_REUSEPORT)
    int control, end; // the supervisor's and the bridge's end (bridge/control.h)
    int wake;         // the learner wakes it
    struct farm_segment segment;
    struct farm_bridge_stats *stats; // rows by session; those of this bridge's sessions count
    struct farm_bitmap cpus;
    const char *engine;                    // bridge/hub.h's, of its next process
    uint64_t start_ns;                     // when the present one began; 0: none has
    bool lost;                             // it cannot be kept alive, and does not listen any more
    int keep[4 + FARM_LEARNER_SHARDS_MAX]; // what its process inherits
};

struct farm_run_bridges {
    uint32_t count;     // 0: this run does not listen
    uint32_t listening; // of them, that are not lost
    struct farm_run_bridge bridge[FARM_RUN_BRIDGES_MAX];
    char address[FARM_ADDRESS_TEXT_BYTES]; // by which others reach it
    bool encrypted;
    struct farm_key key;
    int network_node; // NUMA node of the network card; -1: unknown
    char env[FARM_RECIPE_PATH_BYTES];
    const struct farm_run_workers *workers;
    const struct farm_wire_offer *offer;
    bool own_cores; // each has one
};

// Before the plan: opens the sockets and reads the key. *bridges is overwritten, and can be freed in any case. Nothing
// happens if listen->address is NULL. FARM_E_USAGE: what the user wrote cannot be; FARM_E_BUSY: the port is taken;
// farm_key_load's.
enum farm_status farm_run_bridges_open(struct farm_run_bridges *bridges, const struct farm_run_listen *listen,
                                       const char *env, struct farm_error *err);
// When rings, bells and the learner's settings exist: makes the rest, the offer too.
enum farm_status farm_run_bridges_make(struct farm_run_bridges *bridges, const struct farm_run_workers *workers,
                                       struct farm_error *err);
// Describes them to the supervisor, behind the learner.
enum farm_status farm_run_bridges_add(struct farm_run_bridges *bridges, struct farm_error *err);
// Bridge b cannot be kept alive: it does not listen any more.
void farm_run_bridges_lose(struct farm_run_bridges *bridges, uint32_t b);
void farm_run_bridges_free(struct farm_run_bridges *bridges); // safe on a zeroed one

// "HOST:PORT" or "[v6]:PORT" as others reach this listening socket: its address or, if it listens on all, one of this
// machine's.
enum farm_status farm_run_bridges_name(int listener, char *text, size_t bytes, struct farm_error *err);

#endif
