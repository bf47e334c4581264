// How long the host waits for a GPU. See context.h.
#include "learner/cuda/context.h"

#include <time.h>

#include "base/time.h"

static const double LIMIT_S = 600; // unless the learner's config has a limit
static const uint64_t NAP_MIN_NS = 20000, NAP_MAX_NS = 1000000, NAP_SHARE = 64;

double farm_cuda_limit_s(const struct farm_learner_config *learner) {
    return learner->device.limit_s > 0 ? learner->device.limit_s : LIMIT_S;
}

enum farm_status farm_cuda_wait_expired(struct farm_cuda_context *context, uint64_t start_ns, const char *what,
                                        struct farm_error *err) {
    if (farm_cuda_given_up(context)) return farm_fail(err, FARM_E_DEAD, "%s has not ended: the GPU hangs", what);
    const double limit = farm_cuda_limit_s(context->learner);
    if ((double)(farm_now_ns() - start_ns) <= limit * 1e9) return FARM_OK;
    farm_cuda_give_up(context);
    return farm_fail(err, FARM_E_DEAD,
                     "%s has not ended after %.3g s: the GPU hangs (dmesg and nvidia-smi may say why; it may need a "
                     "reset): --resume continues from the last checkpoint",
                     what, limit);
}

void farm_cuda_nap(uint64_t start_ns) {
    const uint64_t share = (farm_now_ns() - start_ns) / NAP_SHARE;
    const uint64_t nap = share < NAP_MIN_NS ? NAP_MIN_NS : share > NAP_MAX_NS ? NAP_MAX_NS : share;
    const struct timespec time = {.tv_nsec = (long)nap};
    nanosleep(&time, NULL);
}
