#!/usr/bin/env bash
# Check a program against limits, and against that of the branch before. Needs depgraph on PATH.
# usage: check.sh TRACE [BASELINE_TRACE]
# TRACE is a trace, a recording that a GPU job has kept (depgraph record --keep) or, on a machine with a
# GPU, "record PROGRAM...". TIMES and BASELINE_TIMES are measured times, such as profiles or what
# depgraph record leaves beside a store: without them only ratios are compared. BASELINE_AGAIN, times of
# another run of the baseline, tells what of a difference is noise.
set -euo pipefail

sms=${SMS:-80}
make_store() { # STORE TRACE
    if [[ $2 == "record "* ]]; then
        read -ra program <<<"${2#record }"
        depgraph record -o "$1" --force -q -- "${program[@]}" >extract.txt
    else
        depgraph extract "$2" -o "$1" --force -q >extract.txt
    fi
}

make_store new.out "$1"
times=()
[[ -z ${TIMES-} ]] || times=(--timing "$TIMES")
report=(depgraph report new.out --sms "$sms" "${times[@]}" -o report --force --top 20
    --fail-above "upper_bound=${MOST_SPEEDUP_LEFT:-2}" --fail-above untraced=0.01)
[[ -z ${GITHUB_STEP_SUMMARY-} ]] || report+=(--github)
"${report[@]}"
if (($# > 1)); then
    make_store base.out "$2"
    compare=(depgraph compare base.out new.out --sms "$sms" --tolerance 2
        --fail-on-increase upper_bound)
    [[ -z ${TIMES-} || -z ${BASELINE_TIMES-} ]] ||
        compare+=(--timing "$BASELINE_TIMES" --new-timing "$TIMES"
            ${BASELINE_AGAIN:+--repeat-timing "$BASELINE_AGAIN"})
    [[ -z ${GITHUB_STEP_SUMMARY-} ]] || compare+=(--github)
    "${compare[@]}"
fi
depgraph report new.out --sms "$sms" "${times[@]}" --metric utilization >utilization.txt
