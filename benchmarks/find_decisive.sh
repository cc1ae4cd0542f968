#!/usr/bin/env bash
# Does the finder pay? VGG-19 at 4 % and ResNet-20 at half its size, two seeds, on images set apart: under ten minutes
# of an H200 with 20 epochs a training (with EPOCHS=60 three times that: call it again). FIREFLY_DATA names the folder of
# CIFAR-10, FIREFLY_COMMIT the commit where the copy has no history.
#
#   FIREFLY_DATA=data FIREFLY_COMMIT=$(git rev-parse --short=12 HEAD) bash benchmarks/find_decisive.sh results/find-pays.jsonl
#
# The same command goes on where it was stopped. TASKS (gpt-text, vgg19-6), EPOCHS, SEEDS, JOBS and MINUTES change it.
set -euo pipefail
out=${1:-results/find-pays.jsonl}
cd "$(dirname "$0")/.."
export PYTHONPATH=src OMP_NUM_THREADS=1
command -v nvidia-cuda-mps-control > /dev/null && (nvidia-cuda-mps-control -d || true)
exec "${PYTHON:-python3}" benchmarks/find_pays.py ${TASKS:-vgg19-4 resnet20} --epochs "${EPOCHS:-20}" --seeds ${SEEDS:-0 1} \
    --jobs "${JOBS:-3}" --minutes "${MINUTES:-9}" --out "$out"
