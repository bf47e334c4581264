// See lanes.h.
#include "intake/lanes.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"

static bool is_open(const struct farm_ring *ring) {
    return ring->lanes != NULL;
}

static enum farm_status count_lanes(struct farm_lanes *lanes, const struct farm_ring_spec *model,
                                    struct farm_error *err) {
    uint32_t first = 0;
    while (first < lanes->ring_count && !is_open(&lanes->rings[first])) first++;
    if (first == lanes->ring_count && !model) return farm_fail(err, FARM_E_INVALID, "no actors");
    if (first < lanes->ring_count) model = &lanes->rings[first].spec;
    lanes->model = *model;
    for (uint32_t r = 0; r < lanes->ring_count; r++) {
        const bool there = is_open(&lanes->rings[r]);
        const struct farm_ring_spec *spec = there ? &lanes->rings[r].spec : model;
        if (spec->answers != model->answers || memcmp(spec->answer, model->answer, sizeof spec->answer) != 0 ||
            spec->env.obs_count != model->env.obs_count ||
            farm_field_bytes(&spec->env.obs[0]) != farm_field_bytes(&model->env.obs[0]))
            return farm_fail(err, FARM_E_INVALID, "actors %u and %u have different environments", first, r);
        lanes->first_lane[r] = lanes->lane_count;
        lanes->lane_count += spec->lanes;
        if (there) lanes->environments += (uint64_t)spec->lanes * spec->width;
        if (spec->width > lanes->width_max) lanes->width_max = spec->width;
    }
    lanes->lanes = calloc(lanes->lane_count, sizeof *lanes->lanes);
    return lanes->lanes ? FARM_OK : farm_fail(err, FARM_E_LIMIT, "no memory for %u lanes", lanes->lane_count);
}

static enum farm_status make_lane(struct farm_intake_lane *lane, struct farm_ring *ring, uint32_t l, uint32_t id,
                                  const struct farm_window_shape *shape, struct farm_error *err) {
    *lane = (struct farm_intake_lane){.ring = ring, .id = id};
    enum farm_status status = farm_validator_open(ring, l, &lane->validator, err);
    if (status) return status;
    lane->lane = &lane->validator.checked;
    lane->answered = farm_lane_acted(lane->lane);
    // Steps that a dead process had taken in. Those before `consumed` may be half overwritten and are not read.
    for (uint64_t back = lane->answered < ring->spec.steps ? lane->answered : ring->spec.steps; back > 0; back--)
        (void)farm_validator_step(&lane->validator, lane->answered - back, UINT64_MAX);
    farm_window_cursor_start(lane->lane, shape, &lane->cursor);
    lane->games = calloc(ring->spec.width, sizeof *lane->games);
    if (!lane->games)
        return farm_fail(err, FARM_E_LIMIT, "no memory for the games of %u environments", ring->spec.width);
    uint64_t generation = farm_load_acquire(&lane->lane->down->generation);
    for (uint32_t e = 0; e < ring->spec.width; e++) {
        // Between two lives of one game, or between two games? The newest step shows it.
        unsigned before = lane->answered ? farm_lane_flags(lane->lane, lane->answered - 1)[e] : FARM_STEP_ALL;
        lane->games[e].known = (before & FARM_STEP_GAME_END) != 0;
        lane->games[e].ended_last = lane->answered && before & FARM_STEP_LAST;
        lane->games[e].generation = generation;
    }
    return FARM_OK;
}

static enum farm_status make_lanes(struct farm_lanes *lanes, uint32_t r, const struct farm_window_shape *shape,
                                   struct farm_error *err) {
    enum farm_status status = FARM_OK;
    for (uint32_t l = 0; l < lanes->rings[r].spec.lanes && !status; l++) {
        const uint32_t id = lanes->first_lane[r] + l;
        status = make_lane(&lanes->lanes[id], &lanes->rings[r], l, id, shape, err);
    }
    return status;
}

static void check_header(const struct farm_ring *ring) {
    const struct farm_segment_header *header = ring->up.header;
    if (header->layout_hash != ring->layout.hash || memcmp(header->user, &ring->spec, sizeof ring->spec) != 0)
        farm_log_warn("actor %u has written over its segment's header: the shape of its lanes is taken from the "
                      "learner's side",
                      ring->down.header->owner);
}

