// Flags by which other machines' actors may join (run/bridges.h), of `farm train` and `farm serve`. Runs before any
// other process exists.
#ifndef FARM_TOOLS_SHARED_LISTEN_FLAGS_H
#define FARM_TOOLS_SHARED_LISTEN_FLAGS_H

#include "base/cli.h"
#include "run/plan.h"

struct farm_listen_flags {
    const char *address, *key, *engine;
    bool insecure;
    int64_t expect_actors, bridges;
};

// The flags, for an array of struct farm_cli_flag. of: struct farm_listen_flags.
#define FARM_LISTEN_FLAGS(of)                                                                                          \
    {"listen", FARM_CLI_STRING, &(of).address, "ADDR:PORT",                                                            \
     "other machines' actors may join here (farm bridge); port 0: any. DIR/bridge.addr holds the address"},            \
        {"key", FARM_CLI_STRING, &(of).key, "FILE", "the key that a node needs to join (farm bridge keygen FILE)"},    \
        {"insecure", FARM_CLI_BOOL, &(of).insecure, NULL,                                                              \
         "no key and no encryption: on loopback and private addresses only"},                                          \
        {"expect-actors", FARM_CLI_INT, &(of).expect_actors, "N",                                                      \
         "other machines' actors for which batch and rings are sized and memory is reserved (more or fewer may "       \
         "join)"},                                                                                                     \
        {"bridges", FARM_CLI_INT, &(of).bridges, "N", "processes that serve other machines [1]"}, {                    \
        "bridge-engine", FARM_CLI_STRING, &(of).engine, "E", "how they use the network: auto, uring or poll [auto]"    \
    }

// FARM_E_USAGE: flags without --listen, out of range, or without a key.
enum farm_status farm_listen_flags_check(const struct farm_listen_flags *flags, struct farm_error *err);
struct farm_run_listen farm_listen_flags_request(const struct farm_listen_flags *flags);

#endif
