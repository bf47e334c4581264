// Samples between two events of a GPU, within a share of the time that is left. Private to src/bw/cuda. Of one thread.
#ifndef FARM_BW_CUDA_TIMER_H
#define FARM_BW_CUDA_TIMER_H

#include <cuda_runtime_api.h>

#include "bw/gpu.h"

struct farm_bw_timer {
    const struct farm_bw_control *control;
    struct farm_bw_conditions *conditions; // stopped and out_of_time are set here
    int samples, figures, taken;
    double seconds;
    uint64_t end_ns, until_ns;
    cudaStream_t stream[2];            // [1]: for what runs beside the first
    cudaEvent_t begin, end, other_end; // of the current device
};

// Streams and events on the current device. `figures`: how many will be asked for.
enum farm_status farm_bw_timer_open(const struct farm_bw_gpu_config *config, int figures,
                                    struct farm_bw_conditions *conditions, struct farm_bw_timer *timer,
                                    struct farm_error *err);
// When memory is there: the time begins.
void farm_bw_timer_start(struct farm_bw_timer *timer);
// Waits for what is under way. A timer of zeros is permitted.
void farm_bw_timer_close(struct farm_bw_timer *timer);

// Before a figure: false where it is not to be taken; between samples: whether to take another.
bool farm_bw_timer_next(struct farm_bw_timer *timer, const char *what);
bool farm_bw_timer_more(struct farm_bw_timer *timer, int done);

// Puts pass number `pass` into timer->stream[0], and into [1] where `both`.
typedef enum farm_status farm_bw_timed(void *context, uint32_t pass, struct farm_error *err);

struct farm_bw_timed_work {
    const char *what;
    farm_bw_timed *put;
    void *context;
    size_t bytes;   // of a pass
    bool both;      // works in both streams
    uint32_t *last; // NULL, or where the number of the last pass goes
};

// The figure's bytes per second; no samples where it was not to be taken.
enum farm_status farm_bw_timer_figure(struct farm_bw_timer *timer, const struct farm_bw_timed_work *work,
                                      struct farm_bw_figure *figure, struct farm_error *err);

// The copy of `bytes` in `host` of what was measured: FARM_E_IO where it is wrong.
enum farm_status farm_bw_timer_check(const void *host, size_t bytes, uint64_t first, const char *what,
                                     struct farm_error *err);

#endif