enum farm_status farm_lanes_open(const int (*fds)[2], uint32_t ring_count, const struct farm_window_shape *shape,
                                 const struct farm_ring_spec *model, struct farm_lanes *lanes, struct farm_error *err) {
    *lanes = (struct farm_lanes){.lock = PTHREAD_MUTEX_INITIALIZER};
    if (!ring_count) return farm_fail(err, FARM_E_INVALID, "no actors");
    lanes->rings = calloc(ring_count, sizeof *lanes->rings);
    lanes->first_lane = calloc(ring_count, sizeof *lanes->first_lane);
    lanes->up_writable = calloc(ring_count, sizeof *lanes->up_writable);
    enum farm_status status = FARM_OK;
    if (!lanes->rings || !lanes->first_lane || !lanes->up_writable)
        status = farm_fail(err, FARM_E_LIMIT, "no memory for %u actors", ring_count);
    else
        lanes->ring_count = ring_count;
    for (uint32_t r = 0; r < lanes->ring_count; r++) lanes->up_writable[r] = -1;
    for (uint32_t r = 0; r < ring_count && !status; r++) {
        if (fds[r][0] < 0) continue;
        status = farm_ring_open(fds[r][0], fds[r][1], FARM_RING_LEARNER, &lanes->rings[r], err);
        if (!status) check_header(&lanes->rings[r]);
    }
    if (!status) status = count_lanes(lanes, model, err);
    for (uint32_t r = 0; r < ring_count && !status; r++)
        if (is_open(&lanes->rings[r])) status = make_lanes(lanes, r, shape, err);
    if (status) farm_lanes_close(lanes);
    return status;
}

enum farm_status farm_lanes_join(struct farm_lanes *lanes, uint32_t r, const int fds[2], uint32_t shard,
                                 const struct farm_window_shape *shape, struct farm_error *err) {
    enum farm_status status = FARM_OK;
    if (r >= lanes->ring_count || farm_lanes_has(lanes, r))
        status = farm_fail(err, FARM_E_INVALID, "there is no vacant place %u", r);
    if (!status) status = farm_ring_open(fds[0], fds[1], FARM_RING_LEARNER, &lanes->rings[r], err);
    if (status) {
        close(fds[0]);
        close(fds[1]);
        return status;
    }
    if (memcmp(&lanes->rings[r].spec, &lanes->model, sizeof lanes->model) != 0)
        status = farm_fail(err, FARM_E_INVALID, "actor %u has lanes of another shape than the others", r);
    if (!status) status = make_lanes(lanes, r, shape, err);
    for (uint32_t l = 0; l < lanes->model.lanes && !status; l++) lanes->lanes[lanes->first_lane[r] + l].shard = shard;
    if (status) farm_lanes_leave(lanes, r);
    return status;
}

void farm_lanes_leave(struct farm_lanes *lanes, uint32_t r) {
    struct farm_ring *ring = &lanes->rings[r];
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        struct farm_intake_lane *lane = &lanes->lanes[lanes->first_lane[r] + l];
        farm_validator_close(&lane->validator);
        free(lane->games);
        *lane = (struct farm_intake_lane){0};
    }
    farm_lanes_set_wake(lanes, r, -1);
    farm_ring_close(ring);
}

void farm_lanes_set_wake(struct farm_lanes *lanes, uint32_t ring, int eventfd) {
    if (lanes->rings[ring].wake_fd >= 0) close(lanes->rings[ring].wake_fd);
    lanes->rings[ring].wake_fd = eventfd;
}

void farm_lanes_lend_writable(struct farm_lanes *lanes, uint32_t ring, int fd) {
    if (lanes->up_writable[ring] >= 0) close(lanes->up_writable[ring]);
    lanes->up_writable[ring] = fd;
}

void farm_lanes_end_writable(struct farm_lanes *lanes) {
    for (uint32_t r = 0; r < lanes->ring_count; r++) farm_lanes_lend_writable(lanes, r, -1);
}

