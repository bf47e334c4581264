// What the files of a job tell one another; commands see farm_job.h alone.
//   farm_job.c             its life: supervisor, shared memory, run, end
//   farm_job_plan.c        what runs, how many of it, and where; before anything is made
//   farm_job_workers.c     the processes, as the supervisor is told of them
//   farm_job_events.c      what the supervisor tells and asks while they run
//   farm_job_watch.c       actors that do not do what they should
//   farm_job_change.c      actors that come and go while it runs
//   farm_job_checkpoint.c  which checkpoint of a run serves
//   farm_job_sample.c      figures
#ifndef FARM_TOOLS_JOB_PARTS_H
#define FARM_TOOLS_JOB_PARTS_H

#include "farm_job.h"

// Order in which the workers are stopped: the learner writes its last checkpoint while actors still answer.
enum { FARM_JOB_PHASE_LEARNER, FARM_JOB_PHASE_ACTORS };

// The stats in its segment, whoever's mapping that is: the supervisor's (job.c) or the learner's (workers.c).
static inline struct farm_stats *farm_job_stats(const struct farm_segment *segment) {
    return (struct farm_stats *)((char *)segment->header + FARM_SEGMENT_HEADER_BYTES);
}

// workers.c, for job.c: tells the supervisor of all actors, then of the learner. The rings, bells and stats are there.
enum farm_status farm_job_add_workers(struct farm_job *job, struct farm_error *err);

// workers.c, for change.c: describes an actor whose rings, CPUs and shard are there to the supervisor. For events.c:
// what the next learner is given; returns the descriptors.
enum farm_status farm_job_describe_actor(struct farm_job *job, uint32_t a, struct farm_worker_spec *spec,
                                         struct farm_error *err);
size_t farm_job_hand_over(struct farm_job *job);

// change.c, for events.c: a signal has come; a tick; an actor that was told to go has gone; one that came cannot be
// kept alive; the learner starts again.
void farm_job_change_wanted(struct farm_job *job, int number);
void farm_job_change_turn(struct farm_job *job);
void farm_job_change_ended(struct farm_job *job, size_t worker);
void farm_job_change_lost(struct farm_job *job, size_t worker, const char *why);
void farm_job_change_again(struct farm_job *job);

// job.c, for change.c: an actor's rings are made.
enum farm_status farm_job_make_ring(struct farm_job *job, uint32_t a, struct farm_error *err);

// events.c, for job.c: what the supervisor is made with.
struct farm_supervisor_config farm_job_events(struct farm_job *job);

// events.c, for watch.c and change.c: a warning, or a fact, in place of the progress line.
void farm_job_say(const struct farm_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));
void farm_job_tell(const struct farm_job *job, const char *format, ...) __attribute__((format(printf, 2, 3)));

// watch.c, for events.c, at every tick: names actors that hang or are stopped, ends those that lie.
void farm_job_watch(struct farm_job *job, uint64_t now_ns);

#endif
