// A game in the ocean convention, as PufferLib's versions 2 and 3 have it, for tests: a hunter on a ring of cells runs
// after a target. Discrete actions, u8 observations that change in place: each step clears and sets single cells of
// the last observation, which must still be there. rand() for chance, a time limit that counts as an end.
#include <stdlib.h>
#include <string.h>

enum { CHASE_STAY, CHASE_LEFT, CHASE_RIGHT, CHASE_ACTIONS, CHASE_HUNTER = 1, CHASE_TARGET = 2 };

typedef struct {
    unsigned char *observations;
    int *actions;
    float *rewards;
    unsigned char *terminals;
    int cells, ticks, hunter, target;
    int resets; // how often c_reset was called
} Chase;

void c_reset(Chase *env) {
    memset(env->observations, 0, (size_t)env->cells);
    env->ticks = 0;
    env->resets++;
    env->hunter = rand() % env->cells;
    env->target = (env->hunter + 1 + rand() % (env->cells - 1)) % env->cells;
    env->observations[env->hunter] = CHASE_HUNTER;
    env->observations[env->target] = CHASE_TARGET;
}

void c_step(Chase *env) {
    static const int moves[CHASE_ACTIONS] = {0, -1, 1};
    env->observations[env->hunter] = 0;
    env->hunter = (env->hunter + moves[env->actions[0]] + env->cells) % env->cells;
    const int caught = env->observations[env->hunter] == CHASE_TARGET;
    if (caught) env->rewards[0] = 1;
    if (caught || ++env->ticks == 2 * env->cells) {
        env->terminals[0] = 1;
        c_reset(env);
        return;
    }
    env->observations[env->hunter] = CHASE_HUNTER;
}
