// The flag bits of a step, which accompany every observation in a lane (dm_env's TimeStep, with an episode's last
// observation as a separate step). Reward n and flags n came WITH observation n. C17 and CUDA C++.
//
//   FIRST       first observation of an episode; reward 0. Not counted as a transition.
//   LAST        last observation of an episode. The action answered to it is ignored; this environment resets at step
//               n+1 (FIRST), the others of its group step on.
//   TERMINATED  with LAST: the episode ended by itself, so the discount of the transition into this step is 0.
//   TRUNCATED   with LAST: the episode was cut (time limit), so training bootstraps from this observation.
//   GAME_END    with LAST: a real game ended (not only a life lost): `episodes` and `return_mean` count these.
//
// Of an environment with several agents each is an environment of the lane. One that has left (LAST) before the others
// has FIRST with reward 0 at every step until they all start again: abandoned episodes without a transition.
//
// FIRST at step n+1 without LAST at step n is an abandoned episode (its actor died, or a consumer has reset it): step n
// has weight 0 and is used for bootstrapping.
//
// Rings with same-step resets (`farm serve --autoreset same_step`) have no LAST alone. FIRST with LAST is then one
// step: reward and ends are those of the transition into the finished episode's last observation, which lies in the
// fields FARM_VIEW_LAST (farm/farm.h); the observation is the next episode's first, and the action answered to it is
// its first action. FIRST alone begins an episode that follows none, or an abandoned one.
#ifndef FARM_STEP_H
#define FARM_STEP_H

#define FARM_STEP_FIRST      1u
#define FARM_STEP_LAST       2u
#define FARM_STEP_TERMINATED 4u
#define FARM_STEP_TRUNCATED  8u
#define FARM_STEP_GAME_END   16u
#define FARM_STEP_ALL        31u

#endif
