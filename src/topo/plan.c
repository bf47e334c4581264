// See plan.h for the rules.
#include "topo/plan.h"

#include <assert.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/format.h"

enum {
    LEARNER_SHARE = 3,   // one core in three works for a learner on CPUs
    INFERENCE_SHARE = 4, // one in four of these infers
    LEARNER_CORES_MIN = 2,
    GPU_MANY_CORES = 8, // with these, and with as many as GPU_CORES a GPU, training has a core beside each
    GPU_CORES = 4,
    MEMORY_KEPT = 10, // one tenth of free memory is left for heaps
};
_Static_assert((int)FARM_GPUS_MAX <= (int)FARM_PLAN_SHARDS_MAX, "a shard for each GPU");

// A CPU that the plan may use, with its sort keys.
struct slot {
    int cpu, core, l3, node, kind;
    int rank;     // number of its core's threads before it
    int distance; // from the learner's node
    int turn;     // position of its core in its L3 group: the key of round robin over groups
};

struct work {
    int all_cores, slow_cores; // usable, with the learner's; of these: E cores
    const struct farm_machine *m;
    const struct farm_plan_request *r;
    struct farm_plan *out;
    struct slot slot[FARM_CPUS_MAX];
    int slots, cores; // usable CPUs and distinct cores among them
    int capacity;     // CPUs' worth of time: slots, or less under a quota
    bool throttled;   // a quota below the number of CPUs
    bool crowded;     // other farms hold every CPU
    int home;         // the learner's node
};

__attribute__((format(printf, 2, 3))) static void note(struct farm_plan *plan, const char *format, ...) {
    if (plan->note_count == FARM_PLAN_NOTES_MAX) return;
    va_list args;
    va_start(args, format);
    vsnprintf(plan->note[plan->note_count++], FARM_PLAN_NOTE_BYTES, format, args);
    va_end(args);
}

static const char *plural(int n) {
    return n == 1 ? "" : "s";
}

static enum farm_status check_request(const struct farm_machine *m, const struct farm_plan_request *r,
                                      struct farm_error *err) {
    const struct {
        const char *flag;
        int value, most;
    } counts[] = {{"actors", r->actors, FARM_PLAN_ACTORS_MAX},
                  {"train-threads", r->learner_threads, FARM_CPUS_MAX},
                  {"infer-threads", r->learner_shards, FARM_PLAN_SHARDS_MAX},
                  {"expect-actors", r->remote_actors, FARM_PLAN_ACTORS_MAX - r->actors}};
    const int actors = r->actors + r->remote_actors;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i].value < 0 || counts[i].value > counts[i].most)
            return farm_fail(err, FARM_E_USAGE, "--%s must be 0 (chosen) to %d (got %d)", counts[i].flag,
                             counts[i].most, counts[i].value);
    if (r->learner_device < FARM_LEARNER_NONE || r->learner_device >= m->gpu_count)
        return farm_fail(err, FARM_E_USAGE, "learner on GPU %d, but this machine shows %d NVIDIA GPU%s: --device cpu",
                         r->learner_device, m->gpu_count, plural(m->gpu_count));
    if (r->learner_gpus < 0 || r->learner_gpus > FARM_GPUS_MAX ||
        (r->learner_device >= 0 && r->learner_device + r->learner_gpus > m->gpu_count))
        return farm_fail(err, FARM_E_USAGE, "--gpus %d, but this machine shows %d NVIDIA GPU%s", r->learner_gpus,
                         m->gpu_count, plural(m->gpu_count));
    if (r->no_actors && (r->actors || r->learner_device == FARM_LEARNER_NONE))
        return farm_fail(err, FARM_E_USAGE, "a machine without actors has a learner, and no --actors");
    if ((r->actors || r->no_actors) && actors < r->learner_gpus)
        return farm_fail(err, FARM_E_USAGE, "--gpus %d with %d actor%s: each GPU needs at least one", r->learner_gpus,
                         actors, plural(actors));
    return FARM_OK;
}

// Fills w->slot with the usable CPUs in the machine's order: allowed, not taken, not in `skip`. Ranks count all.
static void collect_slots(struct work *w, const struct farm_bitmap *skip) {
    int used_on_core[FARM_CPUS_MAX] = {0},
        cores_in_l3[FARM_CPUS_MAX + 1] = {0}; // the latter by l3 + 1, because l3 may be -1
    int last_core = -1;
    struct farm_bitmap out = *skip;
    if (!w->crowded) farm_bitmap_add(&out, &w->r->taken);
    for (int i = 0; i < w->m->cpu_count; i++)
        if (farm_bitmap_has(&out, w->m->cpu[i].cpu)) used_on_core[w->m->cpu[i].core]++;
    w->slots = w->cores = 0;
    for (int i = 0; i < w->m->cpu_count; i++) {
        const struct farm_cpu *cpu = &w->m->cpu[i];
        if (!farm_bitmap_has(&w->m->allowed, cpu->cpu) || farm_bitmap_has(&out, cpu->cpu)) continue;
        if (cpu->core != last_core) {
            w->cores++;
            cores_in_l3[cpu->l3 + 1]++;
        }
        last_core = cpu->core;
        const int rank = used_on_core[cpu->core]++, distance = farm_machine_distance(w->m, w->home, cpu->node);
        w->slot[w->slots++] =
            (struct slot){cpu->cpu, cpu->core, cpu->l3, cpu->node, cpu->kind, rank, distance, cores_in_l3[cpu->l3 + 1]};
    }
}

