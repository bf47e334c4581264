// The GPU's figures over the emulator (tests/support/cuda_emulator): each is measured on the right bytes, wrong bytes
// are found, what is not available is noted, and nothing stays allocated. Speeds mean nothing here.
#include <criterion/criterion.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bw/cuda/node_to_gpu.h"
#include "emulator.h"

static const size_t BYTES = 256 << 10, SEVERAL_PASSES_BYTES = 17 << 20; // in the smallest pieces

// Memory like segments: `up` mapped once for writing and once for reading.
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

// Called between samples: stops, or spoils a byte.
struct watch {
    int calls, stop_at;
    char *spoil; // a byte that is wrong from call spoil_at on
    int spoil_at;
};

static bool count_stop(void *context) {
    struct watch *watch = context;
    if (watch->spoil && watch->calls == watch->spoil_at) *watch->spoil ^= 1;
    return ++watch->calls > watch->stop_at && watch->stop_at >= 0;
}

// One measurement: its config and its figures.
static struct memory memory;
static struct farm_bw_gpu_config config;
static struct farm_bw_gpu_node figures;
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

static void assert_measured(const struct farm_bw_figure *figure, bool there, const char *what) {
    cr_assert_eq(farm_bw_figure_is(figure), there, "%s", what);
    if (there) cr_assert_gt(figure->median, 0, "%s", what);
}

static enum farm_status measure_node(void) {
    const enum farm_status status = farm_bw_cuda_node(&config, &figures, &err);
    assert_nothing_left();
    return status;
}

static void assert_figures(bool registered, bool bulk) {
    for (int d = 0; d < FARM_BW_GPU_DIRECTIONS; d++) {
        assert_measured(&figures.copy[FARM_BW_GPU_PINNED][d], true, "pinned");
        assert_measured(&figures.copy[FARM_BW_GPU_REGISTERED][d], registered, "registered");
    }
    for (int b = 0; b < FARM_BW_GPU_BLOCKS; b++) {
        assert_measured(&figures.pull[FARM_BW_GPU_LOADS][b], true, "loads");
        assert_measured(&figures.pull[FARM_BW_GPU_BULK][b], bulk, "bulk");
    }
    for (int s = 0; s < FARM_BW_GPU_PIECES; s++)
        for (int g = 0; g < FARM_BW_GPU_GATHERERS; g++)
            assert_measured(&figures.gather[s].by[g], bulk || g != FARM_BW_GPU_BY_BULK, farm_bw_gpu_gatherer_names[g]);
    assert_measured(&figures.registration, registered, "registration");
    assert_measured(&figures.flag_ns, true, "flag");
}

Test(bw_cuda, measures_every_figure_and_leaves_nothing_allocated) {
    config.setup.samples = 3;
    cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
    assert_figures(true, true);
    cr_assert(figures.registered && figures.conditions.verified && !figures.conditions.stopped);
    cr_assert_str_empty(figures.conditions.note);
    cr_assert_eq(figures.flag_ns.samples, 3);
    cr_assert_eq(figures.gather[2].piece_bytes, 28224);
    cr_assert_eq(figures.gather[2].pieces, BYTES / 28224);
    cr_assert_eq(farm_bw_gpu_check(memory.up, BYTES, 0), BYTES, "`up` must not be written");
}

// Each pass has other pieces; the last pass is compared.
Test(bw_cuda, every_pass_fetches_other_pieces) {
    set_up_of(SEVERAL_PASSES_BYTES);
    cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
    assert_figures(true, true);
    for (int s = 0; s < FARM_BW_GPU_PIECES; s++) cr_assert_eq(figures.gather[s].pieces, farm_bw_gpu_piece_counts[s]);
}

