// See grid.h.
#include "grid.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emulator.h"

enum { THREADS_MAX = 1024, WARP = 32, WARPS_MAX = THREADS_MAX / WARP, SHARED_MAX = 227 << 10 };
enum { STACK_BYTES = (64 << 10) + 5 * 64 }; // lines of a cache at the stacks' tops lie in different sets

enum state { NOT_STARTED, RUNS, AT_BLOCK, AT_WARP, ENDED };

struct copy {
    void *to;
    const void *from;
    uint32_t bytes;
};

struct thread {
    enum state state;
    double slot[2]; // its values for its warp; shuffles alternate
    unsigned shuffles;
    float left[2][8], right[2][4]; // the operands of its warp's product
    uint64_t *barrier;             // the copy engine's, initialised by this thread
    unsigned phases;               // the barrier's, which have ended
    struct copy load, store;
    int stack; // index
};

struct farm_emulator_place farm_emulator_place;
char *farm_emulator_stacks[2];

// The running grid.
static struct {
    const struct farm_emulator_grid *grid;
    void (*body)(const void *arguments);
    const void *arguments;
    bool backwards;
    struct thread threads[THREADS_MAX];
    unsigned born, gone, gone_of[WARPS_MAX], at_block, at_warp[WARPS_MAX];
    int block_line, warp_line[WARPS_MAX];                  // lines of the barriers at which they wait
    unsigned ready[THREADS_MAX], ready_first, ready_count; // threads whose barrier has opened
    struct thread *now;
    struct {
        struct copy *at;
        uint32_t first, end, room;
    } copies[THREADS_MAX];                          // begun, in their order
    uint64_t moments, of_block, of_warp[WARPS_MAX]; // farm_emulator_moment's newest numbers
    void *saved[THREADS_MAX];                       // stack pointers of waiting threads
    int free[THREADS_MAX], free_count, used;
    void *main;
    _Alignas(128) uint8_t shared[SHARED_MAX];
} g;

static _Noreturn void abort_kernel(const char *what) {
    const struct farm_emulator_extent *t = &farm_emulator_place.thread, *b = &farm_emulator_place.block;
    fprintf(stderr, "CUDA emulator: %s: %s (block %u, %u, %u; thread %u)\n", g.grid->name, what, b->x, b->y, b->z,
            t->x);
    abort();
}

// ---- switching stacks: saves the registers that a call preserves ----

void farm_emulator_switch(void **from, void *to);
void farm_emulator_begin(void);
#if defined(__x86_64__)
__asm__(".text\n.hidden farm_emulator_switch\n.hidden farm_emulator_begin\n"
        ".globl farm_emulator_switch\nfarm_emulator_switch:\n"
        "push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15\n"
        "mov %rsp, (%rdi); mov %rsi, %rsp\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n"
        ".globl farm_emulator_begin\nfarm_emulator_begin:\n"
        "call *%rbx\n");
static void *stack_of_new(char *top, void (*entry)(void)) {
    void **at = (void **)top - 9; // 16-byte aligned where farm_emulator_begin calls
    memset(at, 0, 9 * sizeof *at);
    at[4] = (void *)entry; // rbx
    at[6] = (void *)farm_emulator_begin;
    return at;
}
#elif defined(__aarch64__)
__asm__(".text\n.hidden farm_emulator_switch\n.hidden farm_emulator_begin\n"
        ".globl farm_emulator_switch\nfarm_emulator_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n"
        ".globl farm_emulator_begin\nfarm_emulator_begin:\n"
        "blr x19\n");
static void *stack_of_new(char *top, void (*entry)(void)) {
    void **at = (void **)top - 20;
    memset(at, 0, 20 * sizeof *at);
    at[0] = (void *)entry; // x19
    at[11] = (void *)farm_emulator_begin;
    return at;
}
#else
#error "tests/support/cuda_emulator/grid.c switches stacks on x86-64 and AArch64 only"
#endif

// ---- threads ----

static unsigned number_of(const struct thread *thread) {
    return (unsigned)(thread - g.threads);
}

static unsigned warp_of(const struct thread *thread) {
    return number_of(thread) / WARP;
}

static unsigned lanes_of(unsigned warp) {
    const unsigned left = g.grid->threads - warp * WARP;
    return left < WARP ? left : WARP;
}

static void resume_thread(struct thread *thread) {
    g.now = thread;
    farm_emulator_place.thread.x = number_of(thread);
}

