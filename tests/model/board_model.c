// The parameter board under the model checker: one writer, readers that read in place, one that copies, over the real
// code of src/board/board.h. Each parameter is a variable, so races and torn versions are found; if a reader copies,
// which is a race by design, each is a word that is loaded and stored relaxed.
#include "explore.h"

#include "board/board.h"

enum { READERS = 2, PARAMETERS = 2 };

struct setting {
    const char *name;
    uint32_t readers, buffers;
    uint64_t versions, reads; // published; by each reader
    unsigned crashes;
    bool reader_crashes, writer_crashes, extensive;
    bool copies; // the only reader copies instead of announcing
    bool joins;  // the readers come while the writer publishes, which lets them act
};

// clang-format off
static const struct setting SETTINGS[] = {
    {"one reader", 1, 3, 4, 2, .crashes = 0},
    {"reader killed", 1, 3, 3, 2, .crashes = 1, .reader_crashes = true},
    {"writer killed", 1, 3, 3, 2, .crashes = 1, .writer_crashes = true},
    {"two readers", 2, 4, 3, 1, .crashes = 0},
    {"two readers, a version may be skipped", 2, 3, 4, 1, .crashes = 0},
    {"a reader joins", 1, 3, 5, 1, .joins = true},
    {"a reader copies", 1, 3, 3, 1, .copies = true},
    {"a reader copies, both killed", 1, 3, 3, 1, .crashes = 2, .reader_crashes = true, .writer_crashes = true, .copies = true},
    {"two readers, both killed", 2, 4, 2, 1, .crashes = 2, .reader_crashes = true, .extensive = true},
    {"reader and writer killed", 1, 3, 3, 2, .crashes = 2, .reader_crashes = true, .writer_crashes = true, .extensive = true},
    {"two readers, twice", 2, 4, 3, 2, .crashes = 0, .extensive = true},
};
// clang-format on
static const struct setting *set;
static const bool clears_a_stopped_reader = false, pins_before_it_is_watched = false; // changed by mutants

// Addresses only, the contents are the checker's.
static uint64_t parameters[READERS + 2][PARAMETERS], granted;
static struct farm_board_head head;
static struct farm_board_reader readers[READERS];
static const uint64_t *const announcements[READERS] = {&readers[0].own, &readers[1].own};
static const uint32_t NUMBERS[READERS] = {0, 1};

static struct state {
    struct farm_board board;
    uint64_t newest_word; // for the invariant
} * state;

static void write_parameter(uint64_t *parameter, uint64_t version) {
    if (set->copies) {
        model_store(parameter, version, MODEL_RELAXED);
    } else {
        model_write(parameter, version);
        model_yield();
    }
}

// A writer, and the one after it: it begins to watch before it publishes, or before it lets readers act.
static void writer(void *context) {
    struct farm_board *board = &state->board;
    const uint64_t word = model_load(&head.newest, MODEL_ACQUIRE);
    for (uint64_t version = word >> 8; version < set->versions; version++) {
        const int b = farm_board_choose(board);
        model_check(b >= 0 || set->buffers < set->readers + 2, "a version is skipped");
        for (int i = 0; i < PARAMETERS && b >= 0; i++) write_parameter(&parameters[b][i], version);
        if (b >= 0) farm_board_commit(board, b, version);
        if (version == 2 && set->joins) {
            board->watched = set->readers;
            model_store(&granted, 1, MODEL_RELEASE);
        }
    }
}

// What farm_board_copy does.
static void copier(void *context) {
    for (uint64_t last = 0, tries = 0; tries < set->versions; tries++) {
        const uint64_t word = model_load(&head.newest, MODEL_ACQUIRE);
        const uint64_t *from = (const void *)farm_board_buffer(&state->board, word);
        uint64_t copy[PARAMETERS];
        for (int i = 0; i < PARAMETERS && from; i++) copy[i] = model_load(&from[i], MODEL_RELAXED);
        if (!from || !farm_board_is_still(&state->board, word)) continue;
        for (int i = 0; i < PARAMETERS; i++) model_check(copy[i] == (word >> 8) - 1, "a copy is torn");
        model_check(word >= last, "versions fall");
        last = word;
    }
}

static void reader(void *context) {
    struct farm_board_reader *own = &readers[*(const uint32_t *)context];
    uint64_t last = 0;
    if (set->joins && !pins_before_it_is_watched) model_await(&granted, 1);
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
    model_store_by(r, &readers[r].own, 0);
}

static void clear_stopped(void *context) {
    model_store(&readers[0].own, 0, MODEL_RELEASE);
}

static void set_up(void) {
    state = model_allocate(sizeof *state);
    struct farm_board *board = &state->board;
    board->head = &head;
    board->buffers = set->buffers;
    board->using = (const uint64_t **)announcements;
    board->watched = set->copies || set->joins ? 0 : set->readers;
    model_word(&head.newest, "newest", 0, true);
    model_word(&granted, "granted", 0, true);
    for (uint32_t b = 0; b < set->buffers; b++) {
        board->buffer[b] = (void *)parameters[b];
        for (int i = 0; i < PARAMETERS; i++)
            if (set->copies)
                model_word(&parameters[b][i], "a parameter", UINT64_MAX, true);
            else
                model_variable(&parameters[b][i], "a parameter", UINT64_MAX);
    }
    for (uint32_t r = 0; r < set->readers; r++) {
        readers[r] = (struct farm_board_reader){.board = board, .newest = &head.newest, .using = &readers[r].own};
        model_word(&readers[r].own, "using", 0, !clears_a_stopped_reader);
        const unsigned process =
            model_process(r ? "reader 1" : "reader 0", set->reader_crashes, clear, (void *)&NUMBERS[r]);
        model_thread(process, r ? "reader 1" : "reader 0", set->copies ? copier : reader, (void *)&NUMBERS[r]);
    }
    model_thread(model_process("the learner", set->writer_crashes, NULL, NULL), "writer", writer, NULL);
    if (clears_a_stopped_reader)
        model_thread(model_process("the supervisor", false, NULL, NULL), "supervisor", clear_stopped, NULL);
}

static void invariant(void) {
    const uint64_t word = model_newest(&head.newest);
    model_check(word == state->newest_word || word >> 8 > state->newest_word >> 8, "`newest` does not grow");
    state->newest_word = word;
}

static void end(void) {
    const bool skips = set->buffers < set->readers + 2;
    model_check(skips || model_newest(&head.newest) >> 8 == set->versions, "versions are missing");
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
