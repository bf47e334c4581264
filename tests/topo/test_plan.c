// The plan: invariants on every machine for every request, then single decisions.
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "machines.h"
#include "topo/plan.h"

static struct farm_plan plan, other;

static struct farm_plan_request request_of(int actors, int learner_device) {
    return (struct farm_plan_request){.actors = actors,
                                      .learner_device = learner_device,
                                      .envs_per_actor = 8,
                                      .bytes_per_actor = 1 << 20,
                                      .pin = true,
                                      .numa = true};
}

// A learner on two GPUs from `first` on.
static struct farm_plan_request request_of_gpus(int actors, int first) {
    struct farm_plan_request request = request_of(actors, first);
    request.learner_gpus = 2;
    return request;
}

static void make_plan(struct farm_plan_request request) {
    cr_assert_eq(farm_plan_make(&machine, &request, &plan, &error), FARM_OK, "%s", error.message);
}

static void plan_on(const char *synthetic, struct farm_plan_request request) {
    read_synthetic(synthetic);
    make_plan(request);
}

static int node_of(int cpu) {
    return farm_machine_cpu(&machine, cpu)->node;
}

static int core_of(int cpu) {
    return farm_machine_cpu(&machine, cpu)->core;
}

static void expect_refusal(struct farm_plan_request request, enum farm_status wanted, const char *words) {
    cr_assert_eq(farm_plan_make(&machine, &request, &plan, &error), wanted, "%s", error.message);
    cr_assert(strstr(error.message, words), "%s", error.message);
}

static bool has_note(const char *words) {
    for (int i = 0; i < plan.note_count; i++)
        if (strstr(plan.note[i], words)) return true;
    return false;
}

static bool overlap(const struct farm_bitmap *a, const struct farm_bitmap *b) {
    struct farm_bitmap both = *a;
    farm_bitmap_keep(&both, b);
    return farm_bitmap_count(&both) > 0;
}

static void check_pins(const char *name, const struct farm_plan_request *request) {
    struct farm_bitmap seen = {{0}}, learner = plan.inference_cpus;
    farm_bitmap_add(&learner, &plan.training_cpus);
    for (int i = 0; i < plan.actor_count; i++) {
        int cpu = plan.actor[i].cpu;
        cr_assert_eq(cpu >= 0, plan.pinned, "%s: actor %d", name, i);
        if (cpu < 0) continue;
        cr_assert(!farm_bitmap_has(&seen, cpu), "%s: CPU %d is pinned twice", name, cpu);
        cr_assert(farm_bitmap_has(&machine.allowed, cpu), "%s: CPU %d is not allowed", name, cpu);
        cr_assert(!farm_bitmap_has(&request->taken, cpu), "%s: CPU %d is another farm's", name, cpu);
        cr_assert(!farm_bitmap_has(&learner, cpu), "%s: CPU %d is the learner's", name, cpu);
        cr_assert(farm_bitmap_has(&plan.claim, cpu), "%s: CPU %d is not claimed", name, cpu);
        farm_bitmap_set(&seen, cpu);
    }
    cr_assert(!plan.pinned || request->pin, "%s: pinned without request", name);
    cr_assert(request->learner_device == FARM_LEARNER_NONE || farm_bitmap_count(&learner), "%s: no CPU for the learner",
              name);
    struct farm_bitmap claimed = plan.claim;
    farm_bitmap_remove(&claimed, &machine.allowed);
    cr_assert_eq(farm_bitmap_count(&claimed), 0, "%s: claims CPUs outside the cpuset", name);
    cr_assert(!overlap(&plan.claim, &request->taken), "%s: claims another farm's CPUs", name);
}

static void check_memory_nodes(const char *name, const struct farm_plan_request *request) {
    for (int i = 0; i < plan.actor_count; i++) {
        const struct farm_plan_actor *actor = &plan.actor[i];
        struct farm_bitmap cpus;
        farm_plan_actor_cpus(&machine, &plan, i, &cpus);
        cr_assert_gt(farm_bitmap_count(&cpus), 0, "%s: actor %d has no CPU", name, i);
        if (!request->numa) cr_assert_eq(actor->memory_node, -1);
        if (actor->cpu >= 0) cr_assert_eq(node_of(actor->cpu), actor->cpu_node);
        if (actor->memory_node < 0) continue;
        for (int cpu = farm_bitmap_next(&cpus, 0); cpu >= 0; cpu = farm_bitmap_next(&cpus, cpu + 1)) {
            int node = node_of(cpu);
            const struct farm_node *near = farm_machine_node(&machine, node),
                                   *used = farm_machine_node(&machine, actor->memory_node);
            cr_assert_gt(used->total_bytes, 0, "%s: actor %d on a node without memory", name, i);
            if (near->total_bytes && near->usable) cr_assert_eq(node, actor->memory_node, "%s: actor %d", name, i);
        }
    }
}

static void check_budget(const char *name, const struct farm_plan_request *request) {
    double quota = machine.cpu_quota;
    int limit = farm_bitmap_count(&machine.allowed);
    if (quota > 0 && quota < limit) {
        cr_assert(!plan.pinned, "%s: pinned under a quota", name);
        limit = quota < 1 ? 1 : (int)quota;
    }
    if (request->actors)
        cr_assert_eq(plan.actor_count, request->actors);
    else
        cr_assert(plan.actor_count >= 1 && plan.actor_count <= limit, "%s: %d actors for %d CPUs", name,
                  plan.actor_count, limit);
    int learner = plan.training_threads + (request->learner_device != FARM_LEARNER_NONE && !request->actors_infer);
    if (!request->actors && plan.pinned && request->learner_device == FARM_LEARNER_CPU)
        cr_assert_leq(plan.actor_count + learner, limit, "%s", name);
}

