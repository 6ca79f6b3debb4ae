#!/usr/bin/env bash
# Hold a trace to limits, and to the trace of the branch before. Needs depgraph on PATH.
# usage: check.sh TRACE [BASELINE_TRACE]
set -euo pipefail

sms=${SMS:-80}
depgraph extract "$1" -o new.out --force -q >extract.txt
report=(depgraph report new.out --sms "$sms" -o report --force --top 20
    --fail-over "bound=${MOST_GAIN_LEFT:-2}" --fail-over untraced=0.01)
[[ -z ${GITHUB_STEP_SUMMARY-} ]] || report+=(--github)
"${report[@]}"
if (($# > 1)); then
    depgraph extract "$2" -o base.out --force -q >/dev/null
    depgraph compare base.out new.out --sms "$sms" --fail-on-increase bound --tolerance 2
fi
depgraph compare new.out new.out --sms "$sms" --format total --metric utilization >utilization.txt