static void slots_to_bitmap(const struct work *w, struct farm_bitmap *cpus) {
    memset(cpus, 0, sizeof *cpus);
    for (int i = 0; i < w->slots; i++) farm_bitmap_set(cpus, w->slot[i].cpu);
}

// Rules 1 and 2.
static void find_capacity(struct work *w) {
    static const struct farm_bitmap nothing;
    char list[64];
    const int allowed = farm_bitmap_count(&w->m->allowed);
    if (allowed < w->m->cpu_count)
        note(w->out,
             "%d of %d CPUs usable: the affinity mask or cpuset that farm was started with leaves out the others "
             "(taskset, "
             "srun without --cpus-per-task, mpirun without --bind-to none, a container's cpuset)",
             allowed, w->m->cpu_count);
    collect_slots(w, &nothing);
    if (!w->slots) { // all are taken: a machine has at least one allowed CPU
        w->crowded = true;
        note(w->out, "other farms hold every CPU: nothing pinned, all farms will run slower");
        collect_slots(w, &nothing);
    } else {
        struct farm_bitmap held = w->r->taken;
        farm_bitmap_keep(&held, &w->m->allowed);
        if (farm_bitmap_count(&held))
            note(w->out, "CPUs %s belong to other farms", farm_bitmap_format(&held, list, sizeof list));
    }
    w->capacity = w->slots;
    w->out->cpu_budget = w->slots;
    double quota = w->m->cpu_quota;
    if (quota > 0 && quota < w->slots) {
        w->throttled = true;
        w->capacity = quota < 1 ? 1 : (int)quota;
        w->out->cpu_budget = quota;
    }
}

static int gpus(const struct work *w) {
    return w->r->learner_gpus > 1 ? w->r->learner_gpus : 1;
}

// The node beside one of the learner's GPUs; the learner's node if that is unknown.
static int gpu_node(const struct work *w, int gpu) {
    const int node = w->r->learner_device >= 0 ? w->m->gpu[w->r->learner_device + gpu].node : -1;
    return farm_machine_node(w->m, node) ? node : w->home;
}

// The learner's node: the GPU's, else the one with most usable cores, then one with memory, then the lowest number.
static void find_home(struct work *w) {
    int best = -1;
    w->home = w->r->learner_device >= 0 ? w->m->gpu[w->r->learner_device].node : -1;
    if (farm_machine_node(w->m, w->home)) return;
    for (int i = 0; i < w->m->node_count; i++) {
        int score = w->m->node[i].total_bytes > 0;
        for (int s = 0; s < w->slots; s++) score += 2 * (w->slot[s].node == w->m->node[i].node && !w->slot[s].rank);
        if (score > best) best = score, w->home = w->m->node[i].node;
    }
}

static int compare_keys(const int *a, const int *b, int count) {
    for (int i = 0; i < count; i++)
        if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
    return 0;
}

// Rule 4.
static int by_learner_order(const void *left, const void *right) {
    const struct slot *a = left, *b = right;
    int ka[] = {a->kind, a->distance, a->node, a->l3, a->core, a->cpu};
    int kb[] = {b->kind, b->distance, b->node, b->l3, b->core, b->cpu};
    return compare_keys(ka, kb, 6);
}

// Rule 5.
static int by_actor_order(const void *left, const void *right) {
    const struct slot *a = left, *b = right;
    int ka[] = {a->kind, a->rank, a->rank ? 0 : a->distance, a->rank ? 0 : a->node, a->turn, a->l3, a->core, a->cpu};
    int kb[] = {b->kind, b->rank, b->rank ? 0 : b->distance, b->rank ? 0 : b->node, b->turn, b->l3, b->core, b->cpu};
    return compare_keys(ka, kb, 8);
}

// CPUs left after the learner takes the first `cores` cores of its order (w->slot is sorted by it).
static int cpus_left(const struct work *w, int cores) {
    int seen = 0, left = 0, last_core = -1;
    for (int i = 0; i < w->slots; i++) {
        seen += w->slot[i].core != last_core;
        last_core = w->slot[i].core;
        left += seen > cores;
    }
    return left;
}

static int clamp(int value, int low, int high) {
    return value < low ? low : value > high ? high : value;
}

