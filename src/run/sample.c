// See sample.h.
#include "run/sample.h"

#include <math.h>
#include <string.h>

#include "base/statistics.h"
#include "run/settings.h"

static double ratio(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : (double)NAN;
}

static double share(uint64_t part_ns, uint64_t whole_ns) {
    double value = whole_ns ? (double)part_ns / (double)whole_ns : 0;
    return value < 1 ? value : 1;
}

enum { LEAVES_READ = 4096 };

// Leaves of at most LEAVES_READ windows that may be sampled, spread over all lanes, in ascending order. Returns their
// number.
static size_t read_leaves(const struct farm_run_workers *workers, double leaves[LEAVES_READ]) {
    const struct farm_run_plan *plan = workers->plan;
    const uint64_t each = (uint64_t)farm_leaf_slots(&plan->ring_spec) * plan->width,
                   step = 1 + each * plan->lanes * workers->count / LEAVES_READ;
    size_t count = 0;
    for (uint32_t i = 0; i < plan->places * plan->lanes; i++) {
        const struct farm_ring *ring = &workers->rings->ring[i / plan->lanes];
        for (uint64_t k = 0; ring->lanes && k < each && count < LEAVES_READ; k += step) {
            leaves[count] = (double)ring->lanes[i % plan->lanes].leaf[k];
            count += leaves[count] > 0;
        }
    }
    farm_sort(leaves, count);
    return count;
}

static void sample_replay(const struct farm_run_sampler *before, const struct farm_run_sampler *now, uint64_t passed,
                          struct farm_sample *sample) {
    const struct farm_run_workers *workers = now->events->workers;
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_stats *stats = workers->rings->stats;
    const double steps = (double)farm_load_relaxed(&stats->replay_live) * plan->passes.shape.stride;
    if (!plan->passes.replay) return;
    double leaves[LEAVES_READ];
    const size_t count = read_leaves(workers, leaves);
    const double power = 1 / plan->recipe.priority_exponent; // from a leaf to its priority
    const struct farm_sample_statistic figures[FARM_SAMPLE_REPLAY_MAX] = {
        {"replay_steps", NULL, steps},
        {"replay_share", "replay", steps / (double)plan->recipe.replay},
        {"replay_age_steps", "age", sample->policy_lag_updates * farm_run_steps_per_version(plan)},
        {"replay_samples_per_insert", NULL, ratio(now->sampled - before->sampled, now->inserted - before->inserted)},
        {"replay_actor_wait_share", "actors wait", share(now->replay_actor_ns - before->replay_actor_ns, passed)},
        {"replay_train_wait_share", "training", share(now->replay_train_ns - before->replay_train_ns, passed)},
        {"priority_p50", NULL, pow(farm_quantile(leaves, count, 0.5), power)},
        {"priority_p90", NULL, pow(farm_quantile(leaves, count, 0.9), power)},
        {"priority_highest", NULL, farm_stats_get(&stats->replay_highest)},
        {"replay_bad_priorities", NULL, (double)farm_load_relaxed(&stats->replay_bad_priorities)},
        {"replay_saved_bytes", NULL, (double)farm_load_relaxed(&stats->replay_saved_bytes)},
    };
    memcpy(sample->replay, figures, sizeof figures);
}

static void sample_rates(struct farm_run_sampler *sampler, uint64_t now_ns, struct farm_sample *sample) {
    const struct farm_run_workers *workers = sampler->events->workers;
    const struct farm_stats *stats = workers->rings->stats;
    const struct farm_run_sampler before = *sampler;
    const struct farm_run_sampler now = {
        .events = before.events,
        .time_ns = now_ns,
        .frames = sample->total.frames,
        .agent_steps = sample->total.agent_steps,
        .windows = farm_load_relaxed(&stats->windows),
        .infer_calls = farm_load_relaxed(&stats->infer_calls),
        .infer_rows = farm_load_relaxed(&stats->infer_rows),
        .lag_sum = farm_load_relaxed(&stats->lag_sum),
        .train_wait_ns = farm_load_relaxed(&stats->train_wait_ns),
        .actor_wait_ns = farm_load_relaxed(&stats->actor_wait_ns),
        .inserted = farm_load_relaxed(&stats->replay_inserted),
        .sampled = farm_load_relaxed(&stats->replay_sampled),
        .replay_train_ns = farm_load_relaxed(&stats->replay_train_wait_ns),
        .replay_actor_ns = farm_load_relaxed(&stats->replay_actor_wait_ns),
    };
    uint64_t passed = now_ns > before.time_ns ? now_ns - before.time_ns : 1;
    sample->frames_per_s = (double)(now.frames - before.frames) / ((double)passed * 1e-9);
    sample->agent_steps_per_s = (double)(now.agent_steps - before.agent_steps) / ((double)passed * 1e-9);
    sample->policy_lag_updates = ratio(now.lag_sum - before.lag_sum, now.windows - before.windows);
    sample->infer_batch_mean = ratio(now.infer_rows - before.infer_rows, now.infer_calls - before.infer_calls);
    sample->learner_wait_share = share(now.train_wait_ns - before.train_wait_ns, passed);
    sample->actor_wait_share =
        share(now.actor_wait_ns - before.actor_wait_ns, passed * workers->count * workers->plan->lanes);
    sample_replay(&before, &now, passed, sample);
    *sampler = now;
}

