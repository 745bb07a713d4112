#!/bin/sh
# Three nodes on one machine, each in a network namespace of its own, each with memory and flash:
# one serves names and holds data, two hold data. Programs write on each node, and what they write
# lies there. Then each node's server is killed and started again; nothing that was fsynced is
# lost. Takes everything away again. Needs root.
set -eu

. "$(dirname "$0")/namespaces.sh"
FOREBAY=${FOREBAY:-target/release/forebay}
FOREBAY=$(realpath "$FOREBAY")
DIR=$(mktemp -d /tmp/forebay-three-nodes-XXXXXX)
export FOREBAY_RUN="$DIR/run"
NODES="1 2 3"

clean_up() {
    status=$?
    trap - EXIT INT TERM
    for n in $NODES; do umount "$DIR/on-$n" 2>/dev/null || true; done
    "$FOREBAY" down --state "$DIR/state-1" --drain --timeout 60s || status=1
    for n in 2 3; do "$FOREBAY" down --state "$DIR/state-$n" || status=1; done
    remove_nodes $NODES
    for n in $NODES; do umount "$DIR/state-$n/dram" 2>/dev/null || true; done
    echo "what is on the slow file system now:"
    ls -l "$DIR/slow"
    rm -rf "$DIR"
    exit $status
}

server() {
    on "$1" "$FOREBAY" server --config "$DIR/cluster.toml" --id "$1" --detach
}

pid_of() {
    cat "$DIR/state-$1/forebay.pid"
}

mkdir "$DIR/slow"
chmod 755 "$DIR"
make_nodes $NODES
"$FOREBAY" keygen "$DIR/key" >/dev/null
cat >"$DIR/cluster.toml" <<TOML
[cluster]
name = "three-nodes"
pfs = "$DIR/slow"
key = "$DIR/key"
TOML
roles='"metadata", "data"'
for n in $NODES; do
    mkdir "$DIR/on-$n" "$DIR/flash-$n"
    cat >>"$DIR/cluster.toml" <<TOML

[[server]]
id = $n
roles = [$roles]
addresses = ["10.99.1.$n:7070"]
state = "$DIR/state-$n"
dram = "256MiB"
ssd = ["$DIR/flash-$n:1GiB"]
TOML
    roles='"data"'
done
trap clean_up EXIT INT TERM

for n in 2 3 1; do server $n; done
for n in $NODES; do
    on $n "$FOREBAY" mount --config "$DIR/cluster.toml" "$DIR/on-$n" --detach
done

for n in $NODES; do
    echo "written on node $n" >"$DIR/on-$n/greeting-$n"
    dd if=/dev/urandom of="$DIR/on-$n/ckpt-$n" bs=1M count=100 conv=fsync 2>&1 | tail -1
done
echo "node 3 reads:   $(cat "$DIR/on-3/greeting-1" "$DIR/on-3/greeting-2" | tr '\n' ' ')"
"$FOREBAY" where "$DIR/on-1" | grep ckpt
(cd "$DIR/on-1" && sha256sum ckpt-*) >"$DIR/sums"

for n in $NODES; do
    echo "node $n: its server is killed, and started again after two seconds"
    kill -9 "$(pid_of $n)"
    # On another node a program goes on with its own file meanwhile, or waits, and gets no error.
    other=$((n % 3 + 1))
    dd if=/dev/urandom of="$DIR/on-$other/during-$n" bs=1M count=20 conv=fsync 2>/dev/null &
    sleep 2
    server $n
    wait
    (cd "$DIR/on-$other" && sha256sum --check --quiet "$DIR/sums") && echo "all is there, on node $other"
done
"$FOREBAY" status --state "$DIR/state-1" | sed -n 1,14p
