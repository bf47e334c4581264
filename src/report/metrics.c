// See metrics.h.
#include "report/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

struct farm_totals farm_sample_session(const struct farm_sample *sample) {
    const struct farm_totals *total = &sample->total, *before = &sample->before;
    return (struct farm_totals){.wall_s = total->wall_s - before->wall_s,
                                .frames = total->frames - before->frames,
                                .agent_steps = total->agent_steps - before->agent_steps,
                                .updates = total->updates - before->updates,
                                .episodes = total->episodes - before->episodes};
}

json_t *farm_sample_json(const struct farm_sample *sample) {
    json_t *line = farm_json_object(false);
    const struct farm_totals *total = &sample->total, session = farm_sample_session(sample);
    farm_json_set_real(line, "wall_s", total->wall_s);
    farm_json_set_int(line, "frames", total->frames);
    farm_json_set_int(line, "agent_steps", total->agent_steps);
    farm_json_set_real(line, "frames_per_s", sample->frames_per_s);
    farm_json_set_real(line, "agent_steps_per_s", sample->agent_steps_per_s);
    farm_json_set_int(line, "episodes", total->episodes);
    farm_json_set_real(line, "return_mean", sample->return_mean);
    farm_json_set_real(line, "return_std", sample->return_std);
    farm_json_set_real(line, "length_mean_steps", sample->length_mean);
    farm_json_set_int(line, "updates", total->updates);
    farm_json_set_real(line, "policy_lag_updates", sample->policy_lag_updates);
    farm_json_set_real(line, "infer_batch_mean", sample->infer_batch_mean);
    farm_json_set_real(line, "actor_wait_share", sample->actor_wait_share);
    farm_json_set_real(line, "learner_wait_share", sample->learner_wait_share);
    for (int k = 0; k < FARM_SAMPLE_ALGO_MAX && sample->algo[k].key; k++)
        farm_json_set_real(line, sample->algo[k].key, sample->algo[k].value);
    farm_json_set_real(line, "grad_norm", sample->grad_norm);
    farm_json_set_real(line, "learning_rate", sample->learning_rate);
    farm_json_set_real(line, "eval_return_mean", sample->eval_return_mean);
    farm_json_set_real(line, "eval_return_std", sample->eval_return_std);
    farm_json_set(line, "eval_frames",
                  sample->eval_frames ? json_integer((json_int_t)sample->eval_frames) : json_null());
    farm_json_set_real(line, "bus_bytes_per_observation", sample->bus_bytes_per_observation);
    farm_json_set_int(line, "actors", sample->actors);
    farm_json_set_int(line, "actor_restarts", sample->actor_restarts);
    farm_json_set_int(line, "learner_restarts", sample->learner_restarts);
    farm_json_set_int(line, "checkpoints", sample->checkpoints);
    farm_json_set_int(line, "bad_values", sample->bad_values);
    farm_json_set_int(line, "rejected_steps", sample->rejected_steps);
    farm_json_set_int(line, "windows_dropped", sample->windows_dropped);
    farm_json_set_int(line, "actors_hung", sample->actors_hung);
    farm_json_set_int(line, "actor_memory_bytes_max", sample->actor_memory_bytes_max);
    farm_json_set_int(line, "actor_memory_bytes_sum", sample->actor_memory_bytes_sum);
    farm_json_set_int(line, "learner_memory_bytes", sample->learner_memory_bytes);
    if (sample->before.frames) {
        farm_json_set_real(line, "resumed_wall_s", session.wall_s);
        farm_json_set_int(line, "resumed_frames", session.frames);
        farm_json_set_int(line, "resumed_agent_steps", session.agent_steps);
        farm_json_set_int(line, "resumed_episodes", session.episodes);
        farm_json_set_int(line, "resumed_updates", session.updates);
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

// The length of the file up to and including its last newline; -1 with errno on errors.
static off_t length_of_lines(int fd) {
    off_t end = lseek(fd, 0, SEEK_END);
    while (end > 0) {
        char block[4096];
        size_t want = end < (off_t)sizeof block ? (size_t)end : sizeof block;
        ssize_t n = pread(fd, block, want, end - (off_t)want);
        if (n != (ssize_t)want) return -1;
        for (size_t i = want; i > 0; i--)
            if (block[i - 1] == '\n') return end - (off_t)(want - i);
        end -= (off_t)want;
    }
    return end;
}

enum farm_status farm_metrics_open(const char *path, bool resume, struct farm_metrics *out, struct farm_error *err) {
    out->fd = -1;
    snprintf(out->path, sizeof out->path, "%s", path);
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) return farm_fail_errno(err, FARM_E_IO, "%s", path);
    off_t keep = resume ? length_of_lines(fd) : 0;
    if (keep < 0 || ftruncate(fd, keep) < 0) {
        enum farm_status status = farm_fail_errno(err, FARM_E_IO, "%s", path);
        close(fd);
        return status;
    }
    out->fd = fd;
    return FARM_OK;
}

enum farm_status farm_metrics_write(struct farm_metrics *metrics, const struct farm_sample *sample,
                                    struct farm_error *err) {
    json_t *object = farm_sample_json(sample);
    size_t bytes;
    char *line = farm_json_line(object, &bytes);
    ssize_t n = write(metrics->fd, line, bytes);
    free(line);
    json_decref(object);
    if (n < 0) return farm_fail_errno(err, FARM_E_IO, "%s", metrics->path);
    if ((size_t)n < bytes)
        return farm_fail(err, FARM_E_IO, "%s: only a part of a line was written (disk full?)", metrics->path);
    return FARM_OK;
}

void farm_metrics_close(struct farm_metrics *metrics) {
    if (metrics->fd >= 0) close(metrics->fd);
    metrics->fd = -1;
}
