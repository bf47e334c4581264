// Starting a farm and reading its lanes from a program of your own (libfarm; examples/watch.c is a whole program).
//
// A farm is a run of the program `farm` as a child process. A view maps the lanes of a running farm read-only: it costs
// the farm nothing, and the farm does not notice it. Shapes are those of docs/ARCHITECTURE.md: a lane holds the last C
// steps of W environments; step n lies in it from when `produced` exceeds n until step n + C overwrites it.
// Errors: a function that takes `error` writes one sentence there (error_bytes, 0 is allowed) and returns NULL or -1.
// No function is thread-safe for one object. C17 and C++; x86-64 and AArch64 Linux.
#ifndef FARM_FARM_H
#define FARM_FARM_H

#include <farm/env.h>
#include <stdbool.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct farm;      // a farm that this process started
struct farm_view; // the lanes of a running farm

// Starts `farm` with these words, NULL behind the last: {"train", "--env", "native/cartpole", "--quiet", NULL}. The
// program is $FARM_PROGRAM, else `farm` in PATH. Its stdout and stderr are this process's. The farm ends with this
// process, however that ends; the thread that started it may end before. The object belongs to the caller until
// farm_wait.
struct farm *farm_start(const char *const *words, char *error, size_t error_bytes);
pid_t farm_pid(const struct farm *farm);
// Whether it still runs. Does not block.
bool farm_running(struct farm *farm);
// Requests an orderly end (SIGTERM): a training writes a checkpoint first.
void farm_stop(struct farm *farm);
// Waits for the end and frees the object. Returns the exit status (0 done, 1 failed or unknown because the
// process ignores SIGCHLD, 2 wrong usage), 128 + N after signal N.
int farm_wait(struct farm *farm);

// Maps the lanes of the farm whose supervisor is process `pid` (farm_pid, or a `farm train` of the same user). NULL
// while it has no lanes yet, which `error` says. Lanes of actors that join later are in a later view.
struct farm_view *farm_attach(pid_t pid, char *error, size_t error_bytes);
void farm_detach(struct farm_view *view); // NULL is allowed

// Shape and counters of a lane at this moment.
struct farm_lane_state {
    uint32_t actor, lane;               // lane: among those of the actor
    uint32_t width, steps;              // W environments, C steps
    uint64_t produced, acted, consumed; // steps published, answered, released
};
unsigned farm_view_lanes(const struct farm_view *view);
void farm_view_state(const struct farm_view *view, unsigned lane, struct farm_lane_state *state);
// Fields of observations, and the actions. Belongs to the view.
const struct farm_env_spec *farm_view_env(const struct farm_view *view);

// FARM_VIEW_OBS + i: observation field i. FLAGS: FARM_STEP_* of farm/step.h. VERSION counts published parameters.
enum farm_view_field {
    FARM_VIEW_REWARD,  // f32 [W]
    FARM_VIEW_FLAGS,   // u8 [W]
    FARM_VIEW_ACTION,  // as env.action says, [W]
    FARM_VIEW_POLICY,  // f32 [W][outputs]
    FARM_VIEW_VALUE,   // f32 [W]
    FARM_VIEW_VERSION, // u64, one for the step
    // f32 [W], of a replay: priority^priority_exponent of the window that begins at step n, a multiple of
    // unroll (r2d2) or any (dqn); 0: evicted or not in the replay yet, -0: never sampled (no transition).
    FARM_VIEW_LEAF,
    FARM_VIEW_OBS = 16,
    FARM_VIEW_LAST = 32, // + i: a same-step reset's last observation; valid with FIRST and LAST, until step n + 2
};
// Bytes of a field of one step, all W environments; 0: the lane has no such field.
size_t farm_view_bytes(const struct farm_view *view, unsigned lane, unsigned field);
// Copies a field of step n to `out` (farm_view_bytes). False: not published or not answered yet, or overwritten, also
// if that happened during the copy; then `out` is undefined.
bool farm_view_copy(const struct farm_view *view, unsigned lane, uint64_t n, unsigned field, void *out);

#ifdef __cplusplus
}
#endif

#endif