void farm_lanes_close(struct farm_lanes *lanes) {
    farm_lanes_end_writable(lanes);
    for (uint32_t r = 0; r < lanes->ring_count; r++) {
        if (!is_open(&lanes->rings[r])) continue;
        if (lanes->lanes)
            farm_lanes_leave(lanes, r);
        else
            farm_ring_close(&lanes->rings[r]);
    }
    free(lanes->lanes);
    free(lanes->rings);
    free(lanes->first_lane);
    free(lanes->up_writable);
    *lanes = (struct farm_lanes){0};
}

void farm_lanes_divide(struct farm_lanes *lanes, const uint32_t *ring_shard) {
    for (uint32_t i = 0; i < lanes->lane_count; i++)
        if (lanes->lanes[i].lane) lanes->lanes[i].shard = ring_shard[lanes->lanes[i].ring - lanes->rings];
}

void farm_lanes_set_quota(struct farm_lanes *lanes, uint64_t games) {
    uint64_t g = 0;
    lanes->quota = games;
    for (uint32_t i = 0; i < lanes->lane_count; i++)
        for (uint32_t e = 0; lanes->lanes[i].lane && e < lanes->lanes[i].lane->width; e++, g++)
            lanes->lanes[i].games[e].left = (uint32_t)(games / lanes->environments + (g < games % lanes->environments));
}

static void add_game(struct farm_game_sums *sums, double value, double length) {
    sums->count++;
    sums->returns += value;
    sums->squares += value * value;
    sums->lengths += length;
}

static struct farm_game_sums sum_last_games(const struct farm_stats *stats, uint64_t games) {
    struct farm_game_sums sums = {0};
    for (uint64_t i = 0; i < games && i < FARM_STATS_RETURNS; i++)
        add_game(&sums, farm_stats_get(&stats->returns[i]), (double)farm_load_relaxed(&stats->lengths[i]));
    return sums;
}

static void set_means(struct farm_stats *stats, const struct farm_game_sums *sums) {
    const double mean = sums->returns / sums->count;
    farm_stats_set(&stats->return_mean, mean);
    farm_stats_set(&stats->return_std, sqrt(fmax(0, sums->squares / sums->count - mean * mean)));
    farm_stats_set(&stats->length_mean, sums->lengths / sums->count);
}

static void put_game(struct farm_stats *stats, double value, uint64_t length) {
    const uint64_t games = farm_load_relaxed(&stats->games), at = games % FARM_STATS_RETURNS;
    farm_stats_set(&stats->returns[at], value);
    farm_store_relaxed(&stats->lengths[at], length);
    farm_store_relaxed(&stats->games, games + 1);
}

// Means are over the last games, or over all games of the quota.
static void count_game(struct farm_lanes *lanes, const struct farm_game *game, struct farm_stats *stats) {
    pthread_mutex_lock(&lanes->lock);
    put_game(stats, game->reward_sum, game->steps);
    add_game(&lanes->all_games, game->reward_sum, game->steps);
    const struct farm_game_sums sums =
        lanes->quota ? lanes->all_games : sum_last_games(stats, farm_load_relaxed(&stats->games));
    set_means(stats, &sums);
    farm_stats_add(&stats->episodes, 1);
    pthread_mutex_unlock(&lanes->lock);
}

void farm_lanes_write_games(const struct farm_stats *stats, char text[FARM_LANES_GAMES_BYTES]) {
    const uint64_t games = farm_load_relaxed(&stats->games);
    size_t used = 0;
    text[0] = 0;
    for (uint64_t i = games < FARM_STATS_RETURNS ? 0 : games - FARM_STATS_RETURNS; i < games; i++) {
        const uint64_t at = i % FARM_STATS_RETURNS;
        used += (size_t)snprintf(text + used, FARM_LANES_GAMES_BYTES - used, "%s%.17g %" PRIu64, used ? " " : "",
                                 farm_stats_get(&stats->returns[at]), farm_load_relaxed(&stats->lengths[at]));
    }
}

void farm_lanes_read_games(struct farm_stats *stats, const char *text) {
    double value;
    uint64_t length;
    farm_store_relaxed(&stats->games, 0);
    for (int used; sscanf(text, "%lf %" SCNu64 "%n", &value, &length, &used) == 2; text += used)
        put_game(stats, value, length);
    const struct farm_game_sums sums = sum_last_games(stats, farm_load_relaxed(&stats->games));
    if (sums.count > 0) set_means(stats, &sums);
}

