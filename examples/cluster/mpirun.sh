#!/bin/bash
# The same under mpirun, which starts one copy a node (Open MPI; Intel MPI and MPICH set PMI_RANK):
#   mpirun --map-by ppr:1:node examples/cluster/mpirun.sh /shared/run /shared/farm.key --env ale/Pong --seconds 3600
# Rank 0 is the learner. No message goes through MPI.
set -eu
run=$1 key=$2
shift 2
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 0 ]; then
    exec farm train "$@" --run "$run" --resume auto --listen 0.0.0.0:0 --key "$key"
fi
exec farm bridge --connect "@$run/bridge.addr" --key "$key"
