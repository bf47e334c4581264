// The GPU's executor (nn/cuda/executor.h) with the real cuDNN and cuBLASLt, beside the CPU's executor in f32.
//
// test_executor: prints a line per check and "N passed, N failed"; exit status 1 if one failed, 77 without a GPU or the
// two libraries. test_executor --bench [NET]: times forward and backward of the networks, each in its own process,
// prints JSON. A network that the executor refuses fails its check; the next ones run.
#include "support.cuh"

#include <algorithm>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include <farm/step.h>

#include "kernels/bf16.h"
#include "kernels/random.h"
#include "nn/cuda/executor.h"
#include "nn/executor.h"
}

#include "farm_build.h"

static struct farm_cuda_vendor vendor;

// Throws what the executor refuses.
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        struct farm_error err_ = {};                                                                                   \
        struct farm_error *err = &err_;                                                                                \
        if ((call) != FARM_OK) throw std::runtime_error(err_.message);                                                 \
    } while (0)

static double distance(const float *a, const float *b, size_t count) {
    double off = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        norm += (double)b[i] * b[i];
    }
    return off == 0 ? 0 : sqrt(off / norm); // NaN if one is
}

// ---- a network with its inputs, on the host and on the device ----

static struct farm_net_io io_of(int channels, int height, int width, int stack, int flat, int actions,
                                bool interleaved = false) {
    struct farm_net_io io = {};
    io.frame_channels = channels, io.height = height, io.width = width, io.interleaved = interleaved;
    io.stack = stack, io.flat = flat, io.actions = actions;
    return io;
}

static struct farm_net_io lstm_of(struct farm_net_io io, int units, int layers) {
    io.lstm = units, io.lstm_layers = layers;
    return io;
}

struct problem {
    struct farm_net net;
    int rows, columns; // columns: of a network with a state
    size_t logits, device_count;
    float *params, *dlogits, *dvalue; // on the host
    const void **inputs;              // [rows] of its frames, some NULL, then its flat input
    struct {
        void *params[2];     // f32, bf16
        const void **frames; // NULL without frames
        const float *flat;   // NULL without a flat input
        float *dlogits, *dvalue;
    } device;
    struct farm_sequence host, sequence; // with a state: of the host, of the device
};

// FIRST inside, from a state that is not 0.
static void make_sequence(struct problem *p, struct random *rng) {
    const size_t rows = (size_t)p->rows, states = (size_t)p->columns * (size_t)p->net.state;
    uint8_t *flags = host_array<uint8_t>(rows);
    for (size_t i = 0; i < rows; i++) flags[i] = i % 5 == 1 ? FARM_STEP_FIRST : 0;
    float *state = random_floats(rng, states, -1, 1);
    p->host = {p->rows / p->columns, p->columns, flags, state, NULL};
    p->sequence = {p->rows / p->columns, p->columns, device_of(flags, rows), device_of(state, states),
                   device_poisoned<float>(states)};
}

// The first rows of a problem.
static struct farm_sequence rows_of(const struct problem *p, struct farm_sequence sequence, int rows) {
    if (p->net.state == 0) return farm_sequence_rows(rows);
    sequence.steps = rows / p->columns;
    return sequence;
}

