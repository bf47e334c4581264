// The path to another machine in `farm bw`: the bridge and plain blocking sockets, in turn. See bw.h.
#include "base/json.h"
#include "bw/clock.h"
#include "tools/bridge/bridge.h"
#include "tools/bw/bw.h"

enum farm_status farm_bw_part_network(struct farm_bw_job *job, json_t *section, struct farm_error *err) {
    static const struct farm_bw_unit ns_of_us = {1e3, "ns", false};
    static struct farm_measure_result result;
    if (!job->network) {
        fprintf(job->out,
                "Network: not measured: --network ADDR:PORT --key FILE, where `farm bridge bench --listen` is\n");
        farm_json_set_text(section, "not_measured", "no --network ADDR:PORT");
        return FARM_OK;
    }
    struct farm_measure_config config = *job->network;
    config.seconds = job->setup.seconds < FARM_MEASURE_SECONDS_MAX ? job->setup.seconds : FARM_MEASURE_SECONDS_MAX;
    config.stop = job->setup.control->stop;
    config.context = job->setup.control->context;
    enum farm_status status = farm_measure_run(&config, &result, err);
    if (status) return status;
    fprintf(job->out, "Network, to %s: ", config.address);
    farm_bridge_bench_tell(&result, job->out, section);
    for (int way = 0; way < FARM_MEASURE_WAYS; way++) {
        const char *name = way == FARM_MEASURE_BRIDGE ? "network.bridge" : "network.sockets";
        const struct farm_bw_figure trip = farm_bridge_bench_figure(&result, FARM_MEASURE_ROUND_TRIP_US, way),
                                    rate = farm_bridge_bench_figure(&result, FARM_MEASURE_BYTES_PER_S, way);
        farm_bw_add_result(job, &trip, &ns_of_us, "%s.round_trip", name);
        farm_bw_add_result(job, &rate, &farm_bw_gb_per_s, "%s.rate", name);
    }
    return FARM_OK;
}
