// See timer.h.
#include "bw/cuda/timer.h"

#include "kernels/cuda/check.h"

enum { PASSES_MAX = 64 };
static const double SAMPLE_S = 0.01;

enum farm_status farm_bw_timer_open(struct farm_bw_timer *timer, struct farm_error *err) {
    *timer = (struct farm_bw_timer){0};
    for (int i = 0; i < 2; i++) FARM_CUDA_TRY(cudaStreamCreateWithFlags(&timer->stream[i], cudaStreamNonBlocking));
    FARM_CUDA_TRY(cudaEventCreate(&timer->begin));
    FARM_CUDA_TRY(cudaEventCreate(&timer->end));
    FARM_CUDA_TRY(cudaEventCreateWithFlags(&timer->other_end, cudaEventDisableTiming));
    return FARM_OK;
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

// From the first pass's start to the end of the last one, in both streams if both work.
static enum farm_status time_passes(struct farm_bw_timer *timer, const struct farm_bw_timed_work *work, uint32_t from,
                                    uint32_t passes, double *seconds, struct farm_error *err) {
    float ms = 0;
    FARM_CUDA_TRY(cudaEventRecord(timer->begin, timer->stream[0]));
    if (work->both) FARM_CUDA_TRY(cudaStreamWaitEvent(timer->stream[1], timer->begin, 0));
    for (uint32_t i = 0; i < passes; i++) {
        const enum farm_status status = work->queue(work->context, from + i, err);
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
    if (!farm_bw_clock_next(&timer->clock, "%s", work->what)) return FARM_OK;
    enum farm_status status = time_passes(timer, work, 0, 1, &seconds, err); // loads kernels, warms up
    if (!status) status = time_passes(timer, work, 0, 1, &seconds, err);     // to choose the passes of a sample
    const double wanted = SAMPLE_S / (seconds > 0 ? seconds : SAMPLE_S);
    const uint32_t passes = wanted < 1 ? 1 : wanted > PASSES_MAX ? PASSES_MAX : (uint32_t)wanted;
    do {
        if (!status) status = time_passes(timer, work, pass, passes, &seconds, err);
        if (status) return status;
        samples[count++] = (double)work->bytes * passes / seconds;
        pass += passes;
    } while (farm_bw_clock_more(&timer->clock, count));
    *figure = farm_bw_figure_of(samples, count);
    farm_bw_clock_took(&timer->clock);
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
