// See listen_flags.h.
#include "tools/shared/listen_flags.h"

#include <unistd.h>

#include "base/format.h"
#include "run/bridges.h"

enum farm_status farm_listen_flags_check(const struct farm_listen_flags *flags, struct farm_error *err) {
    if (!flags->address) {
        if (!flags->key && !flags->insecure && !flags->engine && !flags->expect_actors && !flags->bridges)
            return FARM_OK;
        return farm_fail(
            err, FARM_E_USAGE,
            "--key, --insecure, --expect-actors, --bridges and --bridge-engine go with --listen ADDR:PORT");
    }
    if (flags->expect_actors < 0 || flags->expect_actors > FARM_PLAN_ACTORS_MAX)
        return farm_fail(err, FARM_E_USAGE, "--expect-actors %lld: between 0 and %d", (long long)flags->expect_actors,
                         FARM_PLAN_ACTORS_MAX);
    if (flags->bridges < 0 || flags->bridges > FARM_RUN_BRIDGES_MAX)
        return farm_fail(err, FARM_E_USAGE, "--bridges %lld: between 1 and %d", (long long)flags->bridges,
                         FARM_RUN_BRIDGES_MAX);
    if (flags->key && flags->insecure)
        return farm_fail(err, FARM_E_USAGE, "--key FILE encrypts, --insecure does not: one of them");
    if (flags->key && access(flags->key, F_OK) != 0)
        return farm_fail(err, FARM_E_USAGE, "--key %s: there is no such file; `farm bridge keygen %s` makes one",
                         flags->key, farm_format_word(flags->key).text);
    if (flags->key || flags->insecure) return FARM_OK;
    return farm_fail(
        err, FARM_E_USAGE,
        "--listen %s needs --key FILE (`farm bridge keygen FILE` makes it, and FILE.node for the nodes), or "
        "--insecure on a loopback or private address",
        flags->address);
}

struct farm_run_listen farm_listen_flags_request(const struct farm_listen_flags *flags) {
    return (struct farm_run_listen){.address = flags->address,
                                    .key = flags->key,
                                    .expect = (uint32_t)flags->expect_actors,
                                    .bridges = (uint32_t)flags->bridges,
                                    .engine = flags->engine};
}
