#!/usr/bin/env bash
# Compare two programs and leave what changed as Markdown, for a comment on a pull request.
# BASE and NEW are traces, recordings or stores, BASE_TIMING and NEW_TIMING measured times or nothing,
# SMS and OPTIONS go to depgraph compare, FOLDER takes the stores and summary.md.
set -euo pipefail

mkdir -p "$FOLDER"
store_of() { # NAME PATH: the store at PATH, or one that is made of the trace there
    if [[ -f $2/kernels.parquet ]]; then
        echo "$2"
    else
        depgraph extract "$2" -o "$FOLDER/$1.out" --force -q >"$FOLDER/$1.txt"
        echo "$FOLDER/$1.out"
    fi
}

base=$(store_of base "$BASE")
new=$(store_of new "$NEW")
options=()
[[ -z ${BASE_TIMING-} && -z ${NEW_TIMING-} ]] ||
    options+=(--timing "$BASE_TIMING" --new-timing "$NEW_TIMING")
read -ra more <<<"${OPTIONS-}"
summary=$FOLDER/summary.md
[[ -z ${GITHUB_OUTPUT-} ]] || echo "summary=$summary" >>"$GITHUB_OUTPUT"
status=0
depgraph compare "$base" "$new" --sms "${SMS:-80}" "${options[@]}" "${more[@]}" \
    --format markdown --top 20 >"$summary" || status=$?
# 3: a threshold was missed, and the summary says what changed.
if ((status == 0 || status == 3)); then
    [[ -z ${GITHUB_STEP_SUMMARY-} ]] || cat "$summary" >>"$GITHUB_STEP_SUMMARY"
fi
exit "$status"
