// See player.h.
#include "run/player.h"

#include <stdlib.h>

#include "learner/boards.h"
#include "learner/inference.h"

struct player {
    struct farm_learner_parts parts; // first: make_answers gets its address
    bool greedy;
    struct farm_board *board; // on the CPU; else NULL
    struct farm_arithmetic arithmetic;
};

static enum farm_status make_policies(struct player *player, struct farm_error *err) {
    struct farm_learner_parts *parts = &player->parts;
    const struct farm_learner_config *learner = parts->config;
    const uint32_t rows = farm_algo_pass_units(&parts->plan, learner->algo.batch) * farm_algo_unit_rows(&parts->plan);
    struct farm_policy_config config = {.net = &parts->net,
                                        .head = parts->head,
                                        .arithmetic = &player->arithmetic,
                                        .rows_max = learner->inference.batch_max,
                                        .sampler = farm_learner_sampler(learner, player->greedy)};
    const struct farm_board_request board = {
        .count = parts->net.parameter_count, .buffers = parts->shards + 2, .node = learner->memory_node};
    enum farm_status status = farm_board_create(&board, &player->board, err);
    if (!status) status = farm_parts_choose_arithmetic(learner, &parts->net, 0, rows, &player->arithmetic, err);
    config.board = player->board;
    const uint32_t answering = learner->boards.count ? 0 : parts->shards; // or the actors answer
    for (uint32_t k = 0; k < answering && !status; k++) {
        config.cpus = parts->shards > 1 ? learner->shards[k].cpus : NULL;
        status = farm_policy_make(&config, &parts->policies[k], err);
    }
    return status;
}

// Policies; a GPU's inference is a backend that does not train.
static enum farm_status make_answers(struct farm_learner_parts *parts, struct farm_error *err) {
    struct player *player = (struct player *)parts;
    return parts->ops == &farm_backend_cpu ? make_policies(player, err)
                                           : farm_parts_make_backend(parts, 0, player->greedy, err);
}

// Publishes the checkpoint's parameters, or the seed's, which a backend has already.
static enum farm_status load_parameters(struct player *player, struct farm_error *err) {
    struct farm_learner_parts *parts = &player->parts;
    const struct farm_learner_config *config = parts->config;
    const int buffer = player->board ? farm_board_begin(player->board) : -1;
    struct farm_backend_state state;
    struct farm_checkpoint_metadata metadata;
    uint64_t version = 0;
    bool has_optimiser;
    if (player->board)
        state = farm_backend_state_of(player->board->buffer[buffer], NULL, NULL, 0, 0);
    else
        state = parts->ops->state(parts->backend);
    state.vector_count = 1;
    if (config->checkpoints.load) {
        const enum farm_status status = farm_parts_load(parts, &state, &has_optimiser, &metadata, err);
        if (status) return status;
        version = farm_checkpoint_get_u64(&metadata, "version");
        farm_checkpoint_metadata_free(&metadata);
    } else if (player->board) {
        farm_net_init(&parts->net, config->init, config->seed, state.vectors[0].values);
    }
    farm_parts_begin_version(parts, version);
    if (player->board) {
        farm_board_commit(player->board, buffer, parts->version);
        return farm_boards_open(parts, &player->arithmetic, state.vectors[0].values, err);
    }
    if (!parts->version && !config->checkpoints.load) return FARM_OK;
    return parts->ops->state_changed(parts->backend, parts->version, 0, err);
}

static enum farm_status start(struct player *player, const struct farm_run_play *play, struct farm_error *err) {
    struct farm_learner_parts *parts = &player->parts;
    const struct farm_learner_config *config = parts->config;
    if (!play->games) return farm_fail(err, FARM_E_INVALID, "evaluation of no episodes");
    if (config->rings.admission >= 0) return farm_fail(err, FARM_E_INVALID, "actors cannot join during evaluation");
    parts->plan = (struct farm_algo_plan){.shape = {.stride = 1, .length = 1, .stack = config->algo.stack}};
    player->greedy = play->greedy;
    enum farm_status status = farm_parts_open(parts, err);
    if (!status) status = farm_parts_choose_backend(parts, make_answers, err);
    if (!status) status = load_parameters(player, err);
    if (!status) status = farm_inference_make(parts, err);
    if (status) return status;
    farm_store_relaxed(&config->stats->frames,
                       farm_load_relaxed(&config->stats->agent_steps) * config->frames_per_step);
    farm_lanes_set_quota(&parts->lanes, play->games);
    return FARM_OK;
}

int farm_run_player(const struct farm_learner_config *config, const struct farm_run_play *play,
                    struct farm_error *err) {
    struct player *player = calloc(1, sizeof *player);
    if (!player) return farm_fail(err, FARM_E_LIMIT, "no memory for a player"), 1;
    struct farm_learner_parts *parts = &player->parts;
    parts->config = config;
    parts->stop = farm_parts_catch_signals();
    enum farm_status status = start(player, play, err);
    if (!status) status = farm_inference_run(parts, err);
    farm_inference_free(parts);
    farm_boards_close(parts);
    farm_parts_close(parts);
    farm_board_free(player->board);
    free(player);
    return status ? 1 : 0;
}