// Number of inference threads of a learner on CPUs, one per unit: as requested, else `chosen`. Leaves one unit for
// actors, and at least as many as it takes if their number is open.
static int count_inference_threads(struct work *w, int units, int training, int chosen) {
    const int requested = gpus(w) > 1 ? 0 : w->r->learner_shards, left = units - training;
    const int actors = w->r->actors + w->r->remote_actors;
    const bool open = !w->r->actors && !w->r->no_actors;
    int most = clamp(w->r->no_actors ? left : left - 1, 1, FARM_PLAN_SHARDS_MAX);
    if (open && most > left / 2) most = left / 2;
    if (!open && most > actors) most = actors;
    const int threads = clamp(requested ? requested : chosen, 1, most);
    if (requested > threads)
        note(w->out, "--infer-threads %d, but only %d can have a CPU and an actor each: %d", requested, threads,
             threads);
    return threads;
}

// Splits the cores of a machine without actors.
static void split_all(struct work *w, int units, int *inference, int *training) {
    const int own = clamp(units - w->r->bridges, LEARNER_CORES_MIN, units), threads = w->r->learner_threads;
    *training = threads ? clamp(threads, 1, own - 1) : own - clamp(own / INFERENCE_SHARE, 1, own - 1);
    *inference = count_inference_threads(w, own, *training, own - *training);
    if (!threads) *training = own - *inference;
}

// Splits `units` (cores, or the quota's CPUs) into inference and training; leaves at least one unit for actors.
static void split_learner(struct work *w, int units, int *inference, int *training) {
    const struct farm_plan_request *r = w->r;
    *inference = *training = 0;
    if (r->learner_device == FARM_LEARNER_NONE) return;
    if (r->learner_device >= 0) {
        *training = units >= GPU_MANY_CORES && units >= GPU_CORES * gpus(w) ? gpus(w) : 0;
        *inference = clamp(gpus(w), 1, units - 1 - *training > 0 ? units - 1 - *training : 1);
        return;
    }
    if (r->no_actors) {
        split_all(w, units, inference, training);
        return;
    }
    if (r->learner_threads) {
        *training = clamp(r->learner_threads, 1, units - 2);
        *inference = count_inference_threads(w, units, *training, *training / (INFERENCE_SHARE - 1));
        if (*training < r->learner_threads)
            note(w->out, "--train-threads %d, but %d cores must also serve inference and actors: %d",
                 r->learner_threads, units, *training);
        return;
    }
    int share = clamp((units - w->slow_cores / 2) / LEARNER_SHARE, LEARNER_CORES_MIN, units - 1);
    if (r->actors) { // fewer cores if few actors feed them, or if the actors need the room
        share = clamp((r->actors + r->remote_actors + 1) / 2, LEARNER_CORES_MIN, share);
        while (!w->throttled && share > LEARNER_CORES_MIN && cpus_left(w, share) < r->actors) share--;
    }
    const int inference_share = clamp(share / INFERENCE_SHARE, 1, share - 1);
    *training = share - inference_share;
    *inference = count_inference_threads(w, units, *training, inference_share);
}

// Rule 9, before the shards are placed.
static void count_shards(struct work *w, int inference) {
    struct farm_plan *out = w->out;
    if (w->r->learner_device == FARM_LEARNER_NONE) return;
    out->shard_count = w->r->learner_device >= 0 || gpus(w) > 1 ? gpus(w) : inference;
    memset(out->shard_cpus, 0, (size_t)out->shard_count * sizeof *out->shard_cpus);
    for (int k = 0; k < out->shard_count; k++) out->shard_node[k] = w->r->learner_device >= 0 ? gpu_node(w, k) : -1;
}

// Counts the shards and splits `units`. Rule 11.
static void split_units(struct work *w, int units, int *inference, int *training) {
    split_learner(w, units, inference, training);
    count_shards(w, *inference);
    if (!w->r->actors_infer) return;
    if (w->r->no_actors) *training += *inference;
    *inference = 0;
}

// Adds the free core nearest to `node`, the first in the learner's order, with all its threads.
static void take_core(struct work *w, int node, struct farm_bitmap *out) {
    struct farm_bitmap taken = w->out->inference_cpus;
    const struct slot *best = NULL;
    farm_bitmap_add(&taken, &w->out->training_cpus);
    farm_bitmap_add(&taken, &w->out->bridge_cpus);
    for (int i = 0; i < w->slots; i++) {
        const struct slot *slot = &w->slot[i];
        if (farm_bitmap_has(&taken, slot->cpu)) continue;
        if (!best || farm_machine_distance(w->m, node, slot->node) < farm_machine_distance(w->m, node, best->node))
            best = slot;
    }
    for (int i = 0; best && i < w->slots; i++)
        if (w->slot[i].core == best->core) farm_bitmap_set(out, w->slot[i].cpu);
}

// Whether the measured bandwidths of nodes with CPUs differ by more than a tenth.
static bool bandwidths_differ(const struct farm_machine *m) {
    double least = INFINITY, most = 0;
    for (int n = 0; n < m->node_count; n++) {
        if (!m->node[n].has_cpus) continue;
        least = fmin(least, m->node[n].bytes_per_s);
        most = fmax(most, m->node[n].bytes_per_s);
    }
    return least > 0 && most > 1.1 * least;
}

