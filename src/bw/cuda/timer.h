// Samples between two events of a GPU. Private to src/bw/cuda; used by one thread.
#ifndef FARM_BW_CUDA_TIMER_H
#define FARM_BW_CUDA_TIMER_H

#include <cuda_runtime_api.h>

#include "bw/clock.h"
#include "bw/gpu.h"

struct farm_bw_timer {
    struct farm_bw_clock clock;        // started by the caller after the memory is there
    cudaStream_t stream[2];            // [1]: for work beside the first
    cudaEvent_t begin, end, other_end; // on the current device
};

// Streams and events on the current device.
enum farm_status farm_bw_timer_open(struct farm_bw_timer *timer, struct farm_error *err);
// Waits for work under way. A timer of zeros is permitted.
void farm_bw_timer_close(struct farm_bw_timer *timer);

// Queues pass number `pass` in timer->stream[0], and in [1] if `both`.
typedef enum farm_status farm_bw_queue_pass(void *context, uint32_t pass, struct farm_error *err);

struct farm_bw_timed_work {
    const char *what;
    farm_bw_queue_pass *queue;
    void *context;
    size_t bytes;   // in a pass
    bool both;      // works in both streams
    uint32_t *last; // NULL, or receives the number of the last pass
};

// The figure's bytes per second, as often as the clock allows; without samples if it allows none.
enum farm_status farm_bw_timer_figure(struct farm_bw_timer *timer, const struct farm_bw_timed_work *work,
                                      struct farm_bw_figure *figure, struct farm_error *err);

// The copy of `bytes` in `host` of what was measured: FARM_E_IO if it is wrong.
enum farm_status farm_bw_timer_check(const void *host, size_t bytes, uint64_t first, const char *what,
                                     struct farm_error *err);

#endif
