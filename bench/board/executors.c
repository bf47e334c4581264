// See executors.h.
#include "executors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../tests/support/nets.h"
#include "base/time.h"
#include "board/board.h"
#include "kernels/random.h"
#include "nn/executor.h"

enum {
    SAMPLES = 31,
    ACTORS = 16,
    ROWS = 8,
    ROUNDS = 4,    // all actors, in a sample; the round before warms the caches
    SWITCHES = 64, // in a sample
    LOADS = 16,
    BINDS = 10000,
    PINS = 100000,
    PASSES = 2000, // forward, net mlp
    ACTIONS = 4,
};

// A network with two versions of its parameters.
struct model {
    struct farm_net net;
    struct farm_arithmetic arithmetic;
    float *params[2];
};

// An executor with its observations.
struct player {
    const struct farm_net *net;
    struct farm_executor *executor;
    const void *rows[ROWS * 4];
    float logits[ROWS * ACTIONS], value[ROWS], right[ROWS * ACTIONS];
};

static struct farm_error err;

static void make_model(struct model *model, const char *name) {
    const bool flat = strcmp(name, "mlp") == 0;
    const struct farm_net_io io = {.frame_channels = !flat,
                                   .height = flat ? 0 : 84,
                                   .width = flat ? 0 : 84,
                                   .stack = flat ? 1 : 4,
                                   .flat = flat ? 4 : 0,
                                   .actions = ACTIONS};
    const struct farm_arithmetic_request request = {.net = &model->net, .infer_rows = ROWS, .fixed = true};
    char text[FARM_ARITHMETIC_TEXT];
    must(farm_net_make(net_spec(name), &io, &model->net, &err), &err);
    must(farm_arithmetic_choose(&request, &model->arithmetic, text, &err), &err);
    for (uint64_t v = 0; v < 2; v++) {
        model->params[v] = malloc(model->net.parameter_count * sizeof(float));
        must_hold(model->params[v] != NULL, "memory");
        farm_net_init(&model->net, FARM_INIT_UNIFORM, v, model->params[v]);
    }
}

static void free_model(struct model *model) {
    free(model->params[0]);
    free(model->params[1]);
}

// Its input is noise, of which nothing is shared.
static void make_player(struct player *player, const struct model *model, uint64_t seed) {
    const struct farm_executor_config config = {
        .net = &model->net, .batch_max = ROWS, .arithmetic = &model->arithmetic};
    const size_t pointers = ROWS * (size_t)farm_net_pointers(&model->net), bytes = 84 * 84;
    float *input = malloc(pointers * bytes);
    must(farm_executor_create(&config, &player->executor, &err), &err);
    must_hold(input != NULL && pointers <= sizeof player->rows / sizeof *player->rows, "memory");
    for (size_t i = 0; i < pointers * bytes / sizeof *input; i++) input[i] = farm_random_uniform(seed, 0, i);
    for (size_t i = 0; i < pointers; i++) player->rows[i] = (const uint8_t *)input + i * bytes;
    player->net = &model->net;
    farm_executor_load(player->executor, model->params[0]);
}

static void free_player(struct player *player) {
    farm_executor_destroy(player->executor);
    free((void *)(uintptr_t)player->rows[0]);
}

static void forward(struct player *player, int rows) {
    farm_executor_forward(player->executor, player->rows, farm_sequence_rows(rows), player->logits, player->value);
}

static void check(const struct player *player, int rows) {
    must_hold(memcmp(player->logits, player->right, (size_t)(rows * player->net->io.actions) * sizeof(float)) == 0,
              "an answer of other weights");
}

// A board with both versions in buffers 0 and 1, packed.
static struct farm_board *make_board(const struct model *model, struct farm_executor *executor, const void *packed[2]) {
    const struct farm_board_request request = {.count = model->net.parameter_count,
                                               .packed_max = farm_executor_packed_bytes(executor),
                                               .buffers = FARM_BOARD_BUFFERS,
                                               .node = -1};
    struct farm_board *board;
    must(farm_board_create(&request, &board, &err), &err);
    for (int v = 0; v < 2; v++) {
        packed[v] = farm_board_packed(board, board->buffer[v]);
        farm_executor_pack(executor, model->params[v], farm_board_packed(board, board->buffer[v]));
    }
    return board;
}

// CPU seconds of a pass of each player, over ROUNDS.
static double play(struct player players[ACTORS]) {
    uint64_t start = 0;
    for (int round = -1; round < ROUNDS; round++) {
        if (round == 0) start = farm_thread_cpu_ns();
        for (int a = 0; a < ACTORS; a++) forward(&players[a], ROWS);
    }
    const uint64_t end = farm_thread_cpu_ns();
    for (int a = 0; a < ACTORS; a++) check(&players[a], ROWS);
    return 1e-9 * (double)(end - start) / ROUNDS / ACTORS;
}

