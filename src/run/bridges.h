// The bridges of a run that listens for remote nodes (each runs bridge/hub.h): listening sockets, key, offer, figures,
// and the worker specs. The supervisor process owns all of it, so that a bridge that dies loses neither a waiting
// connection nor a node. sessions.h holds the nodes.
#ifndef FARM_RUN_BRIDGES_H
#define FARM_RUN_BRIDGES_H

#include <sys/stat.h>

#include "bridge/address.h"
#include "bridge/control.h"
#include "bridge/key.h"
#include "bridge/stats.h"
#include "run/workers.h"

enum { FARM_RUN_BRIDGES_MAX = 32 };

struct farm_run_bridges;

struct farm_run_bridge {
    struct farm_run_bridges *all;
    int listener;     // several bridges share one port (SO_REUSEPORT)
    int control, end; // the supervisor's and the bridge's end (bridge/control.h)
    int wake;         // eventfd by which the learner wakes it
    int board;        // LOCAL: the first board, read-only; the run's; else -1
    struct farm_segment segment;
    struct farm_bridge_stats *stats; // rows by session; those of this bridge's sessions count
    struct farm_bitmap cpus;
    const char *engine;                    // for its next process (bridge/hub.h)
    uint32_t withdrawn_sent;               // names of withdrawn keys that the present process has
    uint64_t start_ns;                     // when the present process began; 0: none has
    bool lost;                             // it cannot be kept alive and has stopped listening
    int keep[6 + FARM_LEARNER_SHARDS_MAX]; // what its process inherits; [0]: a pipe with the key
};

struct farm_run_bridges {
    uint32_t count;     // 0: this run does not listen
    uint32_t listening; // bridges that are not lost
    struct farm_run_bridge bridge[FARM_RUN_BRIDGES_MAX];
    char address[FARM_ADDRESS_TEXT_BYTES]; // by which nodes reach it
    struct farm_key *key;                  // NULL: in the clear
    struct farm_key_names withdrawn;
    const char *key_path;
    struct stat key_file; // when it was last read
    bool key_warned;
    int network_node; // NUMA node of the network card; -1: unknown
    char env[FARM_RECIPE_PATH_BYTES];
    struct farm_run_workers *workers;
    const struct farm_wire_offer *offer;
    bool own_cores; // each bridge has one
};

// Before the plan: opens the sockets and reads the key. *bridges is overwritten, and must be freed in any case. No
// effect if listen->address is NULL. FARM_E_USAGE: invalid flags; FARM_E_BUSY: the port is taken; those of
// farm_key_load.
enum farm_status farm_run_bridges_open(struct farm_run_bridges *bridges, const struct farm_run_listen *listen,
                                       const char *env, struct farm_error *err);
// After rings, bells and the learner's settings: makes the rest, including the offer.
enum farm_status farm_run_bridges_make(struct farm_run_bridges *bridges, struct farm_run_workers *workers,
                                       struct farm_error *err);
// Registers them with these functions and adds them to the supervisor. The run must listen.
enum farm_status farm_run_bridges_add(struct farm_run_bridges *bridges, const struct farm_run_worker_ops *ops,
                                      void *owner, struct farm_error *err);
// If the key file has changed: adds the names that are withdrawn there now, and returns whether there are any. A file
// that cannot be read is reported once; the run goes on with what it has.
bool farm_run_bridges_read_withdrawn(struct farm_run_bridges *bridges);
// Bridge b cannot be kept alive: closes its listener.
void farm_run_bridges_lose(struct farm_run_bridges *bridges, uint32_t b);
void farm_run_bridges_free(struct farm_run_bridges *bridges); // safe on a zeroed one

// A node's cache (--cache TEXT): a socket that listens, and the address by which others reach it.
enum farm_status farm_run_bridges_listen(const char *text, bool encrypted, int *fd, char *address, size_t bytes,
                                         struct farm_error *err);

// "HOST:PORT" or "[v6]:PORT" by which nodes reach this listening socket: its address or, if it listens on all, one of
// this machine's addresses.
enum farm_status farm_run_bridges_name(int listener, char *text, size_t bytes, struct farm_error *err);

#endif
