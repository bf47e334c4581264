// Where the time of a round trip on the path of `farm train` goes: the graph of an inference of one row, the smallest
// network of round_trip.c, built up kernel by kernel as src/learner/cuda/inference.c builds it, launched by a host that
// spins on a word. round_trip.c tells what the learner's own work around it takes. In microseconds, p50 first:
//
//   launch_call_X  until cudaGraphLaunch returns
//   launch_flag_X  until the host sees the word of the graph's last kernel
//   launch_acted_X until an actor that spins sees `acted`, where X answers
//
// X: empty (a graph of nothing), signal, lists (their pull, signal), observation (and its two pulls: over the bus, and
// into the network's input), answer (and sampling and answering, from logits that are there), whole (and the network:
// everything that the learner launches; needs cuDNN and cuBLASLt). A row less the row before is what was added.
//
// Graphs take turns. The answers of each launch are held against the CPU's; what the pulls bring, at the end.
#include "bench.cuh"
#include "smallest.cuh"

extern "C" {
#include "base/time.h"
#include "nn/cuda/executor.h"
}

enum part { EMPTY, SIGNAL, LISTS, OBSERVATION, ANSWER, WHOLE, PARTS };
static const char *const names[PARTS] = {"empty", "signal", "lists", "observation", "answer", "whole"};

enum { ROUNDS = 4000, WARMUP = 200, FEW_ROUNDS = 5, SPINS_PER_LOOK = 1024, SLOT = 64 };
static const uint64_t PAUSE_NS = 5000, PATIENCE_NS = 10000000000u;

// What changes from launch to launch: the host fills pinned memory, the graph begins by pulling it.
struct lists {
    const void *from; // the observation, in pinned memory, as flat ones are
    void *to;         // its place in the mirror
    const void *input;
    uint64_t stream, counter;
    struct farm_cuda_answer_lane lane;
    uint64_t sequence;
};

// In registered memory, an actor's.
struct down {
    uint64_t acted, pad[15];
    int32_t action, more_pad[31];
    float logits[SMALLEST_ACTIONS], value;
    uint64_t version;
};

enum moment { CALL, FLAG, ACTED, MOMENTS };
struct series {
    double *ns; // [ROUNDS]
    int count;
};

struct launches {
    struct random rng;
    cudaStream_t stream;
    cudaGraphExec_t graphs[PARTS];
    bool has[PARTS];
    struct segment segment;
    struct down *down;
    struct lists *lists, *device_lists;
    float *observation; // [SMALLEST_FLAT], pinned
    uint64_t *flag;     // pinned
    // device memory
    const void **block_from;
    void **block_to, **flat_to;
    uint8_t *mirror;
    float *flat, *given_logits, *given_value; // of the graphs without a network
    float *logits, *value;                    // the network's
    int32_t *action;
    uint64_t *version, *one;
    uint16_t *params;
    struct farm_cuda_libraries libraries;
    struct farm_cuda_executor *executor;
    struct farm_sampler sampler;
    // the host's
    float given[SMALLEST_OUTPUTS];
    uint16_t host_params[SMALLEST_PARAMETERS];
    uint64_t sequence;
    struct series series[PARTS][MOMENTS];
    int other; // choices on the border of two actions, which may fall to either side
};

static const uint64_t VERSION = 77;

// ---- graphs ----

static void put_pulls(struct launches *l, enum part part) {
    struct farm_cuda_pull pull = {l->block_from, l->block_to, 1, sizeof(struct lists), 1};
    FARM(farm_cuda_pull(l->stream, FARM_CUDA_PULL_LOADS, &pull, err));
    if (part < OBSERVATION) return;
    pull = {&l->device_lists->from, &l->device_lists->to, 1, SMALLEST_FLAT * sizeof(float), 0};
    FARM(farm_cuda_pull(l->stream, FARM_CUDA_PULL_LOADS, &pull, err));
    pull.from = &l->device_lists->input;
    pull.to = l->flat_to;
    FARM(farm_cuda_pull(l->stream, FARM_CUDA_PULL_LOADS, &pull, err));
}