static struct problem problem_make(const char *name, const struct farm_net_io *io, int rows, int columns = 1) {
    struct problem p = {};
    struct random rng = {11, 0};
    FARM(farm_net_make(farm_net_find(name, err), io, &p.net, err));
    p.rows = rows, p.columns = columns;
    if (p.net.state) make_sequence(&p, &rng);
    p.logits = (size_t)rows * (size_t)io->actions;
    p.device_count = farm_cuda_parameter_count(&p.net);
    p.params = host_array<float>(p.net.parameter_count);
    farm_net_init(&p.net, FARM_INIT_UNIFORM, rng.seed, p.params);
    for (size_t i = 0; i < p.net.parameter_count; i++)
        if (p.params[i] == 0) p.params[i] = random_float(&rng, -0.05f, 0.05f);
    p.dlogits = random_floats(&rng, p.logits, -0.5f, 0.5f);
    p.dvalue = random_floats(&rng, (size_t)rows, -0.5f, 0.5f);
    float *ordered = host_array<float>(p.device_count);
    uint16_t *rounded = host_array<uint16_t>(p.device_count);
    farm_cuda_to_device_layout(&p.net, p.params, ordered);
    for (size_t i = 0; i < p.device_count; i++) rounded[i] = farm_bf16(ordered[i]);
    p.device.params[0] = device_of(ordered, p.device_count);
    p.device.params[1] = device_of(rounded, p.device_count);
    p.device.dlogits = device_of(p.dlogits, p.logits);
    p.device.dvalue = device_of(p.dvalue, (size_t)rows);
    const size_t each = (size_t)io->frame_channels * (size_t)io->height * (size_t)io->width;
    const size_t pointers = (size_t)farm_net_pointers(&p.net), stack = each ? (size_t)io->stack : 0;
    const size_t frames = (size_t)rows * stack;
    uint8_t *input = host_array<uint8_t>(frames * each);
    for (size_t i = 0; i < frames * each; i++) // partly smooth, as a game's pictures
        input[i] = i % 64 && i / 64 % 3 ? input[i - 1] : (uint8_t)random_below(&rng, 256);
    const uint8_t *device_input = device_of(input, frames * each);
    p.inputs = host_array<const void *>((size_t)rows * pointers);
    const void **on_device = host_array<const void *>(frames);
    for (size_t f = 0; f < frames; f++) {
        const bool null = stack > 1 && f % 7 == 2;
        p.inputs[f / stack * pointers + f % stack] = null ? NULL : input + f * each;
        on_device[f] = null ? NULL : device_input + f * each;
    }
    if (frames) p.device.frames = device_of(on_device, frames);
    if (io->flat == 0) return p;
    const size_t flat = (size_t)io->flat;
    float *numbers = random_floats(&rng, (size_t)rows * flat, -1, 1);
    for (size_t r = 0; r < (size_t)rows; r++) p.inputs[r * pointers + stack] = numbers + r * flat;
    p.device.flat = device_of(numbers, (size_t)rows * flat);
    return p;
}

static struct farm_cuda_executor *executor_make(const struct problem *p, int batch_max, bool training,
                                                enum farm_precision precision) {
    const struct farm_cuda_executor_config config = {&p->net, batch_max, training, precision, &vendor};
    struct farm_cuda_executor *executor;
    MUST(farm_cuda_executor_create(&config, &executor, err));
    return executor;
}

// ---- answers ----

struct answers {
    float *logits, *value, *gradients; // on the device: poisoned
};

static struct answers answers_make(const struct problem *p) {
    return {device_poisoned<float>(p->logits), device_poisoned<float>((size_t)p->rows),
            device_poisoned<float>(p->device_count)};
}

static void forward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct problem *p, int rows,
                    struct answers a) {
    const void *params = p->device.params[farm_cuda_executor_precision(executor) == FARM_PRECISION_BF16];
    const struct farm_cuda_input input = {p->device.frames, p->device.flat, NULL};
    MUST(farm_cuda_executor_forward(executor, stream, params, &input, rows_of(p, p->sequence, rows), a.logits, a.value,
                                    err));
}

static void forward_backward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct problem *p,
                             struct answers a) {
    const void *params = p->device.params[farm_cuda_executor_precision(executor) == FARM_PRECISION_BF16];
    forward(executor, stream, p, p->rows, a);
    CUDA(cudaMemsetAsync(a.gradients, 0, p->device_count * sizeof(float), stream));
    MUST(farm_cuda_executor_backward(executor, stream, params, p->device.dlogits, p->device.dvalue,
                                     rows_of(p, p->sequence, p->rows), a.gradients, err));
}

// On the host: logits and values in one piece, gradients in PyTorch's order.
struct host_answers {
    std::vector<float> outputs, gradients;
    bool operator==(const host_answers &other) const {
        return memcmp(outputs.data(), other.outputs.data(), outputs.size() * sizeof(float)) == 0 &&
               memcmp(gradients.data(), other.gradients.data(), gradients.size() * sizeof(float)) == 0;
    }
};

