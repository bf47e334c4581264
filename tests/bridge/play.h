// A world (world.h) over the memory engine: virtual time, faults from a seed.
#ifndef TESTS_BRIDGE_PLAY_H
#define TESTS_BRIDGE_PLAY_H

#include "memory.h"
#include "world.h"

static const struct farm_key PLAY_KEY = {.kind = FARM_KEY_LEARNER, .secret = {1, 2, 3}};

// Valid until the next call.
static inline const struct farm_key *play_node_key(const char *name) {
    static struct farm_key key;
    cr_assert(farm_key_derive(&PLAY_KEY, name, &key));
    return &key;
}

struct play {
    struct world world;
    struct memory net;
    struct memory_side hub_side, node_side;
    uint64_t now_ns;
};

// The caller may change the spec, then calls world_make.
static inline struct play *play_prepare(bool encrypted, enum farm_answers answers, uint32_t lanes, uint32_t pixels,
                                        uint64_t seed) {
    struct play *play = calloc(1, sizeof *play);
    cr_assert_not_null(play);
    struct world *world = &play->world;
    memory_make(&play->net, seed);
    play->hub_side = (struct memory_side){&play->net, true};
    play->node_side = (struct memory_side){&play->net, false};
    play->now_ns = 1000000000;
    world_spec(world, lanes, 2, pixels, 8);
    world->offer.spec.answers = world->node_spec.answers = answers;
    world->held = 3;
    world->weights = answers == FARM_ANSWERS_LOCAL ? 16 : 0;
    world->hub_config.listener = -1;
    world->hub_config.ops = world->node_config.ops = &farm_engine_memory;
    world->hub_config.ops_context = &play->hub_side;
    world->node_config.ops_context = &play->node_side;
    world->hub_config.key = encrypted ? &PLAY_KEY : NULL;
    world->node_config.key = encrypted ? play_node_key("node") : NULL;
    world->node_config.seed = seed;
    return play;
}

static inline struct play *play_make(bool encrypted, enum farm_answers answers, uint32_t rings, uint32_t lanes,
                                     uint32_t pixels, uint64_t seed) {
    struct play *play = play_prepare(encrypted, answers, lanes, pixels, seed);
    world_make(&play->world, rings);
    return play;
}

static inline void play_free(struct play *play) {
    world_free(&play->world);
    memory_free(&play->net);
    free(play);
}

static inline void play_free_at(struct play **play) {
    play_free(*play);
}

#define with_play __attribute__((cleanup(play_free_at))) struct play // freed at the end of its scope

// One turn of both sides. Time advances by 10 us, or by 5 ms if there was no work.
static inline void play_turn(struct play *play, uint64_t steps) {
    play->now_ns += world_turn(&play->world, steps, play->now_ns) ? 10000 : 5000000;
}

// Turns until every lane has so many steps and answers, in at most 100 s of virtual time.
static inline void play_to(struct play *play, uint64_t steps) {
    const uint64_t limit_ns = play->now_ns + 100000000000;
    while (!world_done(&play->world, steps)) {
        play_turn(play, steps);
        cr_assert_lt(play->now_ns, limit_ns, "stuck at %llu of %llu: %s", (unsigned long long)play->world.taken[0][0],
                     (unsigned long long)steps, farm_node_why(play->world.node));
    }
}

#endif