static void open_barrier(unsigned from, unsigned count, enum state state) {
    for (unsigned i = from; i < from + count; i++) {
        if (g.threads[i].state != state) continue;
        g.threads[i].state = RUNS;
        g.ready[(g.ready_first + g.ready_count++) % THREADS_MAX] = i;
    }
}

// Opens the block's barrier when all its remaining threads have reached it.
static void open_block_barrier(void) {
    if (g.at_block == 0 || g.at_block + g.gone < g.grid->threads) return;
    g.at_block = 0;
    g.of_block = ++g.moments;
    open_barrier(0, g.grid->threads, AT_BLOCK);
}

static void open_warp_barrier(unsigned warp) {
    if (g.at_warp[warp] == 0 || g.at_warp[warp] + g.gone_of[warp] < lanes_of(warp)) return;
    if (g.gone_of[warp] > 0) abort_kernel("a warp waits for lanes that have ended");
    g.at_warp[warp] = 0;
    g.of_warp[warp] = ++g.moments;
    open_barrier(warp * WARP, lanes_of(warp), AT_WARP);
}

// Switches to a thread whose barrier has opened, or to the scheduler, which starts another.
static void leave_stack(int stack) {
    void *to = g.main;
    if (g.ready_count > 0) {
        struct thread *next = &g.threads[g.ready[g.ready_first]];
        g.ready_first = (g.ready_first + 1) % THREADS_MAX;
        g.ready_count--;
        resume_thread(next);
        to = g.saved[next->stack];
        if (next->stack == stack) return;
    }
    farm_emulator_switch(&g.saved[stack], to);
}

// The first thread at a barrier sets its line.
static void arrive_at_barrier(unsigned *count, int *at, int line) {
    if ((*count)++ == 0) *at = line;
    if (*at != line) abort_kernel("two barriers at once");
}

static void end_thread(struct thread *thread) {
    if (thread->store.bytes > 0 || thread->load.bytes > 0) abort_kernel("a bulk copy without a wait");
    if (g.copies[number_of(thread)].end > 0) abort_kernel("a copy without a wait");
    thread->state = ENDED;
    g.gone++;
    g.gone_of[warp_of(thread)]++;
    open_warp_barrier(warp_of(thread));
    open_block_barrier();
}

// Runs one thread after another on a stack.
static void run_threads(void) {
    for (;;) {
        g.body(g.arguments);
        struct thread *thread = g.now;
        const int stack = thread->stack;
        end_thread(thread);
        g.free[g.free_count++] = stack;
        leave_stack(stack);
    }
}

static void start_thread(void) {
    const unsigned number = g.backwards ? g.grid->threads - 1 - g.born : g.born;
    struct thread *thread = &g.threads[number];
    g.born++;
    thread->state = RUNS;
    if (g.free_count == 0) {
        char *top = farm_emulator_stacks[0] + (size_t)(g.used + 1) * STACK_BYTES;
        g.saved[g.used] = stack_of_new(top, run_threads);
        g.free[g.free_count++] = g.used++;
    }
    thread->stack = g.free[--g.free_count];
    resume_thread(thread);
    farm_emulator_switch(&g.main, g.saved[thread->stack]);
}

static void run_block(void) {
    memset(g.threads, 0, g.grid->threads * sizeof *g.threads);
    memset(g.at_warp, 0, sizeof g.at_warp);
    memset(g.gone_of, 0, sizeof g.gone_of);
    memset(g.shared, 0xC7, g.grid->shared_bytes);
    g.born = g.gone = g.at_block = 0;
    g.of_block = ++g.moments;
    while (g.born < g.grid->threads) start_thread();
    if (g.gone < g.grid->threads) abort_kernel("threads wait at a barrier that never opens");
    g.backwards = !g.backwards;
}

enum { KERNELS_MAX = 32, SHARED_USUAL = 48 << 10 };
static pthread_mutex_t allowed_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *kernel;
    unsigned shared_bytes;
} allowed[KERNELS_MAX];

bool farm_emulator_allow(const void *kernel, unsigned shared_bytes) {
    int i = 0;
    if (shared_bytes > SHARED_MAX) return false;
    pthread_mutex_lock(&allowed_lock);
    while (i < KERNELS_MAX && allowed[i].kernel && allowed[i].kernel != kernel) i++;
    assert(i < KERNELS_MAX);
    allowed[i].kernel = kernel;
    allowed[i].shared_bytes = shared_bytes;
    pthread_mutex_unlock(&allowed_lock);
    return true;
}

