#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Both paths to other nodes between hosts that are namespaces of this machine, with cables of a rate: what a dispatch
# and a combine take, and what their bytes need at that rate, with the headers of TCP/IP in frames of 1,500 bytes.
# Before them what as many processes need that send so many bytes through plain sockets (sockets.py), and do nothing
# else.
#
#     srcdir=.. ../test/bench/paths.sh [RATE [HOSTS [RANKS [TOKENS [option of xep_perf..]]]]]    in the build folder
#
# RATE as tc has it: 1gbit; none: as fast as it goes; delay:5: so, and 5 ms in each direction, through a relay, and
# before that through the same relay without the delay: how much longer it takes then, in round trips. RANKS of each
# host.
# With --mode ll among the options (1gbit 2 4 128 --mode ll --quant none) it is that mode's dispatch that differs.
# Needs root, iproute2 and prterun (XEP_TEST_PRRTE). The paths are run in turn, three times each; each line is the
# median of 15 operations, and in brackets what the fastest tenth of them took at most: on a machine that has other
# things to do, too, that is nearer to what the path can do.
set -u
export srcdir=${srcdir:-.}
[ $# -eq 0 ] || export BENCH_ARGS="$*"
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99
. "$srcdir/test/rig/hosts.bash" || exit 99
read -ra given <<<"${BENCH_ARGS:-1gbit}"
rate=${given[0]} count=${given[1]:-2} each=${given[2]:-2} tokens=${given[3]:-512}
delay=
case $rate in
    none) rate= ;;
    delay:*) delay=${rate#delay:} rate= ;;
esac

cleanup() { no_hosts; }
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} XEP_PLUGIN_PATH=${XEP_PLUGIN_PATH:-} XEP_PART=${XEP_PART:-256k}
launch=("${prterun[@]}" --prtemca plm ssh --prtemca plm_ssh_agent "$remote" --bind-to none -x LD_LIBRARY_PATH
    -x XEP_PLUGIN_PATH -x XEP_PATH -x XEP_PART --map-by slot:OVERSUBSCRIBE)
batch=(--tokens "$tokens" --hidden 7168 --topk 8 --experts 256 "${given[@]:4}")

cat >"$tmp/tell.py" <<'END'
import json, re, sys
measured, simulated = (json.load(open(name)) for name in sys.argv[1:3])
rate, delay, other = sys.argv[3:6]
number, unit = re.match(r"([\d.]+)(\D*)", rate or "0").groups()
bytes_s = float(number) * {"gbit": 1e9, "mbit": 1e6, "": 0}[unit] / 8 * 1448 / 1514
path = next(path for path in simulated["paths"] if path["path"] == measured["path"])
before = json.load(open(other))["ops"] if other else []
for i, (op, said) in enumerate(zip(measured["ops"], path["ops"])):
    took, bytes_out = op["us"]["median"] / 1e3, said["network_bytes"] / simulated["nodes"]
    told = f", {bytes_out / 1e6:.2f} MB from each host"
    if bytes_s:
        need = bytes_out / bytes_s * 1e3
        told = f", its bytes {need:9.2f}: {took / need:.2f} ({op['us']['p10'] / 1e3 / need:.2f})"
    if before:
        short = before[i]["us"]["median"] / 1e3
        told += f"; without the delay {short:.2f}: {(took - short) / (2 * float(delay)):.2f} round trips more"
    print(f"{measured['path']:6} {op['op']:9} {took:9.2f} ms ({op['us']['p10'] / 1e3:.2f}){told}")
END
cat >"$tmp/each.py" <<'END'
import json, sys
simulated = json.load(open(sys.argv[1]))
path = next(path for path in simulated["paths"] if path["path"] == sys.argv[2])
hosts, ranks = simulated["nodes"], simulated["ranks"]
print(path["ops"][0]["network_bytes"] // ranks // (hosts - 1))
END
./xep_perf --simulate "$((count * each)),$each" "${batch[@]}" --json - >"$tmp/simulated" || exit 1
names=$(seq -f "h%g:$each" -s, "$count")

# run PATH FILE: its measurement into FILE
run() {
    XEP_PATH=$1 timeout $((200 * ${XEP_TEST_SLOW:-1})) "${launch[@]}" --host "$names" -n $((count * each)) \
        ./xep_perf "${batch[@]}" --iters 15 --warmup 3 --json - >"$2" 2>"$tmp/err" ||
        { cat "$tmp/err"; exit 1; }
}

# The bytes of a dispatch of this path, from each process to the one of its number on each other host.
through_sockets() {
    local host place pids=() bytes
    bytes=$(python3 "$tmp/each.py" "$tmp/simulated" "$1")
    for host in $(seq "$count"); do
        for place in $(seq "$each"); do
            on "h$host" python3 "$srcdir/test/bench/sockets.py" "$host" "$count" "$place" "$bytes" >>"$tmp/sockets.$1" &
            pids+=($!)
        done
    done
    wait "${pids[@]}"
    echo "$1   sockets   $(sort -g "$tmp/sockets.$1" | tail -1) ms"
}

if [ -n "$delay" ]; then
    impaired "$count" --delay 0
    for path in flat nodes; do run "$path" "$tmp/short.$path"; done
    no_hosts
    impaired "$count" --delay "$delay"
else
    hosts "$count" "$rate"
    for path in flat nodes; do through_sockets "$path"; done
fi
for turn in 1 2 3; do
    for path in flat nodes; do
        run "$path" "$tmp/measured"
        python3 "$tmp/tell.py" "$tmp/measured" "$tmp/simulated" "$rate" "$delay" "${delay:+$tmp/short.$path}"
    done
done
no_hosts
