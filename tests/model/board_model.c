// The parameter board under the model checker: one writer, and readers that read in place, over the real code of
// src/board/board.h. Each parameter is a variable, so races and torn versions are found.
#include "explore.h"

#include "board/board.h"

enum { READERS = 2, PARAMETERS = 2 };

struct setting {
    const char *name;
    uint32_t readers, buffers;
    uint64_t versions, reads; // published; by each reader
    unsigned crashes;
    bool reader_crashes, writer_crashes, extensive;
};

// clang-format off
static const struct setting SETTINGS[] = {
    {"one reader", 1, 3, 4, 2, .crashes = 0},
    {"reader killed", 1, 3, 3, 2, .crashes = 1, .reader_crashes = true},
    {"writer killed", 1, 3, 3, 2, .crashes = 1, .writer_crashes = true},
    {"two readers", 2, 4, 3, 1, .crashes = 0},
    {"two readers, a version may be skipped", 2, 3, 4, 1, .crashes = 0},
    {"two readers, both killed", 2, 4, 2, 1, .crashes = 2, .reader_crashes = true, .extensive = true},
    {"reader and writer killed", 1, 3, 3, 2, .crashes = 2, .reader_crashes = true, .writer_crashes = true, .extensive = true},
    {"two readers, twice", 2, 4, 3, 2, .crashes = 0, .extensive = true},
};
// clang-format on
static const struct setting *set;
static const bool clears_a_stopped_reader = false; // changed by a mutant

// Addresses only, the contents are the checker's.
static uint64_t parameters[READERS + 2][PARAMETERS];
static struct farm_board_reader readers[READERS];
static const uint32_t NUMBERS[READERS] = {0, 1};

static struct state {
    struct farm_board board;
    uint64_t newest_word; // for the invariant
} * state;

static void writer(void *context) {
    struct farm_board *board = &state->board;
    const uint64_t word = model_load(&board->newest, MODEL_ACQUIRE);
    for (uint64_t version = word >> 8; version < set->versions; version++) {
        const int b = farm_board_begin(board);
        model_check(b >= 0 || set->buffers < set->readers + 2, "a version is skipped");
        for (int i = 0; i < PARAMETERS && b >= 0; i++) {
            model_write(&parameters[b][i], version);
            model_yield();
        }
        if (b >= 0) farm_board_commit(board, b, version);
    }
}

static void reader(void *context) {
    struct farm_board_reader *own = &readers[*(const uint32_t *)context];
    uint64_t last = 0;
    for (uint64_t n = 0; n < set->reads; n++) {
        uint64_t version;
        const uint64_t *pinned = (const void *)farm_board_pin(own, &version);
        for (int i = 0; i < PARAMETERS && pinned; i++) {
            model_check(model_read(&pinned[i]) == version, "a version is torn or not the one that was pinned");
            model_yield();
        }
        model_check(!pinned || version >= last, "versions fall");
        last = pinned ? version : last;
        farm_board_unpin(own);
    }
}

// The supervisor has reaped the reader.
static void clear(void *context) {
    const uint32_t r = *(const uint32_t *)context;
    model_store_by(r, &readers[r].using, 0);
}

static void clear_stopped(void *context) {
    model_store(&readers[0].using, 0, MODEL_RELEASE);
}

static void set_up(void) {
    state = model_allocate(sizeof *state);
    struct farm_board *board = &state->board;
    board->buffers = set->buffers;
    board->readers = set->readers;
    model_word(&board->newest, "newest", 0, true);
    for (uint32_t b = 0; b < set->buffers; b++) {
        board->buffer[b] = (void *)parameters[b];
        for (int i = 0; i < PARAMETERS; i++) model_variable(&parameters[b][i], "a parameter", UINT64_MAX);
    }
    for (uint32_t r = 0; r < set->readers; r++) {
        readers[r].board = board;
        board->using[r] = &readers[r].using;
        model_word(&readers[r].using, "using", 0, !clears_a_stopped_reader);
        const unsigned process =
            model_process(r ? "reader 1" : "reader 0", set->reader_crashes, clear, (void *)&NUMBERS[r]);
        model_thread(process, r ? "reader 1" : "reader 0", reader, (void *)&NUMBERS[r]);
    }
    model_thread(model_process("the learner", set->writer_crashes, NULL, NULL), "writer", writer, NULL);
    if (clears_a_stopped_reader)
        model_thread(model_process("the supervisor", false, NULL, NULL), "supervisor", clear_stopped, NULL);
}

static void invariant(void) {
    const uint64_t word = model_newest(&state->board.newest);
    model_check(word == state->newest_word || word >> 8 > state->newest_word >> 8, "`newest` does not grow");
    state->newest_word = word;
}

static void end(void) {
    const bool skips = set->buffers < set->readers + 2;
    model_check(skips || model_newest(&state->board.newest) >> 8 == set->versions, "versions are missing");
}

static bool choose(unsigned i, struct model_scenario *scenario) {
    set = &SETTINGS[i];
    *scenario = (struct model_scenario){
        .name = set->name, .set_up = set_up, .invariant = invariant, .end = end, .crashes = set->crashes};
    return set->extensive;
}

int main(int argc, char **argv) {
    return model_main(argc, argv, sizeof SETTINGS / sizeof *SETTINGS, choose);
}
