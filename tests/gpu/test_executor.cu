// The GPU's executor (nn/cuda/executor.h) on a GPU, with the real cuDNN and cuBLASLt, beside what the CPU's executor
// gave in f32 (executor.bin, written by executor_expected.c on a machine with oneDNN).
//
// test_executor FILE: prints a line a check and "N passed, N failed"; exit status 1 where one failed, 77 without a GPU
// or without the libraries. test_executor --bench: times forward and backward of the networks, each in a process of its
// own, prints JSON. A network whose executor says no fails its check, and the others go on.
#include "support.cuh"

#include <algorithm>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

extern "C" {
#include "kernels/bf16.h"
#include "kernels/random.h"
#include "nn/cuda/executor.h"
}

#include "executor_problem.h"
#include "farm_build.h"

static struct farm_cuda_vendor vendor;

// What the executor says no to, for whoever tries a network.
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
    return off == 0 ? 0 : sqrt(off / norm); // NaN where anything is
}

// ---- a network with its inputs on the device ----

struct setting {
    struct farm_net net;
    int rows;
    size_t logits, device_count;
    void *input;
    const void **frames; // NULL for flat inputs
    float *dlogits, *dvalue;
    void *params[2]; // f32, bf16
};

static struct setting setting_make(const char *name, const struct farm_net_io *io, int rows) {
    struct setting s = {};
    FARM(farm_net_make(farm_net_find(name, err), io, &s.net, err));
    s.rows = rows;
    s.logits = (size_t)rows * (size_t)io->actions;
    s.device_count = farm_cuda_parameter_count(&s.net);
    std::vector<float> params(s.net.parameter_count), ordered(s.device_count), dlogits(s.logits), dvalue((size_t)rows);
    std::vector<uint16_t> rounded(s.device_count);
    std::vector<uint8_t> input(executor_input_bytes(io, rows));
    executor_fill_params(&s.net, params.data());
    executor_fill_gradients(io, rows, dlogits.data(), dvalue.data());
    executor_fill_input(io, rows, input.data());
    farm_cuda_to_device_layout(&s.net, params.data(), ordered.data());
    for (size_t i = 0; i < s.device_count; i++) rounded[i] = farm_bf16(ordered[i]);
    s.params[0] = device_of(ordered.data(), ordered.size());
    s.params[1] = device_of(rounded.data(), rounded.size());
    s.dlogits = device_of(dlogits.data(), dlogits.size());
    s.dvalue = device_of(dvalue.data(), dvalue.size());
    s.input = device_of(input.data(), input.size());
    if (io->flat > 0) return s;
    std::vector<const void *> frames((size_t)rows * (size_t)io->stack);
    for (size_t f = 0; f < frames.size(); f++)
        frames[f] = executor_frame_is_null(io, f) ? NULL : (const uint8_t *)s.input + f * executor_frame_bytes(io);
    s.frames = device_of(frames.data(), frames.size());
    return s;
}

static void setting_free(struct setting *s) {
    void *const all[] = {s->input, (void *)s->frames, s->dlogits, s->dvalue, s->params[0], s->params[1]};
    for (void *memory : all)
        if (memory) CUDA(cudaFree(memory));
}

static struct farm_cuda_executor *executor_make(const struct setting *s, int batch_max, bool training,
                                                enum farm_precision precision) {
    const struct farm_cuda_executor_config config = {&s->net, batch_max, training, precision, &vendor};
    struct farm_cuda_executor *executor;
    MUST(farm_cuda_executor_create(&config, &executor, err));
    return executor;
}

// ---- answers, on the device: poisoned, gradients zero ----

struct answers {
    float *logits, *value, *gradients;
};

static struct answers answers_make(const struct setting *s) {
    return {(float *)device_poisoned(s->logits * sizeof(float)), (float *)device_poisoned(s->rows * sizeof(float)),
            (float *)device_poisoned(s->device_count * sizeof(float))};
}
static void answers_free(struct answers a) {
    CUDA(cudaFree(a.logits));
    CUDA(cudaFree(a.value));
    CUDA(cudaFree(a.gradients));
}

