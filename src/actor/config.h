// What an actor process needs: rings, environment, seed, waiting. Plain data; the process that starts the actor fills
// it.
#ifndef FARM_ACTOR_CONFIG_H
#define FARM_ACTOR_CONFIG_H

#include <farm/env.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct farm_lane; // ring/lane.h

// What happens to a reward or an f32 observation that is senseless (base/number.h).
enum farm_bad_values {
    FARM_BAD_COUNT, // written as it is: the learner finds it, counts it, and does not train on it
    FARM_BAD_FAIL,  // the actor ends with a message that names environment, field, lane and number
    FARM_BAD_RESET, // the episode is abandoned: the environment is reset at once, its first observation replaces the
                    // step with FIRST, and up_control.abandoned increases. If reset returns senseless numbers too, the
                    // actor ends
};

struct farm_actor_config {
    uint32_t actor;     // number; lane ids for seeds are actor * lanes + lane
    int up_fd, down_fd; // owned
    int learner_eventfd;
    int board_fd; // LOCAL: its node's parameter board, owned; -1: none. It is opened unless there is `answer`
    // LOCAL: writes the answer fields of step n, the newest published one, before the next is stepped.
    void (*answer)(void *context, struct farm_lane *lane, uint64_t n);
    void *answer_context;
    const struct farm_env_api *api;  // NULL: of a plug-in, which the actor opens
    const char *plugin, *plugin_env; // path, and name of the environment in it (NULL: its first)
    enum farm_bad_values bad_values;
    const struct farm_env_option *options;
    size_t option_count;
    uint64_t seed;      // the run's
    uint32_t opponents; // agents of an environment that another policy plays, beside the ring's env.agents; 0: none
    int opponent_fd;    // its board, owned; without opponents: unused
    int video;          // pipe of the film (film.h) of the first lane's environment 0; -1: none
    bool obs_far;       // the rings exceed the caches: environments get the hint FARM_ENV_OBS_FAR
    uint64_t spin_ns;
    bool rings_late; // shares its CPU with inference: rings once for all lanes, when no lane can continue
    uint64_t nap_ns; // maximum duration of a sleep, because SIGTERM may come just before it; 0: 100 ms
};

#endif
