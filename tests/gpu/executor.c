// The GPU's executor with the real cuDNN and cuBLASLt, beside the CPU's in f32: the tests of tests/nn/cuda/executor.h.
//
// test_executor: exit status 1 if one failed, 77 without a GPU or the two libraries. test_executor --bench [NET]: times
// forward and backward of the networks, prints JSON. Each test and each network has its own process.
int run_tests(int argc, char **argv);
#define main run_tests // criterion_minimal's; this file has its own
#include <criterion/criterion.h>
#undef main

#include "base/statistics.h"
#include "farm_build.h"
#include "nn/cuda/vendor.h"

static struct farm_cuda_vendor vendor;
static const bool on_gpu = true;

#include "../nn/cuda/executor.h"

// 0; 77 without a GPU or the libraries.
static int open_gpu(void) {
    int devices = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess || devices == 0) {
        fprintf(stderr, "no GPU here, nothing was tested: %s\n", cudaGetErrorString(code));
        return 77;
    }
    if (farm_cuda_vendor_open(&vendor, &err) == FARM_OK) return 0;
    fprintf(stderr, "nothing was tested: %s\n", err.message);
    return 77;
}

static void setup(void) {
    cr_assert_eq(open_gpu(), 0);
}

TestSuite(nn_cuda, .init = setup);

static int describe_gpu(const char *unused) {
    struct cudaDeviceProp device;
    char words[600];
    const int status = open_gpu();
    (void)unused;
    if (status) return status;
    CUDA(cudaGetDeviceProperties(&device, 0));
    farm_cuda_vendor_describe(&vendor, words, sizeof words);
    fprintf(stderr, "%s, %s\n", device.name, words);
    return 0;
}

// ---- times ----

static bool *printed; // shared by the networks' processes: a row precedes

// The median of replays.
static void print_time(const char *what, const struct problem *p, struct farm_cuda_executor *executor, int rows,
                       bool training) {
    enum { UNCOUNTED = 10, REPLAYS = 50 };
    const with_answer a = answer_of(executor, p, rows, training);
    const struct captured c = capture(executor, p, rows, &a, training);
    double us[REPLAYS], spread;
    cudaEvent_t start, end;
    CUDA(cudaEventCreate(&start));
    CUDA(cudaEventCreate(&end));
    for (int i = -UNCOUNTED; i < REPLAYS; i++) {
        float milliseconds;
        CUDA(cudaEventRecord(start, c.stream));
        CUDA(cudaGraphLaunch(c.exec, c.stream));
        CUDA(cudaEventRecord(end, c.stream));
        CUDA(cudaStreamSynchronize(c.stream));
        CUDA(cudaEventElapsedTime(&milliseconds, start, end));
        if (i >= 0) us[i] = (double)milliseconds * 1e3;
    }
    const double median = farm_median(us, REPLAYS, &spread);
    printf("%s{\"name\": \"%s_%s_%d\", \"value\": %.2f, \"unit\": \"us\", \"better\": \"lower\", \"spread\": %.4f}",
           *printed ? ",\n" : "", what, p->spec.text, rows, median, spread);
    fflush(stdout);
    *printed = true;
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    captured_free(&c);
}

// Training first: the benchmark needs it most.
static int time_network(const char *net) {
    static const int inferred[] = {1, 16, 64}, trained = 672;
    const int status = open_gpu();
    if (status) return status;
    with_problem *p = problem_unsolved(net_spec(net), &atari, trained);
    with_executor *training = executor_new(p, trained, FARM_PRECISION_AUTO, true);
    print_time("forward_backward", p, training, trained, true);
    print_time("forward", p, training, trained, false);
    with_executor *inference = executor_new(p, 64, FARM_PRECISION_AUTO, false);
    for (int i = 0; i < 3; i++) print_time("forward", p, inference, inferred[i], false);
    return 0;
}

// Calls in a process in which CUDA has not started. Returns its status.
static int call_apart(int (*call)(const char *), const char *argument) {
    int status = 1;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) exit(call(argument));
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status)) return 1;
    return WEXITSTATUS(status);
}

static int bench_all(const char *only) {
    static const char *const nets[] = {"shallow", "nature", "deep"};
    int worst = 0;
    printed = mmap(NULL, sizeof *printed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (printed == MAP_FAILED) return 1;
    printf("{\"schema_version\": 1, \"benchmark\": \"cuda_executor\", \"commit\": \"%s\", \"results\": [\n",
           FARM_COMMIT);
    for (int i = 0; i < 3; i++) {
        if (only && strcmp(nets[i], only) != 0) continue;
        const int status = worst == 77 ? 77 : call_apart(time_network, nets[i]);
        if (status) worst = status;
    }
    printf("\n]}\n");
    return worst;
}

int main(int argc, char **argv) {
    const bool bench = argc >= 2 && strcmp(argv[1], "--bench") == 0;
    const int status = call_apart(describe_gpu, NULL);
    if (status) return status;
    return bench ? bench_all(argc > 2 ? argv[2] : NULL) : run_tests(argc, argv);
}