// Rule 4: the nodes' shares of `count` cores, in proportion to their CPUs among the first `busy` ones in the actors'
// order, and to bandwidths that differ, by D'Hondt; of equals the learner's node is first. Leaves w->slot in the
// learner's order.
static void spread_cores(struct work *w, int count, int busy, int *share) {
    int weight[FARM_NODES_MAX] = {0}, home = 0;
    const bool weigh = bandwidths_differ(w->m) && !farm_bitmap_count(&w->out->training_cpus);
    qsort(w->slot, (size_t)w->slots, sizeof w->slot[0], by_actor_order);
    for (int s = 0; s < w->slots && s < busy; s++)
        for (int n = 0; n < w->m->node_count; n++) weight[n] += w->m->node[n].node == w->slot[s].node;
    qsort(w->slot, (size_t)w->slots, sizeof w->slot[0], by_learner_order);
    for (int n = 0; n < w->m->node_count && weigh; n++) weight[n] = (int)(weight[n] * w->m->node[n].bytes_per_s / 1e9);
    while (home + 1 < w->m->node_count && w->m->node[home].node != w->home) home++;
    memset(share, 0, FARM_NODES_MAX * sizeof *share);
    for (int k = 0; k < count; k++) {
        int best = home;
        for (int n = 0; n < w->m->node_count; n++)
            if (weight[n] * (share[best] + 1) > weight[best] * (share[n] + 1)) best = n;
        share[best]++;
    }
}

static void choose_shard_nodes(struct work *w) {
    struct farm_plan *out = w->out;
    int shards[FARM_NODES_MAX];
    spread_cores(w, out->shard_count, w->r->actors ? w->r->actors + out->shard_count : w->slots, shards);
    for (int n = 0, k = 0; n < w->m->node_count; n++)
        while (shards[n]-- > 0) out->shard_node[k++] = w->m->node[n].node;
}

static void take_training_cores(struct work *w, int training) {
    int share[FARM_NODES_MAX] = {0};
    const bool spread = w->r->learner_device == FARM_LEARNER_CPU;
    if (spread) collect_slots(w, &w->out->inference_cpus);
    if (spread) spread_cores(w, training, w->r->actors ? w->r->actors + training : w->slots, share);
    for (int n = 0; n < w->m->node_count; n++)
        while (share[n]-- > 0) take_core(w, w->m->node[n].node, &w->out->training_cpus);
    for (int k = 0; k < training && !spread; k++) {
        struct farm_bitmap own = {0};
        take_core(w, w->out->shard_node[k], &own);
        farm_bitmap_add(&w->out->training_cpus, &own);
        if (training > 1) farm_bitmap_add(&w->out->shard_cpus[k], &own);
    }
}

// Takes cores in the learner's order: for inference beside the GPUs in turn, then training; spread on CPUs, reversed.
static void take_learner_cores(struct work *w, int inference, int training) {
    struct farm_plan *out = w->out;
    const bool several = out->shard_count > 1, spread = several && w->r->learner_device < 0;
    if (spread) {
        take_training_cores(w, training);
        collect_slots(w, &out->training_cpus);
        choose_shard_nodes(w);
    }
    for (int i = 0; i < inference; i++) {
        struct farm_bitmap before = out->inference_cpus;
        const bool bound = several && i < out->shard_count;
        take_core(w, bound ? out->shard_node[i] : w->home, &out->inference_cpus);
        if (!bound) continue;
        out->shard_cpus[i] = out->inference_cpus;
        farm_bitmap_remove(&out->shard_cpus[i], &before);
        if (spread) out->shard_node[i] = farm_machine_cpu(w->m, farm_bitmap_next(&out->shard_cpus[i], 0))->node;
    }
    if (!spread) take_training_cores(w, training);
}

static bool is_tiny(const struct work *w) {
    return w->capacity <= FARM_PLAN_TINY_CPUS || w->cores < FARM_PLAN_TINY_CPUS;
}

// Rule 8. w->slot may lack the training CPUs; w->cores counts all.
static void take_bridge_cores(struct work *w, int learner_cores) {
    struct farm_bitmap *bridges = &w->out->bridge_cpus, left;
    const int node = farm_machine_node(w->m, w->r->bridge_node) ? w->r->bridge_node : w->home;
    slots_to_bitmap(w, &left);
    farm_bitmap_remove(&left, &w->out->inference_cpus);
    farm_bitmap_remove(&left, &w->out->training_cpus);
    const int cpus = farm_bitmap_count(&left), cores = w->cores - !w->r->no_actors;
    for (int i = 0; i < w->r->bridges && learner_cores + i < cores && !is_tiny(w); i++) {
        const struct farm_bitmap before = *bridges;
        take_core(w, node, bridges);
        const int actors = w->r->actors <= cpus ? w->r->actors : 0; // more than CPUs float in any case
        if (cpus - farm_bitmap_count(bridges) >= actors) continue;
        *bridges = before;
        return;
    }
}

