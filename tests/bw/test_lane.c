// What lanes carry: placements of pairs on recorded machines; hops and rates on this one (short, so that only what must
// hold on a busy machine is asked), stops, and configs that make no sense.
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bw/lane.h"

static struct farm_error err;

static struct farm_machine machine;

static void read_machine(const char *synthetic) {
    const struct farm_machine_source source = {.synthetic = synthetic};
    cr_assert_eq(farm_machine_read(&machine, synthetic ? &source : &(struct farm_machine_source){0}, &err), FARM_OK,
                 "%s", err.message);
}

Test(bw, a_pair_for_each_nearness_that_the_machine_has) {
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    read_machine("pack:2 [numa(memory=1GB)] l3:2 core:2 pu:2");
    const size_t count = farm_bw_pairs_by_nearness(&machine, pairs);
    cr_assert_eq(count, 4);
    static const enum farm_bw_nearness wanted[] = {FARM_BW_SAME_CORE, FARM_BW_SAME_CACHE, FARM_BW_SAME_NODE,
                                                   FARM_BW_OTHER_SOCKET};
    for (size_t p = 0; p < count; p++) {
        const struct farm_cpu *actor = farm_machine_cpu(&machine, pairs[p].actor_cpu),
                              *learner = farm_machine_cpu(&machine, pairs[p].learner_cpu);
        cr_assert_eq(pairs[p].nearness, wanted[p]);
        cr_assert_neq(actor->cpu, learner->cpu);
        cr_assert_eq(pairs[p].node, actor->node, "the ring lies beside its actor");
        cr_assert_eq(actor->core == learner->core, wanted[p] == FARM_BW_SAME_CORE);
        cr_assert_eq(actor->socket != learner->socket, wanted[p] == FARM_BW_OTHER_SOCKET);
    }
}

Test(bw, only_cpus_that_this_process_may_use_are_paired) {
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    read_machine("pack:1 [numa(memory=1GB)] l3:1 core:4 pu:1");
    memset(&machine.allowed, 0, sizeof machine.allowed);
    farm_bitmap_set(&machine.allowed, 1);
    cr_assert_eq(farm_bw_pairs_by_nearness(&machine, pairs), 0, "one CPU makes no pair");
    cr_assert_eq(farm_bw_pairs_apart(&machine, pairs, FARM_BW_NEARNESSES), 0);
    farm_bitmap_set(&machine.allowed, 3);
    cr_assert_eq(farm_bw_pairs_by_nearness(&machine, pairs), 1);
    cr_assert(pairs[0].actor_cpu == 1 && pairs[0].learner_cpu == 3);
    cr_assert_eq(pairs[0].node, -1, "one node: anywhere");
}

Test(bw, pairs_apart_take_each_core_once) {
    struct farm_bw_pair pairs[16];
    uint64_t used = 0;
    read_machine("pack:2 [numa(memory=1GB)] l3:1 core:5 pu:2");
    const size_t count = farm_bw_pairs_apart(&machine, pairs, 16);
    cr_assert_eq(count, 5, "ten cores, %zu pairs", count);
    for (size_t p = 0; p < count; p++) {
        const int cores[2] = {farm_machine_cpu(&machine, pairs[p].actor_cpu)->core,
                              farm_machine_cpu(&machine, pairs[p].learner_cpu)->core};
        for (int i = 0; i < 2; i++) {
            cr_assert_not(used >> cores[i] & 1, "core %d has two sides", cores[i]);
            used |= 1ull << cores[i];
        }
    }
    cr_assert_eq(farm_bw_pairs_apart(&machine, pairs, 2), 2);
}

// ---- on this machine ----

static struct farm_bw_pair here;

static bool two_cpus(void) {
    struct farm_bw_pair pairs[FARM_BW_NEARNESSES];
    read_machine(NULL);
    if (!farm_bw_pairs_by_nearness(&machine, pairs)) return false;
    here = pairs[0];
    return true;
}

static bool no_children_left(void) {
    return waitpid(-1, NULL, WNOHANG) < 0;
}

Test(bw, hops_are_timed_one_by_one, .timeout = 60) {
    struct farm_bw_lane_hop hop;
    const struct farm_bw_setup setup = {.seconds = 0.06, .samples = 3};
    if (!two_cpus()) cr_skip_test("this process may use one CPU");
    for (int wait = FARM_WAIT_SPIN; wait <= FARM_WAIT_SLEEP; wait++) {
        const struct farm_bw_lane_config config = {.pairs = &here, .pair_count = 1, .wait = (enum farm_wait_mode)wait};
        cr_assert_eq(farm_bw_lane_hop(&setup, &config, &hop, &err), FARM_OK, "%s", err.message);
        cr_assert_eq(hop.p50_ns.samples, 3);
        cr_assert_geq(hop.trips, 3);
        cr_assert(hop.p50_ns.median > 5 && hop.p50_ns.median <= hop.p99_ns.median, "%g", hop.p50_ns.median);
        cr_assert_leq(hop.p99_ns.median, hop.p999_ns.median);
        cr_assert(!hop.conditions.verified, "a hop moves no payload");
        cr_assert(!hop.conditions.stopped);
        cr_assert_eq(hop.conditions.pinned, !strstr(hop.conditions.note, "pinned"), "%s", hop.conditions.note);
    }
    cr_assert(no_children_left());
}

