// The GPU's figures over the emulator (tests/support/cuda_emulator): that each is taken of the right bytes, that wrong
// ones are found, what is said where something cannot be had, and that nothing stays behind. Speeds mean nothing here.
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bw/cuda/node_to_gpu.h"
#include "emulator.h"

static const size_t BYTES = 256 << 10, SEVERAL_PASSES_BYTES = 32 << 20;

// Memory as segments are: `up` mapped once to write and once to read.
struct memory {
    char *up_write, *down;
    const char *up;
};

static struct memory memory_of(size_t bytes) {
    struct memory memory;
    const int fd = memfd_create("up", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(fd, (off_t)bytes), 0);
    memory.up_write = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    memory.up = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    memory.down = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(memory.up_write != MAP_FAILED && memory.up != MAP_FAILED && memory.down != MAP_FAILED);
    close(fd);
    farm_bw_gpu_fill(memory.up_write, bytes, 0);
    return memory;
}

// Asked between samples; what it does then.
struct listener {
    int asked, stop_at;
    char *spoil; // a byte that is wrong from there on
    int spoil_at;
};

static bool stop(void *context) {
    struct listener *listener = context;
    if (listener->spoil && listener->asked == listener->spoil_at) *listener->spoil ^= 1;
    return ++listener->asked > listener->stop_at && listener->stop_at >= 0;
}

// One measurement: what is asked for, and what comes of it.
static struct memory memory;
static struct farm_bw_gpu_config config;
static struct farm_bw_gpu_node cell;
static struct farm_error err;

static void set_up_of(size_t bytes) {
    memory = memory_of(bytes);
    config = (struct farm_bw_gpu_config){
        .up = memory.up, .down = memory.down, .bytes = bytes, .setup = {.seconds = 30, .samples = 1}};
}

static void set_up(void) {
    set_up_of(BYTES);
}

TestSuite(bw_cuda, .timeout = 60, .init = set_up);

static void assert_nothing_left(void) {
    const struct farm_emulator_account account = farm_emulator_account();
    cr_assert_eq(account.allocations + account.pinned + account.registered, 0, "memory is left");
    cr_assert_eq(account.streams + account.events + account.peers, 0, "streams, events or peers are left");
}

static void assert_is(const struct farm_bw_figure *figure, bool there, const char *what) {
    cr_assert_eq(farm_bw_figure_is(figure), there, "%s", what);
    if (there) cr_assert_gt(figure->median, 0, "%s", what);
}

static enum farm_status measure(void) {
    const enum farm_status status = farm_bw_cuda_node(&config, &cell, &err);
    assert_nothing_left();
    return status;
}

static void assert_figures(bool registered, bool bulk) {
    for (int d = 0; d < FARM_BW_GPU_DIRECTIONS; d++) {
        assert_is(&cell.copy[FARM_BW_GPU_PINNED][d], true, "pinned");
        assert_is(&cell.copy[FARM_BW_GPU_REGISTERED][d], registered, "registered");
    }
    for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) {
        assert_is(&cell.pull[FARM_BW_GPU_LOADS][b], true, "loads");
        assert_is(&cell.pull[FARM_BW_GPU_BULK][b], bulk, "bulk");
    }
    for (int s = 0; s < FARM_BW_GPU_PIECES; s++)
        for (int g = 0; g < FARM_BW_GPU_GATHERERS; g++)
            assert_is(&cell.gather[s].by[g], bulk || g != FARM_BW_GPU_BY_BULK, farm_bw_gpu_gatherer_names[g]);
    assert_is(&cell.registration, registered, "registration");
    assert_is(&cell.flag_ns, true, "flag");
}

Test(bw_cuda, takes_every_figure_and_leaves_nothing) {
    config.setup.samples = 3;
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    assert_figures(true, true);
    cr_assert(cell.registered && cell.conditions.verified && !cell.conditions.stopped);
    cr_assert_str_empty(cell.conditions.note);
    cr_assert_eq(cell.flag_ns.samples, 3);
    cr_assert_eq(cell.gather[2].piece_bytes, 28224);
    cr_assert_eq(cell.gather[2].pieces, BYTES / 28224);
    cr_assert_eq(farm_bw_gpu_check(memory.up, BYTES, 0), BYTES, "what is lent is read alone");
}