static int served_by(int shard) {
    int count = 0;
    for (int i = 0; i < plan.actor_count; i++) count += plan.actor[i].shard == shard;
    return count;
}

static void check_shards(const char *name, const struct farm_plan_request *request) {
    const int count = plan.shard_count;
    struct farm_bitmap seen = {{0}};
    if (request->learner_device == FARM_LEARNER_NONE) {
        cr_assert(count == 0 && served_by(0) == plan.actor_count, "%s: shards without a learner", name);
        return;
    }
    cr_assert(count >= 1 && count <= plan.actor_count, "%s: %d shards of %d actors", name, count, plan.actor_count);
    for (int k = 0, all = 0; k < count; k++) {
        const struct farm_bitmap *cpus = &plan.shard_cpus[k];
        const int served = served_by(k), least = plan.actor_count / count;
        all += served;
        cr_assert(served == least || served == least + 1, "%s: shard %d serves %d of %d", name, k, served,
                  plan.actor_count);
        if (k == count - 1) cr_assert_eq(all, plan.actor_count, "%s: shards that do not exist serve actors", name);
        for (int cpu = farm_bitmap_next(cpus, 0); cpu >= 0; cpu = farm_bitmap_next(cpus, cpu + 1)) {
            const bool trains = request->learner_device >= 0 && farm_bitmap_has(&plan.training_cpus, cpu);
            cr_assert(trains || farm_bitmap_has(&plan.inference_cpus, cpu), "%s: shard %d on CPU %d", name, k, cpu);
            if (request->learner_device == FARM_LEARNER_CPU)
                cr_assert_eq(node_of(cpu), plan.shard_node[k], "%s: shard %d", name, k);
        }
        if (plan.shared) continue;
        cr_assert(!overlap(cpus, &seen), "%s: two shards on CPU of shard %d", name, k);
        farm_bitmap_add(&seen, cpus);
        cr_assert_eq(farm_bitmap_count(cpus) > 0, count > 1 && !request->actors_infer, "%s: shard %d of %d", name, k,
                     count);
    }
}

static void check_training(const char *name) {
    struct farm_bitmap seen = {{0}};
    int threads = 0;
    for (int g = 0; g < plan.training_node_count; g++) {
        const struct farm_plan_training *group = &plan.training[g];
        cr_assert_gt(group->threads, 0, "%s: group %d", name, g);
        cr_assert(farm_bitmap_count(&group->cpus) && !overlap(&group->cpus, &seen), "%s: group %d", name, g);
        farm_bitmap_add(&seen, &group->cpus);
        threads += group->threads;
        for (int cpu = farm_bitmap_next(&group->cpus, 0); cpu >= 0 && group->node >= 0;
             cpu = farm_bitmap_next(&group->cpus, cpu + 1))
            cr_assert_eq(node_of(cpu), group->node, "%s: group %d", name, g);
        cr_assert(group->node >= 0 || plan.training_node_count == 1, "%s: group %d", name, g);
    }
    cr_assert_eq(threads, plan.training_threads, "%s: %d of %d threads", name, threads, plan.training_threads);
    cr_assert_eq(memcmp(&seen, &plan.training_cpus, sizeof seen), 0, "%s: CPUs of no group", name);
}

static void check_second_farm(const char *name, struct farm_plan_request request) {
    farm_bitmap_add(&request.taken, &plan.claim);
    cr_assert_eq(farm_plan_make(&machine, &request, &other, &error), FARM_OK, "%s: %s", name, error.message);
    cr_assert(!overlap(&plan.claim, &other.claim), "%s: two farms share CPUs", name);
    for (int i = 0; i < other.actor_count; i++)
        cr_assert(!farm_bitmap_has(&plan.claim, other.actor[i].cpu), "%s: two farms pin CPU %d", name,
                  other.actor[i].cpu);
}

static void check_all(const char *name, const struct farm_plan_request *request) {
    make_plan(*request);
    check_pins(name, request);
    check_memory_nodes(name, request);
    check_budget(name, request);
    check_shards(name, request);
    check_training(name);
    memset(&other, 0xaa, sizeof other);
    cr_assert_eq(farm_plan_make(&machine, request, &other, &error), FARM_OK);
    const size_t head = offsetof(struct farm_plan, shard_node), shards = (size_t)plan.shard_count;
    cr_assert(memcmp(&plan, &other, head) == 0 &&
                  memcmp(plan.shard_node, other.shard_node, shards * sizeof *plan.shard_node) == 0 &&
                  memcmp(plan.shard_cpus, other.shard_cpus, shards * sizeof *plan.shard_cpus) == 0 &&
                  memcmp(plan.actor, other.actor, (size_t)plan.actor_count * sizeof *plan.actor) == 0,
              "%s: the same request gives a different plan", name);
    check_second_farm(name, *request);
}

Test(topo, keeps_its_invariants_on_every_machine, .timeout = 60) {
    static const int actors[] = {0, 1, 3, 16, 1000};
    for (int m = 0; m < RECORDED_MACHINES; m++) {
        read_machine(recorded_machines[m].source);
        for (int device = FARM_LEARNER_NONE; device < machine.gpu_count; device++)
            for (int a = 0; a < 5; a++)
                for (int variant = 0; variant < 7; variant++) {
                    struct farm_plan_request request = request_of(actors[a], device);
                    request.pin = variant % 2 == 0 || variant == 5;
                    request.numa = variant / 2 != 1;
                    request.learner_shards = variant == 4 ? 6 : 0;
                    request.actors_infer = variant == 6 && device == FARM_LEARNER_CPU;
                    request.bytes_per_actor = 1 << 16;
                    const bool several = device == 0 && machine.gpu_count > 1;
                    if (variant == 5 && several && actors[a] > 1) request.learner_gpus = 2;
                    if (variant == 3) farm_bitmap_set(&request.taken, machine.cpu[machine.cpu_count / 2].cpu);
                    check_all(recorded_machines[m].name, &request);
                }
    }
}

