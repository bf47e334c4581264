// The plan of a run: which processes, how many, and where; derived from a settled recipe. Immutable afterwards, except
// that a command may change memory nodes and the recipe's texts before the rings are made. Runs in the supervisor
// process; the learner, forked from it, reads the plan too. Makes no ring and no process.
#ifndef FARM_RUN_PLAN_H
#define FARM_RUN_PLAN_H

#include "board/board.h"
#include "config/recipe.h"
#include "envs/registry.h"
#include "learner/config.h"
#include "report/run_dir.h"
#include "ring/spec.h"
#include "run/player.h"
#include "topo/claim.h"
#include "topo/machine.h"
#include "topo/plan.h"

struct farm_run_workers;

enum { FARM_RUN_PASSED_MAX = 4 };

// A bridge in the learner's place: the rings have the remote learner's spec.
struct farm_run_remote {
    const struct farm_ring_spec *spec; // the learner's rings; the recipe gives `steps`
    const uint32_t *actors;            // [actors] their numbers in the learner's run; known before farm_run_build
    int network_node;                  // NUMA node of the network card; -1: unknown
    size_t parameters;                 // LOCAL: of the learner's network; else 0
};

// A process in place of the learner (farm fps, farm bridge): it opens the rings of workers->ring_fds and counts into
// `stats`. The plan then has no network, and the actors get all cores. Each actor has its own bell (fps), or all share
// one and the bridge has a core if there are enough.
struct farm_run_responder {
    int (*body)(void *context, const struct farm_run_workers *workers, struct farm_stats *stats,
                struct farm_error *err); // NULL: the learner runs
    void *context;
    const struct farm_run_remote *remote; // NULL: no bridge
    int (*lend)(void *context);           // before each start: a descriptor that the process inherits; may be NULL
    int listener;                         // one more; 0: none
};

// Actors of other machines, which join by bridges (run/bridges.h). Batch, rings and shards are sized for `expect` of
// them, and memory is reserved; more or fewer may join.
struct farm_run_listen {
    const char *address; // "HOST:PORT", "[v6]:PORT"; NULL: none can join
    const char *key;     // file; NULL: in the clear, on a loopback or private address
    uint32_t expect;     // 0: none; without actors of this machine: as many as it would run
    uint32_t bridges;    // processes; 0: one
    const char *engine;  // uring, poll, auto; NULL: auto
    int network_node;    // NUMA node of the network card; farm_run_make fills it in
};

// A consumer in another process answers (consumer.h). Its lanes have `control` (ring/spec.h).
struct farm_run_served {
    uint32_t autoreset, number_count;
    char numbers[FARM_CONTROL_NUMBERS_MAX][FARM_FIELD_NAME_MAX];
    uint32_t passed_count; // descriptors that this machine's actors inherit
    int passed[FARM_RUN_PASSED_MAX];
};

struct farm_run_request {
    const struct farm_recipe *recipe; // settled
    struct farm_run_play play;        // an evaluation's; games 0: training
    bool elastic;                     // actors may join and leave (requests.h, sessions.h)
    bool quiet;                       // no plan on stderr
    struct farm_run_responder responder;
    const struct farm_run_served *served; // NULL: no consumer
    struct farm_run_listen listen;        // elastic runs only; then `actors: 0`, if the user set it, means none here
};

struct farm_run_plan {
    struct farm_recipe recipe; // with the network and the counts that the plan has chosen
    struct farm_env env;       // its options point into `recipe`
    bool elastic, quiet;
    struct farm_run_play play; // a player runs in the learner's place; games 0: it does not
    bool deterministic;        // a training that repeats bit for bit
    bool local;                // a training whose actors infer
    struct farm_run_responder responder;
    const struct farm_run_served *served;
    struct farm_run_listen listen;

    struct farm_machine *machine;
    struct farm_plan *placement;
    struct farm_claim claim;
    uint32_t actors, lanes, width, steps; // actors: at the start
    int64_t actors_asked, envs_total;     // that the recipe fixes, the latter with its scale; 0: none
    uint32_t places;                      // for actors, including those that join later
    struct farm_ring_spec ring_spec;
    struct farm_ring_layout layout;
    size_t board_parameters; // parameters on each board (rings.h); 0: no actor infers

    // the learner
    struct farm_algo_config algo;
    struct farm_algo_plan passes; // and the windows' shape
    struct farm_net_spec net;
    struct farm_net_io io;
    enum farm_device device;
    char cuda_library[FARM_RUN_PATH_MAX];                      // the CUDA backend's file; "": none
    char cpu_because[sizeof((struct farm_error *)0)->message]; // why `device auto` chose the CPU; "": it did not
    int first_gpu;                                             // in machine->gpu, of `shards`; below 0: none
    uint32_t shards;                                           // GPUs, or inference threads on CPUs
};

// Finds the environment, chooses network and counts, places the workers, claims CPUs and checks limits. Prints the plan
// on stderr unless quiet. *plan is overwritten and must be freed in any case; not to be copied.
enum farm_status farm_run_plan_make(struct farm_run_plan *plan, const struct farm_run_request *request,
                                    struct farm_error *err);
void farm_run_plan_free(struct farm_run_plan *plan); // safe on a zeroed one

// Whether the rings of a shard's `actors` actors hold its windows of an update. FARM_E_USAGE: they do not; the message
// names the keys to change.
enum farm_status farm_run_update_fits(const struct farm_run_plan *plan, uint32_t actors, uint32_t shard,
                                      struct farm_error *err);

// Memory of the learner's process, about; on a GPU: of the part that the CPU would need.
uint64_t farm_run_learner_bytes(const struct farm_run_plan *plan);

// Memory of a run besides the rings and the copies of what they hold, about.
uint64_t farm_run_other_bytes(const struct farm_run_plan *plan);

// Whether the run has a learner: it trains or plays.
static inline bool farm_run_learns(const struct farm_run_plan *plan) {
    return !plan->responder.body && !plan->served;
}

// Environments of all actors, those expected from other machines too.
static inline int64_t farm_run_environments(const struct farm_run_plan *plan) {
    return (int64_t)(plan->actors + plan->listen.expect) * plan->lanes * plan->width;
}

// Bytes of shared memory of one actor's rings, and of all actors' at the start.
static inline uint64_t farm_run_actor_bytes(const struct farm_run_plan *plan) {
    return plan->layout.up_bytes + plan->layout.down_bytes;
}
static inline uint64_t farm_run_ring_bytes(const struct farm_run_plan *plan) {
    return (uint64_t)plan->actors * farm_run_actor_bytes(plan);
}

// The boards of actors that infer, one on each NUMA node that has their rings: fills in the nodes (-1: any) and returns
// their number; and what each is made of.
uint32_t farm_run_board_nodes(const struct farm_run_plan *plan, int node[FARM_NODES_MAX]);
struct farm_board_request farm_run_board_request(const struct farm_run_plan *plan, int node);

#endif
