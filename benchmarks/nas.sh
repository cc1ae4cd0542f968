#!/usr/bin/env bash
# Cell search by growing and the evaluation of what it finds, in pieces that end in time: call it again to go on.
#
#   benchmarks/nas.sh             what is next: time the forms of a step, search, then evaluate
#   benchmarks/nas.sh time        a minute: which form of a step is the fastest; it is used from then on
#   benchmarks/nas.sh search      the seeds side by side
#   benchmarks/nas.sh evaluate    their cells, the same permuted, five random ones, plain ones and DARTS', side by side
#
# A piece begins no epoch after MINUTES and is killed GRACE seconds later: a growth under way is lost then, and no more.
#
# Settings: SEEDS="0 1 2"  TRAINING="0" (seeds of the evaluation)  MINUTES=8.5  GRACE=30  JOBS=3  RUNS=runs/nas  DATA=data
#           SEARCH="--asleep --set new=16,16,16,32,32"  EVALUATE="--held-out --set epochs=60"  PYTHON=python3
#           TIME="--seconds 60"  FIT="dense=false" (instead of the fastest form)
#           ROWS=FILE.jsonl (results.jsonl in RUNS)
#           ARCHIVE=FILE: RUNS is packed into FILE.00, FILE.01 ... of 15 MiB at the end, and unpacked if it is not there
set -euo pipefail
cd "$(dirname "$0")/.."
seeds=${SEEDS:-0 1 2} training=${TRAINING:-0} jobs=${JOBS:-3} runs=${RUNS:-runs/nas} grace=${GRACE:-30}
python=${PYTHON:-python3}
end=$(awk "BEGIN { print int($SECONDS + 60 * ${MINUTES:-8.5}) }")
export PYTHONPATH=src FIREFLY_DATA=${DATA:-data} PYTHONUNBUFFERED=1

left() { echo $((end > SECONDS ? end - SECONDS : 1)); } # seconds
form() { [ -z "${FIT:-}" ] && cat "$runs/fast-$1" 2>/dev/null || echo "${FIT:-}"; }
firefly() { # its words, then "--fit" and the form of a step, if there is one
    local how
    how=$(form "$1")
    # shellcheck disable=SC2086
    timeout -s KILL $(($(left) + grace)) "$python" -m firefly nas "$@" --runs "$runs" ${ROWS:+--out "$ROWS"} --shared \
        --minutes "$(awk "BEGIN { print $(left) / 60 }")" ${how:+--fit $how}
}
pack() {
    if [ -n "${ARCHIVE:-}" ]; then
        tar czf "$ARCHIVE.part" -C "$runs" . && rm -f "$ARCHIVE".[0-9][0-9]
        split -b 15M -d "$ARCHIVE.part" "$ARCHIVE." && rm "$ARCHIVE.part"
    fi
}
pick() {
    # shellcheck disable=SC2086
    timeout -s KILL 150 "$python" benchmarks/nas_time.py --out "$runs" ${TIME:-} || echo "no form was chosen"
}
seek() {
    for seed in $seeds; do
        while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || true; done
        # shellcheck disable=SC2086
        firefly search --seeds "$seed" ${SEARCH:-} 2>&1 | sed "s/^/[$seed] /" &
    done
    wait
}
judge() {
    for part in $(seq "$jobs"); do
        # shellcheck disable=SC2086
        firefly evaluate --seeds $training --part "$part/$jobs" ${EVALUATE:-} 2>&1 | sed "s/^/[$part] /" &
    done
    wait
}
searched() { # by this plan: a search in no time says whether time is up or all is there
    local told
    compgen -G "$runs/search-*.json" >/dev/null || return 1
    # shellcheck disable=SC2086
    told=$("$python" -m firefly nas search --seeds $seeds ${SEARCH:-} --runs "$runs" --minutes 0) || return 1
    [[ $told != *"time is up"* ]]
}

mkdir -p "$runs"
command -v nvidia-cuda-mps-control >/dev/null && (nvidia-cuda-mps-control -d || true) # kernels of several at once
if [ -n "${ARCHIVE:-}" ] && [ -f "$ARCHIVE.00" ] && [ -z "$(ls -A "$runs")" ]; then
    cat "$ARCHIVE".[0-9][0-9] | tar xz -C "$runs" || {
        echo "what was packed cannot be read: begun anew"
        rm -r "$runs" && mkdir "$runs" # half a training is worse than none
    }
fi
trap pack EXIT
case ${1:-next} in
next)
    if [ -z "${FIT:-}" ] && [ ! -e "$runs/fast-evaluate" ]; then pick; fi
    if ! searched; then seek; fi
    if searched && [ "$SECONDS" -lt "$end" ]; then judge; fi
    ;;
time) pick ;;
search) seek ;;
evaluate) judge ;;
*)
    trap - EXIT
    sed -n '2,17s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
