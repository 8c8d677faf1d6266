#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Both paths to other nodes between hosts that are namespaces of this machine, with cables of a rate: what a dispatch
# and a combine take, and what their bytes need at that rate, with the headers of TCP/IP in frames of 1,500 bytes.
#
#     srcdir=.. ../test/bench/paths.sh [RATE [HOSTS [RANKS [TOKENS [option of xep_perf..]]]]]    in the build folder
#
# RATE as tc has it: 1gbit; none: as fast as it goes; delay:5: so, and 5 ms in each direction. RANKS of each host.
# With --mode ll among the options (1gbit 2 4 128 --mode ll --quant none) it is that mode's dispatch that differs.
# Needs root, iproute2 and prterun (XEP_TEST_PRRTE). The paths are run in turn, three times each; each line is the
# median of 15 operations.
set -u
export srcdir=${srcdir:-.}
[ $# -eq 0 ] || export BENCH_ARGS="$*"
. "$srcdir/test/mp/launch.bash" || exit 99
. "$srcdir/test/mp/prterun.bash" || exit 99
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
rate, unit = re.match(r"([\d.]+)(\D*)", sys.argv[3] or "0").groups()
bytes_s = float(rate) * {"gbit": 1e9, "mbit": 1e6, "": 0}[unit] / 8 * 1448 / 1514
path = next(path for path in simulated["paths"] if path["path"] == measured["path"])
for op, said in zip(measured["ops"], path["ops"]):
    need = said["network_bytes"] / simulated["nodes"] / bytes_s * 1e3 if bytes_s else 0
    took = op["us"]["median"] / 1e3
    told = f", its bytes {need:9.2f}: {took / need:.2f}" if need else ""
    print(f"{measured['path']:6} {op['op']:9} {took:9.2f} ms{told}")
END

if [ -n "$delay" ]; then impaired "$count" --delay "$delay"; else hosts "$count" "$rate"; fi
./xep_perf --simulate "$((count * each)),$each" "${batch[@]}" --json - >"$tmp/simulated" || exit 1
names=$(seq -f "h%g:$each" -s, "$count")
for turn in 1 2 3; do
    for path in flat nodes; do
        XEP_PATH=$path timeout $((200 * ${XEP_TEST_SLOW:-1})) "${launch[@]}" --host "$names" -n $((count * each)) \
            ./xep_perf "${batch[@]}" --iters 15 --warmup 3 --json - >"$tmp/measured" 2>"$tmp/err" ||
            { cat "$tmp/err"; exit 1; }
        python3 "$tmp/tell.py" "$tmp/measured" "$tmp/simulated" "$rate"
    done
done
no_hosts
