// Figures of the nodes of sessions.h, for samples and for `farm bridge status`. Runs in the supervisor process.
#ifndef FARM_RUN_SESSION_FIGURES_H
#define FARM_RUN_SESSION_FIGURES_H

#include "run/session.h"

// Writes the list of joined nodes for samples.
void farm_run_figures_list_nodes(struct farm_run_sessions *sessions);
// Once a second: every node's rates, the list, and RUN/bridge.json.
void farm_run_figures_update(struct farm_run_sessions *sessions, uint64_t now_ns);

#endif
