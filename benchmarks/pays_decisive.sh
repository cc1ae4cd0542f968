#!/usr/bin/env bash
# Does growth pay as an accelerator? ResNet-20 on CIFAR-10 for 160 epochs, three seeds, on images set apart: about half
# an hour of an H200, in calls of under ten minutes. FIREFLY_DATA names the folder of CIFAR-10, FIREFLY_COMMIT the commit
# where the copy has no history.
#
#   FIREFLY_DATA=data FIREFLY_COMMIT=$(git rev-parse --short=12 HEAD) bash benchmarks/pays_decisive.sh results/growth-pays.jsonl
#
# The same command goes on where it was stopped. EPOCHS, SEEDS, JOBS and MINUTES change it: no network is begun after
# MINUTES, and one takes about eight minutes in six processes.
set -euo pipefail
out=${1:-results/growth-pays.jsonl}
cd "$(dirname "$0")/.."
export PYTHONPATH=src OMP_NUM_THREADS=1
command -v nvidia-cuda-mps-control > /dev/null && (nvidia-cuda-mps-control -d || true)
epochs="epochs=${EPOCHS:-160}"
exec "${PYTHON:-python3}" benchmarks/growth_pays.py "${TASK:-resnet20-cifar10}" --seeds ${SEEDS:-0 1 2} --jobs "${JOBS:-6}" \
    --minutes "${MINUTES:-0.5}" --out "$out" ${MORE:-} \
    --try "fixed $epochs" --try "short $epochs" --try "thrown-away $epochs hold=1" --try "uniform $epochs kinds=new hold=1" \
    --try "firefly $epochs kinds=new after=rescale:0.5 hold=1" --try "firefly $epochs hold=1"