// ---- single decisions ----

struct plan_case {
    const char *machine, *root;
    int actors, remote, device, threads, shards, bridges; // remote: all actors are, if not 0
    bool unpinned, infer;                                 // infer: the actors do
    double quota;
    const char *plan, *note; // wanted
};

static int served_from_another_node(void) {
    int away = 0;
    for (int i = 0; i < plan.actor_count; i++)
        away += plan.shard_node[plan.actor[i].shard] != plan.actor[i].memory_node;
    return away;
}

static void check_case(const struct plan_case *wanted) {
    struct farm_plan_request request = request_of(wanted->actors, wanted->device);
    char summary[128];
    request.no_actors = wanted->remote > 0;
    request.remote_actors = wanted->remote;
    request.learner_threads = wanted->threads;
    request.learner_shards = wanted->shards;
    request.bridges = wanted->bridges;
    request.bridge_node = -1;
    request.pin = !wanted->unpinned;
    request.actors_infer = wanted->infer;
    read_machine((struct farm_machine_source){.synthetic = wanted->machine, .root = wanted->root});
    if (wanted->quota > 0) machine.cpu_quota = wanted->quota;
    make_plan(request);
    snprintf(summary, sizeof summary, "%d actors, %d train, %d CPUs infer, %d shards, %d away%s%s%s", plan.actor_count,
             plan.training_threads, farm_bitmap_count(&plan.inference_cpus), plan.shard_count,
             plan.shard_count ? served_from_another_node() : 0, plan.pinned ? ", pinned" : "",
             plan.shared ? ", shared" : "", farm_bitmap_count(&plan.bridge_cpus) ? ", bridge" : "");
    cr_expect_str_eq(summary, wanted->plan, "%s: %s", wanted->machine, summary);
    cr_expect(!wanted->note || has_note(wanted->note), "%s: no note '%s'", wanted->machine, wanted->note);
}

enum { CPU = FARM_LEARNER_CPU, NONE = FARM_LEARNER_NONE };
#define TWO_NODES_OF_8 "pack:2 [numa(memory=64GB)] core:8 pu:1"