static int count_actors(const struct work *w, int chosen) {
    return w->r->actors || w->r->no_actors ? w->r->actors : chosen;
}

// Rule 3, and rule 2 for larger machines: counts only; all processes run on all CPUs.
static void share_cpus(struct work *w) {
    struct farm_plan *out = w->out;
    int inference = 1, training = 0, actors = w->capacity;
    if (is_tiny(w)) {
        training = w->r->learner_threads ? clamp(w->r->learner_threads, 1, w->slots)
                   : w->r->no_actors     ? w->capacity - 1
                                         : w->capacity / 2;
        if (w->r->learner_shards && w->r->learner_device < 0) // beside the actors, one each
            inference = count_inference_threads(w, 1 + 2 * (w->r->actors ? w->r->actors : actors), 1, 1);
        count_shards(w, inference);
    } else {
        split_units(w, w->capacity, &inference, &training);
        actors = clamp(actors - inference - training - w->r->bridges, 1, actors);
    }
    out->actor_count = count_actors(w, actors);
    slots_to_bitmap(w, &out->actor_cpus);
    if (w->r->learner_device == FARM_LEARNER_NONE) return;
    out->shared = true;
    out->training_threads = w->r->learner_device >= 0 || training < 1 ? 1 : training;
    out->inference_cpus = out->training_cpus = out->actor_cpus;
}

// Rules 4 and 5: separate cores for the learner, the rest (left in w->slot) for actors; without pinning, counts only.
static void divide_cpus(struct work *w) {
    struct farm_plan *out = w->out;
    int inference, training;
    qsort(w->slot, (size_t)w->slots, sizeof w->slot[0], by_learner_order);
    split_units(w, w->cores, &inference, &training);
    const int cores = w->cores;
    take_learner_cores(w, inference, training);
    w->cores = cores; // including those for training
    take_bridge_cores(w, inference + training);
    if (w->r->learner_device >= 0 && !training) out->training_cpus = out->inference_cpus;
    if (w->r->actors_infer) out->inference_cpus = out->training_cpus;
    out->training_threads = w->r->learner_device >= 0 && !training ? 1 : training;

    struct farm_bitmap learner = out->inference_cpus;
    farm_bitmap_add(&learner, &out->training_cpus);
    farm_bitmap_add(&learner, &out->bridge_cpus);
    collect_slots(w, &learner);
    slots_to_bitmap(w, &out->actor_cpus);
    out->actor_count = count_actors(w, w->slots);
    out->pinned = w->r->pin && out->actor_count <= w->slots;
    if (w->r->pin) {
        out->claim = learner;
        if (!out->pinned) farm_bitmap_add(&out->claim, &out->actor_cpus);
        return;
    }
    static const struct farm_bitmap nothing;
    collect_slots(w, &nothing);
    slots_to_bitmap(w, &out->actor_cpus);
    out->shared = w->r->learner_device != FARM_LEARNER_NONE;
    if (out->shared) out->inference_cpus = out->training_cpus = out->actor_cpus;
    memset(&out->bridge_cpus, 0, sizeof out->bridge_cpus);
    count_shards(w, out->shard_count);
}

// With one node, memory is near wherever an actor floats.
static bool has_one_node(const struct work *w) {
    for (int i = 1; i < w->slots; i++)
        if (w->slot[i].node != w->slot[0].node) return false;
    return true;
}

// Whether actors that are not pinned to one CPU are bound to a node.
static bool binds_to_node(const struct work *w) {
    return has_one_node(w) || (w->r->pin && w->r->numa && !w->throttled && !w->crowded);
}

static void place_actors(struct work *w) {
    struct farm_plan *out = w->out;
    bool near_memory = w->r->numa, on_node = binds_to_node(w);
    qsort(w->slot, (size_t)w->slots, sizeof w->slot[0], by_actor_order);
    for (int i = 0; i < out->actor_count; i++) {
        const struct slot *slot = &w->slot[i % w->slots];
        struct farm_plan_actor *actor = &out->actor[i];
        actor->cpu = out->pinned ? slot->cpu : -1;
        actor->cpu_node = out->pinned || on_node ? slot->node : -1;
        actor->memory_node = near_memory && actor->cpu_node >= 0 ? farm_machine_memory_node(w->m, actor->cpu_node) : -1;
        if (out->pinned) farm_bitmap_set(&out->claim, slot->cpu);
    }
    out->idle_cpus = out->pinned ? w->slots - out->actor_count : 0;
}

// Binds several inference threads on shared CPUs to nodes if the actors are.
static void place_shards(struct work *w) {
    struct farm_plan *out = w->out;
    if (out->shard_count < 2 || !out->shared || w->r->learner_device >= 0 || !binds_to_node(w)) return;
    choose_shard_nodes(w);
    for (int s = 0; s < w->slots && !has_one_node(w); s++)
        for (int k = 0; k < out->shard_count; k++)
            if (w->slot[s].node == out->shard_node[k]) farm_bitmap_set(&out->shard_cpus[k], w->slot[s].cpu);
}

