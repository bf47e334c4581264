// The list of algorithms: one include and one line each. Compiled by the C compiler (registry.c) and by nvcc
// (cuda/algo.cu). X(NAME, CODE): table farm_NAME, and functions farm_CODE_prepare, farm_CODE_column and farm_CODE_row
// of CODE.h (all three, an empty one too).
#ifndef FARM_ALGO_ALL_H
#define FARM_ALGO_ALL_H

#include "algo/ppo.h"
#include "algo/pqn.h"
#include "algo/r2d2.h"
#include "algo/vtrace.h"

#define FARM_ALGO_LIST(X) X(vtrace, vtrace) X(ppo, ppo) X(dqn, r2d2) X(r2d2, r2d2) X(pqn, pqn)

#endif