Test(topo, decides_as_the_rules_demand) {
    static const struct plan_case cases[] = {
        // Rule 3.
        {TWO_CORES, .device = CPU, .plan = "2 actors, 1 train, 2 CPUs infer, 1 shards, 2 away, shared"},
        {TWO_CORES, .device = NONE, .plan = "2 actors, 0 train, 0 CPUs infer, 0 shards, 0 away, pinned"},
        // Rule 2.
        {SIXTEEN_CORES, .root = VECTORS "quota_v2", .device = CPU,
         .plan = "3 actors, 1 train, 16 CPUs infer, 1 shards, 3 away, shared",
         .note = "quota of 3.5 CPUs: 3 actors, nothing pinned"},
        {SIXTEEN_CORES, .root = VECTORS "quota_v1", .device = CPU,
         .plan = "3 actors, 1 train, 8 CPUs infer, 1 shards, 3 away, shared",
         .note = "quota of 3.5 CPUs: 3 actors, nothing pinned"},
        {TWO_CORES, .root = VECTORS "half_cpu_v2", .device = CPU,
         .plan = "1 actors, 1 train, 2 CPUs infer, 1 shards, 1 away, shared"},
        {AMD_12_L3, .device = CPU, .quota = 96,
         .plan = "64 actors, 24 train, 192 CPUs infer, 8 shards, 0 away, shared"},
        // Rule 4: fewer learner cores for few actors, and for so many that they need the room.
        {AMD_12_L3, .actors = 8, .device = CPU, .plan = "8 actors, 3 train, 1 CPUs infer, 1 shards, 8 away, pinned"},
        {AMD_12_L3, .actors = 180, .device = CPU,
         .plan = "180 actors, 9 train, 3 CPUs infer, 3 shards, 30 away, pinned"},
        {SIXTEEN_CORES, .device = CPU, .threads = 9,
         .plan = "4 actors, 9 train, 3 CPUs infer, 3 shards, 0 away, pinned"},
        {SIXTEEN_CORES, .device = CPU, .threads = 40,
         .plan = "1 actors, 14 train, 1 CPUs infer, 1 shards, 1 away, pinned",
         .note = "--train-threads 40, but 16 cores must also serve inference and actors: 14"},
        {SIXTEEN_CORES, .device = CPU, .shards = 3,
         .plan = "9 actors, 4 train, 3 CPUs infer, 3 shards, 0 away, pinned"},
        {SIXTEEN_CORES, .device = CPU, .shards = 20,
         .plan = "6 actors, 4 train, 6 CPUs infer, 6 shards, 0 away, pinned",
         .note = "--infer-threads 20, but only 6 can have a CPU and an actor each: 6"},
        {SIXTEEN_CORES, .actors = 2, .device = CPU, .shards = 20,
         .plan = "2 actors, 1 train, 2 CPUs infer, 2 shards, 0 away, pinned"},
        // Rule 9.
        {AMD_12_L3, .actors = 40, .device = CPU, .plan = "40 actors, 15 train, 5 CPUs infer, 5 shards, 0 away, pinned"},
        {TWO_NODES_OF_8, .actors = 8, .device = CPU, .shards = 4,
         .plan = "8 actors, 3 train, 4 CPUs infer, 4 shards, 0 away, pinned"},
        {FOUR_CPUS, .device = CPU, .plan = "4 actors, 2 train, 4 CPUs infer, 1 shards, 4 away, shared"},
        {FOUR_CPUS, .device = CPU, .shards = 4, .plan = "4 actors, 2 train, 4 CPUs infer, 4 shards, 0 away, shared"},
        {FOUR_CPUS, .device = CPU, .shards = 4, .unpinned = true,
         .plan = "4 actors, 2 train, 4 CPUs infer, 4 shards, 0 away, shared"},
        // Rule 8: a remote node's other cores go to its actors; actors that need all CPUs, and few CPUs, leave none.
        {SIXTEEN_CORES, .device = NONE, .bridges = 1,
         .plan = "15 actors, 0 train, 0 CPUs infer, 0 shards, 0 away, pinned, bridge"},
        {SIXTEEN_CORES, .actors = 16, .device = NONE, .bridges = 1,
         .plan = "16 actors, 0 train, 0 CPUs infer, 0 shards, 0 away, pinned"},
        {TWO_CORES, .device = CPU, .bridges = 1, .plan = "2 actors, 1 train, 2 CPUs infer, 1 shards, 2 away, shared"},
        {TWO_CORES, .device = NONE, .bridges = 1, .plan = "2 actors, 0 train, 0 CPUs infer, 0 shards, 0 away, pinned"},
        // Rule 7: no actors here; one inference thread per remote actor at most.
        {SIXTEEN_CORES, .remote = 64, .device = CPU, .bridges = 1,
         .plan = "0 actors, 12 train, 3 CPUs infer, 3 shards, 0 away, pinned, bridge",
         .note = "no actors here: 16 CPUs"},
        {SIXTEEN_CORES, .remote = 2, .device = CPU, .bridges = 1,
         .plan = "0 actors, 13 train, 2 CPUs infer, 2 shards, 0 away, pinned, bridge"},
        // Rule 11: the cores that rule 4 and rule 7 keep for inference, and nothing to gain where CPUs are shared.
        {SIXTEEN_CORES, .device = CPU, .infer = true,
         .plan = "12 actors, 4 train, 4 CPUs infer, 1 shards, 12 away, pinned", .note = ": 4 training threads"},
        {SIXTEEN_CORES, .device = CPU, .shards = 3, .infer = true,
         .plan = "12 actors, 4 train, 4 CPUs infer, 3 shards, 0 away, pinned", .note = "3 threads take in steps;"},
        {AMD_12_L3, .device = CPU, .quota = 96, .infer = true,
         .plan = "72 actors, 24 train, 192 CPUs infer, 8 shards, 0 away, shared"},
        {SIXTEEN_CORES, .remote = 64, .device = CPU, .bridges = 1, .infer = true,
         .plan = "0 actors, 15 train, 15 CPUs infer, 3 shards, 0 away, pinned, bridge"},
        {TWO_CORES, .device = CPU, .infer = true, .plan = "2 actors, 1 train, 2 CPUs infer, 1 shards, 2 away, shared"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) check_case(&cases[i]);
}

// ---- large and odd machines ----

// CPUs of each node with CPUs: actors, inference, training, idle.
static void summarise_nodes(char *text, size_t size) {
    size_t used = 0;
    for (int n = 0; n < machine.node_count; n++) {
        int actors = 0, inference = 0, training = 0, all = 0;
        for (int i = 0; i < plan.actor_count; i++) actors += plan.actor[i].cpu_node == machine.node[n].node;
        for (int i = 0; i < machine.cpu_count; i++) {
            const int cpu = machine.cpu[i].cpu;
            if (machine.cpu[i].node != machine.node[n].node || !farm_bitmap_has(&machine.allowed, cpu)) continue;
            inference += farm_bitmap_has(&plan.inference_cpus, cpu);
            training += farm_bitmap_has(&plan.training_cpus, cpu);
            all++;
        }
        if (all && used < size)
            used += (size_t)snprintf(text + used, size - used, "%s%d/%d/%d/%d", used ? " " : "", actors, inference,
                                     training, all - actors - inference - training);
    }
}

Test(topo, uses_every_node_of_large_and_odd_machines) {
    static const struct {
        const char *name, *synthetic, *plan, *note;
        int actors, gpus;    // gpus: two a node
        const char *allowed; // NULL: all
    } cases[] = {
        {"2 x 64", TWO_OF_64, .plan = "42/6/16/0 44/4/16/0"},
        {"4 x 128", FOUR_OF_128, .plan = "84/12/32/0 86/10/32/0 86/10/32/0 86/10/32/0"},
        {"4 x 128, 16 actors", FOUR_OF_128, .plan = "16/4/12/96 0/0/0/128 0/0/0/128 0/0/0/128", .actors = 16},
        {"4 x 128, 256 actors", FOUR_OF_128, .plan = "64/12/32/20 66/10/32/20 65/10/32/21 61/10/32/25", .actors = 256},
        {"4 x 128, 1 of 8 GPUs", FOUR_OF_128, .plan = "124/2/2/0 128/0/0/0 128/0/0/0 128/0/0/0",
         .note = "7 GPUs idle: --gpus 0 uses them", .gpus = 1},
        {"4 x 128, 8 GPUs", FOUR_OF_128, .plan = "120/4/4/0 120/4/4/0 120/4/4/0 120/4/4/0", .gpus = 8},
        {"four nodes a socket", FOUR_NODES_A_SOCKET,
         .plan = "32/4/12/0 32/4/12/0 32/4/12/0 32/4/12/0 32/4/12/0 32/4/12/0 32/4/12/0 32/4/12/0"},
        {"HBM", HBM, .plan = "74/10/28/0 76/8/28/0", .note = "59.6 GiB without CPUs, is idle"},
        {"CXL", CXL, .plan = "21/3/8/0 22/2/8/0", .note = "476.8 GiB without CPUs, is idle"},
        {"P and E cores", NULL, .plan = "12/2/4/0", .note = "6 of 12 cores are slower ones"},
        {"P and E cores, 4 actors", NULL, .plan = "4/2/2/10", .actors = 4},
        {"cpuset of 12 on a socket", TWO_OF_32, .plan = "8/1/3/0", .note = "12 of 64 CPUs usable", .allowed = "4-15"},
        {"cpuset of 12 on both", TWO_OF_32, .plan = "4/1/1/0 4/0/2/0", .allowed = "3,9-12,30,33-36,50,63"},
        {"cpuset of 12, uneven", TWO_OF_32, .plan = "1/0/0/0 7/1/3/0", .allowed = "3,32-42"},
    };
    char text[256];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct farm_plan_request request = request_of(cases[i].actors, cases[i].gpus ? 0 : FARM_LEARNER_CPU);
        read_machine((struct farm_machine_source){.synthetic = cases[i].synthetic,
                                                  .xml = cases[i].synthetic ? NULL : VECTORS "p_and_e_cores.xml"});
        if (cases[i].allowed) cr_assert_eq(farm_bitmap_parse(cases[i].allowed, &machine.allowed, &error), FARM_OK);
        for (int g = 0; g < 8 && cases[i].gpus; g++) machine.gpu[machine.gpu_count++].node = g / 2;
        request.learner_gpus = cases[i].gpus;
        check_all(cases[i].name, &request);
        summarise_nodes(text, sizeof text);
        cr_expect_str_eq(text, cases[i].plan, "%s: %s", cases[i].name, text);
        cr_expect(!cases[i].note || has_note(cases[i].note), "%s: no note '%s'", cases[i].name, cases[i].note);
    }
}

