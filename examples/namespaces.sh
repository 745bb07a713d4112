# Nodes on one machine: each in a network namespace of its own, all on one bridge. To be sourced by
# an example. Needs root. What it makes is called after the process of the example, or after NET,
# so that a later run can take it away.
NET=${NET:-$$}

# Node n has the address 10.99.1.n.
make_nodes() {
    ip link add "fbb$NET" type bridge
    ip link set "fbb$NET" up
    for node in "$@"; do
        ip netns add "forebay-$node-$NET"
        ip link add "fb$node.$NET" type veth peer name eth0 netns "forebay-$node-$NET"
        ip link set "fb$node.$NET" master "fbb$NET" up
        ip -n "forebay-$node-$NET" addr add "10.99.1.$node/24" dev eth0
        ip -n "forebay-$node-$NET" link set lo up
        ip -n "forebay-$node-$NET" link set eth0 up
    done
}

# Also those that were made in part only.
remove_nodes() {
    for node in "$@"; do ip netns del "forebay-$node-$NET" 2>/dev/null || true; done
    ip link del "fbb$NET" 2>/dev/null || true
}

# Runs a command on a node.
on() {
    node=$1
    shift
    # The mount is to be seen outside: only the network is the node's own.
    nsenter --net="/run/netns/forebay-$node-$NET" "$@"
}
