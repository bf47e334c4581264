// The parts of `farm bw` beyond src/bw (bw/job.h): GPUs, the network, an environment's ceilings; and the pictures.
#ifndef FARM_TOOLS_BW_H
#define FARM_TOOLS_BW_H

#include "bw/job.h"

farm_bw_part farm_bw_part_gpu, farm_bw_part_network, farm_bw_part_env;

// How many GPUs there may be, without starting CUDA: the machine's; at least one if a driver or FARM_CUDA_BACKEND is.
int farm_bw_gpus_expected(const struct farm_machine *machine);

// Checks that pictures can be drawn; FARM_E_UNSUPPORTED: how to install what is missing.
enum farm_status farm_bw_check_pictures(struct farm_error *err);
// Draws the document's matrices and curves into FOLDER/*.svg and adds "pictures" to it: the files written, and which
// pictures were not drawn and why. Lists them on stderr too unless quiet.
enum farm_status farm_bw_draw_pictures(json_t *document, const char *folder, bool quiet, struct farm_error *err);

#endif
