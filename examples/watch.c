// watch: starts a farm, reads its lanes while it runs, and prints steps/s and rewards. Against an installed actorfarm:
//
//   export PKG_CONFIG_PATH=PREFIX/lib/pkgconfig PATH=PREFIX/bin:$PATH
//   cc -O2 watch.c -o watch $(pkg-config --cflags --libs farm)
//   ./watch
//
// `./watch PID` attaches to a farm that runs already, for example a `farm train` in another terminal.
#include <farm/farm.h>
#include <farm/step.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// A farm that has just started has no lanes before it has made its shared memory.
static struct farm_view *attach_within(pid_t pid, int seconds, char *error, size_t error_bytes) {
    struct farm_view *view = farm_attach(pid, error, error_bytes);
    for (int tries = 0; !view && tries < 20 * seconds; tries++) {
        usleep(50000);
        view = farm_attach(pid, error, error_bytes);
    }
    return view;
}

// Sums rewards and episode ends of the steps [from, to) of a lane that are still there.
static void read_steps(const struct farm_view *view, unsigned lane, uint64_t from, uint64_t to, double *reward,
                       unsigned *episodes) {
    struct farm_lane_state state;
    farm_view_state(view, lane, &state);
    float *rewards = malloc(farm_view_bytes(view, lane, FARM_VIEW_REWARD));
    uint8_t *flags = malloc(farm_view_bytes(view, lane, FARM_VIEW_FLAGS));
    if (to - from > state.steps) from = to - state.steps;
    for (uint64_t n = from; rewards && flags && n < to; n++) {
        if (!farm_view_copy(view, lane, n, FARM_VIEW_REWARD, rewards)) continue;
        if (!farm_view_copy(view, lane, n, FARM_VIEW_FLAGS, flags)) continue;
        for (uint32_t e = 0; e < state.width; e++) {
            *reward += rewards[e];
            *episodes += (flags[e] & FARM_STEP_LAST) != 0;
        }
    }
    free(rewards);
    free(flags);
}

int main(int argc, char **argv) {
    const char *const words[] = {"train", "--env", "native/cartpole", "--seconds", "6", "--quiet", NULL};
    char error[512] = "usage: watch [PID of farm train]";
    struct farm *farm = argc > 1 ? NULL : farm_start(words, error, sizeof error);
    const pid_t pid = argc > 1 ? atoi(argv[1]) : farm ? farm_pid(farm) : 0;
    struct farm_view *view = pid > 0 ? attach_within(pid, farm ? 10 : 0, error, sizeof error) : NULL;
    if (!view) {
        fprintf(stderr, "watch: %s\n", error);
        if (farm) farm_stop(farm), farm_wait(farm);
        return 1;
    }
    printf("%u lanes, %u observation fields\n", farm_view_lanes(view), farm_view_env(view)->obs_count);
    uint64_t *seen = calloc(farm_view_lanes(view), sizeof *seen);
    for (int second = 1; seen && second <= 3; second++) {
        uint64_t steps = 0;
        double reward = 0;
        unsigned episodes = 0;
        sleep(1);
        for (unsigned lane = 0; lane < farm_view_lanes(view); lane++) {
            struct farm_lane_state state;
            farm_view_state(view, lane, &state);
            steps += (state.produced - seen[lane]) * state.width;
            read_steps(view, lane, seen[lane], state.produced, &reward, &episodes);
            seen[lane] = state.produced;
        }
        printf("%d s: %llu steps; of those still in the lanes: reward %.0f, %u episodes ended\n", second,
               (unsigned long long)steps, reward, episodes);
    }
    free(seen);
    farm_detach(view);
    if (farm) farm_stop(farm);
    return farm ? farm_wait(farm) : 0;
}
