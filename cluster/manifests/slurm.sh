#!/usr/bin/env bash
#SBATCH --job-name=raysim
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=1
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
# A run with a Ray cluster of its own on this job's nodes. In an environment that has raysim:
#   sbatch cluster/manifests/slurm.sh method=fedavg rounds=500
# The run directory lies below the folder of the sbatch call, or RAYSIM_RUNS: a shared file system.
# Before the time limit the last complete round is saved and the job queued again, to go on.
set -euo pipefail

runs="${RAYSIM_RUNS:-$SLURM_SUBMIT_DIR/runs}/slurm-$SLURM_JOB_ID"
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
ip="$(python -c 'import ray; print(ray.util.get_node_ip_address())')"
port=$((20000 + SLURM_JOB_ID % 20000))
address="$ip:$port"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
RAY_AUTH_TOKEN="$(python -c 'import secrets; print(secrets.token_hex(32))')"
export RAY_AUTH_TOKEN

driver=
requeue=false
stop_driver() { if [[ -n "$driver" ]]; then kill -TERM "$driver"; else exit 143; fi; }
stop_ray() { # by this job's own steps: `ray stop` would end every Ray of the user on a node
    local steps
    mapfile -t steps < <(jobs -p)
    if ((${#steps[@]} > 0)); then kill "${steps[@]}" 2> /dev/null || true; fi
    wait
}
trap 'requeue=true; stop_driver' USR1 # the time limit is near
trap stop_driver TERM                 # scancel
trap stop_ray EXIT

# This script runs on the first node, and so do the head and the driver.
ray_start=(ray start --block --num-cpus="$SLURM_CPUS_PER_TASK")
srun=(srun --overlap --ntasks-per-node=1 --cpus-per-task="$SLURM_CPUS_PER_TASK")
"${srun[@]}" --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    "${ray_start[@]}" --head --node-ip-address="$ip" --port="$port" \
    --include-dashboard=false --temp-dir="/tmp/raysim-$SLURM_JOB_ID" &
timeout 180 bash -c "until ray health-check --address=$address; do sleep 2; done" > /dev/null 2>&1
if ((${#nodes[@]} > 1)); then
    workers=$((${#nodes[@]} - 1))
    "${srun[@]}" --nodes="$workers" --ntasks="$workers" --exclude="${nodes[0]}" \
        "${ray_start[@]}" --address="$address" &
fi
timeout 300 python - "$address" "${#nodes[@]}" << 'PYTHON'
import sys
import time

import ray

ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[2]):
    time.sleep(1)
PYTHON

# A job that was queued again goes on with the run that it began.
begun=("$runs"/*/checkpoints/round_*)
if [[ -e "${begun[0]}" ]]; then
    words=(--resume "${begun[0]%/checkpoints/*}")
else
    words=("$@" output.dir="$runs")
fi
python -m raysim.run "${words[@]}" execution.address="$address" &
driver=$!
status=0
wait "$driver" || status=$?
if kill -0 "$driver" 2> /dev/null; then # a signal ended the wait, not the driver
    status=0
    wait "$driver" || status=$?
fi
driver=
if $requeue && ((status == 143)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
