#!/bin/sh
# Three nodes on one machine, each in a network namespace of its own, each with memory and flash:
# one serves names and holds data, two hold data. Programs write on each node, and what they write
# lies there, and nowhere else: nothing is drained meanwhile. Then each node's server is killed and
# started again; nothing that was fsynced is lost. Takes everything away again. Needs root.
#
#   examples/three-nodes.sh [--replicas 2] [--keep]
#   examples/three-nodes.sh --remove DIR
#
# --replicas 2   Each fsynced file is on two nodes. When node 2 or 3 is killed, programs read on
#                within 10 s, without its server.
# --keep         Kills nothing, and leaves the nodes running for you: prints what is where, how to
#                run a command on a node, and how to kill and start servers.
# --remove DIR   Takes away what --keep has left in DIR: starts the servers that do not run, copies
#                everything to the slow file system, shows what is there, and removes all of it.
set -eu

usage() {
    sed -n '/^#   examples/,/^set /s/^# \{0,1\}//p' "$0"
}

KEEP='' REPLICAS=1 DIR=''
while [ $# -gt 0 ]; do
    case "$1 ${2:-}" in
    "--keep "*) KEEP=1 ;;
    "--replicas "[12]) REPLICAS=$2 && shift ;;
    "--remove "?*) DIR=$2 && shift ;;
    "--help "* | "-h "*) usage && exit ;;
    *) usage >&2 && exit 1 ;;
    esac
    shift
done
FOREBAY=${FOREBAY:-target/release/forebay}
FOREBAY=$(realpath "$FOREBAY")
[ -x "$FOREBAY" ] || { echo "$FOREBAY: not there: make build" >&2 && exit 1; }
[ "$(id -u)" = 0 ] || { echo "network namespaces need root" >&2 && exit 1; }
REMOVE=$DIR
if [ -n "$REMOVE" ]; then
    [ -f "$DIR/net" ] || { echo "$DIR: --keep has left no nodes there" >&2 && exit 1; }
    DIR=$(realpath "$DIR")
    NET=$(cat "$DIR/net")
else
    DIR=$(mktemp -d /tmp/forebay-three-nodes-XXXXXX)
fi
. "$(dirname "$0")/namespaces.sh"
export FOREBAY_RUN="$DIR/run"
NODES="1 2 3"

server() {
    on "$1" "$FOREBAY" server --config "$DIR/cluster.toml" --id "$1" --detach
}

pid_of() {
    cat "$DIR/state-$1/forebay.pid"
}

# Whether the server of a node runs.
runs() {
    "$FOREBAY" status --state "$DIR/state-$1" >/dev/null 2>&1
}

is_mounted() {
    grep -qF " $1 " /proc/self/mounts
}

