#!/usr/bin/env bash
# Does the finder pay? VGG-19 at 4 % and ResNet-20 at half its size, two seeds, on images set apart: under ten minutes
# of an H200 with 20 epochs a training (with EPOCHS=60 three times that: call it again). FIREFLY_DATA names the folder of
# CIFAR-10, FIREFLY_COMMIT the commit where the copy has no history.
#
#   FIREFLY_DATA=data FIREFLY_COMMIT=$(git rev-parse --short=12 HEAD) bash benchmarks/find_decisive.sh results/find-pays.jsonl
#
# The same command goes on where it was stopped. TASKS (gpt-text, vgg19-6), EPOCHS, SEEDS, JOBS and MINUTES change it.
# TRIES are measured instead of the usual ones, so the rate of each method can be found first, on a seed of its own:
#
#   TASKS=gpt-text SEEDS=100 TRIES="scaled lr=0.002;scaled lr=0.004;find-on lr=0.002;find-on lr=0.004;full lr=0.002;full" ...
set -euo pipefail
out=${1:-results/find-pays.jsonl}
cd "$(dirname "$0")/.."
export PYTHONPATH=src OMP_NUM_THREADS=1
command -v nvidia-cuda-mps-control > /dev/null && (nvidia-cuda-mps-control -d || true)
tries=()
IFS=';' read -ra words <<< "${TRIES:-}"
for one in "${words[@]}"; do tries+=(--try "$one"); done
exec "${PYTHON:-python3}" benchmarks/find_pays.py ${TASKS:-vgg19-4 resnet20} --epochs "${EPOCHS:-20}" --seeds ${SEEDS:-0 1} \
    --jobs "${JOBS:-3}" --minutes "${MINUTES:-9}" --out "$out" "${tries[@]}"
