// See worker.h.
#include "bridge/worker.h"

#include <signal.h>

#include "base/atomics.h"
#include "base/confine.h"
#include "base/log.h"

void farm_worker_confine(bool dials) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    struct farm_error err;
    char lacks[256];
    if (farm_confine_lacks(lacks, sizeof lacks)) farm_log_warn("confined in part: %s", lacks);
    if (farm_confine_bridge(dials, &err)) farm_log_warn("%s", err.message);
#endif
}

void farm_worker_die_of_sigterm(void) {
    signal(SIGTERM, SIG_DFL);
    raise(SIGTERM);
}

bool farm_worker_may_sleep(uint64_t *idle_ns, bool busy, uint64_t now_ns, uint64_t spin_ns) {
    if (busy) *idle_ns = 0;
    if (busy) return false;
    if (!*idle_ns) *idle_ns = now_ns;
    if (now_ns - *idle_ns >= spin_ns) return true;
    farm_cpu_relax();
    return false;
}
