// The film of one environment (`farm eval --video`): after each step of a group, writes the picture of its environment
// 0 to a pipe, as records that python/actorfarm/video.py reads: u32 width, height, frames per second, then RGB[height]
// [width][3]; three zeros after a game's last picture. Runs in the actor process, before the step is published. The
// writes block: the reader's speed limits the actor. Encodes nothing.
#ifndef FARM_ACTOR_FILM_H
#define FARM_ACTOR_FILM_H

#include "actor/group.h"

struct farm_film {
    int fd; // owned; -1: none, or its reader has gone
    const struct farm_group *group;
    void (*render)(void *env, uint32_t size[2], uint8_t *rgb); // NULL: the observation `field`
    uint32_t field, width, height;
    uint32_t *record; // header and picture
};

// Pictures a second of environments that have no rate of their own: as Procgen plays.
enum { FARM_FILM_RATE_HZ = 15 };

// Takes fd, even if it fails. Errors: FARM_E_UNSUPPORTED: the environment has neither render nor an image among its
// observations; FARM_E_INVALID: an impossible size; FARM_E_LIMIT.
enum farm_status farm_film_open(struct farm_film *film, int fd, const struct farm_group *group, struct farm_error *err);

// Writes the picture of the group's unpublished step. A reader that has gone ends the film silently: it says why.
void farm_film_step(struct farm_film *film, const struct farm_lane *lane);

void farm_film_close(struct farm_film *film); // safe if only fd is set, to -1

#endif