// Rule 9. The next actor's shard: nearest with room, then the one that serves fewer. -1: none on its node (`near`).
static int nearest_shard(const struct work *w, int node, const int *served, bool near) {
    const struct farm_plan *out = w->out;
    const int count = out->shard_count, each = out->actor_count / count, rest = out->actor_count % count;
    int best = -1, best_key[2] = {INT_MAX}, full = 0;
    for (int k = 0; k < count; k++) full += served[k] > each; // `rest` shards serve one more
    for (int k = 0; k < count; k++) {
        const int key[] = {farm_machine_distance(w->m, out->shard_node[k], node), served[k]};
        if (served[k] >= each + (full < rest) || (near && out->shard_node[k] != node) ||
            compare_keys(key, best_key, 2) >= 0)
            continue;
        best = k;
        memcpy(best_key, key, sizeof key);
    }
    return best;
}

// Actors with a shard on their node come first, so that others do not take its places.
static void divide_actors(struct work *w) {
    int served[FARM_PLAN_SHARDS_MAX] = {0};
    for (int i = 0; i < w->out->actor_count; i++) w->out->actor[i].shard = w->out->shard_count ? -1 : 0;
    for (int near = 1; near >= 0; near--)
        for (int i = 0; i < w->out->actor_count; i++) {
            struct farm_plan_actor *actor = &w->out->actor[i];
            if (actor->shard >= 0) continue;
            actor->shard =
                nearest_shard(w, actor->memory_node >= 0 ? actor->memory_node : actor->cpu_node, served, near);
            if (actor->shard >= 0) served[actor->shard]++;
        }
}

static void place_learner(struct work *w) {
    struct farm_plan *out = w->out;
    out->learner_node = -1;
    if (w->r->learner_device == FARM_LEARNER_NONE || !w->r->numa) return;
    bool settled = !out->shared && w->r->pin;
    if (settled || has_one_node(w) || w->r->learner_device >= 0)
        out->learner_node = farm_machine_memory_node(w->m, w->home);
}

static void note_decisions(struct work *w) {
    struct farm_plan *out = w->out;
    int n = out->actor_count;
    const char *own = w->r->actors ? " as requested" : "";
    if (w->r->no_actors)
        note(out, "no actors here: %d CPU%s for the learner and the bridges of remote actors", w->capacity,
             plural(w->capacity));
    else if (w->throttled)
        note(out, "quota of %.3g CPUs: %d actor%s%s, nothing pinned (a thread on a throttled CPU could not move)",
             w->m->cpu_quota, n, plural(n), own);
    else if (!w->r->pin)
        note(out, "pinning is off: %d actor%s%s, the scheduler places them", n, plural(n), own);
    else if (out->shared)
        note(out, "%d CPU%s in %d core%s: %d actor%s%s, which share%s %s with the learner, nothing pinned", w->slots,
             plural(w->slots), w->cores, plural(w->cores), n, plural(n), own, n == 1 ? "s" : "",
             w->slots == 1 ? "it" : "them");
    else if (out->pinned)
        note(out, "%d actor%s%s, each pinned to a CPU", n, plural(n), own);
    else if (!w->crowded)
        note(out, "%d actors on %d CPUs: each is bound to a node, none to a CPU (--actors %d would pin them)", n,
             w->slots, w->slots);
    for (int i = 0; i < n; i++)
        if (out->actor[i].memory_node != out->actor[i].cpu_node && out->actor[i].memory_node >= 0) {
            note(out, "node %d has no memory: its actors' segments are on node %d", out->actor[i].cpu_node,
                 out->actor[i].memory_node);
            break;
        }
}

// "CPU 4" or "CPUs 4-5,7".
static const char *name_cpus(const struct farm_bitmap *cpus, char *text, size_t size) {
    char list[64];
    farm_bitmap_format(cpus, list, sizeof list);
    snprintf(text, size, "CPU%s %s", plural(farm_bitmap_count(cpus)), list);
    return text;
}

static void note_shards(struct work *w) {
    struct farm_plan *out = w->out;
    const int count = out->shard_count, actors = out->actor_count + w->r->remote_actors;
    char nodes[128] = "";
    size_t used = 0;
    if (count < 2 || w->r->learner_device >= 0) return;
    for (int k = 0, same; k < count && out->shard_node[k] >= 0 && w->m->node_count > 1; k += same) {
        for (same = 1; k + same < count && out->shard_node[k + same] == out->shard_node[k];) same++;
        if (used < sizeof nodes)
            used += (size_t)snprintf(nodes + used, sizeof nodes - used, "%s%d on node %d", used ? ", " : " (", same,
                                     out->shard_node[k]);
    }
    const bool infer = !w->r->actors_infer;
    note(out, "%d %s%s%s%s; each serves %d actor%s%s", count, infer ? "inference threads" : "threads take in steps",
         out->shared || !infer ? "" : ", one per core", nodes, used ? ")" : "", actors / count, plural(actors / count),
         actors % count ? " or one more" : "");
}

