// See timer.h.
#include "bw/cuda/timer.h"

#include "base/time.h"
#include "kernels/cuda/check.h"

enum { PASSES_MAX = 64 };
static const double SAMPLE_S = 0.01;

enum farm_status farm_bw_timer_open(const struct farm_bw_gpu_config *config, int figures,
                                    struct farm_bw_conditions *conditions, struct farm_bw_timer *timer,
                                    struct farm_error *err) {
    *timer = (struct farm_bw_timer){.control = config->control,
                                    .conditions = conditions,
                                    .samples = config->samples,
                                    .figures = figures,
                                    .seconds = config->seconds};
    for (int i = 0; i < 2; i++) FARM_CUDA_TRY(cudaStreamCreateWithFlags(&timer->stream[i], cudaStreamNonBlocking));
    FARM_CUDA_TRY(cudaEventCreate(&timer->begin));
    FARM_CUDA_TRY(cudaEventCreate(&timer->end));
    FARM_CUDA_TRY(cudaEventCreateWithFlags(&timer->other_end, cudaEventDisableTiming));
    return FARM_OK;
}

void farm_bw_timer_start(struct farm_bw_timer *timer) {
    timer->end_ns = farm_now_ns() + (uint64_t)(timer->seconds * 1e9);
}

void farm_bw_timer_close(struct farm_bw_timer *timer) {
    for (int i = 0; i < 2; i++)
        if (timer->stream[i]) {
            (void)cudaStreamSynchronize(timer->stream[i]);
            (void)cudaStreamDestroy(timer->stream[i]);
        }
    if (timer->begin) (void)cudaEventDestroy(timer->begin);
    if (timer->end) (void)cudaEventDestroy(timer->end);
    if (timer->other_end) (void)cudaEventDestroy(timer->other_end);
    *timer = (struct farm_bw_timer){0};
}

static bool stopped(struct farm_bw_timer *timer) {
    const struct farm_bw_control *control = timer->control;
    if (control && control->stop && control->stop(control->context)) timer->conditions->stopped = true;
    return timer->conditions->stopped;
}

bool farm_bw_timer_next(struct farm_bw_timer *timer, const char *what) {
    if (stopped(timer)) return false;
    const struct farm_bw_control *control = timer->control;
    if (control && control->progress) control->progress(control->context, what, (double)timer->taken / timer->figures);
    const uint64_t now = farm_now_ns();
    const bool over = now >= timer->end_ns;
    const int left = timer->figures > timer->taken ? timer->figures - timer->taken : 1;
    timer->until_ns = over ? now : now + (timer->end_ns - now) / (uint64_t)left;
    if (over && timer->taken > 0) timer->conditions->out_of_time = true;
    const bool take = !over || timer->taken == 0;
    timer->taken++;
    return take;
}

bool farm_bw_timer_more(struct farm_bw_timer *timer, int done) {
    if (stopped(timer) || done >= timer->samples) return false;
    if (farm_now_ns() < timer->until_ns) return true;
    timer->conditions->out_of_time = true;
    return false;
}

// From the first pass's start to the end of the last one, in both streams where both work.
static enum farm_status time_passes(struct farm_bw_timer *timer, const struct farm_bw_timed_work *work, uint32_t from,
                                    uint32_t passes, double *seconds, struct farm_error *err) {
    float ms = 0;
    FARM_CUDA_TRY(cudaEventRecord(timer->begin, timer->stream[0]));
    if (work->both) FARM_CUDA_TRY(cudaStreamWaitEvent(timer->stream[1], timer->begin, 0));
    for (uint32_t i = 0; i < passes; i++) {
        const enum farm_status status = work->put(work->context, from + i, err);
        if (status) return status;
    }
    if (work->both) {
        FARM_CUDA_TRY(cudaEventRecord(timer->other_end, timer->stream[1]));
        FARM_CUDA_TRY(cudaStreamWaitEvent(timer->stream[0], timer->other_end, 0));
    }
    FARM_CUDA_TRY(cudaEventRecord(timer->end, timer->stream[0]));
    FARM_CUDA_TRY(cudaStreamSynchronize(timer->stream[0]));
    FARM_CUDA_TRY(cudaEventElapsedTime(&ms, timer->begin, timer->end));
    *seconds = ms > 0 ? (double)ms * 1e-3 : 1e-9;
    return FARM_OK;
}

enum farm_status farm_bw_timer_figure(struct farm_bw_timer *timer, const struct farm_bw_timed_work *work,
                                      struct farm_bw_figure *figure, struct farm_error *err) {
    double samples[FARM_BW_SAMPLES_MAX], seconds = 0;
    uint32_t pass = 1;
    int count = 0;
    *figure = farm_bw_figure_of(NULL, 0);
    if (!farm_bw_timer_next(timer, work->what)) return FARM_OK;
    enum farm_status status = time_passes(timer, work, 0, 1, &seconds, err); // loads kernels, warms up
    if (!status) status = time_passes(timer, work, 0, 1, &seconds, err);     // says how many make a sample
    const double wanted = SAMPLE_S / (seconds > 0 ? seconds : SAMPLE_S);
    const uint32_t passes = wanted < 1 ? 1 : wanted > PASSES_MAX ? PASSES_MAX : (uint32_t)wanted;
    do {
        if (!status) status = time_passes(timer, work, pass, passes, &seconds, err);
        if (status) return status;
        samples[count++] = (double)work->bytes * passes / seconds;
        pass += passes;
    } while (farm_bw_timer_more(timer, count));
    *figure = farm_bw_figure_of(samples, count);
    if (work->last) *work->last = pass - 1;
    return FARM_OK;
}

enum farm_status farm_bw_timer_check(const void *host, size_t bytes, uint64_t first, const char *what,
                                     struct farm_error *err) {
    const size_t wrong = farm_bw_gpu_check(host, bytes, first);
    if (wrong == bytes) return FARM_OK;
    return farm_fail(err, FARM_E_IO, "%s: wrong data at byte %zu of %zu: figures of this machine mean nothing", what,
                     wrong, bytes);
}
