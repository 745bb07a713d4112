#!/bin/sh
# Two nodes on one machine: a server in one network namespace, a mount in that and in another one,
# over TCP. Shows that both see the same, and takes everything away again. Needs root.
set -eu

FOREBAY=${FOREBAY:-target/release/forebay}
FOREBAY=$(realpath "$FOREBAY")
DIR=$(mktemp -d /tmp/forebay-two-nodes-XXXXXX)
A=forebay-a-$$
B=forebay-b-$$
export FOREBAY_RUN="$DIR/run"

clean_up() {
    status=$?
    trap - EXIT INT TERM
    umount "$DIR/on-a" 2>/dev/null || true
    umount "$DIR/on-b" 2>/dev/null || true
    "$FOREBAY" down --state "$DIR/state" --drain --timeout 30s || true
    ip netns del "$A" 2>/dev/null || true
    ip netns del "$B" 2>/dev/null || true
    echo "what is on the slow file system now:"
    ls -l "$DIR/slow"
    rm -rf "$DIR"
    exit $status
}
trap clean_up EXIT INT TERM

mkdir "$DIR/slow" "$DIR/on-a" "$DIR/on-b"
chmod 755 "$DIR"
ip netns add "$A"
ip netns add "$B"
ip link add "fba$$" netns "$A" type veth peer name "fbb$$" netns "$B"
ip -n "$A" addr add 10.99.0.1/24 dev "fba$$"
ip -n "$B" addr add 10.99.0.2/24 dev "fbb$$"
for side in "$A fba$$" "$B fbb$$"; do
    set -- $side
    ip -n "$1" link set lo up
    ip -n "$1" link set "$2" up
done

"$FOREBAY" keygen "$DIR/key" >/dev/null
cat >"$DIR/cluster.toml" <<TOML
[cluster]
name = "two-nodes"
pfs = "$DIR/slow"
key = "$DIR/key"

[[server]]
id = 1
roles = ["metadata", "data"]
addresses = ["10.99.0.1:7070"]
state = "$DIR/state"
dram = "256MiB"
TOML

on() {
    node=$1
    shift
    # The mount is to be seen outside: only the network is the node's own.
    nsenter --net="/run/netns/$node" "$@"
}

on "$A" "$FOREBAY" server --config "$DIR/cluster.toml" --id 1 --detach
on "$A" "$FOREBAY" mount --config "$DIR/cluster.toml" "$DIR/on-a" --detach
on "$B" "$FOREBAY" mount --config "$DIR/cluster.toml" "$DIR/on-b" --detach

echo "written on node a" >"$DIR/on-a/greeting"
echo "node b reads:   $(cat "$DIR/on-b/greeting")"
echo "appended on node b" >>"$DIR/on-b/greeting"
echo "node a reads:   $(tail -1 "$DIR/on-a/greeting")"
dd if=/dev/zero of="$DIR/on-b/ckpt-1" bs=1M count=100 2>&1 | tail -1
"$FOREBAY" status --state "$DIR/state" | sed -n 1,8p
