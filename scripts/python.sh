#!/usr/bin/env bash
# The Python package.
#
#   scripts/python.sh wheel     dist/forebay-*.whl and the source archive
#   scripts/python.sh test      types, and the tests on a real burst buffer, of the wheel in an environment of its own
#   scripts/python.sh torch     the same with torch, and the tests of its checkpoints (3 GB of wheels, once)
#
# FOREBAY_BIN names the program to test; without it, that is target/release/forebay, built first.
set -euo pipefail

cd "$(dirname "$0")/.."
mode=${1:-}
shift || true

# wheel VENV FOLDER: both archives, built with the versions that the environment has.
wheel() {
    "$1/bin/python" -m build --no-isolation --outdir "$2" python >"$2/build.log" 2>&1 || {
        cat "$2/build.log" >&2
        exit 1
    }
    rm "$2/build.log"
}

case $mode in
    wheel)
        scripts/setup.sh python-package
        mkdir -p dist
        wheel .cache/venv-python dist
        ls dist/forebay-*.whl
        ;;
    test | torch)
        venv=.cache/venv-python
        checked=(--exclude 'torch\.py$' python/src/forebay)
        tests=(--ignore python/tests/test_torch.py)
        scripts/setup.sh run python-package
        if [[ $mode == torch ]]; then
            scripts/setup.sh python-torch
            venv=.cache/venv-python-torch
            checked=()
            tests=(python/tests/test_torch.py)
        fi
        if [[ -z ${FOREBAY_BIN:-} ]]; then
            "${CARGO:-cargo}" build --release --locked -p forebay
            FOREBAY_BIN=$PWD/target/release/forebay
        fi
        FOREBAY_BIN=$(realpath "$FOREBAY_BIN")
        export FOREBAY_BIN
        built=$(mktemp -d)
        trap 'rm -rf "$built"' EXIT
        wheel "$venv" "$built"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$built"/*.whl
        (cd python && "../$venv/bin/mypy" ${checked[@]+"${checked[@]/#python\//}"})
        [[ $mode == torch ]] || tests+=(python/tests)
        "$venv/bin/python" -m pytest -c python/pyproject.toml -p no:cacheprovider "${tests[@]}" "$@"
        ;;
    *)
        echo "usage: python.sh wheel|test|torch [pytest's own words]" >&2
        exit 1
        ;;
esac
