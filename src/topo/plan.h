// The plan: which actor runs on which CPU, which memory is on which node, which CPUs the learner uses. A pure function
// of the machine and the request: no I/O, no clock, no randomness; equal inputs give equal bytes. Runs in the
// supervisor before it forks, and in `farm topo`. farm_bitmap_pin, src/shm and claim.h carry the plan out.
//
// The rules:
//   1. Usable CPUs are those that cpuset and affinity mask allow and no other farm has claimed.
//   2. With a cgroup quota below their number, the plan counts on floor(quota) CPUs, at least 1, and pins nothing: a
//      throttled thread that is pinned cannot move to a CPU with time left.
//   3. With at most FARM_PLAN_TINY_CPUS of them, or fewer than FARM_PLAN_TINY_CPUS cores, actors and learner share all
//      CPUs, one actor per CPU, and nothing is pinned: an actor sleeps while it waits, and the learner uses its CPU.
//   4. Otherwise the learner gets separate cores. On GPUs: one beside each for its inference, and with 8 cores or more,
//      4 a GPU, another one beside each for training. On CPUs: a third of the cores, a quarter of these for inference,
//      one inference thread per core. (One core of inference keeps up with eight cores of Atari emulators, one of
//      training with three; cheap environments need more for the learner: --train-threads, --infer-threads.) They are
//      whole cores, one L3 group after another. On CPUs they are spread over the nodes as the actors are, first those
//      for training, so that each reads windows, frames and parameters from its own node; a single one for inference is
//      on the node with most cores. The learner's process is bound to all its cores; training threads are bound to
//      their node's or GPU's, each of several inference threads to its shard's; the scheduler places a single one.
//   5. Actors get the rest: first a physical core each, on nodes nearest to the learner first, and round robin over a
//      node's L3 groups, so that few actors get much cache; then the cores' other threads, round robin over all nodes.
//   6. An actor's segments are on its CPU's node; if that has no memory, on the nearest node with memory.
//   7. With more actors than CPUs, each actor is bound to a node instead of a CPU. Without actors (no_actors) a learner
//      on CPUs gets all cores but the bridges'; remote actors count in rule 9 only.
//   8. Each bridge gets a core after the learner's, the nearest to bridge_node. Under rules 2 and 3, or if the
//      requested actors would lack a CPU, it shares the actors' CPUs.
//   9. A shard is an inference thread with the actors that it serves: one per GPU, or one per core of inference on
//      CPUs; one under rule 3 unless more are requested. There are at most as many shards as actors. Each serves as
//      many actors as any other, give or take one, those of its own node first.
//  10. In the synchronous regime a learner on CPUs trains on the actors' CPUs too, one thread per core, because its
//      actors wait meanwhile; on every node in proportion to its cores.
//  11. If the actors infer (actors_infer), they get the cores for inference: the shards' threads, which take in steps,
//      share those for training.
//  12. Of several kinds of cores the learner and the first actors get the fastest (P cores); two slow ones (E cores)
//      count as one for the learner's share. Nodes without CPUs (CXL, HBM) hold segments under rule 6 only.
#ifndef FARM_TOPO_PLAN_H
#define FARM_TOPO_PLAN_H

#include <stdbool.h>
#include <stdint.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "topo/machine.h"

enum {
    FARM_PLAN_ACTORS_MAX = 16384,
    FARM_PLAN_NOTES_MAX = 16,
    FARM_PLAN_NOTE_BYTES = 256,
    FARM_PLAN_TINY_CPUS = 4,
    FARM_PLAN_SHARDS_MAX = 1024,
};

enum { FARM_LEARNER_CPU = -1, FARM_LEARNER_NONE = -2 }; // or the index of a GPU in farm_machine.gpu

struct farm_plan_request {
    int actors;               // 0: choose
    bool no_actors;           // all actors are on other machines, and the learner gets their cores
    int remote_actors;        // expected from other machines: they need rings and inference here, but no CPU
    int learner_device;       // FARM_LEARNER_CPU, FARM_LEARNER_NONE or a GPU's index
    int learner_gpus;         // number of GPUs from that index on; 0 and 1: one
    int learner_threads;      // training threads on CPUs, 0: choose
    bool synchronous;         // actors wait while the learner trains
    bool actors_infer;        // with a learner on CPUs
    int learner_shards;       // inference threads on CPUs, 0: choose; each of several GPUs has one
    int bridges;              // processes that carry actors' lanes to or from other machines
    int bridge_node;          // the network card's; -1: the learner's
    int envs_per_actor;       // for messages only
    uint64_t bytes_per_actor; // size of all segments of one actor
    struct farm_bitmap taken; // CPUs that other farms have claimed
    bool pin;                 // false: the plan only counts, nothing is bound to a CPU
    bool numa;                // each actor's segments on its CPUs' node; false: the kernel chooses
};

struct farm_plan_actor {
    int cpu;         // the CPU it is pinned to; -1: it floats
    int cpu_node;    // the node whose CPUs it is bound to; -1: all of actor_cpus
    int memory_node; // node of its segments (kernel's number); -1: not bound to one node
    int shard;       // that serves it
};

struct farm_plan_training {
    int node;    // kernel's number; -1: not bound, the only group
    int threads; // at least one
    struct farm_bitmap cpus;
};

struct farm_plan {
    int actor_count;
    bool pinned;                       // every actor is pinned to a CPU
    bool shared;                       // actors and learner run on the same CPUs
    struct farm_bitmap actor_cpus;     // CPUs for actors
    struct farm_bitmap inference_cpus; // cores for the learner's inference threads (a GPU's host thread)
    struct farm_bitmap training_cpus;  // cores for its training threads; it is bound to both sets
    struct farm_bitmap bridge_cpus;    // cores for bridges; empty: they share the actors'
    int shard_count;                   // inference threads; 0 without a learner
    int training_threads;              // 0 without a learner
    int training_node_count;           // groups of training threads and training_cpus by node
    struct farm_plan_training training[FARM_NODES_MAX];
    int learner_node;         // node of the learner's memory; -1: not bound
    int idle_cpus;            // in actor_cpus, without an actor, if every actor is pinned; a synchronous learner trains
                              // on them too
    struct farm_bitmap claim; // CPUs to claim against other farms; empty if nothing is pinned
    double cpu_budget;        // CPUs' worth of time
    int note_count;
    char note[FARM_PLAN_NOTES_MAX][FARM_PLAN_NOTE_BYTES]; // explanations of the decisions

    // Written as far as they count.
    int shard_node[FARM_PLAN_SHARDS_MAX];                // its GPU's node, or that of its CPUs; -1: not bound to one.
                                                         // Shards on CPUs are grouped by it
    struct farm_bitmap shard_cpus[FARM_PLAN_SHARDS_MAX]; // each of several shards'; empty: any of the learner's
    struct farm_plan_actor actor[FARM_PLAN_ACTORS_MAX];
};

// Fills *out (800 KiB, of which it writes what counts). Errors: FARM_E_USAGE an invalid request (counts out of range, a
// GPU that does not exist); FARM_E_LIMIT actors x bytes_per_actor exceeds a node's memory or the control group's limit:
// the message has both values and the flags that reduce the need.
enum farm_status farm_plan_make(const struct farm_machine *machine, const struct farm_plan_request *request,
                                struct farm_plan *out, struct farm_error *err);

// The CPUs that actor i is bound to: one CPU, its node's, or all of the actors'. Never empty.
void farm_plan_actor_cpus(const struct farm_machine *machine, const struct farm_plan *plan, int i,
                          struct farm_bitmap *cpus);

#endif
