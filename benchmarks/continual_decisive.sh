#!/usr/bin/env bash
# Task after task on CIFAR-100, in pieces of MINUTES that go on where they stopped: nine lines at a time on one H200.
#
#   bash benchmarks/continual_decisive.sh held-out              choices, on images set apart of split 100: three calls
#   bash benchmarks/continual_decisive.sh test                  the rows of Table 2, splits 0 to 2: three calls
#   bash benchmarks/continual_decisive.sh rest                  our own comparisons, splits 0 to 2: about five calls
#   SET="batch=128 lr=0.2" bash benchmarks/continual_decisive.sh test        with what held-out has chosen
#   MORE="--lines ewc cpg" bash benchmarks/continual_decisive.sh test        some lines only
#
# Rows go to ROWS. Begin with the file of results/ there: what it holds is not measured again. RUNS keeps what is under
# way between calls; where it is lost, lines that were not finished begin anew. Others: DATA, WAYS, SEEDS, JOBS, PYTHON;
# FIREFLY_COMMIT names the commit where the copy has no history.
set -euo pipefail
cd "$(dirname "$0")/.."
phase=${1:-held-out} ways=${WAYS:-20} minutes=${MINUTES:-9}
name=continual-$ways && [ "$phase" != held-out ] || name=$name-held-out
export PYTHONPATH=src OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 FIREFLY_DATA=${DATA:-${FIREFLY_DATA:-data}}
command -v nvidia-cuda-mps-control > /dev/null && (nvidia-cuda-mps-control -d || true)
# what hangs at the end is killed: nothing is lost but a few epochs
exec timeout -k 5 "$(awk "BEGIN {print int(60 * $minutes + 40)}")" "${PYTHON:-python3}" benchmarks/continual_decisive.py \
    "$phase" --ways "$ways" --jobs "${JOBS:-9}" --minutes "$minutes" --out "${ROWS:-results/$name.jsonl}" \
    --runs "${RUNS:-runs/continual-decisive}" ${SEEDS:+--seeds $SEEDS} ${SET:+--set $SET} ${MORE:-}
