# SPDX-License-Identifier: BSD-3-Clause
# Sourced by tests of several hosts, after launch.bash: hosts made of namespaces of this machine. Each has a network,
# IPC, processes, a name and a /dev/shm of its own; a cable leads from each to a switch, where the test itself runs, at
# 10.77.0.254. All of it is inside namespaces of the test, so it ends with the test and touches nothing outside.
#
#     hosts N [RATE]      h1 .. hN at 10.77.0.1 .. 10.77.0.N; RATE of each cable in each direction, as tc has it: 1gbit
#     impaired N OPTION.. the same with cables that delay, lose, repeat and reorder packets: options of relay.py, here
#     on HOST COMMAND..   runs a command there, in this folder, with a TMPDIR of the host
#     unplug HOST, plug HOST
#     carried HOST        bytes that have come from it (not with impaired)
#     $remote             a program that does the same as ssh would, for launchers

if [ -z "${XEP_TEST_SWITCH:-}" ]; then
    isolated=(unshare --net --ipc --pid --mount --fork --kill-child --mount-proc)
    "${isolated[@]}" true 2>/dev/null || skip 'no new namespaces here (root is needed)'
    command -v ip >/dev/null || skip 'there is no ip (package iproute2)'
    rmdir "$tmp"
    XEP_TEST_SWITCH=1 exec "${isolated[@]}" bash "$0"
fi
ip link set lo up

remote=$tmp/remote
cat >"$remote" <<END
#!/bin/bash
hosts=$tmp/hosts here=$PWD
END
cat >>"$remote" <<'END'
while [[ "$1" == -* ]]; do
    case "$1" in -o | -p | -l) shift 2 ;; *) shift ;; esac
done
host=$1
shift
TMPDIR=$hosts/$host exec nsenter -t "$(cat "$hosts/$host.pid")" -n -i -u -p -m -- /bin/sh -c "cd $here && $*"
END
chmod +x "$remote"

# The name is a host's in the script that unshare starts, which then holds the namespaces open.
start_host() {
    local name=h$1 pid=
    mkdir -p "$tmp/hosts/$name"
    unshare --net --ipc --uts --pid --mount --fork --kill-child --mount-proc bash -c '
        hostname "$1" && mount -t tmpfs tmpfs /dev/shm && ip link set lo up && exec sleep infinity' \
        host "$name" 2>"$tmp/hosts/$name.err" &
    for _ in $(seq 1200); do
        pid=$(pgrep -P $! sleep) && break
        sleep 0.05
    done
    [ -n "$pid" ] || { echo "host $name did not start: $(cat "$tmp/hosts/$name.err")"; exit 99; }
    echo "$pid" >"$tmp/hosts/$name.pid"
}

# a cable from the host into the switch
connect() {
    local name=h$1 rate=$2
    ip link add "$name" type veth peer name eth0 netns "$(cat "$tmp/hosts/$name.pid")"
    ip link set "$name" master switch up
    on "$name" ip addr add "10.77.0.$1/24" dev eth0
    on "$name" ip link set eth0 up
    [ -n "$rate" ] || return 0
    tc qdisc add dev "$name" root tbf rate "$rate" burst 256k latency 50ms
    on "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst 256k latency 50ms
}

hosts() {
    local host
    ip link add switch type bridge
    ip addr add 10.77.0.254/24 dev switch
    ip link set switch up
    for host in $(seq "$1"); do
        start_host "$host"
        connect "$host" "${2:-}"
    done
}

# The relay is the switch then: it opens a TAP device in the network of each host, and one here.
impaired() {
    local count=$1 host pids=()
    shift
    for host in $(seq "$count"); do
        start_host "$host"
        pids+=("$(cat "$tmp/hosts/h$host.pid")")
    done
    : >"$tmp/relay"
    python3 "$srcdir/test/rig/relay.py" "$@" "${pids[@]}" >"$tmp/relay" &
    relay=$!
    for _ in $(seq 1200); do
        ! grep -q ready "$tmp/relay" || break
        sleep 0.05
    done
    grep -q ready "$tmp/relay" || skip 'no TAP devices here'
    ip addr add 10.77.0.254/24 dev eth0
    ip link set eth0 up
    for host in $(seq "$count"); do
        on "h$host" ip addr add "10.77.0.$host/24" dev eth0
        on "h$host" ip link set eth0 up
    done
}

# Ends them, and everything that runs there. Their networks go a little later: cables and switch are taken away by name.
no_hosts() {
    local file name
    for file in "$tmp"/hosts/*.pid; do
        name=${file##*/}
        kill -KILL "$(cat "$file")"
        ip link del "${name%.pid}"
    done
    rm -rf "$tmp/hosts"
    ip link del switch
    [ -z "${relay:-}" ] || kill "$relay"
    wait
} 2>/dev/null

on() {
    local host=$1
    shift
    "$remote" "$host" "$(printf '%q ' "$@")"
}

unplug() { ip link set "$1" down; }

plug() { ip link set "$1" up; }

carried() { awk -v name="$1:" '$1 == name { print $2 }' /proc/net/dev; }