static void note_learner(struct work *w) {
    struct farm_plan *out = w->out;
    struct farm_bitmap learner = out->inference_cpus;
    char cpus[80];
    int device = w->r->learner_device;
    note_shards(w);
    if (device == FARM_LEARNER_NONE || out->shared) return;
    farm_bitmap_add(&learner, &out->training_cpus);
    name_cpus(&learner, cpus, sizeof cpus);
    if (device == FARM_LEARNER_CPU) {
        note(out, "learner on %s: %s%d training thread%s", cpus, w->r->actors_infer ? "" : "inference and ",
             out->training_threads, plural(out->training_threads));
        return;
    }
    int wanted = w->m->gpu[device].node, got = farm_machine_cpu(w->m, farm_bitmap_next(&out->inference_cpus, 0))->node;
    const int actors = out->actor_count + w->r->remote_actors;
    if (gpus(w) > 1) {
        note(out, "learner on GPUs %d-%d, its host threads on %s; each serves %d actors%s", device,
             device + gpus(w) - 1, cpus, actors / gpus(w), actors % gpus(w) ? " or one more" : "");
        return;
    }
    note(out, "learner on GPU %d, its host threads on %s", device, cpus);
    if (wanted < 0)
        note(out, "the node beside GPU %d is unknown: using node %d", device, got);
    else if (wanted != got)
        note(out, "GPU %d is beside node %d, which has no free CPU for its threads: using node %d", device, wanted,
             got);
}

// What the plan leaves idle, apart from CPUs (idle_cpus), and facts of the machine that it uses.
static void note_idle(struct work *w) {
    const struct farm_plan *out = w->out;
    const int device = w->r->learner_device, idle = w->m->gpu_count - (device >= 0 ? gpus(w) : 0);
    if (device != FARM_LEARNER_NONE && idle > 0)
        note(w->out, "%d GPU%s idle: %s uses %s", idle, plural(idle), device >= 0 ? "--gpus 0" : "--device cuda",
             idle == 1 ? "it" : "them");
    for (int n = 0, used = 0; n < w->m->node_count && w->r->numa; n++, used = 0) {
        const struct farm_node *node = &w->m->node[n];
        for (int i = 0; i < out->actor_count; i++) used += out->actor[i].memory_node == node->node;
        if (!node->has_cpus && node->usable && node->total_bytes && !used)
            note(w->out,
                 "node %d, %s without CPUs, is idle: rings are beside their actors (--no-numa leaves that to "
                 "the kernel)",
                 node->node, farm_format_bytes((double)node->total_bytes).text);
    }
    if (w->m->node_count > 1 || w->m->measured.date[0])
        note(w->out, "bandwidth: %s%s%s", w->m->measured.date[0] ? "measured " : "not measured (farm bw)",
             w->m->measured.date, bandwidths_differ(w->m) ? ": training threads in proportion to the nodes'" : "");
    if (w->slow_cores)
        note(w->out, "%d of %d cores are slower ones (E cores): actors use them last, the learner if it must",
             w->slow_cores, w->all_cores);
}

static void note_bridges(struct work *w) {
    char cpus[80];
    if (!farm_bitmap_count(&w->out->bridge_cpus)) return;
    note(w->out, "bridge%s on %s", plural(w->r->bridges), name_cpus(&w->out->bridge_cpus, cpus, sizeof cpus));
}

// The part of `free_bytes` that rings may fill.
static uint64_t usable_bytes(uint64_t free_bytes) {
    return free_bytes == UINT64_MAX ? free_bytes : free_bytes - free_bytes / MEMORY_KEPT;
}

static enum farm_status fail_memory(const struct work *w, int actors, uint64_t free_bytes, const char *where,
                                    const char *remedy, struct farm_error *err) {
    char envs[48] = "";
    if (w->r->envs_per_actor) snprintf(envs, sizeof envs, " of %d environments", w->r->envs_per_actor);
    return farm_fail(err, FARM_E_LIMIT,
                     "the rings need %s (%d actor%s%s, %s each) %s, which has room for %s: lower --actors, "
                     "%s--envs-per-actor or --ring-steps%s",
                     farm_format_bytes(actors * (double)w->r->bytes_per_actor).text, actors, plural(actors), envs,
                     farm_format_bytes((double)w->r->bytes_per_actor).text, where,
                     farm_format_bytes((double)usable_bytes(free_bytes)).text,
                     w->r->remote_actors ? "--expect-actors, " : "", remedy);
}