Test(topo, trains_in_proportion_to_bandwidths_that_differ) {
    plan_on(TWO_SOCKETS, request_of(0, FARM_LEARNER_CPU));
    cr_assert(plan.training[0].threads == 4 && plan.training[1].threads == 4 && has_note("bandwidth: not measured"));
    read_machine((struct farm_machine_source){.synthetic = TWO_SOCKETS, .bw = VECTORS "bw.json"});
    make_plan(request_of(0, FARM_LEARNER_CPU));
    cr_assert(plan.training[0].threads == 3 && plan.training[1].threads == 5 && has_note("bandwidth: measured 2"));
    check_training("bandwidth");
    machine.node[1].bytes_per_s = 105e9;
    make_plan(request_of(0, FARM_LEARNER_CPU));
    cr_assert_eq(plan.training[0].threads, 4, "5 %% are no difference");
}

Test(topo, binds_shards_to_cpus_only_if_it_pins) {
    for (int pin = 0; pin <= 1; pin++) {
        struct farm_plan_request request = request_of(0, FARM_LEARNER_CPU);
        request.learner_shards = 4;
        request.pin = pin;
        plan_on(FOUR_CPUS, request);
        for (int k = 0; k < 4; k++) cr_assert_eq(farm_bitmap_count(&plan.shard_cpus[k]), pin, "shard %d", k);
    }
    read_synthetic(AMD_12_L3);
    machine.cpu_quota = 96;
    make_plan(request_of(0, FARM_LEARNER_CPU));
    cr_assert(plan.shard_node[0] == -1 && farm_bitmap_count(&plan.shard_cpus[0]) == 0);
}

#define LARGE_RINGS(n)                                                                                                 \
    { .actors = n, .learner_device = NONE, .bytes_per_actor = 8ull << 30, .pin = true, .numa = true }

