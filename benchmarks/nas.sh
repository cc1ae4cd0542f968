#!/usr/bin/env bash
# Cell search by growing and the evaluation of what it finds, in pieces that end in time: call it again to go on.
#
#   benchmarks/nas.sh search      the seeds side by side
#   benchmarks/nas.sh evaluate    their cells, the same permuted, five random ones, plain ones and DARTS', side by side
#
# Settings: SEEDS="0 1 2"  TRAINING="0" (seeds of the evaluation)  MINUTES=8.5  JOBS=3  RUNS=runs/nas  DATA=data
#           SEARCH="--asleep --set worth=operation"  EVALUATE="--held-out --set epochs=60"  PYTHON=python3
#           ARCHIVE=FILE.tgz: RUNS is unpacked from it if it is not there, and packed into it at the end
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-0 1 2} training=${TRAINING:-0} minutes=${MINUTES:-8.5} jobs=${JOBS:-3} runs=${RUNS:-runs/nas}
export PYTHONPATH=src FIREFLY_DATA=${DATA:-data} PYTHONUNBUFFERED=1
firefly() { "${PYTHON:-python3}" -m firefly nas "$@" --runs "$runs" --minutes "$minutes" --shared; }

mkdir -p "$runs"
if [ -n "${ARCHIVE:-}" ] && [ -f "$ARCHIVE" ] && [ -z "$(ls -A "$runs")" ]; then tar xzf "$ARCHIVE" -C "$runs"; fi
case ${1:-} in
search)
    for seed in $seeds; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
        # shellcheck disable=SC2086
        firefly search --seeds "$seed" ${SEARCH:-} 2>&1 | sed "s/^/[$seed] /" &
    done
    ;;
evaluate)
    for part in $(seq "$jobs"); do
        # shellcheck disable=SC2086
        firefly evaluate --seeds $training --part "$part/$jobs" ${EVALUATE:-} 2>&1 | sed "s/^/[$part] /" &
    done
    ;;
*)
    sed -n '2,10s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
wait
if [ -n "${ARCHIVE:-}" ]; then tar czf "$ARCHIVE.part" -C "$runs" . && mv "$ARCHIVE.part" "$ARCHIVE"; fi