static unsigned shared_max(const void *kernel) {
    unsigned most = SHARED_USUAL;
    pthread_mutex_lock(&allowed_lock);
    for (int i = 0; i < KERNELS_MAX && allowed[i].kernel; i++)
        if (allowed[i].kernel == kernel && allowed[i].shared_bytes > most) most = allowed[i].shared_bytes;
    pthread_mutex_unlock(&allowed_lock);
    return most;
}

bool farm_emulator_grid_fits(const struct farm_emulator_grid *grid) {
    return grid->threads > 0 && grid->threads <= THREADS_MAX && grid->shared_bytes <= shared_max(grid->kernel) &&
           grid->blocks.x > 0 && grid->blocks.x <= INT32_MAX && grid->blocks.y > 0 && grid->blocks.y <= 65535 &&
           grid->blocks.z > 0 && grid->blocks.z <= 65535;
}

void farm_emulator_grid_run(const struct farm_emulator_grid *grid, void (*body)(const void *arguments),
                            const void *arguments) {
    struct farm_emulator_place *place = &farm_emulator_place;
    assert(!g.grid);
    if (!farm_emulator_stacks[0]) {
        const size_t bytes = (size_t)THREADS_MAX * STACK_BYTES;
        char *stacks = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(stacks != MAP_FAILED);
        farm_emulator_stacks[0] = stacks;
        farm_emulator_stacks[1] = stacks + bytes;
    }
    g.grid = grid;
    g.body = body;
    g.arguments = arguments;
    place->grid_size = grid->blocks;
    place->block_size = (struct farm_emulator_extent){grid->threads, 1, 1};
    place->thread = (struct farm_emulator_extent){0, 0, 0};
    for (place->block.z = 0; place->block.z < grid->blocks.z; place->block.z++)
        for (place->block.y = 0; place->block.y < grid->blocks.y; place->block.y++)
            for (place->block.x = 0; place->block.x < grid->blocks.x; place->block.x++) run_block();
    g.grid = NULL;
}

// ---- calls of a thread ----

uint8_t *farm_emulator_shared(void) {
    return g.shared;
}

bool farm_emulator_is_shared(const void *address, size_t bytes) {
    const uint8_t *at = address;
    return at >= g.shared && at + bytes <= g.shared + g.grid->shared_bytes;
}

void farm_emulator_sync_threads(int line) {
    struct thread *thread = g.now;
    thread->state = AT_BLOCK;
    arrive_at_barrier(&g.at_block, &g.block_line, line);
    open_block_barrier();
    leave_stack(thread->stack);
}

void farm_emulator_sync_warp(int line) {
    struct thread *thread = g.now;
    const unsigned warp = warp_of(thread);
    thread->state = AT_WARP;
    arrive_at_barrier(&g.at_warp[warp], &g.warp_line[warp], line);
    open_warp_barrier(warp);
    leave_stack(thread->stack);
}

double farm_emulator_shuffle_from(double x, unsigned from, int line) {
    struct thread *thread = g.now;
    const unsigned turn = thread->shuffles++ % 2, lane = number_of(thread) % WARP;
    thread->slot[turn] = x;
    farm_emulator_sync_warp(line);
    if (from >= WARP) return x;
    if (from >= lanes_of(warp_of(thread))) abort_kernel("a shuffle with a missing lane");
    return (thread - lane + from)->slot[turn];
}

// The two bf16 numbers of each word.
static void unpack_numbers(float *to, const uint32_t *words, int count) {
    for (int i = 0; i < 2 * count; i++) {
        const uint32_t bits = i % 2 ? words[i / 2] & 0xffff0000 : words[i / 2] << 16;
        memcpy(&to[i], &bits, sizeof bits);
    }
}