static void put_answer(struct launches *l, const float *logits, const float *value) {
    struct farm_cuda_sample sample = {};
    sample.sampler = l->sampler;
    sample.rows = 1;
    sample.actions = SMALLEST_ACTIONS;
    sample.stream = &l->device_lists->stream;
    sample.counter = &l->device_lists->counter;
    sample.logits = logits;
    sample.action = l->action;
    FARM(farm_cuda_sample(l->stream, &sample, err));
    const struct farm_cuda_answer answer = {
        &l->device_lists->lane, 1, SMALLEST_ACTIONS, l->action, logits, value, l->version};
    FARM(farm_cuda_answer(l->stream, &answer, err));
}

static void put(struct launches *l, enum part part) {
    if (part >= LISTS) put_pulls(l, part);
    if (part == WHOLE) {
        const struct farm_cuda_input input = {NULL, l->flat};
        FARM(farm_cuda_executor_forward(l->executor, l->stream, l->params, &input, 1, l->logits, l->value, err));
    }
    if (part == ANSWER) put_answer(l, l->given_logits, l->given_value);
    if (part == WHOLE) put_answer(l, l->logits, l->value);
    void *flag;
    CUDA(cudaHostGetDevicePointer(&flag, l->flag, 0));
    if (part >= SIGNAL)
        FARM(farm_cuda_signal(l->stream, (uint64_t *)flag, part == SIGNAL ? l->one : &l->device_lists->sequence, err));
}

// Once outside of a capture: algorithms are chosen, kernels loaded.
static void capture(struct launches *l, enum part part) {
    cudaGraph_t graph;
    put(l, part);
    CUDA(cudaStreamSynchronize(l->stream));
    CUDA(cudaStreamBeginCapture(l->stream, cudaStreamCaptureModeThreadLocal));
    put(l, part);
    CUDA(cudaStreamEndCapture(l->stream, &graph));
    CUDA(cudaGraphInstantiate(&l->graphs[part], graph, 0));
    CUDA(cudaGraphDestroy(graph));
    if (part != EMPTY) CUDA(cudaGraphUpload(l->graphs[part], l->stream));
    CUDA(cudaStreamSynchronize(l->stream));
    l->has[part] = true;
}

// ---- memory ----

template <typename T> static T *pinned(size_t count) {
    void *memory;
    CUDA(cudaHostAlloc(&memory, count * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped));
    memset(memory, 0, count * sizeof(T));
    return (T *)memory;
}

template <typename T> static T *for_device(const struct launches *l, T *field) {
    return (T *)(l->segment.device + ((uint8_t *)field - l->segment.host));
}

static void fill_lists(struct launches *l) {
    void *observation;
    CUDA(cudaHostGetDevicePointer(&observation, l->observation, 0));
    l->lists->from = observation;
    l->lists->to = l->mirror;
    l->lists->input = l->mirror;
    l->lists->stream = farm_random_stream(0, 0);
    struct farm_cuda_answer_lane *lane = &l->lists->lane;
    lane->action = for_device(l, &l->down->action);
    lane->logits = for_device(l, l->down->logits);
    lane->value = for_device(l, &l->down->value);
    lane->version = for_device(l, &l->down->version);
    lane->acted = for_device(l, &l->down->acted);
    lane->row = 0;
    lane->count = 1;
}

static void make_network(struct launches *l) {
    const struct farm_net net = smallest_net();
    const size_t count = farm_cuda_executor_parameter_count(&net);
    float params[SMALLEST_PARAMETERS], *ordered = (float *)calloc(count, sizeof(float));
    uint16_t *rounded = (uint16_t *)calloc(count, sizeof(uint16_t));
    struct farm_error error;
    smallest_parameters(&l->rng, params, l->host_params);
    farm_cuda_executor_to_device_order(&net, params, ordered);
    for (size_t i = 0; i < count; i++) rounded[i] = farm_bf16(ordered[i]);
    l->params = device_of(rounded, count);
    free(ordered), free(rounded);
    if (farm_cuda_libraries_open(&l->libraries, &error) != FARM_OK) {
        fprintf(stderr, "launches: the whole graph is not timed: %s\n", error.message);
        return;
    }
    const struct farm_cuda_executor_config config = {&net, 1, false, FARM_PRECISION_BF16, &l->libraries};
    FARM(farm_cuda_executor_create(&config, &l->executor, err));
}

