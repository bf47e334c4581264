// A replay on disk. Each step of the rings is written once, in order, into files of its lane ("lane-L.K": steps K*S to
// (K+1)*S). A manifest ("FRAMES-CRC.manifest") holds counters, leaves and the source's figures of one moment and makes
// a pair with the checkpoint FRAMES.safetensors, which names it: parameters and replay load together or not at all.
// Steps and manifest are on the disk before their checkpoint and stay as long as it does. Readers verify a CRC32C of
// each record, which covers the layout and the lane too, and of the manifest. Files hold neither names nor code.
//
// The learner writes: its training thread copies, its admitter admits and forgets, and a thread of the store writes
// steps as they come and does what is posted. It reads lanes without delaying anyone: steps that were released
// meanwhile are left out, with all before them. The supervisor reads, while no other process uses the rings. Not saved:
// rings of other machines, and of actors that join after the start.
#ifndef FARM_REPLAY_STORE_H
#define FARM_REPLAY_STORE_H

#include "intake/stats.h"
#include "ring/ring.h"

enum { FARM_REPLAY_NAME_BYTES = 64 };

struct farm_replay_place {
    const char *folder;
    uint32_t rings;                    // the actors 0..rings-1
    const struct farm_ring_spec *spec; // theirs
};

// Reads a manifest, by the name in its checkpoint, and with chunks or rings all that it needs; refills rings [rings],
// new ones of this process, whose lanes then are a dead actor's, and sets the stats' figures of the source. rings NULL:
// verifies only. Its threads end before it returns. Errors leave counters at 0: FARM_E_NOT_FOUND; FARM_E_FORMAT:
// damaged, with the place; FARM_E_USAGE: of rings of another shape.
enum farm_status farm_replay_load(const struct farm_replay_place *place, const char *name, bool chunks,
                                  struct farm_ring *rings, struct farm_stats *stats, struct farm_error *err);

struct farm_replay_store;

struct farm_replay_store_config {
    struct farm_replay_place place; // the folder is made
    const char *checkpoints;        // their folder
    const char *base;               // manifest whose steps the rings hold; NULL: none. Later ones are removed
    struct farm_stats *stats;
    bool deterministic; // no thread: farm_replay_write writes all, posted work is done at once
};

enum farm_status farm_replay_store_make(const struct farm_replay_store_config *config, struct farm_replay_store **out,
                                        struct farm_error *err);
void farm_replay_store_free(struct farm_replay_store *store); // completes posted work; NULL is permitted

// Begins and ends the saving of a lane, which has checked copies of what its actor wrote; lane_id: its number in the
// whole farm. After forget no thread uses the lane, and the store admits no other one in its place.
void farm_replay_admit(struct farm_replay_store *store, const struct farm_lane *lane, uint32_t lane_id);
void farm_replay_forget(struct farm_replay_store *store, uint32_t lane_id);

// Copies counters, leaves and figures for farm_replay_write, which must follow. No other thread changes leaves, admits
// or forgets meanwhile.
void farm_replay_copy(struct farm_replay_store *store);

// Has the store's thread call work(context), if it is not busy with other work.
bool farm_replay_is_busy(const struct farm_replay_store *store);
void farm_replay_post(struct farm_replay_store *store, void (*work)(void *context), void *context);

// Only in posted work: writes the copy's missing steps, then the manifest for checkpoint `stem`.safetensors, whose
// metadata gets its name. After an error earlier pairs are intact.
enum farm_status farm_replay_write(struct farm_replay_store *store, const char *stem, char name[FARM_REPLAY_NAME_BYTES],
                                   struct farm_error *err);
// Only in posted work, after that checkpoint is written: removes earlier manifests without a checkpoint, others of as
// many frames or more, and steps that no manifest needs.
void farm_replay_clean(struct farm_replay_store *store, const char *name);

#endif
