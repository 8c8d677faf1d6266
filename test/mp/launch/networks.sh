# SPDX-License-Identifier: BSD-3-Clause
# limit: 120
# Hosts whose networks do not lead where they seem to: a bridge of containers, which has the same address on each, is
# not used; and what never arrives, as behind a firewall that drops it, ends at the deadline, with names.
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99
. "$srcdir/test/rig/hosts.bash" || exit 99

cleanup() { no_hosts; }
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} XEP_PLUGIN_PATH=${XEP_PLUGIN_PATH:-} XEP_LOG=warn
unset UCX_NET_DEVICES UCX_TLS
launch=("${prterun[@]}" --prtemca plm ssh --prtemca plm_ssh_agent "$remote" --bind-to none
    --map-by slot:OVERSUBSCRIBE -x LD_LIBRARY_PATH -x XEP_PLUGIN_PATH -x XEP_TIMEOUT -x XEP_LOG)
perf=(./xep_perf --check-only --tokens 16 --hidden 512 --topk 2 --experts 8)
hosts 2

# Its two ends are both on the host, so that the kernel takes it for connected. UCX finds interfaces in /sys, which
# shows those of the network that it was mounted in.
for host in h1 h2; do
    on $host mount -t sysfs none /sys
    on $host ip link add docker0 type veth peer name inside
    on $host ip addr add 172.17.0.1/16 dev docker0
    on $host ip link set docker0 up
    on $host ip link set inside up
done
XEP_LOG=info passes 'a bridge of the same address' "${launch[@]}" --host h1:1,h2:1 -n 2 "${perf[@]}"
said='info: interface docker0 is not used: rank [01], in another network, has its address, too: 172.17.0.1'
[ "$(cat "$tmp/out" "$tmp/err" | grep -c "$said")" -eq 2 ] || wrong 'not both ranks say what they leave out'
has='has eth0 10.77.0.[12], docker0 172.17.0.1'
refuses 'a bridge alone' \
    "rank [01] cannot be reached: .*(it $has; this rank $has; UCX_NET_DEVICES names those to use)" \
    "${launch[@]}" -x UCX_NET_DEVICES=docker0 --host h1:1,h2:1 -n 2 "${perf[@]}"

# Ports of the switch that do not reach one another. Each host knows who has the address of the other, so that nobody
# answers that it does not exist.
for host in 1 2; do
    bridge link set dev h$host isolated on || skip 'the switch cannot keep hosts apart'
    address=$(on h$((3 - host)) cat /sys/class/net/eth0/address)
    on h$host ip neigh replace 10.77.0.$((3 - host)) lladdr "$address" dev eth0 nud permanent
done
XEP_TIMEOUT=$((5 * ${XEP_TEST_SLOW:-1}))s refuses 'what is sent is dropped' \
    'deadline passed; .*: still missing: rank [01]' timeout $((100 * ${XEP_TEST_SLOW:-1})) \
    "${launch[@]}" -x UCX_NET_DEVICES=eth0 --host h1:1,h2:1 -n 2 "${perf[@]}"
exit $failed