void farm_emulator_mma(float d[4], const uint32_t a[4], const uint32_t b[2], int line) {
    struct thread *thread = g.now;
    const unsigned turn = thread->shuffles++ % 2, lane = number_of(thread) % WARP;
    const struct thread *warp = thread - lane;
    unpack_numbers(thread->left[turn], a, 4);
    unpack_numbers(thread->right[turn], b, 2);
    farm_emulator_sync_warp(line);
    if (lanes_of(warp_of(thread)) < WARP) abort_kernel("a product with a missing lane");
    for (unsigned k = 0; k < 16; k += 2) {
        const float *row = warp[lane / 4 * 4 + k % 8 / 2].left[turn] + k / 8 * 4; // also 8 rows below: 2 further
        for (unsigned i = 0; i < 2; i++) {
            const float *column = warp[(lane % 4 * 2 + i) * 4 + k % 8 / 2].right[turn] + k / 8 * 2;
            d[i] += row[0] * column[0] + row[1] * column[1];
            d[i + 2] += row[2] * column[0] + row[3] * column[1];
        }
    }
}

static void check_bulk(const void *a, const void *b, uint32_t bytes) {
    if (bytes == 0 || ((uintptr_t)a | (uintptr_t)b | bytes) % 16)
        abort_kernel("a bulk copy that is not 16-byte aligned");
}

void farm_emulator_barrier_init(uint64_t *barrier) {
    if (g.now->barrier) abort_kernel("a second barrier of the copy engine in one thread: the emulator has one");
    g.now->barrier = barrier;
}

void farm_emulator_bulk_load(void *shared, const void *from, uint32_t bytes, uint64_t *barrier) {
    struct thread *thread = g.now;
    check_bulk(shared, from, bytes);
    if (thread->barrier != barrier) abort_kernel("a bulk copy with a barrier that is not this thread's");
    if (!farm_emulator_is_shared(shared, bytes)) abort_kernel("a bulk copy out of shared memory");
    if (thread->load.bytes > 0) abort_kernel("a second bulk copy in one phase");
    if (thread->store.bytes > 0) abort_kernel("a bulk copy into memory that an earlier store may still read");
    if (farm_emulator_need(from, bytes, false, g.grid->name)) farm_emulator_count_read(FARM_EMULATOR_BULK, bytes);
    thread->load = (struct copy){shared, from, bytes};
}

void farm_emulator_barrier_wait(const uint64_t *barrier, uint32_t parity) {
    struct thread *thread = g.now;
    if (thread->barrier != barrier || parity != thread->phases % 2 || thread->load.bytes == 0)
        abort_kernel("a wait for a phase that has ended, or will never end");
    memcpy(thread->load.to, thread->load.from, thread->load.bytes);
    thread->load.bytes = 0;
    thread->phases++;
}

void farm_emulator_bulk_store(void *to, const void *shared, uint32_t bytes) {
    struct thread *thread = g.now;
    check_bulk(to, shared, bytes);
    if (!farm_emulator_is_shared(shared, bytes)) abort_kernel("a bulk copy out of shared memory");
    if (thread->store.bytes > 0) abort_kernel("two bulk stores at once: the emulator has one");
    farm_emulator_need(to, bytes, true, g.grid->name);
    thread->store = (struct copy){to, shared, bytes};
}

void farm_emulator_bulk_stores_done(void) {
    struct copy *store = &g.now->store;
    if (store->bytes > 0) memcpy(store->to, store->from, store->bytes);
    store->bytes = 0;
}

void farm_emulator_copy_async(void *shared, const void *from, uint32_t bytes) {
    const unsigned n = number_of(g.now);
    if (((uintptr_t)shared | (uintptr_t)from) % bytes) abort_kernel("a copy that is not aligned");
    if (!farm_emulator_is_shared(shared, bytes)) abort_kernel("a copy out of shared memory");
    if (g.copies[n].end == g.copies[n].room) {
        g.copies[n].room += 64;
        g.copies[n].at = realloc(g.copies[n].at, g.copies[n].room * sizeof *g.copies[n].at);
        assert(g.copies[n].at);
    }
    g.copies[n].at[g.copies[n].end++] = (struct copy){shared, from, bytes};
}

uint32_t farm_emulator_next_copy(void **shared, const void **from) {
    const unsigned n = number_of(g.now);
    if (g.copies[n].first == g.copies[n].end) return g.copies[n].first = g.copies[n].end = 0;
    const struct copy *next = &g.copies[n].at[g.copies[n].first++];
    *shared = next->to;
    *from = next->from;
    return next->bytes;
}

struct farm_emulator_moment farm_emulator_now(void) {
    const unsigned warp = warp_of(g.now);
    return (struct farm_emulator_moment){number_of(g.now), warp, g.of_block, g.of_warp[warp]};
}
