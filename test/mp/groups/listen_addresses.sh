#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Where all ranks are on one machine nobody else can connect to them: UCX listens on the loopback interface alone.
. "${srcdir:-.}/test/rig/ranks.bash"

# a network of our own, with a second interface; without the right to that, the machine's
if [ "${1:-}" != inside ]; then
    unshare -nm true 2>/dev/null && command -v ip >/dev/null &&
        exec unshare -nm bash "$0" inside
else
    # UCX finds interfaces in /sys, which shows those of the network it was mounted in
    mount -t sysfs none /sys 2>/dev/null && ip link set lo up && ip link add outside0 type veth peer name outside1 &&
        ip addr add 10.99.7.1/24 dev outside0 && ip link set outside0 up && ip link set outside1 up ||
        { echo 'skipped: no second interface can be made'; exit 77; }
fi

# listen RANKS [VAR=VALUE...]: on how many addresses beyond 127.0.0.0/8 the ranks do, into $outside
listen() {
    on_ranks "$@" ./test/mp/groups/listening
    [ $status -eq 0 ] || wrong "listening: $*"
    outside=$(grep '^listens on' "$dir/out" | grep -vc ' [0-9A-F]\{6\}7F$')
}

# what would be found: a user's own choice is not overridden
listen 2 UCX_NET_DEVICES=all
[ "$outside" -gt 0 ] || { echo 'skipped: UCX listens on no other interface here'; exit 77; }
for settings in XEP_MAP=auto XEP_MAP=never UCX_TLS=tcp,self; do
    listen 2 $settings
    [ "$outside" -eq 0 ] || wrong "ranks of one machine listen to others ($settings)"
    passes 2 ops/refused_calls $settings
done
exit $failed