Test(bw, rates_count_every_payload_once, .timeout = 60) {
    static const uint32_t sizes[] = {16, 28224, 1 << 20};
    const struct farm_bw_setup setup = {.seconds = 0.06, .samples = 3};
    struct farm_bw_lane_rate rate;
    if (!two_cpus()) cr_skip_test("this process may use one CPU");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int wait = FARM_WAIT_SPIN; wait <= FARM_WAIT_SLEEP; wait++) {
            const struct farm_bw_lane_config config = {
                .pairs = &here, .pair_count = 1, .wait = (enum farm_wait_mode)wait, .payload_bytes = sizes[s]};
            cr_assert_eq(farm_bw_lane_rate(&setup, &config, &rate, &err), FARM_OK, "%s", err.message);
            cr_assert_eq(rate.steps_per_s.samples, 3);
            cr_assert_gt(rate.cpu_s_per_step, 0);
            cr_assert_float_eq(rate.payload_per_s.most, rate.steps_per_s.most * sizes[s], 1);
            cr_assert_geq(rate.ring_bytes, 4ull * sizes[s] * 2);
            cr_assert_leq(rate.ring_bytes, 16u << 20);
        }
    cr_assert(no_children_left());
}

struct watch {
    int asked, stop_at;
    bool kill;
};

// Kills one of the sides, or says stop.
static bool stop(void *context) {
    struct watch *watch = context;
    char path[64], text[256] = "";
    if (++watch->asked < watch->stop_at) return false;
    if (!watch->kill) return true;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", getpid(), getpid());
    FILE *file = fopen(path, "r");
    if (file && fgets(text, sizeof text, file)) kill((pid_t)strtol(text, NULL, 10), SIGKILL);
    if (file) fclose(file);
    return false;
}

Test(bw, a_stopped_rate_ends_at_once_and_says_so, .timeout = 60) {
    struct watch watch = {.stop_at = 6};
    const struct farm_bw_control control = {.stop = stop, .context = &watch};
    const struct farm_bw_setup setup = {.control = &control, .seconds = 3600, .samples = 4};
    const struct farm_bw_lane_config config = {.pairs = &here, .pair_count = 1, .payload_bytes = 64};
    struct farm_bw_lane_rate rate;
    if (!two_cpus()) cr_skip_test("this process may use one CPU");
    cr_assert_eq(farm_bw_lane_rate(&setup, &config, &rate, &err), FARM_OK, "%s", err.message);
    cr_assert(rate.conditions.stopped);
    cr_assert_eq(rate.steps_per_s.samples, 0);
    cr_assert(no_children_left());
}

Test(bw, a_side_that_dies_is_said_and_leaves_nothing_behind, .timeout = 60) {
    struct watch watch = {.stop_at = 6, .kill = true};
    const struct farm_bw_control control = {.stop = stop, .context = &watch};
    const struct farm_bw_setup setup = {.control = &control, .seconds = 3600};
    const struct farm_bw_lane_config config = {.pairs = &here, .pair_count = 1, .payload_bytes = 64};
    struct farm_bw_lane_rate rate;
    if (!two_cpus()) cr_skip_test("this process may use one CPU");
    if (access("/proc/self/task", F_OK)) cr_skip_test("no /proc");
    cr_assert_eq(farm_bw_lane_rate(&setup, &config, &rate, &err), FARM_E_DEAD);
    cr_assert(no_children_left());
}

Test(bw, refuses_configs_that_make_no_sense) {
    struct farm_bw_lane_rate rate;
    const struct farm_bw_pair pair = {.learner_cpu = 1, .node = -1}, *pairs = &pair;
    const struct farm_bw_lane_config configs[] = {
        {.pair_count = 0, .payload_bytes = 64},
        {.pairs = pairs, .pair_count = 1, .payload_bytes = 8},
        {.pairs = pairs, .pair_count = 1, .payload_bytes = 30},
        {.pairs = pairs, .pair_count = 1, .payload_bytes = FARM_BW_LANE_PAYLOAD_MAX + 8},
    };
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++)
        cr_assert_eq(farm_bw_lane_rate(&(struct farm_bw_setup){0}, &configs[i], &rate, &err), FARM_E_INVALID);
    const struct farm_bw_setup many = {.samples = FARM_BW_SAMPLES_MAX + 1};
    cr_assert_eq(farm_bw_lane_rate(&many,
                                   &(struct farm_bw_lane_config){.pairs = pairs, .pair_count = 1, .payload_bytes = 64},
                                   &rate, &err),
                 FARM_E_INVALID);
    cr_assert(no_children_left());
}

Test(bw, a_cpu_that_is_not_there_is_measured_unpinned_and_said, .timeout = 60) {
    const struct farm_bw_pair pair = {
        .actor_cpu = FARM_BITMAP_BITS - 1, .learner_cpu = FARM_BITMAP_BITS - 2, .node = -1};
    const struct farm_bw_setup setup = {.seconds = 0.05, .samples = 2};
    const struct farm_bw_lane_config config = {
        .pairs = &pair, .pair_count = 1, .payload_bytes = 64, .wait = FARM_WAIT_SLEEP};
    struct farm_bw_lane_rate rate;
    cr_assert_eq(farm_bw_lane_rate(&setup, &config, &rate, &err), FARM_OK, "%s", err.message);
    cr_assert_not(rate.conditions.pinned);
    cr_assert(strstr(rate.conditions.note, "pinned"), "%s", rate.conditions.note);
}
