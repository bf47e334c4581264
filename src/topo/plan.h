// The plan: which actor on which CPU, which memory on which node, which CPUs for the learner. A pure function of the
// machine and the request: no I/O, no clock, no randomness; the same input gives the same bytes. Runs in the supervisor
// before it forks, and in `farm topo`. Carrying the plan out is for others: farm_bitmap_pin after fork, src/shm for
// memory, farm_claim (claim.h) so that two farms do not take the same CPUs.
//
// The rules:
//   1. Usable are the CPUs that cpuset and affinity mask allow and no other farm has claimed.
//   2. A cgroup quota below their number: floor(quota) CPUs' worth of work, at least 1, and nothing is pinned, since a
//      thread that is throttled on its own CPU cannot move to where time is left.
//   3. At most FARM_PLAN_TINY_CPUS of them, or fewer than FARM_PLAN_TINY_CPUS cores: actors and learner share all
//      CPUs, one actor a CPU, nothing is pinned: an actor sleeps while it waits, and then the learner has its CPU.
//   4. Else the learner gets cores of its own. On GPUs: 1 beside each for its inference, from 8 cores on 1 more
//      beside the first for training. On CPUs: a third of the cores, a quarter of these for inference, one inference
//      thread a core. (One core of inference keeps up with eight cores of Atari emulators, one of training with three;
//      cheap environments want more for the learner: --train-threads, --infer-threads.) They are whole cores, L3 group
//      after L3 group: those for training in one piece, from the node with most free cores, a single one for inference
//      beside them. Several inference threads spread over the nodes as the actors do, so that a thread reads frames and
//      parameters from its own node. The learner's process is bound to all of its cores together: the scheduler places
//      its training threads, and a single inference thread; each of several inference threads is bound to its core.
//   5. Actors get what is left: first a physical core each, then the cores' other threads; within that the nodes
//      nearest to the learner first, and round robin over a node's L3 groups, so that few actors get much cache.
//   6. An actor's segments lie on its CPU's node; where that has no memory, on the nearest that has.
//   7. More actors than CPUs: none is pinned to one CPU, each stays on a node. None at all (no_actors): a learner on
//      CPUs gets all cores but the bridges'; remote actors take part in rule 9 alone.
//   8. Each bridge gets a core of its own behind the learner's, the nearest to bridge_node, unless rule 2 applies, the
//      machine is as small as rule 3 says, or the actors requested would lack a CPU: then it runs on the actors' CPUs.
//   9. A shard is an inference thread with the actors that it serves: one a GPU, or one a core for inference on CPUs;
//      one alone under rule 3 unless more are requested. Shards are never more than actors. Each serves as many actors
//      as any other, give or take one, those of its own node first.
#ifndef FARM_TOPO_PLAN_H
#define FARM_TOPO_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "topo/machine.h"

enum {
    FARM_PLAN_ACTORS_MAX = FARM_CPUS_MAX,
    FARM_PLAN_NOTES_MAX = 16,
    FARM_PLAN_NOTE_BYTES = 256,
    FARM_PLAN_TINY_CPUS = 4,
    FARM_PLAN_SHARDS_MAX = 32,
};

enum { FARM_LEARNER_CPU = -1, FARM_LEARNER_NONE = -2 }; // or the index of a GPU in farm_machine.gpu

struct farm_plan_request {
    int actors;               // 0: choose
    bool no_actors;           // 0 means none: all come from other machines, and the learner gets their cores
    int remote_actors;        // expected from other machines: they want rings and inference here, but no CPU
    int learner_device;       // FARM_LEARNER_CPU, FARM_LEARNER_NONE or a GPU's index
    int learner_gpus;         // so many GPUs from that index on; 0 and 1: it alone
    int learner_threads;      // training threads on CPUs, 0: choose
    int learner_shards;       // inference threads on CPUs, 0: choose; several GPUs have one each
    int bridges;              // processes that carry actors' lanes to or from other machines
    int bridge_node;          // of the network card that they use; -1: the learner's
    int envs_per_actor;       // for the sentences only
    uint64_t bytes_per_actor; // of all segments of one actor
    struct farm_bitmap taken; // CPUs that other farms have claimed
    bool pin;                 // false: the plan only counts, nothing is bound to a CPU
    bool numa;                // each actor's segments on its CPUs' node; false: wherever the kernel puts them
};

struct farm_plan_actor {
    int cpu;         // the CPU it is pinned to; -1: it floats
    int cpu_node;    // where it floats: the node whose CPUs it stays on; -1: over all of actor_cpus
    int memory_node; // node of its segments (kernel's number); -1: not bound to one node
    int shard;       // which serves it
};

struct farm_plan {
    int actor_count;
    struct farm_plan_actor actor[FARM_PLAN_ACTORS_MAX];
    bool pinned;                       // every actor has a CPU of its own
    bool shared;                       // actors and learner run on the same CPUs
    struct farm_bitmap actor_cpus;     // CPUs for actors
    struct farm_bitmap inference_cpus; // cores reckoned for the learner's inference threads (a GPU's host thread)
    struct farm_bitmap training_cpus;  // cores reckoned for its training threads; it is bound to both sets together
    struct farm_bitmap bridge_cpus;    // cores reckoned for bridges; empty: they share the actors'
    int shard_count;                   // inference threads; 0 without a learner
    struct farm_bitmap shard_cpus[FARM_PLAN_SHARDS_MAX]; // where each of several runs; empty: on any of the learner's
    int shard_node[FARM_PLAN_SHARDS_MAX];                // its GPU's node, or that of its CPUs; -1: not bound to one.
                                                         // Shards on CPUs are grouped by it
    int training_threads;                                // 0 without a learner
    int learner_node;                                    // node of the learner's memory; -1: not bound
    struct farm_bitmap claim; // CPUs to claim against other farms; empty if nothing is pinned
    double cpu_budget;        // CPUs' worth of time that the plan counts on
    int note_count;
    char note[FARM_PLAN_NOTES_MAX][FARM_PLAN_NOTE_BYTES]; // sentences that explain the decisions
};

// Fills *out (about 100 KiB). Errors: FARM_E_USAGE a request that makes no sense (counts out of range, no such GPU);
// FARM_E_LIMIT actors x bytes_per_actor does not fit into a node's memory or below the control group's limit: the
// message says wanted, available and which flags shrink it.
enum farm_status farm_plan_make(const struct farm_machine *machine, const struct farm_plan_request *request,
                                struct farm_plan *out, struct farm_error *err);

// The CPUs that actor i is to be pinned to: its one CPU, its node's, or all for actors. Never empty.
void farm_plan_actor_cpus(const struct farm_machine *machine, const struct farm_plan *plan, int i,
                          struct farm_bitmap *cpus);

#endif
