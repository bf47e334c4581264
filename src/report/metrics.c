// See metrics.h.
#include "report/metrics.h"

#include <assert.h>
#include <math.h>
#include <string.h>

struct farm_totals farm_sample_session(const struct farm_sample *sample) {
    const struct farm_totals *total = &sample->total, *before = &sample->before;
    return (struct farm_totals){.wall_s = total->wall_s - before->wall_s,
                                .frames = total->frames - before->frames,
                                .agent_steps = total->agent_steps - before->agent_steps,
                                .updates = total->updates - before->updates,
                                .episodes = total->episodes - before->episodes};
}

// The list that farm_sample_figures fills.
struct list {
    struct farm_figure *figures;
    size_t count;
};

static void add(struct list *list, const char *group, const char *key, double value, bool whole) {
    assert(list->count < FARM_FIGURES_MAX);
    list->figures[list->count++] = (struct farm_figure){group, key, value, whole};
}
static void real(struct list *list, const char *group, const char *key, double value) {
    add(list, group, key, value, false);
}
static void count(struct list *list, const char *group, const char *key, uint64_t value) {
    add(list, group, key, (double)value, true);
}

static void add_resumed(struct list *list, const struct farm_sample *sample) {
    const struct farm_totals session = farm_sample_session(sample);
    const size_t first = list->count;
    real(list, "time", "resumed_wall_s", session.wall_s);
    count(list, "time", "resumed_frames", session.frames);
    count(list, "time", "resumed_agent_steps", session.agent_steps);
    count(list, "time", "resumed_episodes", session.episodes);
    count(list, "time", "resumed_updates", session.updates);
    for (size_t i = first; i < list->count && !sample->before.frames; i++) list->figures[i].value = (double)NAN;
}

size_t farm_sample_figures(const struct farm_sample *sample, struct farm_figure figures[FARM_FIGURES_MAX]) {
    struct list list = {figures, 0};
    const struct farm_totals *total = &sample->total;
    real(&list, "time", "wall_s", total->wall_s);
    count(&list, "time", "frames", total->frames);
    count(&list, "time", "agent_steps", total->agent_steps);
    real(&list, "speed", "frames_per_s", sample->frames_per_s);
    real(&list, "speed", "agent_steps_per_s", sample->agent_steps_per_s);
    count(&list, "episode", "episodes", total->episodes);
    real(&list, "episode", "return_mean", sample->return_mean);
    real(&list, "episode", "return_std", sample->return_std);
    real(&list, "episode", "length_mean_steps", sample->length_mean);
    count(&list, "train", "updates", total->updates);
    real(&list, "train", "policy_lag_updates", sample->policy_lag_updates);
    real(&list, "train", "parameters_age_s", sample->parameters_age_s);
    real(&list, "speed", "infer_batch_mean", sample->infer_batch_mean);
    real(&list, "speed", "actor_wait_share", sample->actor_wait_share);
    real(&list, "speed", "learner_wait_share", sample->learner_wait_share);
    for (int k = 0; k < FARM_SAMPLE_ALGO_MAX && sample->algo[k].key; k++)
        real(&list, "train", sample->algo[k].key, sample->algo[k].value);
    real(&list, "train", "grad_norm", sample->grad_norm);
    real(&list, "train", "learning_rate", sample->learning_rate);
    for (int k = 0; k < FARM_SAMPLE_REPLAY_MAX && sample->replay[k].key; k++)
        real(&list, "replay", sample->replay[k].key, sample->replay[k].value);
    real(&list, "eval", "eval_return_mean", sample->eval_return_mean);
    real(&list, "eval", "eval_return_std", sample->eval_return_std);
    add(&list, "eval", "eval_frames", sample->eval_frames ? (double)sample->eval_frames : (double)NAN, true);
    real(&list, "speed", "training_remote_share", sample->training_remote_share);
    real(&list, "speed", "bus_bytes_per_observation", sample->bus_bytes_per_observation);
    count(&list, "health", "actors", sample->actors);
    count(&list, "health", "actor_restarts", sample->actor_restarts);
    count(&list, "health", "learner_restarts", sample->learner_restarts);
    count(&list, "health", "checkpoints", sample->checkpoints);
    count(&list, "health", "bad_values", sample->bad_values);
    count(&list, "health", "rejected_steps", sample->rejected_steps);
    count(&list, "health", "windows_dropped", sample->windows_dropped);
    count(&list, "health", "versions_skipped", sample->versions_skipped);
    count(&list, "health", "actors_hung", sample->actors_hung);
    count(&list, "memory", "actor_memory_bytes_max", sample->actor_memory_bytes_max);
    count(&list, "memory", "actor_memory_bytes_sum", sample->actor_memory_bytes_sum);
    count(&list, "memory", "learner_memory_bytes", sample->learner_memory_bytes);
    add_resumed(&list, sample);
    return list.count;
}

json_t *farm_sample_json(const struct farm_sample *sample) {
    json_t *line = farm_json_object(false);
    struct farm_figure figures[FARM_FIGURES_MAX];
    const size_t figure_count = farm_sample_figures(sample, figures);
    for (const struct farm_figure *figure = figures; figure < figures + figure_count; figure++) {
        if (!sample->before.frames && strncmp(figure->key, "resumed_", 8) == 0) continue;
        if (figure->whole && isfinite(figure->value))
            farm_json_set_int(line, figure->key, (uint64_t)figure->value);
        else
            farm_json_set_real(line, figure->key, figure->value);
    }
    if (sample->listens) farm_json_set(line, "nodes", farm_sample_nodes_json(sample->nodes, sample->node_count));
    return line;
}

json_t *farm_sample_nodes_json(const struct farm_sample_node *nodes, uint32_t count) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < count; i++) {
        const struct farm_sample_node *node = &nodes[i];
        json_t *object = farm_json_object(false);
        farm_json_set_text(object, "name", node->name);
        farm_json_set_text(object, "key", node->key);
        farm_json_set_text(object, "state", node->away ? "away" : "connected");
        farm_json_set_int(object, "actors", node->actors);
        farm_json_set_int(object, "lanes", node->lanes);
        farm_json_set_real(object, "env_steps_per_s", node->env_steps_per_s);
        farm_json_set_real(object, "bytes_in_per_s", node->bytes_in_per_s);
        farm_json_set_real(object, "bytes_out_per_s", node->bytes_out_per_s);
        farm_json_set_int(object, "copied_bytes", node->copied_bytes);
        farm_json_set_real(object, "round_trip_ms", node->round_trip_ms);
        farm_json_set_int(object, "reconnects", node->reconnects);
        farm_json_set_real(object, "away_s", node->away_s);
        farm_json_append(list, object);
    }
    return list;
}
