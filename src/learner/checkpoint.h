// Checkpoints: parameters, optimiser and the run's settings in one safetensors file (an 8-byte length, a JSON header,
// raw little-endian f32), which every safetensors reader opens. Written crash-safe: a file under its final name is
// whole. Runs in the learner (save, load) and in tools (metadata only).
//
// Tensors: for each vector of the state "<vector>.<tensor>": the network's by their own names,
// "optimiser.second.<name>" and, for Adam, "optimiser.first.<name>"; "<set>.<name>" of the algorithm's further
// parameter sets, which begin as the network's if the file lacks them. Source of the format: the safetensors README.
//
// Checksums (CRC32C, 8 hexadecimal digits) are metadata too: "crc32c.<tensor>" of each tensor's bytes, and "crc32c" of
// the header without this key, as compact JSON with sorted keys. Reading verifies those that the file has, and hides
// them from the caller.
#ifndef FARM_LEARNER_CHECKPOINT_H
#define FARM_LEARNER_CHECKPOINT_H

#include <stdbool.h>

#include "learner/backend.h"

enum { FARM_CHECKPOINT_PAIRS_MAX = 160, FARM_CHECKPOINT_HEAD_BYTES = 1100 };

// The run's best checkpoint, beside the others, whose names are frames. Its metadata has `return_mean`.
#define FARM_CHECKPOINT_BEST "best.safetensors"

// Text pairs of the header's __metadata__. Texts are owned.
struct farm_checkpoint_metadata {
    bool verified; // by checksums; false: an older version of this program wrote the file without them
    uint32_t count;
    char *keys[FARM_CHECKPOINT_PAIRS_MAX], *values[FARM_CHECKPOINT_PAIRS_MAX];
};

// The value of a key, or NULL.
const char *farm_checkpoint_get(const struct farm_checkpoint_metadata *metadata, const char *key);
// As a whole number; 0: missing, or no number.
uint64_t farm_checkpoint_get_u64(const struct farm_checkpoint_metadata *metadata, const char *key);
// The run's totals when it was written; 0: missing.
struct farm_totals farm_checkpoint_totals(const struct farm_checkpoint_metadata *metadata);
void farm_checkpoint_metadata_free(struct farm_checkpoint_metadata *metadata);

// The metadata's key "spaces", malloc'd: what the network reads and its outputs mean, {"obs": [{"name", "dtype",
// "dims", "choices"}], "action": {"kind", "sizes", "low", "high"}} with null for infinite bounds.
char *farm_checkpoint_spaces(const struct farm_env_spec *env);

// Writes the file: temporary beside it, fsync, rename, fsync of the folder. Errors: FARM_E_IO (disk full, ...),
// FARM_E_LIMIT, FARM_E_PERMISSION: others can change the folder (farm_file_replace_own).
enum farm_status farm_checkpoint_save(const char *path, const struct farm_net *net,
                                      const struct farm_backend_state *state, const char *const (*pairs)[2],
                                      uint32_t pair_count, struct farm_error *err);

// Reads metadata only, to be freed after success; checks the header, the file's length and checksums.
enum farm_status farm_checkpoint_read_metadata(const char *path, struct farm_checkpoint_metadata *metadata,
                                               struct farm_error *err);

// Reads a checkpoint of exactly this network into *state, whose vectors are written after every check: length, header,
// checksums, names, shapes, types, offsets, finite values. *has_optimiser: the file has exactly the optimiser's vectors
// of `state`, and they are read too (a player has none: vector_count 1). Errors: FARM_E_NOT_FOUND, FARM_E_FORMAT.
enum farm_status farm_checkpoint_load(const char *path, const struct farm_net *net, struct farm_backend_state *state,
                                      bool *has_optimiser, struct farm_checkpoint_metadata *metadata,
                                      struct farm_error *err);

// What a network took from a file: names of layers, "layers.0, value".
struct farm_checkpoint_taken {
    char taken[512], fresh[512];           // fresh: missing in the file, or of another shape or head there
    char left[512];                        // only in the file; its optimiser is not named
    char head[FARM_CHECKPOINT_HEAD_BYTES]; // in the file; "": unknown
};

// Reads into params [parameter_count] each layer of the network whose tensors the file has, all by name, shape and
// type; other values stay. Any safetensors file will do. The policy's layer also needs the same head (a file of
// farm train names it). The observation's statistics count as a layer, the rewards' as another. Errors, with *params
// as it was: FARM_E_NOT_FOUND, FARM_E_FORMAT: a damaged file, values that are not finite, or nothing to take.
enum farm_status farm_checkpoint_take(const char *path, const struct farm_net *net, const char *head, float *params,
                                      struct farm_checkpoint_taken *taken, struct farm_error *err);

#endif
