#!/usr/bin/env bash
# What users touch, each part after the other: goes on after a failure, and ends with one line for each.
#
#   scripts/users.sh long TARGET...   `make TARGET` for each
#   scripts/users.sh quick            the part of each that shows the most in some seconds; installs what it needs
#
# FOREBAY_BIN names the program to test; without it, `quick` builds one as the tests do, and `long` the release.
set -uo pipefail

cd "$(dirname "$0")/.."
said='' failed=''

# part NAME COMMAND...
part() {
    local begun=$SECONDS told=passed
    "${@:2}" || told=FAILED failed=1
    said+=$(printf '%-18s %s in %d s' "$1" "$told" $((SECONDS - begun)))$'\n'
}

# What is to be installed first; where that fails, the part has failed.
web() {
    scripts/setup.sh run web-short && python3 tests/web/main.py --quick --forebay "$FOREBAY_BIN"
}

slurm() {
    scripts/setup.sh run slurm && python3 tests/slurm/main.py --quick --forebay "$FOREBAY_BIN"
}

python() {
    scripts/python.sh test --quick
}

package() {
    scripts/setup.sh package-short && python3 tests/packages/main.py --quick --forebay "$FOREBAY_BIN"
}

case ${1:-} in
    long)
        for name in "${@:2}"; do
            part "$name" "${MAKE:-make}" --no-print-directory "$name"
        done
        ;;
    quick)
        if [[ -z ${FOREBAY_BIN:-} ]]; then
            # In these words the program is what the tests have built: nothing is compiled again.
            "${CARGO:-cargo}" build --locked --bin forebay -p forebay || exit 1
            FOREBAY_BIN=${CARGO_TARGET_DIR:-target}/debug/forebay
        fi
        FOREBAY_BIN=$(realpath -e "$FOREBAY_BIN") || exit 1
        export FOREBAY_BIN
        for name in web slurm python package; do
            part "$name" "$name"
        done
        ;;
    *)
        echo "usage: users.sh quick | long TARGET..." >&2
        exit 1
        ;;
esac
printf '\n%s' "$said"
[[ -z $failed ]]
