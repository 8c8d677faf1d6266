#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 900, again: 2
# What xep_perf --simulate says of hosts with slow cables between them, beside what xep_perf measures there: both paths
# on 2, 3 and 4 hosts, each at two rates, within a fifth. What the network gives is measured first, without xep. Of both
# the fastest round counts, as other programs have the processors, too: they make a round slower, never faster.
. "$srcdir/test/rig/launch.bash" || exit 99
. "$srcdir/test/rig/prterun.bash" || exit 99
. "$srcdir/test/rig/hosts.bash" || exit 99
command -v python3 >/dev/null || skip 'there is no python3'

cleanup() { no_hosts; }
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-} XEP_PLUGIN_PATH=${XEP_PLUGIN_PATH:-}
launch=("${prterun[@]}" --prtemca plm ssh --prtemca plm_ssh_agent "$remote" --bind-to none -x LD_LIBRARY_PATH
    -x XEP_PLUGIN_PATH -x XEP_TIMEOUT -x XEP_PATH --map-by slot:OVERSUBSCRIBE)

cat >"$tmp/compare.py" <<'END'
"""compare.py MEASURED SIMULATED: exits with 1 where they differ by more than a fifth"""
import json, sys
measured, simulated = (json.load(open(name)) for name in sys.argv[1:])
path, wrong = next(path for path in simulated["paths"] if path["path"] == measured["path"]), 0
assert measured["nodes"] == simulated["nodes"] and measured["ranks"] == simulated["ranks"]
for op, said in zip(measured["ops"], path["ops"]):
    assert op["op"] == said["op"]
    took = op["us"]["p10"]
    print(f"{op['op']}: {took:.0f} us, simulated {said['us']:.0f}: {said['us'] / took:.2f}")
    wrong |= not 0.8 <= said["us"] / took <= 1.2
sys.exit(wrong)
END

# network HOSTS RANKS BYTES: GB/s that a host gets when all exchange so many bytes each, over as many connections as
# ranks have
network() {
    local host streams=$(($2 * $2)) addresses=() pids=()
    for host in $(seq "$1"); do addresses+=("10.77.0.$host"); done
    for host in $(seq "$1"); do
        on "h$host" timeout $((60 * ${XEP_TEST_SLOW:-1})) python3 "$srcdir/test/rig/exchange.py" $((host - 1)) \
            $streams $(($3 / ($1 - 1) / streams)) 5 "${addresses[@]}" >"$tmp/rate.$host" 2>"$tmp/rate.err" &
        pids+=($!)
    done
    wait "${pids[@]}"
    awk '{ print $1 / 1e9 }' "$tmp/rate.1"
}

# idle: the hundredths of a second in which the processors had nothing to do, and all of them, so far
idle() { awk '$1 == "cpu" { print $5, $2 + $3 + $4 + $5 + $6 + $7 + $8 + $9 }' /proc/stat; }

# alike PATH HOSTS RANKS MBIT TOKENS: each host has so many ranks. As another program may have had the processors
# meanwhile, up to eight times: a model that is wrong is wrong every time. If the processors were never idle for half of
# an attempt, nothing is judged. For the same reason cables are slow here, so that operations compute little beside what
# they wait for. test/bench/paths.sh has the fast ones.
alike() {
    export XEP_PATH=$1
    shift
    local ranks=$(($1 * $2)) batch="--tokens $4 --hidden 7168 --topk 8 --experts 64" rate bytes names
    local before after quiet=0
    names=$(seq -f "h%g:$2" -s, "$1")
    for _ in 1 2 3 4 5 6 7 8; do
        read -ra before < <(idle)
        ./xep_perf --simulate $ranks,$2 $batch --json - >"$tmp/simulated"
        bytes=$(python3 -c 'import json, sys
paths = {path["path"]: path for path in json.load(open(sys.argv[1]))["paths"]}
print(int(paths[sys.argv[3]]["ops"][0]["network_bytes"] / int(sys.argv[2])))' "$tmp/simulated" "$1" $XEP_PATH)
        rate=$(network "$1" "$2" "$bytes")
        run "$1 hosts of $2 ranks at $3 Mbit/s, $XEP_PATH: $bytes bytes of each, $rate GB/s" \
            "${launch[@]}" --host "$names" -n $ranks ./xep_perf $batch --iters 7 --warmup 2 --json -
        [ $status -eq 0 ] || { wrong 'it failed'; return; }
        cp "$tmp/out" "$tmp/measured"
        ./xep_perf --simulate $ranks,$2 $batch --rates "network=$rate" --json - >"$tmp/simulated"
        python3 "$tmp/compare.py" "$tmp/measured" "$tmp/simulated" && return
        read -ra after < <(idle)
        [ $((2 * (after[0] - before[0]))) -lt $((after[1] - before[1])) ] || quiet=1
    done
    if [ $quiet -eq 1 ]; then wrong 'what was simulated is not what was measured'
    else echo "$name: not judged, the machine was never quiet"; fi
}

hosts 4 200mbit
alike nodes 2 2 200 64
alike flat 3 1 200 64
alike flat 4 2 200 64
alike nodes 4 2 200 64
no_hosts
hosts 4 400mbit
alike flat 2 2 400 128
alike nodes 3 2 400 128
no_hosts
exit $failed
