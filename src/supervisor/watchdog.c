// See watchdog.h.
#include "supervisor/watchdog.h"

#include <stdio.h>
#include <string.h>

static const uint64_t PERIOD_LEAST_NS = 10000000, PERIOD_MOST_NS = 1000000000;
enum { LOOKS_A_LIMIT = 16, LOOK_MOST_PERIODS = 2 };

struct farm_watchdog farm_watchdog_make(double limit_s) {
    if (!(limit_s > 0)) return (struct farm_watchdog){0};
    struct farm_watchdog watchdog = {.limit_ns = (uint64_t)(limit_s * 1e9)};
    watchdog.period_ns = watchdog.limit_ns / LOOKS_A_LIMIT;
    if (watchdog.period_ns < PERIOD_LEAST_NS) watchdog.period_ns = PERIOD_LEAST_NS;
    if (watchdog.period_ns > PERIOD_MOST_NS) watchdog.period_ns = PERIOD_MOST_NS;
    return watchdog;
}

uint64_t farm_watchdog_due(struct farm_watchdog *watchdog, uint64_t now_ns) {
    if (!watchdog->limit_ns) return 0;
    uint64_t passed = watchdog->looked_ns ? now_ns - watchdog->looked_ns : watchdog->period_ns;
    if (passed < watchdog->period_ns) return 0;
    watchdog->looked_ns = now_ns;
    return passed < LOOK_MOST_PERIODS * watchdog->period_ns ? passed : LOOK_MOST_PERIODS * watchdog->period_ns;
}

uint64_t farm_watch_lanes(const struct farm_ring *ring) {
    uint64_t lanes = 0;
    for (uint32_t l = 0; l < ring->spec.lanes; l++) {
        const struct farm_lane *lane = &ring->lanes[l];
        // `produced` first: the two others may only have grown since, so what looks answered was so.
        const uint64_t produced = farm_lane_produced(lane);
        if (farm_lane_has_answers(lane, produced) && produced - farm_lane_consumed(lane) < lane->steps)
            lanes |= (uint64_t)1 << l;
    }
    return lanes;
}

bool farm_watch_still(const struct farm_watch *watch, uint64_t heartbeat, uint64_t lanes) {
    return watch->seen && lanes && heartbeat == watch->heartbeat;
}

enum farm_watch_state farm_watch_judge(struct farm_watch *watch, const struct farm_watch_look *look,
                                       uint64_t limit_ns) {
    if (!farm_watch_still(watch, look->heartbeat, look->lanes)) {
        const bool stepped = watch->stepped || (watch->seen && look->published != watch->published);
        *watch = (struct farm_watch){.seen = true,
                                     .stepped = stepped,
                                     .published = look->published,
                                     .heartbeat = look->heartbeat,
                                     .lanes = UINT64_MAX};
        return watch->state;
    }
    watch->lanes &= look->lanes; // the lane in which it hangs could go on all the time
    *(look->stopped ? &watch->stopped_ns : &watch->quiet_ns) += look->passed_ns;
    if (watch->quiet_ns >= limit_ns)
        watch->state = FARM_WATCH_HUNG;
    else if (watch->stopped_ns >= limit_ns)
        watch->state = FARM_WATCH_STOPPED;
    return watch->state;
}

bool farm_watch_stopped(pid_t pid) {
    char path[32], line[256];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file) return false;
    const bool read = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const char *name_end = read ? strrchr(line, ')') : NULL; // the name before it may hold anything
    return name_end && name_end[1] == ' ' && (name_end[2] == 'T' || name_end[2] == 't');
}
