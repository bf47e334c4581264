// consumer: answers the lanes of a farm with random actions, in the place of a learner of your own, and prints steps/s
// and rewards. Against an installed actorfarm:
//
//   export PKG_CONFIG_PATH=PREFIX/lib/pkgconfig PATH=PREFIX/bin:$PATH
//   cc -O2 consumer.c -o consumer $(pkg-config --cflags --libs farm)
//   ./consumer
//
// `./consumer PATH` connects to a `farm serve --env E --socket PATH` that runs already, which goes on afterwards.
#include <farm/consumer.h>
#include <farm/step.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SECONDS = 2 };

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

// Your policy: here it draws actions. Observations lie at farm_consumer_field(..., FARM_VIEW_OBS + i).
static void choose(const struct farm_action_spec *action, uint32_t width, void *out) {
    for (uint32_t i = 0; i < width * action->dims; i++) {
        const uint32_t d = i % action->dims;
        if (action->kind == FARM_ACTION_CONTINUOUS)
            ((float *)out)[i] = action->low[d] + (action->high[d] - action->low[d]) * (float)rand() / (float)RAND_MAX;
        else
            ((int32_t *)out)[i] = rand() % (int32_t)action->sizes[d];
    }
}

int main(int argc, char **argv) {
    const char *const words[] = {"--env", "native/cartpole", NULL};
    char error[512];
    struct farm_consumer *farm = argc > 1 ? farm_consumer_connect(argv[1], error, sizeof error)
                                          : farm_consumer_start(words, NULL, 0, error, sizeof error);
    if (!farm) return fprintf(stderr, "consumer: %s\n", error), 1;
    struct farm_consumer_shape shape;
    farm_consumer_shape(farm, &shape);
    const unsigned places = farm_consumer_places(farm);
    struct farm_ready *ready = calloc(places, sizeof *ready);
    uint32_t *lanes = calloc(places, sizeof *lanes);
    unsigned long long steps = 0, episodes = 0;
    double reward = 0;
    const double start = now_s();
    int count = 0;
    while (ready && lanes && now_s() < start + SECONDS) {
        if ((count = farm_consumer_recv(farm, 1, places, 100000000, ready)) < 0) break;
        for (int i = 0; i < count; i++) {
            const uint32_t lane = lanes[i] = ready[i].lane;
            const float *rewards = farm_consumer_field(farm, lane, ready[i].step, 1, FARM_VIEW_REWARD);
            const uint8_t *flags = farm_consumer_field(farm, lane, ready[i].step, 1, FARM_VIEW_FLAGS);
            for (uint32_t e = 0; e < shape.width; e++) {
                steps += !(flags[e] & FARM_STEP_FIRST);
                episodes += (flags[e] & FARM_STEP_LAST) != 0;
                reward += rewards[e];
            }
            choose(&farm_consumer_env(farm)->action, shape.width,
                   farm_consumer_answer_field(farm, lane, FARM_VIEW_ACTION));
        }
        if (!farm_consumer_answer(farm, lanes, (unsigned)count)) break;
    }
    printf("%.0f steps/s, %llu episodes, %.2f reward an episode. %s\n", (double)steps / (now_s() - start), episodes,
           episodes ? reward / (double)episodes : 0, farm_consumer_error(farm));
    free(ready);
    free(lanes);
    return farm_consumer_close(farm);
}