// Each pass has other pieces; those of the last one are compared.
Test(bw_cuda, every_pass_fetches_other_pieces) {
    set_up_of(SEVERAL_PASSES_BYTES);
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    assert_figures(true, true);
    for (int s = 0; s < FARM_BW_GPU_PIECES; s++) cr_assert_eq(cell.gather[s].pieces, farm_bw_gpu_piece_counts[s]);
}

Test(bw_cuda, an_old_gpu_has_no_bulk_copies) {
    farm_emulator.major = 8;
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    assert_figures(true, false);
}

Test(bw_cuda, says_where_registration_is_refused_and_goes_on) {
    for (int read_only = 0; read_only < 2; read_only++) {
        farm_emulator_reset();
        *(read_only ? &farm_emulator.refuse_read_only : &farm_emulator.refuse_registration) = 1;
        cr_assert_eq(measure(), FARM_OK, "%s", err.message);
        assert_figures(false, true);
        cr_assert_not(cell.registered);
        cr_assert_neq(strstr(cell.conditions.note, "perhaps ulimit -l"), NULL);
        cr_assert_eq(strstr(cell.conditions.note, "read-only") != NULL, read_only);
    }
}

Test(bw_cuda, registers_a_writable_mapping_where_none_that_is_read_only_can_be) {
    config.up_writable = memory.up_write;
    farm_emulator_reset();
    farm_emulator.refuse_read_only = 1;
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    cr_assert(cell.registered);
    assert_figures(true, true);
    assert_nothing_left();
}

// Wherever it happens: figures of wrong data are none.
Test(bw_cuda, finds_a_wrong_byte) {
    struct listener listener = {.stop_at = -1, .spoil_at = -1};
    const struct farm_bw_control control = {.stop = stop, .context = &listener};
    config.setup.control = &control;
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    const int asked = listener.asked;
    // 0 and 1: the flag. From registration on, which spoils what all read that follow.
    const int at[] = {2, 3, asked / 2};
    for (int i = 0; i < 3; i++) {
        listener = (struct listener){.stop_at = -1, .spoil = memory.up_write + 20001, .spoil_at = at[i]};
        cr_assert_eq(measure(), FARM_E_IO);
        cr_assert_neq(strstr(err.message, "wrong data at byte"), NULL, "%s", err.message);
        cr_assert_not(cell.conditions.verified);
        farm_bw_gpu_fill(memory.up_write, BYTES, 0);
    }
    // What comes back to registered memory, spoilt behind the sample (stop is asked before and after each figure).
    bool found = false;
    for (int k = 0; k < asked && !found; k++) {
        listener = (struct listener){.stop_at = -1, .spoil = memory.down + 77, .spoil_at = k};
        found = measure() == FARM_E_IO && strstr(err.message, "GPU to host: wrong data at byte 72");
    }
    cr_assert(found);
}

Test(bw_cuda, stops_when_asked) {
    struct listener listener;
    const struct farm_bw_control control = {.stop = stop, .context = &listener};
    config.setup.control = &control;
    for (int at = 0; at < 40; at += 3) {
        listener = (struct listener){.stop_at = at, .spoil_at = -1};
        cr_assert_eq(measure(), FARM_OK, "%s", err.message);
        cr_assert(cell.conditions.stopped);
        cr_assert_eq(farm_bw_figure_is(&cell.flag_ns), at > 0);
        cr_assert_not(farm_bw_figure_is(&cell.gather[2].by[FARM_BW_GPU_BY_BATCH]));
    }
}

Test(bw_cuda, ends_with_its_time) {
    config.setup.seconds = 1e-6;
    config.setup.samples = 5;
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    cr_assert(cell.conditions.out_of_time);
    cr_assert_eq(cell.flag_ns.samples, 1, "the first is always taken");
    assert_is(&cell.copy[0][0], false, "copies");
}