# The process of a node's mount ends shortly after it.
unmount() {
    is_mounted "$DIR/on-$1" || return 0
    pid=$(cat "$DIR"/run/*"$1"/forebay.pid) || pid=''
    umount "$DIR/on-$1" || return 1
    for _ in $(seq 100); do
        [ -d "/proc/$pid/fd" ] || return 0
        sleep 0.1
    done
}

# Ends everything in order, drains, and shows what the slow file system has. What cannot be ended
# stays as it is, so that it can be tried again.
take_away() {
    for n in $NODES; do
        unmount $n || { echo "end the programs that use $DIR/on-$n first" >&2 && return 1; }
    done
    if runs 1; then "$FOREBAY" down --state "$DIR/state-1" --drain --timeout 60s || return 1; fi
    for n in 2 3; do
        if runs $n; then "$FOREBAY" down --state "$DIR/state-$n" || return 1; fi
    done
    for n in $NODES; do
        if is_mounted "$DIR/state-$n/dram"; then umount "$DIR/state-$n/dram" || return 1; fi
    done
    remove_nodes $NODES
    echo "what is on the slow file system now:"
    ls -l "$DIR/slow"
    rm -rf "$DIR"
}

clean_up() {
    status=$?
    trap - EXIT INT TERM
    take_away || { echo "left over: $0 --remove $DIR" >&2 && status=1; }
    exit $status
}

if [ -n "$REMOVE" ]; then
    # After a reboot they are gone.
    [ -e "/run/netns/forebay-1-$NET" ] || make_nodes $NODES
    for n in $NODES; do ip -n "forebay-$n-$NET" link set eth0 up; done
    for n in 2 3 1; do
        if ! runs $n; then server $n; fi
    done
    take_away
    exit
fi

mkdir "$DIR/slow"
chmod 755 "$DIR"
echo "$NET" >"$DIR/net"
make_nodes $NODES
"$FOREBAY" keygen "$DIR/key" >/dev/null
cat >"$DIR/cluster.toml" <<TOML
[cluster]
name = "three-nodes"
pfs = "$DIR/slow"
key = "$DIR/key"
replicas = $REPLICAS

# What is written stays on its nodes alone until something orders the drain: so it is seen what a
# kill costs.
[demotion]
idle = false
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
cat >"$DIR/on" <<SH
#!/bin/sh
# Runs a command on a node: $DIR/on N COMMAND...
node=\$1
shift
export FOREBAY_RUN="$FOREBAY_RUN"
exec nsenter --net="/run/netns/forebay-\$node-$NET" "\$@"
SH
chmod 755 "$DIR/on"
trap clean_up EXIT INT TERM

for n in 2 3 1; do server $n; done
for n in $NODES; do
    on $n "$FOREBAY" mount --config "$DIR/cluster.toml" "$DIR/on-$n" --detach
done

for n in $NODES; do
    echo "written on node $n" >"$DIR/on-$n/greeting-$n"
    sync "$DIR/on-$n/greeting-$n"
    dd if=/dev/urandom of="$DIR/on-$n/ckpt-$n" bs=1M count=100 conv=fsync 2>&1 | tail -1
done
echo "node 3 reads:   $(cat "$DIR/on-3/greeting-1" "$DIR/on-3/greeting-2" | tr '\n' ' ')"
"$FOREBAY" where "$DIR/on-1" | grep -E 'state|ckpt'
(cd "$DIR/on-1" && sha256sum ckpt-* greeting-*) >"$DIR/sums"

# Whether all that was fsynced is there, read on a node. What no server brings never ends.
compare() {
    begun=$(date +%s)
    (cd "$DIR/on-$1" && timeout 60 sha256sum --check --quiet "$DIR/sums")
    echo "all is there, on node $1, after $(($(date +%s) - begun)) s"
}

# Kills the server of a node, and starts it again.
kill_and_start() {
    echo "node $1: its server is killed, and started again after two seconds"
    kill -9 "$(pid_of "$1")"
    # On another node a program goes on with its own file meanwhile, or waits, and gets no error.
    dd if=/dev/urandom of="$DIR/on-$2/during-$1" bs=1M count=20 conv=fsync 2>/dev/null &
    sleep 2
    server "$1"
    wait $!
    compare "$2"
}

# Whether something would be lost with one node now.
is_any_on_one_node() {
    "$FOREBAY" status --json --state "$DIR/state-1" | tr -d ' \n' | grep -q '"only_here":{"bytes":[1-9]'
}

# Kills the server of a node, and does without it.
kill_and_read() {
    echo "node $1: its server is killed; its files are read from their second copies"
    kill -9 "$(pid_of "$1")"
    compare "$2"
    server "$1"
    # Until each file is on two nodes again, the next kill may cost one.
    while is_any_on_one_node; do sleep 0.5; done
}

# The heading of status, its tiers, and its nodes.
show() {
    until "$FOREBAY" status --state "$DIR/state-1" | grep -q 'all answer'; do sleep 0.5; done
    "$FOREBAY" status --state "$DIR/state-1" | sed '/^undrained/q'
}

if [ -z "$KEEP" ]; then
    for n in $NODES; do
        other=$((n % 3 + 1))
        case $REPLICAS-$n in
        2-[23]) kill_and_read $n $other ;;
        *) kill_and_start $n $other ;;
        esac
    done
    show
    exit
fi

show
trap - EXIT INT TERM
if [ "$REPLICAS" = 2 ]; then
    AWAY="Where node 2 or 3 is dead programs wait for 10 s at most for what was fsynced: it is on another node, too.
What was not, and what programs on the dead node's own mount write, waits until its server is back. Without
node 1, which has the names, all wait until it is back."
else
    AWAY="Programs wait for what is on a dead node, and for all if it is node 1, which has the names, until its
server is back. With --replicas 2 they read on without node 2 or 3."
fi
cat <<TEXT

The three nodes are left running:

  $DIR/on-N          the mount of node N: 1, 2 or 3
  $DIR/state-N       the state folder of its server, with forebay.pid and forebay.log
  $DIR/state-N/dram  its memory
  $DIR/flash-N       its flash
  $DIR/slow          the slow file system: empty until something is drained
  $DIR/cluster.toml  the file of the cluster
  $DIR/run/*N        what the mount of node N keeps: forebay.pid, forebay.log
  $DIR/sums          checksums of what was written

Run a command on the network of node 2 (files and mounts are the same everywhere on this machine):

  $DIR/on 2 COMMAND...

See where files are, and how the nodes are:

  $FOREBAY where $DIR/on-1
  $FOREBAY status --state $DIR/state-1

Kill the server of node 2, and start it again:

  kill -9 \$(cat $DIR/state-2/forebay.pid)
  $DIR/on 2 $FOREBAY server --config $DIR/cluster.toml --id 2 --detach

$AWAY

With --restart a server that is killed comes back by itself, within seconds: end one, start it so, and kill it.

  $FOREBAY down --state $DIR/state-2
  $DIR/on 2 $FOREBAY server --config $DIR/cluster.toml --id 2 --detach --restart

Kill the mount of node 2, and mount it again:

  kill -9 \$(cat $DIR/run/*2/forebay.pid)
  $DIR/on 2 $FOREBAY mount --config $DIR/cluster.toml $DIR/on-2 --detach

Cut node 2 off from the others (noticed within 19 s), and join it again:

  $DIR/on 2 ip link set eth0 down
  $DIR/on 2 ip link set eth0 up

See that nothing is lost:

  (cd $DIR/on-3 && sha256sum --check $DIR/sums)

Copy everything to the slow file system now:

  $FOREBAY stage-out --wait $DIR/on-1

Take all of it away:

  $0 --remove $DIR
TEXT