static enum farm_status check_memory(const struct work *w, struct farm_error *err) {
    const struct farm_plan *out = w->out;
    uint64_t each = w->r->bytes_per_actor, all_free = 0;
    int n = out->actor_count;
    char where[64];
    for (int i = 0; i < w->m->node_count; i++) {
        const struct farm_node *node = &w->m->node[i];
        int here = 0;
        for (int a = 0; a < n; a++) here += out->actor[a].memory_node == node->node;
        if (node->usable) all_free += node->free_bytes;
        if (!here || !node->total_bytes || each <= usable_bytes(node->free_bytes) / (uint64_t)here) continue;
        snprintf(where, sizeof where, "on NUMA node %d", node->node);
        return fail_memory(w, here, node->free_bytes, where, w->m->node_count > 1 ? ", or --no-numa" : "", err);
    }
    n += w->r->remote_actors;
    if (n && all_free && each > usable_bytes(all_free) / (uint64_t)n)
        return fail_memory(w, n, all_free, "in this machine's memory", "", err);
    if (n && each > usable_bytes(w->m->memory_free_bytes) / (uint64_t)n)
        return fail_memory(w, n, w->m->memory_free_bytes, "below the control group's memory limit",
                           ", or raise the container's memory limit", err);
    return FARM_OK;
}

// Rule 10.
static void add_synchronous_training(struct work *w) {
    struct farm_plan *out = w->out;
    if (!w->r->synchronous || w->r->learner_device != FARM_LEARNER_CPU || w->r->learner_threads) return;
    out->training_threads = w->all_cores < w->capacity ? w->all_cores : w->capacity;
    farm_bitmap_add(&out->training_cpus, &out->actor_cpus);
    farm_bitmap_add(&out->training_cpus, &out->inference_cpus);
}

// Groups training CPUs by node, with a thread per core; where nodes do not matter, all threads as counted.
static void group_training(struct work *w) {
    struct farm_plan *out = w->out;
    const bool by_node = has_one_node(w) || (!out->shared && w->r->pin && w->r->numa);
    int last_core = -1, threads = 0, g;
    for (int i = 0; i < w->m->cpu_count && out->training_threads; i++) {
        const struct farm_cpu *cpu = &w->m->cpu[i];
        const int node = by_node ? cpu->node : -1;
        if (!farm_bitmap_has(&out->training_cpus, cpu->cpu)) continue;
        for (g = 0; g < out->training_node_count && out->training[g].node != node;) g++;
        if (g == out->training_node_count) out->training[out->training_node_count++].node = node;
        farm_bitmap_set(&out->training[g].cpus, cpu->cpu);
        out->training[g].threads += cpu->core != last_core;
        threads += cpu->core != last_core;
        last_core = cpu->core;
    }
    if (out->training_node_count > 1)
        out->training_threads = threads;
    else
        out->training[0].threads = out->training_threads;
}

enum farm_status farm_plan_make(const struct farm_machine *machine, const struct farm_plan_request *request,
                                struct farm_plan *out, struct farm_error *err) {
    memset(out, 0, offsetof(struct farm_plan, shard_node));
    enum farm_status status = check_request(machine, request, err);
    if (status) return status;
    struct work *w = calloc(1, sizeof *w);
    if (!w) return farm_fail(err, FARM_E_LIMIT, "no memory for the plan");
    w->m = machine;
    w->r = request;
    w->out = out;

    find_capacity(w);
    find_home(w);
    static const struct farm_bitmap nothing;
    collect_slots(w, &nothing); // again, because distances are from home
    w->all_cores = w->cores;
    for (int i = 0; i < w->slots; i++) w->slow_cores += w->slot[i].kind && !w->slot[i].rank;
    bool alone = request->learner_device == FARM_LEARNER_NONE;
    if (w->throttled || w->crowded || (is_tiny(w) && !alone))
        share_cpus(w);
    else
        divide_cpus(w);
    if (out->actor_count + request->remote_actors < gpus(w))
        status =
            farm_fail(err, FARM_E_USAGE, "--gpus %d, but there are CPUs for %d actor%s: each GPU needs at least one",
                      gpus(w), out->actor_count, plural(out->actor_count));
    if (!status) {
        place_actors(w);
        place_shards(w);
        divide_actors(w);
        place_learner(w);
        add_synchronous_training(w);
        group_training(w);
        note_decisions(w);
        note_learner(w);
        note_bridges(w);
        note_idle(w);
        status = check_memory(w, err);
    }
    free(w);
    return status;
}

void farm_plan_actor_cpus(const struct farm_machine *machine, const struct farm_plan *plan, int i,
                          struct farm_bitmap *cpus) {
    assert(i >= 0 && i < plan->actor_count);
    const struct farm_plan_actor *actor = &plan->actor[i];
    memset(cpus, 0, sizeof *cpus);
    if (actor->cpu >= 0) {
        farm_bitmap_set(cpus, actor->cpu);
        return;
    }
    *cpus = plan->actor_cpus;
    if (actor->cpu_node < 0) return;
    for (int c = 0; c < machine->cpu_count; c++)
        if (machine->cpu[c].node != actor->cpu_node && farm_bitmap_has(cpus, machine->cpu[c].cpu))
            farm_bitmap_clear(cpus, machine->cpu[c].cpu);
}
