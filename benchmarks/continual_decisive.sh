#!/usr/bin/env bash
# Task after task on CIFAR-100, in pieces of MINUTES that go on where they stopped: nine lines at a time on one H200.
#
#   bash benchmarks/continual_decisive.sh held-out         choices, on images set apart of split 100, its first ten tasks
#   bash benchmarks/continual_decisive.sh test             what the page claims, splits 0 to 2
#   bash benchmarks/continual_decisive.sh rest             further comparisons, splits 0 to 2
#   SET="epochs=150" bash benchmarks/continual_decisive.sh test              with other settings than those chosen
#   MORE="--lines 'ewc strength=1e4' cpg" bash benchmarks/continual_decisive.sh test       some lines only
#
# One call is a piece. Rows go to ROWS. Begin with the file of results/ there: what it holds is not measured again. RUNS
# keeps what is under way between calls; where it is lost, lines that were not finished begin anew. ARCHIVE=FILE: as much
# of RUNS as ARCHIVE_MIB (60) allow is packed into FILE.00, FILE.01 ... of 15 MiB at the end, and unpacked from there at
# first. MORE: further options of the Python file, quoted as in a shell. Others: DATA, WAYS, SEEDS, JOBS (few at the end
# of a budget, so that less is left unfinished), PYTHON; FIREFLY_COMMIT names the commit where the copy has no history.
set -euo pipefail
cd "$(dirname "$0")/.."
phase=${1:-held-out} ways=${WAYS:-20} minutes=${MINUTES:-9} runs=${RUNS:-runs/continual-decisive} python=${PYTHON:-python3}
name=continual-$ways && [ "$phase" != held-out ] || name=$name-held-out
export PYTHONPATH=src OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 FIREFLY_DATA=${DATA:-${FIREFLY_DATA:-data}}
command -v nvidia-cuda-mps-control > /dev/null && (nvidia-cuda-mps-control -d || true)
archive() { if [ -n "${ARCHIVE:-}" ]; then "$python" benchmarks/archive.py "$1" "$runs" "$ARCHIVE" ${2:-}; fi; }

archive unpack || echo 'what was packed cannot be read: begun anew'
eval "more=(${MORE:-})"
# what hangs at the end is killed: nothing is lost but a few epochs
code=0
# shellcheck disable=SC2086
timeout -k 5 "$(awk "BEGIN {print int(60 * $minutes + 40)}")" "$python" benchmarks/continual_decisive.py "$phase" \
    --ways "$ways" --jobs "${JOBS:-9}" --minutes "$minutes" --out "${ROWS:-results/$name.jsonl}" --runs "$runs" \
    ${SEEDS:+--seeds $SEEDS} ${SET:+--set $SET} "${more[@]}" || code=$?
archive pack "${ARCHIVE_MIB:-60}"
exit $code
