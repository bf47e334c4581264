// The newest parameters in one process's memory: the training thread writes, policies read. Reading waits for one
// memcpy at most, writing for the policies that pack the parameters at that moment.
#ifndef FARM_POLICY_PUBLISHED_H
#define FARM_POLICY_PUBLISHED_H

#include "nn/executor.h"

struct farm_published;

// Room for [count] f32 on `node` (-1: anywhere). Empty until the first write. FARM_E_LIMIT: no memory.
enum farm_status farm_published_make(int node, size_t count, struct farm_published **out, struct farm_error *err);
void farm_published_free(struct farm_published *published); // NULL is permitted

// Copies params [count] as version `version`. One thread writes.
void farm_published_write(struct farm_published *published, const float *params, uint64_t version);

// Loads the newest parameters into the executor and sets *version to theirs, unless *version is theirs already. Any
// number of threads, with an executor each.
void farm_published_load(struct farm_published *published, struct farm_executor *executor, uint64_t *version);

#endif