static void launches_make(struct launches *l, uint64_t seed) {
    int least, greatest;
    l->rng = {seed, 0};
    l->sampler.mode = FARM_SAMPLE_CATEGORICAL;
    l->sampler.seed = seed;
    CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CUDA(cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, greatest));
    l->segment = segment_make(4096, false);
    l->down = (struct down *)l->segment.host;
    l->lists = pinned<struct lists>(1);
    l->observation = pinned<float>(SMALLEST_FLAT);
    l->flag = pinned<uint64_t>(1);
    l->device_lists = (struct lists *)device_poisoned(sizeof(struct lists));
    l->mirror = (uint8_t *)device_poisoned(SLOT);
    l->flat = (float *)device_poisoned(SMALLEST_FLAT * sizeof(float));
    l->action = (int32_t *)device_poisoned(sizeof(int32_t));
    for (float &number : l->given) number = random_float(&l->rng, -2, 2);
    l->given_logits = device_of(l->given, SMALLEST_ACTIONS);
    l->given_value = device_of(l->given + SMALLEST_ACTIONS, 1);
    l->logits = (float *)device_poisoned(SMALLEST_ACTIONS * sizeof(float));
    l->value = (float *)device_poisoned(sizeof(float));
    l->version = device_of(&VERSION, 1);
    const uint64_t one = 1;
    l->one = device_of(&one, 1);
    void *lists_mapped, *lists_there = l->device_lists, *flat = l->flat;
    CUDA(cudaHostGetDevicePointer(&lists_mapped, l->lists, 0));
    const void *lists_from = lists_mapped;
    l->block_from = device_of(&lists_from, 1);
    l->block_to = device_of(&lists_there, 1);
    l->flat_to = device_of(&flat, 1);
    fill_lists(l);
    make_network(l);
    for (int part = 0; part < PARTS; part++)
        if (part != WHOLE || l->executor) capture(l, (enum part)part);
}

static void launches_free(struct launches *l) {
    for (int part = 0; part < PARTS; part++)
        if (l->has[part]) CUDA(cudaGraphExecDestroy(l->graphs[part]));
    farm_cuda_executor_destroy(l->executor);
    for (const void *memory :
         {(const void *)l->device_lists, (const void *)l->mirror, (const void *)l->flat, (const void *)l->action,
          (const void *)l->logits, (const void *)l->value, (const void *)l->given_logits, (const void *)l->given_value,
          (const void *)l->version, (const void *)l->one, (const void *)l->block_from, (const void *)l->block_to,
          (const void *)l->flat_to, (const void *)l->params})
        CUDA(cudaFree((void *)memory));
    CUDA(cudaFreeHost(l->lists));
    CUDA(cudaFreeHost(l->observation));
    CUDA(cudaFreeHost(l->flag));
    segment_free(&l->segment);
    CUDA(cudaStreamDestroy(l->stream));
}

// ---- a launch ----

// Until a word that the GPU stores is `value`; looks at the stream now and then, as the learner does.
static void wait_for(const struct launches *l, const uint64_t *word, uint64_t value) {
    const uint64_t start = farm_now_ns();
    for (uint32_t spins = 1; __atomic_load_n(word, __ATOMIC_ACQUIRE) != value; spins++) {
        if (spins % SPINS_PER_LOOK) continue;
        const cudaError_t code = cudaStreamQuery(l->stream);
        (void)cudaGetLastError(); // "not ready" would stay there
        if (code != cudaSuccess && code != cudaErrorNotReady) CUDA(code);
        if (farm_now_ns() - start > PATIENCE_NS) bench_fail("a graph that does not end");
    }
}

