#!/bin/sh
# Two nodes on one machine: a server in one network namespace, a mount in that and in another one,
# over TCP. Shows that both see the same, and takes everything away again. Needs root.
set -eu

. "$(dirname "$0")/namespaces.sh"
FOREBAY=${FOREBAY:-target/release/forebay}
FOREBAY=$(realpath "$FOREBAY")
DIR=$(mktemp -d /tmp/forebay-two-nodes-XXXXXX)
export FOREBAY_RUN="$DIR/run"

clean_up() {
    status=$?
    trap - EXIT INT TERM
    umount "$DIR/on-1" 2>/dev/null || true
    umount "$DIR/on-2" 2>/dev/null || true
    "$FOREBAY" down --state "$DIR/state" --drain --timeout 30s || true
    remove_nodes 1 2
    echo "what is on the slow file system now:"
    ls -l "$DIR/slow"
    rm -rf "$DIR"
    exit $status
}
trap clean_up EXIT INT TERM

mkdir "$DIR/slow" "$DIR/on-1" "$DIR/on-2"
chmod 755 "$DIR"
make_nodes 1 2

"$FOREBAY" keygen "$DIR/key" >/dev/null
cat >"$DIR/cluster.toml" <<TOML
[cluster]
name = "two-nodes"
pfs = "$DIR/slow"
key = "$DIR/key"

[[server]]
id = 1
roles = ["metadata", "data"]
addresses = ["10.99.1.1:7070"]
state = "$DIR/state"
dram = "256MiB"
TOML

on 1 "$FOREBAY" server --config "$DIR/cluster.toml" --id 1 --detach
on 1 "$FOREBAY" mount --config "$DIR/cluster.toml" "$DIR/on-1" --detach
on 2 "$FOREBAY" mount --config "$DIR/cluster.toml" "$DIR/on-2" --detach

echo "written on node 1" >"$DIR/on-1/greeting"
echo "node 2 reads:   $(cat "$DIR/on-2/greeting")"
echo "appended on node 2" >>"$DIR/on-2/greeting"
echo "node 1 reads:   $(tail -1 "$DIR/on-1/greeting")"
dd if=/dev/zero of="$DIR/on-2/ckpt-1" bs=1M count=100 2>&1 | tail -1
"$FOREBAY" status --state "$DIR/state" | sed -n 1,8p
