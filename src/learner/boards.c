// See boards.h.
#include "learner/boards.h"

#include <stdlib.h>

struct farm_boards {
    struct farm_board *board[FARM_POOL_GROUPS_MAX];
    uint32_t count;
    struct farm_arithmetic arithmetic; // the actors'
    struct farm_executor *executor;    // packs
};

static struct farm_board *board_of(const struct farm_learner_parts *parts, uint32_t ring) {
    const struct farm_boards *boards = parts->boards;
    return boards ? farm_board_near(boards->board, boards->count, &parts->lanes.rings[ring].down) : NULL;
}

enum farm_status farm_boards_watch(struct farm_learner_parts *parts, uint32_t ring, struct farm_error *err) {
    struct farm_board *board = board_of(parts, ring);
    return board ? farm_board_watch(board, &parts->lanes.rings[ring].up_control->using, err) : FARM_OK;
}

void farm_boards_unwatch(struct farm_learner_parts *parts, uint32_t ring) {
    struct farm_board *board = board_of(parts, ring);
    if (board) farm_board_unwatch(board, &parts->lanes.rings[ring].up_control->using);
}

void farm_boards_publish(struct farm_learner_parts *parts, const float *params, uint64_t version) {
    const struct farm_boards *boards = parts->boards;
    if (boards && !params) params = parts->ops->state(parts->backend).vectors[0].values;
    for (uint32_t b = 0; boards && b < boards->count; b++)
        (void)farm_board_publish(boards->board[b], params, version); // a board counts what it skips
}

static void pack(void *executor, const float *params, void *packed) {
    farm_executor_pack(executor, params, packed);
}

enum farm_status farm_boards_describe(struct farm_board *board, const char *text, struct farm_executor *executor,
                                      struct farm_error *err) {
    const size_t packed_bytes = farm_executor_packed_bytes(executor);
    if (packed_bytes <= board->packed_max) board->pack = pack;
    board->pack_context = executor;
    if (farm_board_describe(board, text, packed_bytes, farm_executor_packed_layout(executor))) return FARM_OK;
    return farm_fail(err, FARM_E_INVALID,
                     "the learner before this one described another policy to the actors: end the "
                     "run and --resume it");
}

enum farm_status farm_boards_text(const struct farm_learner_parts *parts, char text[FARM_POLICY_TEXT_BYTES],
                                  struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    const struct farm_arithmetic *arithmetic = parts->boards            ? &parts->boards->arithmetic
                                               : parts->ops->arithmetic ? parts->ops->arithmetic(parts->backend)
                                                                        : NULL,
                                 f32 = farm_arithmetic_uniform(&parts->net, FARM_PRECISION_F32, (struct farm_form){0});
    const struct farm_policy_description policy = {.net = parts->net,
                                                   .head = parts->head,
                                                   .head_options = config->head,
                                                   .arithmetic = arithmetic ? *arithmetic : f32,
                                                   .sampler = farm_learner_sampler(config, false),
                                                   .refresh = config->boards.refresh};
    return farm_policy_describe(&policy, &parts->lanes.model.env, text, err);
}

static enum farm_status describe(struct farm_learner_parts *parts, struct farm_board *board, struct farm_error *err) {
    char text[FARM_POLICY_TEXT_BYTES];
    const enum farm_status status = farm_boards_text(parts, text, err);
    return status ? status : farm_boards_describe(board, text, parts->boards->executor, err);
}

// Actors go on with the arithmetic that an earlier learner has described, even if this one has chosen another.
static void keep_arithmetic(struct farm_learner_parts *parts) {
    struct farm_board_description before;
    struct farm_policy_description policy;
    struct farm_error error;
    if (farm_board_described(parts->boards->board[0], &before) &&
        !farm_policy_understand(before.text, &parts->lanes.model.env, &policy, &error) && !policy.plain)
        parts->boards->arithmetic = policy.arithmetic;
}

static enum farm_status open_all(struct farm_learner_parts *parts, struct farm_error *err) {
    const struct farm_learner_config *config = parts->config;
    struct farm_boards *boards = parts->boards;
    enum farm_status status = FARM_OK;
    while (boards->count < config->boards.count && !status) {
        status = farm_board_open(config->boards.fds[boards->count], true, &boards->board[boards->count], err);
        boards->count += !status;
    }
    if (status) return status;
    keep_arithmetic(parts);
    const struct farm_executor_config executor = {
        .net = &parts->net, .batch_max = (int)config->inference.batch_max, .arithmetic = &boards->arithmetic};
    status = farm_executor_create(&executor, &boards->executor, err);
    for (uint32_t b = 0; b < boards->count && !status; b++) status = describe(parts, boards->board[b], err);
    for (uint32_t r = 0; r < parts->lanes.ring_count && !status; r++)
        if (farm_lanes_has(&parts->lanes, r)) status = farm_boards_watch(parts, r, err);
    return status;
}

enum farm_status farm_boards_open(struct farm_learner_parts *parts, const struct farm_arithmetic *arithmetic,
                                  const float *params, struct farm_error *err) {
    if (!parts->config->boards.count) return FARM_OK;
    parts->boards = calloc(1, sizeof *parts->boards);
    if (!parts->boards) return farm_fail(err, FARM_E_LIMIT, "no memory for the boards");
    if (!arithmetic && parts->ops->arithmetic) arithmetic = parts->ops->arithmetic(parts->backend);
    if (!arithmetic)
        return farm_fail(err, FARM_E_UNSUPPORTED, "backend %s does not serve actors that infer", parts->ops->name);
    parts->boards->arithmetic = *arithmetic;
    const enum farm_status status = open_all(parts, err);
    if (!status) farm_boards_publish(parts, params, parts->version);
    return status;
}

void farm_boards_close(struct farm_learner_parts *parts) {
    struct farm_boards *boards = parts->boards;
    if (!boards) return;
    for (uint32_t b = 0; b < boards->count; b++) farm_board_free(boards->board[b]);
    farm_executor_destroy(boards->executor);
    free(boards);
}
