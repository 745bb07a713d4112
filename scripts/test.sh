#!/usr/bin/env bash
# All tests, and at the end how many were skipped and why. With FOREBAY_NO_SKIP=1 what would be skipped fails.
set -euo pipefail

cd "$(dirname "$0")/.."
FOREBAY_SKIPPED=$(mktemp)
export FOREBAY_SKIPPED
said=$(mktemp)

report() {
    local code=$?
    if [[ -s $FOREBAY_SKIPPED ]]; then
        printf '%s tests were skipped:\n' "$(wc -l <"$FOREBAY_SKIPPED")"
        sort "$FOREBAY_SKIPPED" | sed 's/^/    /'
    fi
    if ((code)); then
        # What failed among thousands of lines, and what waited for what where a test had no end.
        grep -aE '^test .* FAILED$' "$said" | head -30 || true
        grep -aA30 -E '^more than .* took: ' "$said" | cut -c1-160 | head -40 || true
    fi
    rm -f "$FOREBAY_SKIPPED" "$said"
    exit "$code"
}
trap report EXIT

# No pipe: what a test has left running would keep it open.
"${CARGO:-cargo}" test --locked --workspace --no-fail-fast > >(tee "$said") 2>&1
scripts/setup.sh posix-short
python3 tests/posix/main.py --quick
python3 scripts/site.py
scripts/users.sh quick