static void forward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct setting *s, int rows,
                    struct answers a) {
    const void *params = s->params[farm_cuda_executor_precision(executor) == FARM_PRECISION_BF16];
    const struct farm_cuda_input input = {s->frames, s->frames ? NULL : (const float *)s->input};
    MUST(
        farm_cuda_executor_forward(executor, stream, params, &input, farm_sequence_rows(rows), a.logits, a.value, err));
}
static void backward(struct farm_cuda_executor *executor, cudaStream_t stream, const struct setting *s, int rows,
                     struct answers a) {
    const void *params = s->params[farm_cuda_executor_precision(executor) == FARM_PRECISION_BF16];
    CUDA(cudaMemsetAsync(a.gradients, 0, s->device_count * sizeof(float), stream));
    MUST(farm_cuda_executor_backward(executor, stream, params, s->dlogits, s->dvalue, farm_sequence_rows(rows),
                                     a.gradients, err));
}

// On the host: logits and values in one piece, gradients in PyTorch's order.
struct host_answers {
    std::vector<float> outputs, gradients;
    bool guards;
};
static struct host_answers fetch(const struct setting *s, struct answers a) {
    CUDA(cudaDeviceSynchronize());
    struct host_answers h;
    h.outputs.resize(s->logits + (size_t)s->rows);
    h.gradients.resize(s->net.parameter_count);
    std::vector<float> ordered(s->device_count);
    CUDA(cudaMemcpy(h.outputs.data(), a.logits, s->logits * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(h.outputs.data() + s->logits, a.value, s->rows * sizeof(float), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(ordered.data(), a.gradients, ordered.size() * sizeof(float), cudaMemcpyDeviceToHost));
    farm_cuda_to_pytorch_layout(&s->net, ordered.data(), h.gradients.data());
    h.guards = device_guard_whole(a.logits, s->logits * sizeof(float)) &&
               device_guard_whole(a.value, s->rows * sizeof(float)) &&
               device_guard_whole(a.gradients, s->device_count * sizeof(float));
    return h;
}
static bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- checks ----

// bf16: outputs as one vector, and the gradient as one, whose largest part comes from the last layers. Deep: roundings
// move maxima.
static double gradient_bound(const char *net, enum farm_precision precision) {
    if (precision == FARM_PRECISION_F32) return 1e-4;
    return strcmp(net, "deep") == 0 ? 0.2 : 8e-2;
}

static void check_graph(const struct setting *s, struct farm_cuda_executor *executor, struct answers a,
                        const struct host_answers *direct, const char *name, const char *precision) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    forward(executor, stream, s, s->rows, a);
    backward(executor, stream, s, s->rows, a);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    bool same = true;
    for (int replay = 0; replay < 3; replay++) {
        CUDA(cudaMemset(a.logits, POISON, s->logits * sizeof(float)));
        CUDA(cudaMemset(a.value, POISON, s->rows * sizeof(float)));
        CUDA(cudaDeviceSynchronize());
        CUDA(cudaGraphLaunch(exec, stream));
        const struct host_answers replayed = fetch(s, a);
        same = same && same_bits(replayed.outputs, direct->outputs) && same_bits(replayed.gradients, direct->gradients);
    }
    check(same, "%s %s: three replays of a graph give the same bits", name, precision);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
}

// The first `rows` rows' logits and values.
static std::vector<float> first_rows(const struct setting *s, const struct host_answers *h, int rows) {
    std::vector<float> first(h->outputs.begin(), h->outputs.begin() + rows * s->net.io.actions);
    const auto value = h->outputs.begin() + (ptrdiff_t)s->logits;
    first.insert(first.end(), value, value + rows);
    return first;
}

static void check_fewer_rows(const struct setting *s, struct farm_cuda_executor *executor, struct answers a,
                             const struct host_answers *all, double bound, const char *name, const char *precision) {
    double worst = 0;
    for (int rows = s->rows - 1; rows >= 1; rows--) {
        forward(executor, NULL, s, rows, a);
        const struct host_answers fewer = fetch(s, a);
        const std::vector<float> got = first_rows(s, &fewer, rows), right = first_rows(s, all, rows);
        worst = std::max(worst, distance(got.data(), right.data(), got.size()));
    }
    check(worst <= bound, "%s %s: fewer rows give each row the same answer: off by %.1e (bound %.0e)", name, precision,
          worst, bound);
}

static void check_problem(const struct executor_problem *problem, enum farm_precision precision,
                          const std::vector<float> &outputs, const std::vector<float> &gradients) {
    const bool f32 = precision == FARM_PRECISION_F32;
    const char *name = problem->net, *precise = f32 ? "f32" : "bf16";
    const double bound = f32 ? 1e-5 : 1e-2, gradient = gradient_bound(name, precision);
    struct setting s = setting_make(name, &problem->io, problem->rows);
    struct farm_cuda_executor *training = executor_make(&s, problem->rows + 3, true, precision);
    struct farm_cuda_executor *inference = executor_make(&s, problem->rows, false, precision);
    const struct answers a = answers_make(&s), b = answers_make(&s);
    forward(training, NULL, &s, s.rows, a);
    backward(training, NULL, &s, s.rows, a);
    const struct host_answers direct = fetch(&s, a);
    const double off = distance(direct.outputs.data(), outputs.data(), outputs.size());
    const double gradient_off = distance(direct.gradients.data(), gradients.data(), gradients.size());
    check(off <= bound && direct.guards, "%s %dx%dx%d %s: logits and values off by %.1e (bound %.0e)", name,
          problem->io.frame_channels, problem->io.height, problem->io.width, precise, off, bound);
    check(gradient_off <= gradient, "%s %s: the gradient is off by %.1e (bound %.0e)", name, precise, gradient_off,
          gradient);
    forward(training, NULL, &s, s.rows, b);
    backward(training, NULL, &s, s.rows, b);
    const struct host_answers again = fetch(&s, b);
    check(same_bits(again.outputs, direct.outputs) && same_bits(again.gradients, direct.gradients),
          "%s %s: the same bits again", name, precise);
    check_graph(&s, training, b, &direct, name, precise);
    check_fewer_rows(&s, training, b, &direct, bound, name, precise);
    forward(inference, NULL, &s, s.rows, b);
    const struct host_answers inferred = fetch(&s, b);
    const double inferred_off = distance(inferred.outputs.data(), direct.outputs.data(), direct.outputs.size());
    check(inferred_off <= bound, "%s %s: inference is off training by %.1e (bound %.0e)", name, precise, inferred_off,
          bound);
    answers_free(a);
    answers_free(b);
    farm_cuda_executor_destroy(training);
    farm_cuda_executor_destroy(inference);
    setting_free(&s);
}

static void check_all(FILE *file) {
    for (const struct executor_problem &problem : executor_problems) {
        struct farm_net net;
        FARM(farm_net_make(farm_net_find(problem.net, err), &problem.io, &net, err));
        std::vector<float> outputs((size_t)problem.rows * ((size_t)problem.io.actions + 1)),
            gradients(net.parameter_count);
        if (fread(outputs.data(), sizeof(float), outputs.size(), file) != outputs.size() ||
            fread(gradients.data(), sizeof(float), gradients.size(), file) != gradients.size()) {
            check(false, "%s: the file of expected answers is too short: make cuda", problem.net);
            return;
        }
        for (const enum farm_precision precision : {FARM_PRECISION_BF16, FARM_PRECISION_F32}) // what counts goes first
            try {
                check_problem(&problem, precision, outputs, gradients);
            } catch (const std::exception &error) {
                check(false, "%s %s: %s", problem.net, precision == FARM_PRECISION_F32 ? "f32" : "bf16", error.what());
            }
    }
    check(fgetc(file) == EOF, "the file of expected answers ends where it should");
}

// ---- times ----

// Medians of replays, in microseconds.
static double time_of(const struct setting *s, struct farm_cuda_executor *executor, int rows, bool training,
                      double *spread) {
    enum { REPLAYS = 60 };
    const struct answers a = answers_make(s);
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t start, end;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (int capture = 0; capture < 2; capture++) { // first without: algorithms, kernels
        if (capture) CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        forward(executor, stream, s, rows, a);
        if (training) backward(executor, stream, s, rows, a);
        if (!capture) CUDA(cudaStreamSynchronize(stream));
    }
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    std::vector<float> times;
    for (int i = 0; i < REPLAYS; i++) {
        float milliseconds;
        CUDA(cudaEventRecord(start, stream));
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaStreamSynchronize(stream));
        CUDA(cudaEventElapsedTime(&milliseconds, start, end));
        if (i >= REPLAYS / 6) times.push_back(milliseconds * 1e3f);
    }
    std::sort(times.begin(), times.end());
    *spread = times[times.size() * 3 / 4] - times[times.size() / 4];
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
    answers_free(a);
    return times[times.size() / 2];
}