static void read_in_place(struct farm_bench *bench) {
    static struct player players[ACTORS];
    double ours[SAMPLES], theirs[SAMPLES];
    struct model model;
    const void *packed[2];
    make_model(&model, "shallow");
    for (int a = 0; a < ACTORS; a++) {
        make_player(&players[a], &model, (uint64_t)a);
        forward(&players[a], ROWS);
        memcpy(players[a].right, players[a].logits, sizeof players[a].right);
    }
    struct farm_board *board = make_board(&model, players[0].executor, packed);
    for (int s = 0; s < SAMPLES; s++) {
        for (int a = 0; a < ACTORS; a++) farm_executor_bind(players[a].executor, NULL);
        theirs[s] = 1e6 * play(players);
        for (int a = 0; a < ACTORS; a++) farm_executor_bind(players[a].executor, packed[0]);
        ours[s] = 1e6 * play(players);
    }
    farm_bench_add(bench, "read_in_place", "us", "lower", ours, SAMPLES, "16 private copies", theirs, SAMPLES, 0.8);
    for (int a = 0; a < ACTORS; a++) free_player(&players[a]);
    farm_board_free(board);
    free_model(&model);
}

// CPU seconds of a change of version: the call, and what the pass after it takes longer than one more pass, if it does.
static double change_version(struct player *player, const void *const packed[2]) {
    double longer = 0;
    for (int i = 0; i < SWITCHES; i++) {
        const uint64_t start = farm_thread_cpu_ns();
        forward(player, 1);
        const uint64_t again = farm_thread_cpu_ns();
        farm_executor_bind(player->executor, packed[(i + 1) % 2]);
        forward(player, 1);
        longer += (double)(farm_thread_cpu_ns() - again) - (double)(again - start);
    }
    check(player, 1); // version 0 is the last
    const uint64_t start = farm_thread_cpu_ns();
    for (int i = 0; i < BINDS; i++) farm_executor_bind(player->executor, packed[(i + 1) % 2]);
    return 1e-9 * (fmax(longer / SWITCHES, 0) + (double)(farm_thread_cpu_ns() - start) / BINDS);
}

static void switch_version(struct farm_bench *bench) {
    double ours[SAMPLES], theirs[SAMPLES];
    struct player player;
    struct model model;
    const void *packed[2];
    make_model(&model, "nature");
    make_player(&player, &model, 0);
    struct farm_board *board = make_board(&model, player.executor, packed);
    forward(&player, 1);
    memcpy(player.right, player.logits, sizeof player.right);
    for (int s = 0; s < SAMPLES; s++) {
        farm_executor_bind(player.executor, packed[0]);
        ours[s] = 1e6 * change_version(&player, packed);
        const uint64_t start = farm_thread_cpu_ns();
        for (int i = 0; i < LOADS; i++) farm_executor_load(player.executor, model.params[(i + 1) % 2]);
        theirs[s] = 1e-3 * (double)(farm_thread_cpu_ns() - start) / LOADS;
        forward(&player, 1);
        check(&player, 1);
    }
    farm_bench_add(bench, "switch_version", "us", "lower", ours, SAMPLES, "farm_executor_load", theirs, SAMPLES, 0.05);
    free_player(&player);
    farm_board_free(board);
    free_model(&model);
}

static void pin(struct farm_bench *bench) {
    double ours[SAMPLES], theirs[SAMPLES];
    static struct farm_board_reader reader;
    struct player player;
    struct model model;
    const void *packed[2];
    make_model(&model, "mlp");
    make_player(&player, &model, 0);
    struct farm_board *board = make_board(&model, player.executor, packed);
    must(farm_board_attach(board, &reader, NULL, &err), &err);
    farm_board_commit(board, 0, 5);
    for (int s = 0; s < SAMPLES; s++) {
        uint64_t start = farm_thread_cpu_ns(), version, sum = 0;
        for (int i = 0; i < PINS; i++) {
            must_hold(farm_board_pin(&reader, &version) == board->buffer[0], "another buffer");
            sum += version;
            farm_board_unpin(&reader);
        }
        ours[s] = (double)(farm_thread_cpu_ns() - start) / PINS;
        must_hold(sum == 5 * (uint64_t)PINS, "another version");
        start = farm_thread_cpu_ns();
        for (int i = 0; i < PASSES; i++) forward(&player, 1);
        theirs[s] = (double)(farm_thread_cpu_ns() - start) / PASSES;
    }
    farm_bench_add(bench, "pin", "ns", "lower", ours, SAMPLES, "forward pass of mlp, 1 row", theirs, SAMPLES, 0.01);
    free_player(&player);
    farm_board_free(board);
    free_model(&model);
}

void bench_executors(struct farm_bench *bench) {
    read_in_place(bench);
    switch_version(bench);
    pin(bench);
}
