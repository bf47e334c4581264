// The list of algorithms: one include and one line each. Compiled by the C compiler (registry.c) and by nvcc
// (cuda/algo.cu). X(NAME): functions farm_NAME_prepare, farm_NAME_column and farm_NAME_row of NAME.h (all three, an
// empty one too), table farm_NAME of NAME.c.
#ifndef FARM_ALGO_ALL_H
#define FARM_ALGO_ALL_H

#include "algo/ppo.h"
#include "algo/pqn.h"
#include "algo/r2d2.h"
#include "algo/vtrace.h"

#define FARM_ALGO_LIST(X) X(vtrace) X(ppo) X(dqn) X(r2d2) X(pqn)

#endif