Test(topo, refuses_requests_that_make_no_sense) {
    static const struct {
        const char *machine;
        struct farm_plan_request request;
        enum farm_status status;
        const char *words;
    } cases[] = {
        {TWO_CORES, {.actors = -1, .learner_device = CPU}, FARM_E_USAGE, "--actors must be"},
        {TWO_CORES, {.actors = FARM_PLAN_ACTORS_MAX + 1, .learner_device = CPU}, FARM_E_USAGE, "--actors"},
        {TWO_CORES, {.learner_device = CPU, .learner_shards = FARM_PLAN_SHARDS_MAX + 1}, FARM_E_USAGE, "(got 1025)"},
        {TWO_CORES, {.learner_device = 0}, FARM_E_USAGE, "0 NVIDIA GPUs"},
        {SIXTEEN_CORES,
         {.actors = 1, .no_actors = true, .remote_actors = 1, .learner_device = CPU},
         FARM_E_USAGE,
         "no --actors"},
        {SIXTEEN_CORES,
         {.actors = 4, .remote_actors = 60, .learner_device = CPU, .bytes_per_actor = 2ull << 30},
         FARM_E_LIMIT,
         "--expect-actors"},
        {TWO_SOCKETS, LARGE_RINGS(32), FARM_E_LIMIT, "NUMA node 0"},
        {TWO_SOCKETS, LARGE_RINGS(32), FARM_E_LIMIT, "need 128 GiB"},
        // All on one node, while the machine has room.
        {TWO_SOCKETS, LARGE_RINGS(16), FARM_E_LIMIT, "lower --actors, --envs-per-actor or --ring-steps, or --no-numa"},
        {TWO_SOCKETS,
         {.actors = 16, .learner_device = NONE, .bytes_per_actor = UINT64_MAX / 2},
         FARM_E_LIMIT,
         "in this machine's memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        read_synthetic(cases[i].machine);
        expect_refusal(cases[i].request, cases[i].status, cases[i].words);
    }
    struct farm_plan_request spread = cases[8].request;
    spread.numa = false;
    plan_on(TWO_SOCKETS, spread);
}

Test(topo, gives_a_cpu_learner_a_third_of_the_cores_and_trains_in_whole_l3_groups) {
    plan_on(AMD_12_L3, request_of(0, FARM_LEARNER_CPU));
    cr_assert_eq(plan.actor_count, 128);
    cr_assert_eq(plan.training_threads, 48);
    cr_assert_eq(farm_bitmap_count(&plan.inference_cpus), 16);
    cr_assert(has_note("learner on CPUs 0-31,96-127: inference and 48 training threads"), "%s", plan.note[2]);
    int cores_in_l3[24] = {0};
    for (int i = 0; i < machine.cpu_count; i++) {
        const struct farm_cpu *cpu = &machine.cpu[i];
        const bool trains = farm_bitmap_has(&plan.training_cpus, cpu->cpu);
        cores_in_l3[cpu->l3] += trains;
    }
    cr_assert_eq(plan.training_node_count, 2);
    for (int g = 0; g < 2; g++) cr_assert(plan.training[g].node == g && plan.training[g].threads == 24, "node %d", g);
    for (int l3 = 0; l3 < 24; l3++) cr_assert(cores_in_l3[l3] == 0 || cores_in_l3[l3] == 8, "L3 group %d is split", l3);
}

Test(topo, trains_on_the_actors_cpus_too_if_actors_wait_meanwhile) {
    struct farm_plan_request request = request_of(0, FARM_LEARNER_CPU);
    request.synchronous = true;
    plan_on(AMD_12_L3, request);
    cr_assert_eq(plan.actor_count, 128);
    cr_assert_eq(plan.training_threads, 192);
    cr_assert(farm_bitmap_has(&plan.training_cpus, plan.actor[0].cpu));
    for (int g = 0; g < 2; g++) cr_assert_eq(plan.training[g].threads, 96, "node %d", g);
    check_training("synchronous");
    request.learner_threads = 4;
    make_plan(request);
    cr_assert_eq(plan.training_threads, 4);
}

Test(topo, leaves_a_cores_siblings_to_the_user_of_the_core) {
    plan_on(AMD_12_L3_SMT, request_of(0, FARM_LEARNER_CPU));
    cr_assert_eq(plan.actor_count, 256);
    cr_assert_eq(plan.training_threads, 48);
    cr_assert_eq(farm_bitmap_count(&plan.training_cpus), 96);
    bool actor_on_core[192] = {0};
    for (int i = 0; i < plan.actor_count; i++) actor_on_core[core_of(plan.actor[i].cpu)] = true;
    for (int i = 0; i < machine.cpu_count; i++)
        if (farm_bitmap_has(&plan.training_cpus, machine.cpu[i].cpu)) cr_assert(!actor_on_core[machine.cpu[i].core]);
}

Test(topo, fills_physical_cores_before_their_siblings) {
    plan_on(TWO_SOCKETS, request_of(33, FARM_LEARNER_NONE));
    int on_core[32] = {0};
    for (int i = 0; i < 32; i++) on_core[core_of(plan.actor[i].cpu)]++;
    for (int core = 0; core < 32; core++) cr_assert_eq(on_core[core], 1, "core %d", core);
    cr_assert_eq(farm_machine_cpu(&machine, plan.actor[32].cpu)->smt, 1);
}

Test(topo, spreads_few_actors_over_the_l3_groups_of_one_node) {
    plan_on(AMD_12_L3, request_of(12, FARM_LEARNER_NONE));
    bool used[24] = {0};
    for (int i = 0; i < 12; i++) {
        const struct farm_cpu *cpu = farm_machine_cpu(&machine, plan.actor[i].cpu);
        cr_assert(!used[cpu->l3], "two actors in L3 group %d while others are empty", cpu->l3);
        cr_assert_eq(cpu->node, 0);
        used[cpu->l3] = true;
    }
}

Test(topo, puts_the_gpu_host_threads_beside_the_gpu) {
    read_machine((struct farm_machine_source){.xml = VECTORS "gpus_cxl_offline.xml"});
    make_plan(request_of(0, 1));
    cr_assert_eq(plan.learner_node, 1);
    const struct farm_bitmap *cpus = &plan.inference_cpus;
    for (int cpu = farm_bitmap_next(cpus, 0); cpu >= 0; cpu = farm_bitmap_next(cpus, cpu + 1))
        cr_assert_eq(node_of(cpu), 1, "CPU %d", cpu);
    cr_assert_eq(plan.actor_count, 5, "six CPUs are allowed, one is the host thread's");
    cr_assert(has_note("6 of 7 CPUs usable") && has_note("--bind-to none"), "%s", plan.note[0]);
    cr_assert_eq(plan.actor[0].memory_node, 1, "the first actors sit beside the GPU too");
    cr_assert(has_note("learner on GPU 1, its host threads on CPU 4"));
    expect_refusal(request_of(0, 2), FARM_E_USAGE, "2 NVIDIA GPUs");
}

Test(topo, notes_when_the_gpu_host_threads_cannot_be_beside_the_gpu) {
    read_machine((struct farm_machine_source){.xml = VECTORS "gpus_cxl_offline.xml"});
    struct farm_plan_request request = request_of(0, 0);
    for (int i = 0; i < machine.gpu_count; i++) machine.gpu[i].node = 2; // beside the node without CPUs
    make_plan(request);
    cr_assert(has_note("GPU 0 is beside node 2"));
    cr_assert_eq(node_of(farm_bitmap_next(&plan.inference_cpus, 0)), 1, "14 is nearer than 28");
    machine.gpu[0].node = -1;
    make_plan(request);
    cr_assert(has_note("the node beside GPU 0 is unknown"));
}

Test(topo, puts_segments_of_a_memoryless_node_on_the_nearest_node) {
    read_machine((struct farm_machine_source){.synthetic = TWO_SOCKETS, .root = VECTORS "memoryless_node1"});
    make_plan(request_of(0, FARM_LEARNER_CPU));
    int on_node1 = 0;
    for (int i = 0; i < plan.actor_count; i++) {
        on_node1 += plan.actor[i].cpu_node == 1;
        cr_assert_eq(plan.actor[i].memory_node, 0);
    }
    cr_assert_gt(on_node1, 0);
    cr_assert(has_note("node 1 has no memory"));
}

Test(topo, keeps_more_actors_than_cpus_on_their_nodes) {
    plan_on(TWO_SOCKETS, request_of(100, FARM_LEARNER_CPU));
    int on_node[2] = {0};
    for (int i = 0; i < plan.actor_count; i++) {
        cr_assert_eq(plan.actor[i].cpu, -1);
        on_node[plan.actor[i].memory_node]++;
        struct farm_bitmap cpus;
        farm_plan_actor_cpus(&machine, &plan, i, &cpus);
        cr_assert(!overlap(&cpus, &plan.training_cpus));
    }
    cr_assert(on_node[0] > 20 && on_node[1] > 20, "%d and %d", on_node[0], on_node[1]);
}

Test(topo, runs_unpinned_if_other_farms_hold_every_cpu) {
    read_synthetic(SIXTEEN_CORES);
    struct farm_plan_request request = request_of(0, FARM_LEARNER_CPU);
    request.taken = machine.allowed;
    make_plan(request);
    cr_assert(plan.actor_count > 0 && !plan.pinned && farm_bitmap_count(&plan.claim) == 0);
    cr_assert(has_note("other farms hold every CPU"));
}

Test(topo, pins_a_second_farm_onto_what_is_left) {
    plan_on(AMD_12_L3, request_of(60, FARM_LEARNER_CPU));
    struct farm_plan_request second = request_of(0, FARM_LEARNER_CPU);
    second.taken = plan.claim;
    int first = farm_bitmap_count(&plan.claim);
    make_plan(second);
    cr_assert(plan.pinned && !overlap(&plan.claim, &second.taken));
    cr_assert_eq(farm_bitmap_count(&plan.claim), 192 - first, "it has all the rest");
}

Test(topo, refuses_rings_above_the_control_groups_limit) {
    read_machine((struct farm_machine_source){.synthetic = SIXTEEN_CORES, .root = VECTORS "quota_v1"});
    struct farm_plan_request request = request_of(3, FARM_LEARNER_CPU);
    request.bytes_per_actor = UINT64_C(1) << 30; // 3 GiB are left below 4, a tenth of them is kept
    expect_refusal(request, FARM_E_LIMIT, "control group");
    request.actors = 2;
    make_plan(request);
}

// ---- several inference threads on CPUs ----

static int shards_on(int node) {
    int count = 0;
    for (int k = 0; k < plan.shard_count; k++) count += plan.shard_node[k] == node;
    return count;
}

Test(topo, infers_on_one_core_per_thread_beside_the_actors) {
    plan_on(AMD_12_L3_SMT, request_of(0, FARM_LEARNER_CPU));
    cr_assert_eq(plan.shard_count, 16);
    cr_assert(shards_on(0) == 8 && shards_on(1) == 8, "%d and %d", shards_on(0), shards_on(1));
    for (int k = 0; k < 16; k++) {
        const int first = farm_bitmap_next(&plan.shard_cpus[k], 0),
                  second = farm_bitmap_next(&plan.shard_cpus[k], first + 1);
        cr_assert_eq(farm_bitmap_count(&plan.shard_cpus[k]), 2);
        cr_assert_eq(core_of(first), core_of(second));
        cr_assert(k == 0 || plan.shard_node[k - 1] <= plan.shard_node[k], "shards of a node have neighbouring numbers");
    }
    cr_assert_eq(served_from_another_node(), 0, "%d actors", served_from_another_node());
    cr_assert(has_note("16 inference threads, one per core (8 on node 0, 8 on node 1); each serves 16 actors"), "%s",
              plan.note[1]);
}

Test(topo, serves_actors_of_their_node_before_others) {
    plan_on(FOUR_NODES_A_SOCKET, request_of(0, FARM_LEARNER_CPU));
    int wanted = 0; // actors that are more than their node's shards may serve
    for (int node = 0; node < 8; node++) {
        int here = 0;
        for (int i = 0; i < plan.actor_count; i++) here += plan.actor[i].memory_node == node;
        const int places = shards_on(node) * (plan.actor_count / plan.shard_count);
        wanted += here > places ? here - places : 0;
    }
    cr_assert_eq(plan.actor_count % plan.shard_count, 0);
    cr_assert_eq(served_from_another_node(), wanted);
}

// ---- several GPUs ----

// A machine of two sockets of eight cores with GPUs beside these nodes.
static void read_two_sockets(int gpu_count, const int *nodes) {
    read_synthetic("pack:2 [numa(memory=64GB)] l3:1 core:8 pu:1");
    machine.gpu_count = gpu_count;
    for (int g = 0; g < gpu_count; g++) machine.gpu[g].node = nodes[g];
}

Test(topo, serves_each_nodes_actors_by_the_gpu_beside_them) {
    read_two_sockets(2, (const int[]){0, 1});
    struct farm_plan_request request = request_of_gpus(0, 0);
    make_plan(request);
    check_pins("two GPUs", &request);
    cr_assert_eq(plan.actor_count, 12); // two cores infer, two train
    cr_assert(abs(served_by(0) - served_by(1)) <= 1, "%d and %d", served_by(0), served_by(1));
    for (int g = 0; g < 2; g++) {
        const int infers = farm_bitmap_next(&plan.shard_cpus[g], 0),
                  trains = farm_bitmap_next(&plan.shard_cpus[g], infers + 1);
        cr_assert_eq(farm_bitmap_count(&plan.shard_cpus[g]), 2);
        cr_assert(node_of(infers) == g && node_of(trains) == g, "CPUs %d and %d", infers, trains);
        cr_assert(farm_bitmap_has(&plan.inference_cpus, infers) && farm_bitmap_has(&plan.training_cpus, trains));
    }
    check_training("two GPUs");
    int away = 0;
    for (int i = 0; i < plan.actor_count; i++) away += plan.actor[i].shard != plan.actor[i].memory_node;
    cr_assert_leq(away, 1, "%d actors are served from the other socket", away);
    cr_assert(has_note("learner on GPUs 0-1"));
}

Test(topo, uses_the_gpus_from_the_first_one_on) {
    read_two_sockets(3, (const int[]){0, 1, 1});
    struct farm_plan_request request = request_of_gpus(4, 1);
    make_plan(request);
    for (int i = 0; i < 4; i++) cr_assert(plan.actor[i].shard == 0 || plan.actor[i].shard == 1);
    for (int g = 0; g < 2; g++) cr_assert_eq(node_of(farm_bitmap_next(&plan.shard_cpus[g], 0)), 1);
}

Test(topo, gives_a_bridge_a_core_beside_its_network_card) {
    read_synthetic(TWO_SOCKETS);
    struct farm_plan_request request = request_of(0, FARM_LEARNER_CPU);
    request.bridges = 1;
    for (request.bridge_node = 0; request.bridge_node < 2; request.bridge_node++) {
        make_plan(request);
        check_all("two sockets", &request);
        const int cpu = farm_bitmap_next(&plan.bridge_cpus, 0);
        cr_expect_eq(farm_bitmap_count(&plan.bridge_cpus), 2);
        cr_expect_eq(node_of(cpu), request.bridge_node);
        cr_expect(farm_bitmap_has(&plan.claim, cpu));
        cr_expect(!farm_bitmap_has(&plan.actor_cpus, cpu));
        cr_expect(!farm_bitmap_has(&plan.inference_cpus, cpu) && !farm_bitmap_has(&plan.training_cpus, cpu));
        cr_expect(has_note("bridge on CPUs"));
    }
}

Test(topo, plans_a_learner_without_actors_on_any_machine) {
    static const char *const machines[] = {"core:1 pu:1", TWO_CORES, "core:5 pu:1", SIXTEEN_CORES, TWO_SOCKETS};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++)
        for (int variant = 0; variant < 4; variant++) {
            struct farm_plan_request request = request_of(0, FARM_LEARNER_CPU);
            request.no_actors = true;
            request.remote_actors = 8;
            request.bridges = 1;
            request.numa = variant & 1;
            request.pin = variant & 2;
            read_synthetic(machines[i]);
            make_plan(request);
            cr_expect_eq(plan.actor_count, 0);
            cr_expect(plan.shard_count >= 1 && plan.training_threads >= 1, "%s", machines[i]);
            cr_expect_gt(farm_bitmap_count(&plan.inference_cpus), 0, "%s", machines[i]);
        }
}