static void compare_answer(struct launches *l, enum part part) {
    const struct down *down = l->down;
    float expected[SMALLEST_OUTPUTS], got[SMALLEST_OUTPUTS];
    memcpy(got, down->logits, sizeof down->logits);
    got[SMALLEST_ACTIONS] = down->value;
    memcpy(expected, l->given, sizeof expected);
    if (part == WHOLE) smallest_forward(l->host_params, l->observation, expected);
    for (int i = 0; i < SMALLEST_OUTPUTS;
         i++) // cuBLASLt adds in an order of its own; bias and ReLU may come after a rounding
        if (fabsf(got[i] - expected[i]) > (part == WHOLE ? 0.2f : 0)) bench_fail("the logits of a graph");
    const int action = farm_sample_action(&l->sampler, l->lists->stream, l->sequence, got, SMALLEST_ACTIONS);
    if (down->version != VERSION || (down->action != action && l->other++ >= 2)) bench_fail("the answer of a graph");
}

struct times {
    double call, flag, acted; // ns
};

static struct times launch(struct launches *l, enum part part, bool answers) {
    l->sequence++;
    l->lists->sequence = l->lists->counter = l->lists->lane.acted_value = l->sequence;
    for (int i = 0; i < SMALLEST_FLAT; i++) l->observation[i] = random_float(&l->rng, -1, 1);
    *l->flag = 0;
    const uint64_t start = farm_now_ns();
    CUDA(cudaGraphLaunch(l->graphs[part], l->stream));
    struct times times = {(double)(farm_now_ns() - start), 0, 0};
    if (part == EMPTY) return times;
    if (answers) {
        wait_for(l, &l->down->acted, l->sequence);
        times.acted = (double)(farm_now_ns() - start);
    }
    wait_for(l, l->flag, part == SIGNAL ? 1 : l->sequence);
    times.flag = (double)(farm_now_ns() - start);
    if (part >= ANSWER) compare_answer(l, part);
    return times;
}

// Poisons what the pulls write, launches once more, and looks.
static void compare_pulls(struct launches *l) {
    CUDA(cudaMemset(l->mirror, POISON, SLOT));
    CUDA(cudaMemset(l->flat, POISON, SMALLEST_FLAT * sizeof(float)));
    CUDA(cudaDeviceSynchronize());
    (void)launch(l, OBSERVATION, false);
    CUDA(cudaStreamSynchronize(l->stream));
    float *mirror = host_of((const float *)l->mirror, SMALLEST_FLAT), *flat = host_of(l->flat, SMALLEST_FLAT);
    const size_t bytes = SMALLEST_FLAT * sizeof(float);
    if (memcmp(mirror, l->observation, bytes) || memcmp(flat, l->observation, bytes)) bench_fail("what a graph pulled");
    free(mirror), free(flat);
}

// ---- all ----

static void measure(struct launches *l, int rounds, int warm_up) {
    for (int round = -warm_up; round < rounds; round++)
        for (int part = 0; part < PARTS; part++) {
            if (!l->has[part]) continue;
            for (const uint64_t start = farm_now_ns(); farm_now_ns() - start < PAUSE_NS;) {
            }
            const bool acted = part >= ANSWER && round % 2; // to look at one word delays the look at the other
            const struct times times = launch(l, (enum part)part, acted);
            if (round < 0) continue;
            struct series *series = l->series[part];
            series[CALL].ns[series[CALL].count++] = times.call;
            if (part == EMPTY) continue;
            struct series *seen = &series[acted ? ACTED : FLAG];
            seen->ns[seen->count++] = acted ? times.acted : times.flag;
        }
}

int bench_launches(uint64_t seed, bool few) {
    static const char *const moments[MOMENTS] = {"call", "flag", "acted"};
    struct launches l = {};
    launches_make(&l, seed);
    for (auto &part : l.series)
        for (struct series &series : part) series.ns = (double *)malloc(ROUNDS * sizeof(double));
    measure(&l, few ? FEW_ROUNDS : ROUNDS, few ? 2 : WARMUP);
    compare_pulls(&l);
    bench_begin("cuda_launches", seed);
    for (int moment = 0; moment < MOMENTS; moment++)
        for (int part = 0; part < PARTS; part++) {
            const struct series *series = &l.series[part][moment];
            char name[64];
            snprintf(name, sizeof name, "launch_%s_%s", moments[moment], names[part]);
            if (series->count > 0) bench_print_times(name, series->ns, series->count, NULL, 0);
        }
    bench_end();
    for (auto &part : l.series)
        for (struct series &series : part) free(series.ns);
    launches_free(&l);
    return 0;
}
