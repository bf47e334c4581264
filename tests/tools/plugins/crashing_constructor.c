// A plug-in that dies while it is loaded.
#include <farm/env.h>
#include <stdlib.h>

__attribute__((constructor)) static void at_loading(void) {
    abort();
}

FARM_ENV_EXPORT const struct farm_env_api *farm_env_at(size_t index) {
    return NULL;
}
