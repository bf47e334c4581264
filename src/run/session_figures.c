// Figures of the nodes of sessions.h, for samples and for `farm bridge status`.
#include "run/sessions.h"

#include <math.h>
#include <stdlib.h>

#include "base/file.h"

static const uint64_t SECOND_NS = 1000000000;

void farm_run_figures_list_nodes(struct farm_run_sessions *sessions) {
    sessions->node_count = sessions->away = 0;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++) {
        struct farm_run_session *session = &sessions->session[s];
        if (session->state != FARM_RUN_SESSION_JOINED) continue;
        session->figures.actors = session->present;
        session->figures.lanes = (uint64_t)session->present * farm_run_sessions_workers(sessions)->plan->lanes;
        sessions->nodes[sessions->node_count++] = session->figures;
        sessions->away += session->figures.away;
    }
}

// Rates over the time since the previous figures.
static void update_figures(struct farm_run_sessions *sessions, struct farm_run_session *session, uint64_t now_ns) {
    const struct farm_bridge_node_stats *row = farm_run_session_row(sessions, session);
    const double passed_s = (double)(farm_run_elapsed_ns(now_ns, sessions->second_ns)) * 1e-9;
    const uint64_t steps = farm_load_relaxed(&row->steps), in = farm_load_relaxed(&row->bytes_in),
                   out = farm_load_relaxed(&row->bytes_out), connections = farm_load_relaxed(&row->connections),
                   round_trip_ns = farm_load_relaxed(&row->round_trip_ns);
    struct farm_sample_node *node = &session->figures;
    node->env_steps_per_s = (double)(steps - session->steps) / passed_s;
    node->bytes_in_per_s = (double)(in - session->bytes_in) / passed_s;
    node->bytes_out_per_s = (double)(out - session->bytes_out) / passed_s;
    node->round_trip_ms = round_trip_ns ? (double)round_trip_ns * 1e-6 : (double)NAN;
    node->reconnects = connections ? connections - 1 : 0;
    node->away = session->away_ns;
    node->away_s = session->away_ns ? (double)(farm_run_elapsed_ns(now_ns, session->away_ns)) * 1e-9 : 0;
    node->env_steps = session->steps = steps;
    node->bytes_in = session->bytes_in = in;
    node->bytes_out = session->bytes_out = out;
    node->copied_bytes = farm_load_relaxed(&row->copied_bytes);
    node->present_s = (double)(farm_run_elapsed_ns(now_ns, session->joined_ns)) * 1e-9;
}

// Not flushed to disk: the file is out of date after a second.
static void write_status(struct farm_run_sessions *sessions) {
    if (!sessions->status_file[0]) return;
    json_t *document = farm_json_object(true);
    farm_json_set_text(document, "address", sessions->bridges->address);
    farm_json_set(document, "nodes", farm_sample_nodes_json(sessions->nodes, sessions->node_count));
    size_t bytes;
    char *line = farm_json_line(document, &bytes);
    (void)farm_file_replace_own(sessions->status_file, line, bytes, false, NULL); // a full disk does not end a training
    free(line);
    json_decref(document);
}

void farm_run_figures_update(struct farm_run_sessions *sessions, uint64_t now_ns) {
    if (farm_run_elapsed_ns(now_ns, sessions->second_ns) < SECOND_NS) return;
    for (uint32_t s = 0; s < FARM_BRIDGE_NODES_MAX; s++)
        if (sessions->session[s].state == FARM_RUN_SESSION_JOINED)
            update_figures(sessions, &sessions->session[s], now_ns);
    farm_run_figures_list_nodes(sessions);
    write_status(sessions);
    sessions->second_ns = now_ns;
}
