// See engine.h.
#include "bridge/engine.h"

#include <string.h>

#include "base/log.h"

enum farm_status farm_engine_check_word(const char *word, struct farm_error *err) {
    if (strcmp(word, "auto") == 0 || strcmp(word, "uring") == 0 || strcmp(word, "poll") == 0) return FARM_OK;
    return farm_fail(err, FARM_E_USAGE, "the bridge's engine must be one of auto, uring, poll (got '%.40s')", word);
}

enum farm_status farm_engine_make(const char *word, uint32_t sockets, uint32_t watches,
                                  const struct farm_engine_ops **ops, struct farm_engine **out,
                                  struct farm_error *err) {
    const bool automatic = strcmp(word, "auto") == 0;
    if (farm_engine_check_word(word, err)) return FARM_E_USAGE;
    if (strcmp(word, "poll") != 0) {
        struct farm_error why = {0};
        *ops = &farm_engine_uring;
        const enum farm_status status = (*ops)->create(sockets, watches, NULL, out, &why);
        if (!status) return FARM_OK;
        if (!automatic) {
            if (err) *err = why;
            return farm_fail_in(err, status, "the bridge cannot use io_uring");
        }
        farm_log_warn("the bridge uses poll(2), with more system calls: io_uring is unavailable: %s", why.message);
    }
    *ops = &farm_engine_poll;
    return (*ops)->create(sockets, watches, NULL, out, err);
}