void farm_run_sample(struct farm_run_sampler *sampler, uint64_t now_ns, struct farm_sample *sample) {
    const struct farm_run_events *events = sampler->events;
    const struct farm_run_workers *workers = events->workers;
    const struct farm_run_plan *plan = workers->plan;
    const struct farm_stats *stats = workers->rings->stats;
    const struct farm_totals *before = &workers->learner.before;
    const uint64_t agent_steps = farm_load_relaxed(&stats->agent_steps), updates = farm_load_relaxed(&stats->updates),
                   episodes = farm_load_relaxed(&stats->episodes);
    *sample = (struct farm_sample){
        .total = {.wall_s = before->wall_s + farm_run_events_wall_s(events),
                  .frames = before->frames + agent_steps * plan->env.spec.frames_per_step,
                  .agent_steps = before->agent_steps + agent_steps,
                  .updates = before->updates + updates,
                  .episodes = before->episodes + episodes},
        .before = *before,
        .windows_dropped = farm_load_relaxed(&stats->windows_dropped),
        .parameters_age_s = farm_run_watch_parameters(events->watch, now_ns),
        .frames_target = (uint64_t)plan->recipe.frames,
        .seconds_target = plan->recipe.seconds,
        .actors = workers->count,
        .actor_restarts = events->change->restarts,
        .learner_restarts = events->watch->learners->restarts,
        .checkpoints = farm_load_relaxed(&stats->checkpoints),
        .bad_values = farm_load_relaxed(&stats->bad_values) + farm_run_abandoned(events->change),
        .rejected_steps = farm_run_rejected_steps(events->change),
        .actors_hung = events->watch->hung,
        .learner_stopped = farm_run_watch_learner_stopped(events->watch),
        .actor_memory_bytes_max = events->watch->actor_bytes_max,
        .actor_memory_bytes_sum = events->watch->actor_bytes_sum,
        .learner_memory_bytes = events->watch->learner_bytes,
    };
    const struct farm_run_evaluation *evaluation = events->evaluation;
    sample->eval_frames = evaluation->frames;
    sample->eval_return_mean = evaluation->frames ? evaluation->return_mean : (double)NAN;
    sample->eval_return_std = evaluation->frames ? evaluation->return_std : (double)NAN;
    const uint64_t crossed = farm_load_relaxed(&stats->bus_infer_bytes) + farm_load_relaxed(&stats->bus_train_bytes);
    sample->bus_bytes_per_observation = crossed ? ratio(crossed, farm_load_relaxed(&stats->infer_rows)) : (double)NAN;
    const uint64_t far = farm_load_relaxed(&stats->trained_far);
    sample->training_remote_share = ratio(far, far + farm_load_relaxed(&stats->trained_near));
    const struct farm_run_sessions *sessions = events->sessions;
    sample->listens = sessions->bridges->count > 0;
    sample->nodes = sessions->nodes;
    sample->node_count = sessions->node_count;
    sample->nodes_away = sessions->away;
    for (uint32_t b = 0; b < workers->rings->board_count; b++)
        sample->versions_skipped += farm_load_relaxed(&workers->rings->boards[b]->head->skipped);
    for (uint32_t a = 0; a < plan->places; a++)
        sample->actors_stuck += workers->actors[a].attached && events->watch->actors[a].state != FARM_WATCH_WELL;
    double nothing = (double)NAN;
    const bool games = farm_load_relaxed(&stats->games) > 0;
    sample->return_mean = games ? farm_stats_get(&stats->return_mean) : nothing;
    sample->return_std = games ? farm_stats_get(&stats->return_std) : nothing;
    double length = farm_stats_get(&stats->length_mean);
    sample->length_mean = length > 0 ? length : nothing;
    const struct farm_algo *algo = plan->algo.algo;
    for (int k = 0; k < FARM_SAMPLE_ALGO_MAX && algo->statistics[k].key; k++)
        sample->algo[k] = (struct farm_sample_statistic){algo->statistics[k].key, algo->statistics[k].word,
                                                         updates ? farm_stats_get(&stats->algo[k]) : nothing};
    sample->grad_norm = updates ? farm_stats_get(&stats->grad_norm) : nothing;
    sample->learning_rate = updates ? farm_stats_get(&stats->learning_rate) : nothing;
    sample_rates(sampler, now_ns, sample);
}
