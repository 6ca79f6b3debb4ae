#!/usr/bin/env bash
# Check a trace against limits, and against the trace of the branch before. Needs depgraph on PATH.
# usage: check.sh TRACE [BASELINE_TRACE]
set -euo pipefail

sms=${SMS:-80}
depgraph extract "$1" -o new.out --force -q >extract.txt
report=(depgraph report new.out --sms "$sms" -o report --force --top 20
    --fail-above "upper_bound=${MOST_SPEEDUP_LEFT:-2}" --fail-above untraced=0.01)
[[ -z ${GITHUB_STEP_SUMMARY-} ]] || report+=(--github)
"${report[@]}"
if (($# > 1)); then
    depgraph extract "$2" -o base.out --force -q >/dev/null
    compare=(depgraph compare base.out new.out --sms "$sms" --tolerance 2
        --fail-on-increase upper_bound)
    [[ -z ${GITHUB_STEP_SUMMARY-} ]] || compare+=(--github)
    "${compare[@]}"
fi
depgraph report new.out --sms "$sms" --metric utilization >utilization.txt
