// What inference and training do alike with a stream of the current device: make it, and make graphs of what it is
// given. Runs in the learner; no state.
#ifndef FARM_LEARNER_CUDA_STREAM_H
#define FARM_LEARNER_CUDA_STREAM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/status.h"

// A stream that waits for no other, of the device's highest priority or its lowest, and an event for where it stands
// (NULL: none).
enum farm_status farm_cuda_stream_make(bool highest, cudaStream_t *stream, cudaEvent_t *done, struct farm_error *err);

// What the stream has been given since cudaStreamBeginCapture, as a graph. `status`: what came of giving it; where that
// is an error the capture ends, and it is returned.
enum farm_status farm_cuda_stream_end_capture(cudaStream_t stream, enum farm_status status, cudaGraphExec_t *out,
                                              struct farm_error *err);

#endif
