#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# What fewer bits save between hosts that are namespaces of this machine, with cables of a rate: dispatches of mode ll
# by each cast beside one by e4m3, combines by each format beside one of bf16, and with sums at owners beside one
# without.
#
#     srcdir=.. ../test/bench/formats.sh [RATE [HOSTS [RANKS [TOKENS [option of xep_perf..]]]]]    in the build folder
#
# RATE as tc has it: 1gbit. RANKS of each host. Needs root, iproute2 and prterun (XEP_TEST_PRRTE). All are run in turn,
# three times each; a line has the fastest tenth of 15 operations at most, the best of the three turns, as a machine has
# other things to do, too; and what the bytes of rows need at that rate, with the headers of TCP/IP.
set -u
export srcdir=${srcdir:-.}
[ $# -eq 0 ] || export BENCH_ARGS="$*"
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99
. "$srcdir/test/rig/hosts.bash" || exit 99
read -ra given <<<"${BENCH_ARGS:-1gbit}"
rate=${given[0]} count=${given[1]:-2} each=${given[2]:-1} tokens=${given[3]:-128}

cleanup() { no_hosts; }
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} XEP_PLUGIN_PATH=${XEP_PLUGIN_PATH:-}
launch=("${prterun[@]}" --prtemca plm ssh --prtemca plm_ssh_agent "$remote" --bind-to none -x LD_LIBRARY_PATH
    -x XEP_PLUGIN_PATH --map-by slot:OVERSUBSCRIBE)
batch=(--mode ll --tokens "$tokens" --hidden 7168 --topk 8 --experts 256 "${given[@]:4}")
names=$(seq -f "h%g:$each" -s, "$count")

# run NAME OP OPTION..: its measurement, and what --simulate tells of its bytes, into files of that name
run() {
    local name=$1 op=$2
    shift 2
    timeout $((200 * ${XEP_TEST_SLOW:-1})) "${launch[@]}" --host "$names" -n $((count * each)) ./xep_perf \
        "${batch[@]}" --op "$op" --iters 15 --warmup 3 --json - "$@" >"$tmp/$name" 2>"$tmp/err" ||
        { cat "$tmp/err"; exit 1; }
    ./xep_perf --simulate "$((count * each)),$each" "${batch[@]}" --json - "$@" >"$tmp/$name.bytes" || exit 1
}

cat >"$tmp/tell.py" <<'END'
import glob, json, re, sys
folder, rate = sys.argv[1:]
number, unit = re.match(r"([\d.]+)(\D*)", rate).groups()
per_ms = float(number) * {"gbit": 1e9, "mbit": 1e6}[unit] / 8 * 1448 / 1514 / 1e3
beside = {}
for name in ["e4m3", "bf16", "mxfp8", "int8", "nvfp4", "mxfp4", "back-bf16", "back-e4m3", "back-mxfp8", "back-logfmt",
             "back-nvfp4", "sums", "sums-e4m3"]:
    runs = [json.load(open(file)) for file in glob.glob(f"{folder}/{name}.[123]")]
    told = json.load(open(f"{folder}/{name}.1.bytes"))
    op, = {op["op"] for run in runs for op in run["ops"]}
    took = min(run["ops"][0]["us"]["p10"] for run in runs) / 1e3
    path = next(path for path in told["paths"] if path["path"] == runs[0]["path"])
    need = path["ops"][op == "combine"]["network_bytes"] / told["nodes"] / per_ms
    beside.setdefault(op, took)
    print(f"{op:9} {name.replace('back-', ''):10} {took:8.2f} ms, its bytes {need:8.2f}, "
          f"{took / beside[op]:.2f} of {'e4m3' if op == 'dispatch' else 'bf16'}")
END

hosts "$count" "$rate"
for turn in 1 2 3; do
    run bf16.$turn dispatch --quant none
    for cast in e4m3 mxfp8 int8 nvfp4 mxfp4; do run $cast.$turn dispatch --quant $cast; done
    run back-bf16.$turn combine
    for format in e4m3 mxfp8 logfmt nvfp4; do run back-$format.$turn combine --combine $format; done
    run sums.$turn combine --sum-at-owner
    run sums-e4m3.$turn combine --sum-at-owner --combine e4m3
done
python3 "$tmp/tell.py" "$tmp" "$rate"
no_hosts
