// The guardian: a small process beside each command that starts processes. It outlives the command, killed in any way,
// and ends what is left of it; at Ctrl-Z it stops and continues all of it. Processes of the command carry its mark: an
// element of the environment variable FARM_RUN, from their last exec, so the command starts itself again with it. The
// value is a path: commands that a command starts add theirs behind it.
//
// Where the mark cannot be read (env={}, setproctitle), a process is found if the guardian has seen it as a descendant;
// it looks twice a second, and more often while processes begin. Until workers run and again when they stop, the
// command adopts those whose parents end. Not found: a process of another user, and one without a mark whose parent
// ended, while workers ran, before the guardian looked.
#ifndef FARM_SUPERVISOR_GUARDIAN_H
#define FARM_SUPERVISOR_GUARDIAN_H

// At the start of a program, before it has threads or opens files: marks the process by executing it again, then forks
// its guardian, which ends with it, and takes SIGTSTP, SIGTTIN and SIGTTOU over: they stop all processes of the
// command, and farm_now_ns() leaves out the time until SIGCONT. Without /proc: a warning, and no process is found.
void farm_guardian_start(char **argv);

// At the end; also called by exit(3). Ends all other processes that carry the mark: SIGTERM, 2 s later SIGKILL, one
// line on stderr with their names; another names segments in /dev/shm that they leave. Returns when they are gone.
void farm_guardian_end(void);

#endif