Test(bw_cuda, measures_what_a_gpu_has_and_notes_refused_registration) {
    const struct {
        int64_t *setting, value;
        bool writable, registered, bulk, read_only; // a writable mapping is there; the note names read-only ones
    } cases[] = {{&farm_emulator.major, 8, false, true, false, false},
                 {&farm_emulator.refuse_registration, 1, false, false, true, false},
                 {&farm_emulator.refuse_read_only, 1, false, false, true, true},
                 {&farm_emulator.refuse_read_only, 1, true, true, true, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        farm_emulator_reset();
        *cases[i].setting = cases[i].value;
        config.up_writable = cases[i].writable ? memory.up_write : NULL;
        cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
        assert_figures(cases[i].registered, cases[i].bulk);
        cr_assert_eq(figures.registered, cases[i].registered);
        const char *note = figures.conditions.note;
        cr_assert_eq(strstr(note, "perhaps ulimit -l") != NULL, !cases[i].registered, "%s", note);
        cr_assert_eq(strstr(note, "read-only") != NULL, cases[i].read_only, "%s", note);
    }
}

// In any figure: wrong data end the measurement.
Test(bw_cuda, finds_a_wrong_byte) {
    struct watch watch = {.stop_at = -1, .spoil_at = -1};
    const struct farm_bw_control control = {.stop = count_stop, .context = &watch};
    config.setup.control = &control;
    cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
    const int calls = watch.calls;
    // 0 and 1: the flag. From registration on, which spoils all later reads.
    const int at[] = {2, 3, calls / 2};
    for (int i = 0; i < 3; i++) {
        watch = (struct watch){.stop_at = -1, .spoil = memory.up_write + 20001, .spoil_at = at[i]};
        cr_assert_eq(measure_node(), FARM_E_IO);
        cr_assert_neq(strstr(err.message, "wrong data at byte"), NULL, "%s", err.message);
        cr_assert_not(figures.conditions.verified);
        farm_bw_gpu_fill(memory.up_write, BYTES, 0);
    }
    // Bytes copied back to registered memory, spoilt after the sample (before and after each figure there is a call).
    bool found = false;
    for (int k = 0; k < calls && !found; k++) {
        watch = (struct watch){.stop_at = -1, .spoil = memory.down + 77, .spoil_at = k};
        found = measure_node() == FARM_E_IO && strstr(err.message, "GPU to host: wrong data at byte 72");
    }
    cr_assert(found);
}

Test(bw_cuda, stops_when_asked) {
    static struct watch watch;
    static const struct farm_bw_control control = {.stop = count_stop, .context = &watch};
    config.setup.control = &control;
    for (int at = 0; at < 40; at += 3) {
        watch = (struct watch){.stop_at = at, .spoil_at = -1};
        cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
        cr_assert(figures.conditions.stopped);
        cr_assert_eq(farm_bw_figure_is(&figures.flag_ns), at > 0);
        cr_assert_not(farm_bw_figure_is(&figures.gather[2].by[FARM_BW_GPU_BY_BATCH]));
    }
}

Test(bw_cuda, ends_with_its_time) {
    config.setup.seconds = 1e-6;
    config.setup.samples = 5;
    cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
    cr_assert(figures.conditions.out_of_time);
    cr_assert_eq(figures.flag_ns.samples, 1, "the first is always taken");
    assert_measured(&figures.copy[0][0], false, "copies");
}

// Loses the GPU after some pieces of work of one figure.
struct loss {
    int figure, works, begun;
};

static void lose_gpu(void *context, const char *what, double share) {
    struct loss *loss = context;
    (void)what, (void)share;
    if (loss->begun++ == loss->figure)
        farm_emulator.fall_off_after = (int64_t)farm_emulator_account().works + loss->works;
}

Test(bw_cuda, a_gpu_lost_in_any_figure_is_an_error) {
    static struct loss loss = {.figure = -1};
    static const struct farm_bw_control control = {.progress = lose_gpu, .context = &loss};
    config.setup.control = &control;
    cr_assert_eq(measure_node(), FARM_OK, "%s", err.message);
    const int count = loss.begun;
    cr_assert_gt(count, 20);
    for (int figure = 0; figure < count; figure++) { // each has three pieces of work or more, some side by side
        farm_emulator_reset();
        loss = (struct loss){.figure = figure, .works = figure % 3};
        cr_assert_eq(measure_node(), FARM_E_DEAD, "%d: %s", figure, err.message);
    }
}

Test(bw_cuda, errors_leave_nothing) {
    for (int64_t left = 0; left < 2 * (int64_t)BYTES; left += 100000) {
        farm_emulator_reset();
        farm_emulator.memory = left;
        cr_assert_eq(measure_node(), FARM_E_LIMIT, "%s", err.message);
    }
    farm_emulator_reset();
    config.bytes = 100;
    cr_assert_eq(measure_node(), FARM_E_INVALID);
    set_up();
    config.device = 1;
    cr_assert_neq(measure_node(), FARM_OK, "there is one GPU");
}

Test(bw_cuda, from_one_gpu_to_another) {
    struct farm_bw_gpu_peer peer;
    farm_emulator.devices = 2;
    for (int refused = 0; refused < 2; refused++)
        for (int from = 0; from < 2; from++) {
            farm_emulator.refuse_peers = refused;
            config.device = from;
            cr_assert_eq(farm_bw_cuda_peer(&config, 1 - from, &peer, &err), FARM_OK, "%s", err.message);
            assert_measured(&peer.bytes_per_s, true, "peer");
            cr_assert_eq(peer.access, !refused);
            cr_assert(peer.conditions.verified);
            assert_nothing_left();
        }
    cr_assert_eq(farm_bw_cuda_peer(&config, config.device, &peer, &err), FARM_E_INVALID);
    farm_emulator.memory = (int64_t)BYTES / 2;
    cr_assert_eq(farm_bw_cuda_peer(&config, 0, &peer, &err), FARM_E_LIMIT);
    assert_nothing_left();
}

extern farm_bw_gpu_entry farm_bw_cuda; // the library's export

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

Test(bw_cuda, every_wrong_byte_of_the_contents_is_found) {
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
