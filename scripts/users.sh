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
    local begun=$SECONDS told=passed why='' code=0
    "${@:2}" || code=$?
    ((code == 0)) || told=FAILED failed=1
    ((code != not_installed)) || why=': what it needs could not be installed'
    said+=$(printf '%-18s %s in %d s%s' "$1" "$told" $((SECONDS - begun)) "$why")$'\n'
}

# What cannot be installed is a failure, and no reason to skip.
not_installed=9
needs() {
    scripts/setup.sh "$@" || return "$not_installed"
}

web() {
    needs run web-short && python3 tests/web/main.py --quick --forebay "$FOREBAY_BIN"
}

slurm() {
    needs run slurm && python3 tests/slurm/main.py --quick --forebay "$FOREBAY_BIN"
}

python() {
    needs run python-package && scripts/python.sh test --quick
}

package() {
    needs package-short && python3 tests/packages/main.py --quick --forebay "$FOREBAY_BIN"
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
