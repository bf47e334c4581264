// A policy as text, by which another process makes the same one: lines "key=value" in a fixed order. It lies in the
// board's header (board/board.h) and travels in a bridge's OFFER. Sizes of inputs and outputs are not in it: they
// follow from the environment's spec. Reading is for untrusted text, with a spec that farm_ring_layout_make has
// accepted: every number is bounded before it is used, and nothing is allocated.
#ifndef FARM_POLICY_DESCRIBE_H
#define FARM_POLICY_DESCRIBE_H

#include "nn/arithmetic.h"
#include "policy/observation.h"

enum { FARM_POLICY_TEXT_BYTES = 2048 };

struct farm_policy_description {
    struct farm_net net;
    struct farm_head head;
    struct farm_head_options head_options;
    struct farm_arithmetic arithmetic;
    bool plain;                  // read: this CPU cannot compute the text's arithmetic; `arithmetic` is f32
    struct farm_sampler sampler; // its seed and exploration
    uint32_t refresh; // parameters may change when a step that is a multiple of it is answered; 1: at every step
};

// Fails with FARM_E_UNSUPPORTED if the text would give another policy: its input is not farm_policy_io's.
enum farm_status farm_policy_describe(const struct farm_policy_description *policy, const struct farm_env_spec *env,
                                      char text[FARM_POLICY_TEXT_BYTES], struct farm_error *err);

// FARM_E_FORMAT: not such a text; or what farm_net_find, farm_policy_io, farm_head_make and farm_net_make refuse.
enum farm_status farm_policy_understand(const char *text, const struct farm_env_spec *env,
                                        struct farm_policy_description *out, struct farm_error *err);

// Whether a ring's observations and answer fields (`sample`, `state`) are those of this network and head.
enum farm_status farm_policy_check_ring(const struct farm_net *net, const struct farm_head *head,
                                        const struct farm_ring_spec *ring, struct farm_error *err);

#endif