static struct host_answers fetch_answers(const struct problem *p, struct answers a) {
    CUDA(cudaDeviceSynchronize());
    struct host_answers h = {std::vector<float>(p->logits + (size_t)p->rows),
                             std::vector<float>(p->net.parameter_count)};
    std::vector<float> ordered(p->device_count);
    CUDA(cudaMemcpy(h.outputs.data(), a.logits, p->logits * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(h.outputs.data() + p->logits, a.value, p->rows * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(ordered.data(), a.gradients, ordered.size() * sizeof(float), cudaMemcpyDeviceToHost));
    farm_cuda_to_pytorch_layout(&p->net, ordered.data(), h.gradients.data());
    return h;
}

// By the CPU's executor, in f32.
static struct host_answers answers_of_cpu(const struct problem *p) {
    struct host_answers h = {std::vector<float>(p->logits + (size_t)p->rows),
                             std::vector<float>(p->net.parameter_count)};
    const struct farm_arithmetic f32 = farm_arithmetic_uniform(&p->net, FARM_PRECISION_F32, {});
    struct farm_executor_config config = {};
    struct farm_executor *executor;
    config.net = &p->net;
    config.batch_max = p->rows;
    config.training = true;
    config.arithmetic = &f32;
    FARM(farm_executor_create(&config, &executor, err));
    farm_executor_load(executor, p->params);
    farm_executor_forward(executor, p->inputs, rows_of(p, p->host, p->rows), h.outputs.data(),
                          h.outputs.data() + p->logits);
    farm_executor_backward(executor, rows_of(p, p->host, p->rows), p->dlogits, p->dvalue, h.gradients.data());
    farm_executor_destroy(executor);
    return h;
}

// ---- a graph ----

struct captured {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

// Runs the work once before it is captured: that chooses algorithms and loads kernels.
template <typename Work> static struct captured capture(Work work) {
    struct captured c;
    CUDA(cudaStreamCreateWithFlags(&c.stream, cudaStreamNonBlocking));
    work(c.stream);
    CUDA(cudaStreamSynchronize(c.stream));
    CUDA(cudaStreamBeginCapture(c.stream, cudaStreamCaptureModeThreadLocal));
    work(c.stream);
    CUDA(cudaStreamEndCapture(c.stream, &c.graph));
    CUDA(cudaGraphInstantiate(&c.exec, c.graph, 0));
    return c;
}

static void captured_free(struct captured *c) {
    CUDA(cudaGraphExecDestroy(c->exec));
    CUDA(cudaGraphDestroy(c->graph));
    CUDA(cudaStreamDestroy(c->stream));
}

// ---- checks ----

// bf16: the gradient's largest part comes from the last layers. Deep: roundings move maxima.
static double gradient_bound(const char *net, bool f32) {
    return f32 ? 1e-4 : strcmp(net, "deep") == 0 ? 0.2 : 8e-2;
}

static bool replays_agree(const struct problem *p, struct farm_cuda_executor *executor, struct answers a,
                          const struct host_answers *direct) {
    struct captured c = capture([&](cudaStream_t stream) { forward_backward(executor, stream, p, a); });
    bool same = true;
    for (int replay = 0; replay < 3; replay++) {
        CUDA(cudaMemset(a.logits, POISON, p->logits * sizeof(float)));
        CUDA(cudaMemset(a.value, POISON, p->rows * sizeof(float)));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaGraphLaunch(c.exec, c.stream));
        same = same && fetch_answers(p, a) == *direct;
    }
    captured_free(&c);
    return same;
}

// How far each row's answer among fewer rows is from its answer among all, at most.
static double error_of_fewer_rows(const struct problem *p, struct farm_cuda_executor *executor, struct answers a,
                                  const struct host_answers *all) {
    double worst = 0;
    for (int rows = p->rows - p->columns; rows >= 1; rows -= p->columns) {
        forward(executor, NULL, p, rows, a);
        const std::vector<float> fewer = fetch_answers(p, a).outputs;
        const size_t logits = (size_t)rows * (size_t)p->net.io.actions;
        worst = std::max({worst, distance(fewer.data(), all->outputs.data(), logits),
                          distance(&fewer[p->logits], &all->outputs[p->logits], (size_t)rows)});
    }
    return worst;
}

static void check_net(const char *name, const struct farm_net_io *io, int rows, int columns,
                      enum farm_precision precision) {
    const struct memory_scope scope;
    const bool f32 = precision == FARM_PRECISION_F32;
    const char *as = f32 ? "f32" : "bf16";
    const double bound = f32 ? 1e-5 : 1e-2, bound_of_gradient = gradient_bound(name, f32);
    const struct problem p = problem_make(name, io, rows, columns);
    const struct host_answers expected = answers_of_cpu(&p);
    struct farm_cuda_executor *training = executor_make(&p, rows + 3, true, precision);
    struct farm_cuda_executor *inference = executor_make(&p, rows, false, precision);
    const struct answers a = answers_make(&p), b = answers_make(&p);
    forward_backward(training, NULL, &p, a);
    const struct host_answers direct = fetch_answers(&p, a);
    const double off = distance(direct.outputs.data(), expected.outputs.data(), expected.outputs.size());
    const double gradient = distance(direct.gradients.data(), expected.gradients.data(), expected.gradients.size());
    check(off <= bound, "%s %dx%dx%d %s: logits and values off by %.1e (bound %.0e)", name, io->frame_channels,
          io->height, io->width, as, off, bound);
    check(gradient <= bound_of_gradient, "%s %s: the gradient is off by %.1e (bound %.0e)", name, as, gradient,
          bound_of_gradient);
    forward_backward(training, NULL, &p, b);
    check(fetch_answers(&p, b) == direct, "%s %s: the same bits again", name, as);
    check(replays_agree(&p, training, b, &direct), "%s %s: three replays of a graph give the same bits", name, as);
    const double fewer = error_of_fewer_rows(&p, training, b, &direct);
    check(fewer <= bound, "%s %s: among fewer rows a row's answer is off by %.1e (bound %.0e)", name, as, fewer, bound);
    forward(inference, NULL, &p, rows, b);
    const double inferred = distance(fetch_answers(&p, b).outputs.data(), direct.outputs.data(), direct.outputs.size());
    check(inferred <= bound, "%s %s: inference is off training by %.1e (bound %.0e)", name, as, inferred, bound);
    farm_cuda_executor_destroy(training);
    farm_cuda_executor_destroy(inference);
}

static void check_all(void) {
    static const struct {
        const char *net;
        struct farm_net_io io;
        int rows, columns;
    } problems[] = {
        {"shallow", io_of(1, 84, 84, 4, 0, 6), 5, 1},
        {"shallow", io_of(3, 37, 50, 2, 0, 15), 3, 1},
        {"nature", io_of(1, 52, 60, 4, 0, 18), 7, 1},
        {"deep", io_of(1, 42, 35, 4, 0, 9), 4, 1},
        {"deep", io_of(3, 24, 31, 1, 0, 3), 3, 1},
        {"lite", io_of(3, 64, 64, 2, 11, 15, true), 5, 1},
        {"mlp", io_of(0, 0, 0, 1, 17, 7), 9, 1},
        {"mlp", lstm_of(io_of(0, 0, 0, 1, 17, 7), 19, 1), 12, 3},
        {"shallow", lstm_of(io_of(1, 84, 84, 4, 7, 6), 256, 2), 14, 2},
    };
    for (const auto &p : problems)
        for (const enum farm_precision precision : {FARM_PRECISION_BF16, FARM_PRECISION_F32}) // the learner's first
            try {
                check_net(p.net, &p.io, p.rows, p.columns, precision);
            } catch (const std::exception &error) {
                check(false, "%s %s: %s", p.net, precision == FARM_PRECISION_F32 ? "f32" : "bf16", error.what());
            }
}

// ---- times ----

static bool *printed; // shared by the networks' processes: a row precedes

// The median of replays.
static void print_time(const char *what, const char *net, const struct problem *p, struct farm_cuda_executor *executor,
                       int rows, bool training) {
    enum { REPLAYS = 60 };
    const struct answers a = answers_make(p);
    cudaEvent_t start, end;
    struct captured c = capture([&](cudaStream_t stream) {
        if (training)
            forward_backward(executor, stream, p, a);
        else
            forward(executor, stream, p, rows, a);
    });
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    std::vector<float> us;
    for (int i = 0; i < REPLAYS; i++) {
        float milliseconds;
        CUDA(cudaEventRecord(start, c.stream));
        CUDA(cudaGraphLaunch(c.exec, c.stream));
        CUDA(cudaEventRecord(end, c.stream));
        CUDA(cudaStreamSynchronize(c.stream));
        CUDA(cudaEventElapsedTime(&milliseconds, start, end));
        if (i >= REPLAYS / 6) us.push_back(milliseconds * 1e3f);
    }
    std::sort(us.begin(), us.end());
    const size_t count = us.size();
    printf("%s{\"name\": \"%s_%s_%d\", \"value\": %.2f, \"unit\": \"us\", \"better\": \"lower\", \"spread\": %.4f}",
           *printed ? ",\n" : "", what, net, rows, us[count / 2], (us[count * 3 / 4] - us[count / 4]) / us[count / 2]);
    fflush(stdout);
    *printed = true;
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    captured_free(&c);
}

// Training first: the benchmark needs it most.
static void time_network(const char *net) {
    const struct memory_scope scope;
    const struct farm_net_io io = io_of(1, 84, 84, 4, 0, 6);
    const int training_rows = 672;
    const struct problem p = problem_make(net, &io, training_rows);
    struct farm_cuda_executor *training = executor_make(&p, training_rows, true, FARM_PRECISION_AUTO);
    print_time("forward_backward", net, &p, training, training_rows, true);
    print_time("forward", net, &p, training, training_rows, false);
    struct farm_cuda_executor *inference = executor_make(&p, 64, false, FARM_PRECISION_AUTO);
    for (int rows : {1, 16, 64}) print_time("forward", net, &p, inference, rows, false);
    farm_cuda_executor_destroy(inference);
    farm_cuda_executor_destroy(training);
}

// 0; 77 without a GPU or the libraries.
static int open_gpu(void) {
    int devices = 0;
    struct farm_error err;
    char words[600];
    const cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess || devices == 0) {
        fprintf(stderr, "no GPU here, nothing was tested: %s\n", cudaGetErrorString(code));
        return 77;
    }
    if (farm_cuda_vendor_open(&vendor, &err) != FARM_OK) {
        fprintf(stderr, "nothing was tested: %s\n", err.message);
        return 77;
    }
    struct cudaDeviceProp device;
    CUDA(cudaGetDeviceProperties(&device, 0));
    farm_cuda_vendor_describe(&vendor, words, sizeof words);
    fprintf(stderr, "%s, %s\n", device.name, words);
    return 0;
}

// Times a network in a process in which CUDA has not started. Returns 0, 77, or 1 with the reason on stderr. Prints
// complete rows only.
static int bench_apart(const char *net) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        int status = open_gpu();
        try {
            if (!status) time_network(net);
        } catch (const std::exception &error) {
            fprintf(stderr, "%s: %s\n", net, error.what());
            status = 1;
        }
        fflush(stdout);
        _exit(status);
    }
    int status = 1;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 1;
    return WEXITSTATUS(status);
}

static int bench_all(const char *only) {
    int worst = 0;
    printed = (bool *)mmap(NULL, sizeof *printed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (printed == MAP_FAILED) return 1;
    printf("{\"schema_version\": 1, \"benchmark\": \"cuda_executor\", \"commit\": \"%s\", \"results\": [\n",
           FARM_COMMIT);
    for (const char *net : {"shallow", "nature", "deep"}) {
        if (only && strcmp(net, only) != 0) continue;
        const int status = worst == 77 ? 77 : bench_apart(net);
        if (status) worst = status;
    }
    printf("\n]}\n");
    return worst;
}

int main(int argc, char **argv) {
    if (argc >= 2 && strcmp(argv[1], "--bench") == 0) return bench_all(argc > 2 ? argv[2] : NULL);
    const int status = open_gpu();
    if (status) return status;
    check_all();
    CUDA(cudaDeviceSynchronize());
    return checks_end();
}
