#!/bin/bash
# The same under mpirun, which starts one copy a node; farm bridge keygen /shared/farm.key made the keys:
#   mpirun --map-by ppr:1:node --bind-to none examples/cluster/mpirun.sh /shared/run /shared/farm.key --env ale/Pong --seconds 3600
# --map-by ppr:1:node: one copy a node. --bind-to none: without it Open MPI binds each copy to one core, and farm has
# one actor there. MPICH: mpiexec -ppn 1 -bind-to none; Intel MPI: mpirun -ppn 1, with I_MPI_PIN=off.
# Rank 0 is the learner (OMPI_COMM_WORLD_RANK; Intel MPI and MPICH set PMI_RANK). No message goes through MPI.
# --resume auto: the first start begins the run, a later one continues it, and one after its end ends at once.
set -eu
run=$1 key=$2
shift 2
if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 0 ]; then
    exec farm train "$@" --run "$run" --resume auto --listen 0.0.0.0:0 --key "$key"
fi
exec farm bridge --connect "@$run/bridge.addr" --key "$key.node"