static void end_game(struct farm_lanes *lanes, struct farm_game *game, struct farm_stats *stats) {
    if (game->known && (!lanes->quota || game->left > 0)) {
        if (lanes->quota) game->left--;
        count_game(lanes, game, stats);
    }
    game->reward_sum = 0;
    game->steps = 0;
    game->known = true;
}

static void warn_of_counter(struct farm_intake_lane *lane, uint64_t produced, struct farm_stats *stats) {
    const uint64_t generation = farm_load_acquire(&lane->lane->down->generation);
    if (lane->warned == generation + 1) return;
    lane->warned = generation + 1;
    farm_stats_add(&stats->bad_values, 1);
    farm_log_warn("actor %u claims %" PRIu64 " published steps of lane %u, of which %" PRIu64
                  " are answered: counter ignored, lane suspended",
                  lane->ring->down.header->owner, produced, lane->id, lane->answered);
}

// CENTRAL: copies the recurrent state that the pass of step n receives to the field in which training finds it.
static void keep_state(const struct farm_lane *lane, uint64_t n) {
    const struct farm_answer_array *state = &lane->answer[lane->state];
    if (!lane->state || lane->local || n % state->every) return;
    memcpy(farm_lane_answer_at(lane, lane->state, n, 0), farm_lane_answer_at(lane, lane->state + 1, n, 0),
           lane->width * state->bytes);
    for (uint32_t e = 0; e < lane->width; e++)
        if (farm_lane_flags(lane, n)[e] & FARM_STEP_FIRST)
            memset(farm_lane_answer_at(lane, lane->state, n, e), 0, state->bytes);
}

bool farm_lanes_take_in(struct farm_intake_lane *lane, uint64_t newest, struct farm_stats *stats) {
    const uint64_t produced = farm_lane_produced(lane->lane), ahead = produced - lane->answered;
    const bool sound = ahead <= farm_lane_ahead_max(lane->lane);
    if (!sound) warn_of_counter(lane, produced, stats);
    // The acquire of `consumed` orders training's last reads of the slot before the answer that overwrites it.
    if (!sound || !ahead || produced - farm_lane_consumed(lane->lane) > lane->lane->steps) return false;
    lane->bad = farm_validator_step(&lane->validator, lane->answered, newest);
    if (lane->bad) farm_validator_report(&lane->validator, &stats->first_bad);
    keep_state(lane->lane, lane->answered);
    return true;
}

uint64_t farm_lanes_account(struct farm_lanes *lanes, struct farm_intake_lane *lane, struct farm_stats *stats) {
    const uint64_t n = lane->answered, generation = farm_load_acquire(&lane->lane->down->generation);
    const uint8_t *flags = farm_lane_flags(lane->lane, n);
    const float *reward = farm_lane_reward(lane->lane, n);
    uint64_t transitions = 0, rejected = 0;
    for (uint32_t e = 0; e < lane->lane->width; e++) {
        struct farm_game *game = &lane->games[e];
        const unsigned now = flags[e];
        if (now & FARM_STEP_SENSELESS) {
            rejected++;
            continue;
        }
        if (now & FARM_STEP_FIRST) {
            // The lane's first step, an abandoned episode, or a new actor after a life of the old one's game: the sum
            // is no return.
            if (!game->ended_last || game->generation != generation) {
                game->reward_sum = 0;
                game->steps = 0;
                game->known = game->known || n > 0;
                game->generation = generation;
            }
        } else {
            transitions++;
            game->steps++;
            game->reward_sum += (double)reward[e];
        }
        game->ended_last = (now & FARM_STEP_LAST) != 0;
        if (now & FARM_STEP_GAME_END) end_game(lanes, game, stats);
    }
    farm_stats_add(&stats->agent_steps, transitions);
    if (lane->bad) {
        farm_stats_add(&stats->bad_values, lane->bad);
        farm_stats_add(&stats->rejected_steps, rejected);
    }
    return transitions;
}
