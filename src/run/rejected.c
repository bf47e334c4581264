// See rejected.h.
#include "run/rejected.h"

#include <stdio.h>

#include "base/format.h"
#include "base/number.h"
#include "kernels/head.h"

enum { REJECTED_LEAST = 1000 };
static const uint64_t REJECTED_NS = 10000000000;

uint64_t farm_run_abandoned(const struct farm_run_change *change) {
    const struct farm_run_workers *workers = change->workers;
    uint64_t episodes = change->abandoned;
    for (uint32_t a = 0; a < workers->plan->places; a++)
        if (workers->actors[a].attached) episodes += farm_load_relaxed(&workers->rings->ring[a].up_control->abandoned);
    return episodes;
}

uint64_t farm_run_rejected_steps(const struct farm_run_change *change) {
    return farm_load_relaxed(&change->workers->rings->stats->rejected_steps) + farm_run_abandoned(change);
}

bool farm_run_rejected_all(struct farm_run_rejected *rejected, uint64_t now_ns, uint64_t valid, uint64_t steps) {
    if (!rejected->since_ns || valid != rejected->valid) {
        rejected->since_ns = now_ns;
        rejected->valid = valid;
        rejected->steps = steps;
    }
    return now_ns - rejected->since_ns >= REJECTED_NS && steps - rejected->steps >= REJECTED_LEAST;
}

static void describe_observation(const struct farm_field_spec *field, const struct farm_bad_value *first, double value,
                                 char *text, size_t bytes) {
    char range[48] = "";
    if (field->choices) snprintf(range, sizeof range, ", must be 0 to %u", field->choices - 1);
    snprintf(text, bytes, "observation '%s', element %llu: %.10g%s", field->name, (unsigned long long)first->element,
             value, range);
}

static bool is_mask(const struct farm_env_spec *env, uint64_t field) {
    int mask;
    return !farm_head_mask_field(env, &mask, NULL) && mask == (int)field;
}

// "reward nan (step 17 of actor 0, lane 1, environment 3)". False: only actors have found invalid values.
static bool describe_first(const struct farm_run_workers *workers, char *text, size_t bytes) {
    const struct farm_bad_value *first = &workers->rings->stats->first_bad;
    const struct farm_ring_spec *spec = &workers->plan->ring_spec;
    char what[FARM_FIELD_NAME_MAX + 128];
    if (farm_load_acquire(&first->known) != 2) return false;
    const double value = farm_stats_get(&first->value);
    if (first->field == FARM_BAD_REWARD)
        snprintf(what, sizeof what, "reward %g", value);
    else if (first->field == FARM_BAD_FLAGS)
        snprintf(what, sizeof what, "flags 0x%02x", (unsigned)value);
    else if (first->field < FARM_BAD_ANSWER && is_mask(&spec->env, first->field - FARM_BAD_OBS))
        snprintf(what, sizeof what,
                 "'" FARM_HEAD_MASK_NAME "' forbids every choice of action %llu before an episode's end",
                 (unsigned long long)first->element);
    else if (first->field < FARM_BAD_ANSWER)
        describe_observation(&spec->env.obs[first->field - FARM_BAD_OBS], first, value, what, sizeof what);
    else
        snprintf(what, sizeof what, "answer '%s'", spec->answer[first->field - FARM_BAD_ANSWER].name);
    snprintf(text, bytes, "%s (step %llu of actor %llu, lane %llu, environment %llu)", what,
             (unsigned long long)first->step, (unsigned long long)first->actor, (unsigned long long)first->lane,
             (unsigned long long)first->environment);
    return true;
}

static void report_first(struct farm_run_rejected *rejected, const struct farm_run_workers *workers) {
    char first[256];
    if (rejected->reported || !describe_first(workers, first, sizeof first)) return;
    rejected->reported = true;
    farm_run_warn(workers->caller,
                  "%s returns invalid values, first: %s. Such steps are rejected: not trained on and not among "
                  "agent_steps; rejected_steps counts them. Numbers must be finite and within +-%g (--bad-values fail "
                  "or reset treats them in the actor)",
                  workers->plan->env.name, first, (double)FARM_NUMBER_MAX);
}

static void fail(struct farm_run_change *change, const char *when, uint64_t steps) {
    const struct farm_run_plan *plan = change->workers->plan;
    char first[256];
    if (!describe_first(change->workers, first, sizeof first)) snprintf(first, sizeof first, "named above");
    snprintf(change->failure, sizeof change->failure,
             "%s: no valid step %s, %s rejected, first: %s. Rewards and observations must be finite and within +-%g: "
             "correct the environment; `farm doctor %.400s`, with the same --env.OPTIONs, finds such values",
             plan->env.name, when, farm_format_count((double)steps).text, first, (double)FARM_NUMBER_MAX,
             farm_format_word(plan->recipe.env).text);
}

static uint64_t valid_steps(const struct farm_run_change *change) {
    return farm_load_relaxed(&change->workers->rings->stats->agent_steps);
}

void farm_run_rejected_tick(struct farm_run_rejected *rejected, struct farm_run_change *change, uint64_t now_ns) {
    const uint64_t valid = valid_steps(change), steps = farm_run_rejected_steps(change), before = rejected->steps;
    if (steps) report_first(rejected, change->workers);
    if (farm_run_rejected_all(rejected, now_ns, valid, steps) && !change->failure[0])
        fail(change, "for 10 s", steps - before);
}

void farm_run_rejected_end(struct farm_run_rejected *rejected, struct farm_run_change *change) {
    const uint64_t steps = farm_run_rejected_steps(change);
    if (!steps) return;
    report_first(rejected, change->workers);
    if (!valid_steps(change) && !change->failure[0]) fail(change, "in the whole run", steps);
}