Test(topo, feeds_more_training_threads_with_remote_actors) {
    read_synthetic(SIXTEEN_CORES);
    struct farm_plan_request request = request_of(4, FARM_LEARNER_CPU);
    make_plan(request);
    other = plan;
    request.remote_actors = 60;
    make_plan(request);
    cr_expect_eq(plan.actor_count, 4);
    cr_expect_gt(plan.training_threads, other.training_threads);
}

// A learner on GPUs that the machine does not show is planned as one on CPUs, with many cores for inference.
Test(topo, has_no_cores_beside_missing_gpus) {
    plan_on("pack:2 core:512 pu:1", request_of_gpus(0, FARM_LEARNER_CPU));
    cr_assert_eq(farm_bitmap_count(&plan.inference_cpus), 1024 / 3 / 4);
    cr_assert_eq(plan.shard_count, 2);
    cr_assert_eq(served_by(0) + served_by(1), plan.actor_count);
    cr_assert_leq(abs(served_by(0) - served_by(1)), 1);
    for (int g = 2; g < FARM_PLAN_SHARDS_MAX; g++) cr_assert_eq(farm_bitmap_count(&plan.shard_cpus[g]), 0, "GPU %d", g);
}

// SEED RL's largest run had 4,160 actors.
Test(topo, serves_thousands_of_actors_by_hundreds_of_inference_threads) {
    struct farm_plan_request request = request_of(4160, FARM_LEARNER_CPU);
    request.learner_shards = 300;
    plan_on("pack:4 [numa(memory=512GB)] core:256 pu:1", request);
    cr_expect(plan.actor_count == 4160 && plan.shard_count == 300 && !plan.pinned);
    for (int k = 0; k < 300; k++) cr_expect(served_by(k) == 13 || served_by(k) == 14, "%d: %d", k, served_by(k));
}

Test(topo, binds_no_thread_of_the_learner_if_nothing_is_pinned) {
    read_two_sockets(2, (const int[]){0, 1});
    struct farm_plan_request request = request_of_gpus(0, 0);
    request.pin = false;
    make_plan(request);
    for (int g = 0; g < 2; g++) cr_assert_eq(farm_bitmap_count(&plan.shard_cpus[g]), 0, "GPU %d", g);
    plan_on(AMD_12_L3, (struct farm_plan_request){.learner_device = FARM_LEARNER_CPU, .numa = true});
    cr_assert(plan.training_node_count == 1 && plan.training[0].node == -1 && plan.training[0].threads == 48);
}

Test(topo, refuses_missing_gpus_and_gpus_without_an_actor) {
    read_two_sockets(2, (const int[]){0, 1});
    expect_refusal(request_of_gpus(0, 1), FARM_E_USAGE, "--gpus 2");
    expect_refusal(request_of_gpus(1, 0), FARM_E_USAGE, "1 actor");
}