// Loses the GPU some pieces of work into one figure.
struct loss {
    int figure, works, begun;
};

static void lose(void *context, const char *what, double share) {
    struct loss *loss = context;
    (void)what, (void)share;
    if (loss->begun++ == loss->figure)
        farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works + loss->works;
}

Test(bw_cuda, a_gpu_that_is_lost_in_any_figure_is_said) {
    struct loss loss = {.figure = -1};
    const struct farm_bw_control control = {.progress = lose, .context = &loss};
    config.setup.control = &control;
    cr_assert_eq(measure(), FARM_OK, "%s", err.message);
    const int figures = loss.begun;
    cr_assert_gt(figures, 20);
    for (int figure = 0; figure < figures; figure++) { // each has three pieces of work or more, some side by side
        farm_emulator_reset();
        loss = (struct loss){.figure = figure, .works = figure % 3};
        cr_assert_eq(measure(), FARM_E_DEAD, "%d: %s", figure, err.message);
    }
}

Test(bw_cuda, errors_leave_nothing) {
    for (int64_t left = 0; left < 2 * (int64_t)BYTES; left += 100000) {
        farm_emulator_reset();
        farm_emulator.memory = left;
        cr_assert_eq(measure(), FARM_E_LIMIT, "%s", err.message);
    }
    farm_emulator_reset();
    config.bytes = 100;
    cr_assert_eq(measure(), FARM_E_INVALID);
    set_up();
    config.device = 1;
    cr_assert_neq(measure(), FARM_OK, "there is one GPU");
}

Test(bw_cuda, from_one_gpu_to_another) {
    struct farm_bw_gpu_peer peer;
    farm_emulator.devices = 2;
    for (int refused = 0; refused < 2; refused++)
        for (int from = 0; from < 2; from++) {
            farm_emulator.refuse_peers = refused;
            config.device = from;
            cr_assert_eq(farm_bw_cuda_peer(&config, 1 - from, &peer, &err), FARM_OK, "%s", err.message);
            assert_is(&peer.bytes_per_s, true, "peer");
            cr_assert_eq(peer.access, !refused);
            cr_assert(peer.conditions.verified);
            assert_nothing_left();
        }
    cr_assert_eq(farm_bw_cuda_peer(&config, config.device, &peer, &err), FARM_E_INVALID);
    farm_emulator.memory = (int64_t)BYTES / 2;
    cr_assert_eq(farm_bw_cuda_peer(&config, 0, &peer, &err), FARM_E_LIMIT);
    assert_nothing_left();
}

extern farm_bw_gpu_entry farm_bw_cuda; // what the library exports

Test(bw_cuda, a_program_of_another_commit_is_refused) {
    struct farm_bw_gpu_device device;
    const char *commit = NULL;
    int count;
    cr_assert_null(farm_bw_cuda("another", &commit));
    const struct farm_bw_gpu_ops *ops = farm_bw_cuda(commit, &commit);
    cr_assert_not_null(ops);
    farm_emulator.devices = 2;
    cr_assert_eq(ops->count(&count, &err), FARM_OK);
    cr_assert_eq(count, 2);
    cr_assert_eq(ops->describe(1, &device, &err), FARM_OK);
    cr_assert_str_eq(device.pci_bus_id, "0000:01:00.0");
    farm_emulator.devices = 0;
    cr_assert_neq(ops->count(&count, &err), FARM_OK);
    cr_assert_eq(count, 0);
}

Test(bw_cuda, contents_tell_every_byte) {
    char words[64];
    farm_bw_gpu_fill(words, sizeof words, 5);
    cr_assert_eq(farm_bw_gpu_check(words, sizeof words, 5), sizeof words);
    cr_assert_eq(farm_bw_gpu_check(words, sizeof words, 6), 0);
    for (size_t i = 0; i < sizeof words; i++) {
        words[i] ^= 4;
        cr_assert_eq(farm_bw_gpu_check(words, sizeof words, 5), i / 8 * 8);
        words[i] ^= 4;
    }
}