static bool *printed; // shared by the networks' processes: whether there is a row already

static void print_time(const char *what, const char *net, int rows, double value, double spread) {
    printf("%s{\"name\": \"%s_%s_%d\", \"value\": %.2f, \"unit\": \"us\", \"better\": \"lower\", \"spread\": %.4f, "
           "\"reference\": null, \"reference_value\": null, \"ratio\": null, \"target\": null}",
           *printed ? ",\n" : "", what, net, rows, value, spread / value);
    fflush(stdout);
    *printed = true;
}

// Training before inference: what counts goes first.
static void bench(const char *net) {
    static const int inference_rows[] = {1, 16, 64};
    const struct farm_net_io io = {1, 84, 84, 4, 0, 6};
    const int training_rows = 672;
    struct setting s = setting_make(net, &io, training_rows);
    struct farm_cuda_executor *training = executor_make(&s, training_rows, true, FARM_PRECISION_AUTO);
    double spread;
    const double both = time_of(&s, training, training_rows, true, &spread);
    print_time("forward_backward", net, training_rows, both, spread);
    const double forwards = time_of(&s, training, training_rows, false, &spread);
    print_time("forward", net, training_rows, forwards, spread);
    struct farm_cuda_executor *inference = executor_make(&s, 64, false, FARM_PRECISION_AUTO);
    for (int rows : inference_rows) {
        const double time = time_of(&s, inference, rows, false, &spread);
        print_time("forward", net, rows, time, spread);
    }
    farm_cuda_executor_destroy(inference);
    farm_cuda_executor_destroy(training);
    setting_free(&s);
}

