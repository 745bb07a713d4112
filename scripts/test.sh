#!/usr/bin/env bash
# All tests, and at the end how many were skipped and why. With FOREBAY_NO_SKIP=1 what would be skipped fails.
set -euo pipefail

cd "$(dirname "$0")/.."
FOREBAY_SKIPPED=$(mktemp)
export FOREBAY_SKIPPED

report() {
    local code=$?
    if [[ -s $FOREBAY_SKIPPED ]]; then
        printf '%s tests were skipped:\n' "$(wc -l <"$FOREBAY_SKIPPED")"
        sort "$FOREBAY_SKIPPED" | sed 's/^/    /'
    fi
    rm -f "$FOREBAY_SKIPPED"
    exit "$code"
}
trap report EXIT

"${CARGO:-cargo}" test --locked --workspace --no-fail-fast
scripts/setup.sh posix-short
python3 tests/posix/main.py --quick
python3 scripts/site.py
scripts/users.sh quick