// 0; 77 without a GPU or the libraries.
static int open_all(void) {
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

// In a process that CUDA is new to. 0, 77, or 1: said on stderr; what was printed is whole rows.
static int bench_apart(const char *net) {
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        int status = open_all();
        try {
            if (!status) bench(net);
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

static int bench_all(void) {
    static const char *const nets[] = {"shallow", "nature", "deep"};
    int worst = 0;
    printed = (bool *)mmap(NULL, sizeof *printed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (printed == MAP_FAILED) return 1;
    printf("{\"schema_version\": 1, \"benchmark\": \"cuda_executor\", \"commit\": \"%s\", \"results\": [\n",
           FARM_COMMIT);
    for (const char *net : nets) {
        const int status = worst == 77 ? 77 : bench_apart(net);
        if (status) worst = status;
    }
    printf("\n]}\n");
    return worst;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--bench") == 0) return bench_all();
    FILE *file = argc == 2 ? fopen(argv[1], "rb") : NULL;
    if (!file) {
        fprintf(stderr, "usage: test_executor FILE (build/gpu/executor.bin, from make cuda) | --bench\n");
        return 1;
    }
    const int status = open_all();
    if (status) return status;
    check_all(file);
    fclose(file);
    CUDA(cudaDeviceSynchronize());
    return checks_end();
}
