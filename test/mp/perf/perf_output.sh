#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# limit: 200
# What xep_perf, xep_info and the benchmark of the kernels print, once however many ranks there are, and how they exit.
set -u
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0

# expect STATUS LINES PATTERN COMMAND...: stdout and stderr together have LINES lines (0: any number; those of
# xep_run and libpmix do not count), one of which matches PATTERN
expect() {
    status=$1 lines=$2 pattern=$3
    shift 3
    XEP_TIMEOUT=20s timeout $((60 * ${XEP_TEST_SLOW:-1})) "$@" >"$dir/out" 2>&1
    got=$?
    count=$(grep -vc -e '^xep_run: ' -e '^\[.*pmix' "$dir/out")
    if [ $got -ne "$status" ] || { [ "$lines" -gt 0 ] && [ "$count" -ne "$lines" ]; } ||
        ! grep -q -e "$pattern" "$dir/out"; then
        echo "$*: status $got, $count lines; expected $status, $lines, \"$pattern\" in:"
        cat "$dir/out"
        failed=1
    fi
}

# a sanitizer's table would count
export LSAN_OPTIONS="${LSAN_OPTIONS:+$LSAN_OPTIONS:}print_suppressions=0"

small="--tokens 8 --hidden 64 --experts 8 --topk 2 --iters 3"
run="./xep_run -n 3 .libs/xep_perf" # the program itself, not libtool's script around it
solo="./xep_run -n 1 .libs/xep_perf"

# an error is said once, and no rank is left waiting
expect 2 1 "^xep_perf: invalid --tokens: \"many\" (a whole number from 1 to [0-9]*)\$" $run --tokens many
expect 2 1 "^xep_perf: unknown option: \"--frob\" (xep_perf --help lists them)\$" $run --frob
expect 2 1 '^xep_perf: experts cannot be divided into 8 groups: 60 (a multiple of that)$' \
    $run $small --experts 60 --routing group:8,2
expect 1 1 '^xep_perf: .*no_such_mode' $run $small --mode no_such_mode
expect 1 1 '^xep_perf: not enough memory for 1000000000 tokens a rank: .* GiB' \
    $run $small --tokens 1000000000 --hidden 7168
expect 1 1 'ranks disagree.* hidden' ./xep_run -n 3 sh -c \
    'exec ./xep_perf --tokens 8 --experts 8 --topk 2 --hidden $((64 + PMIX_RANK / 2 * 64))'
expect 0 8 '^dispatch by ue8m0: 68 bytes a row, not 128$' $solo $small --quant ue8m0 --check
if [ ! -e .libs/xep_normal_cuda.so ]; then # made where there was no nvcc
    expect 1 1 '^xep_perf: mode "normal_cuda": there is no xep_normal_cuda.so in ' $run $small --memory cuda
elif ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
    expect 1 1 '^xep_perf: --memory cuda: there is no driver for CUDA devices here: ' $run $small --memory cuda
fi
printf '0 0 1\n0 1 9\n' >"$dir/routes"
expect 2 1 'line 2: invalid expert: "9" (-1 to 7)$' $run $small --routing "file:$dir/routes"
expect 1 1 '^xep_perf: cannot write --json /no/such/file: No such file' $run $small --json /no/such/file

# kernels that this CPU has not: a warning, and those it has
if ! grep -q -w avx512f /proc/cpuinfo; then
    expect 0 4 '^.*XEP_SIMD is avx512, but this CPU only has [a-z0-9]*, which is used$' \
        env XEP_SIMD=avx512 $solo $small --mode ll --check-only
fi
expect 1 1 'invalid XEP_SIMD: "sse"' env XEP_SIMD=sse $solo $small

# results
expect 0 1 '^xep_perf [0-9.]*$' $run --version
expect 0 0 '^usage: xep_perf' $run --help
expect 0 0 '^normal ' $run --list
expect 0 6 '^dispatch *24 ' $run $small --routing self --topk 2
expect 0 1 '"ops": \[' $run $small --mode ll --cached --slots 2 --json -
expect 0 8 '^combine  by hand [0-9.]* us, ratio to it [0-9.]*$' $run $small --peer
expect 0 9 '^in place, and one read  *[0-9.]* us, cpu  *[0-9.]*, ratio [0-9.]*$' $run $small --in-place
expect 0 1 '"in_place": {"us": [0-9.]*, .*"read_us": [0-9.]*, .*"copied_read_us": [0-9.]*, .*}, "ops"' \
    $run $small --in-place --op dispatch --json -
expect 0 10 '^in place, not read  *[0-9.]* us, cpu  *[0-9.]*, ratio [0-9.]*$' $run $small --in-place --mode ll
expect 0 7 '^room for 3 rows: [0-9]* pieces, rows [0-9.]* us, combine [0-9.]* us, ratio to room for all [0-9.]*$' \
    $run $small --recv-rows 3
expect 0 7 '^room for 500 rows: 1 piece, rows ' $run $small --recv-rows 500
expect 0 8 '^room for 7 rows: [0-9]* pieces, rows [0-9.]* us, combine ' $run $small --mode ll --recv-rows 7
expect 0 1 '"pieces": {"room": 3, "count": [0-9]*, "dispatch_us": [0-9.]*, "combine_us": [0-9.]*}, "ops"' \
    $run $small --recv-rows 3 --json -
for with in '--mode ll --layout padded' '--mode ll --combine logfmt' '--mode ll --sum-at-owner' '--cached' '--slots 2' \
    '--op dispatch'; do
    expect 2 1 '^xep_perf: --recv-rows cannot be used with --layout padded, --combine, --sum-at-owner, --cached, ' \
        $run $small --recv-rows 3 $with
done
expect 2 1 '^xep_perf: invalid --recv-rows: "0" (a whole number from 1 to' $run $small --recv-rows 0
expect 2 1 '^xep_perf: --peer cannot be used with rows by expert' $run $small --peer --mode ll
if unshare -m true 2>/dev/null; then
    expect 1 1 '^xep_perf: --peer: no [0-9.]* MiB of shared memory in /dev/shm: No space left' \
        unshare -m sh -c 'mount -t tmpfs -o size=40k none /dev/shm && exec "$@"' - \
        env UCX_TLS=sysv,self $run $small --peer
    expect 0 8 '^xep_perf: no 0\.[0-9] MiB of shared memory in /dev/shm (No space left.*): the limit stores ' \
        unshare -m sh -c 'mount -t tmpfs -o size=8k none /dev/shm && exec "$@"' - \
        env UCX_TLS=sysv,self $run $small --mode ll
fi
expect 0 13 '^combine  *2  *[0-9.]*  *[0-9.]*  *[0-9]*$' $run $small --waits
expect 0 9 '^waits  *for rank ' $run $small --waits --op dispatch --slots 2
expect 0 5 '^combine ' $run $small --op combine
expect 0 3 'ranks on' $run $small --check-only --json "$dir/json"
expect 0 9 '^even  *[0-9.]*  *[0-9.]*  *[0-9.]*  *[0-9.]*$' $run $small --balance 8
expect 2 1 '^xep_perf: --balance cannot be used with .*, --slots above 1 or --op combine$' \
    $run $small --balance 8 --slots 2
# owners stay those of the buffer, whatever the seed
expect 0 4 '^pressure: two runs of 2 seeds, ok$' \
    $run $small --experts 16 --routing zipf:1.2 --owners greedy --check --check-only --pressure 2
expect 0 1 \
    '"check": "off", .*"ops": \[{"op": "dispatch", "rows": 24, "us": {"p10": .*"ratio": .*}, {"op": "combine".*}\]}$' \
    $run $small --routing self --json -
expect 0 0 '"check": "ok".*"ops": \[\]}' cat "$dir/json"
if command -v python3 >/dev/null; then
    ./xep_run -n 2 .libs/xep_perf $small --json - | python3 -c 'import json, sys
result = json.load(sys.stdin)
assert result["ranks"] == 2 and result["hidden"] == 64 and result["dtype"] == "bf16", result
assert [op["op"] for op in result["ops"]] == ["dispatch", "combine"], result
for op in result["ops"]:
    assert 0 < op["us"]["p10"] <= op["us"]["median"] <= op["us"]["p90"] <= op["us"]["p99"], op
    assert op["gbps"]["logical"] >= op["gbps"]["dedup"] >= op["gbps"]["wire"] > 0, op' ||
        { echo 'the JSON is not as described'; failed=1; }

    # of the run's own seed, also behind others
    for more in '' '--pressure 1'; do
        ./xep_run -n 2 .libs/xep_perf $small --check-only $more --json - |
            python3 -c 'import json, sys; print(json.load(sys.stdin)["load"])'
    done >"$dir/out"
    [ "$(sort -u "$dir/out" | grep -c experts)" -eq 1 ] ||
        { echo 'the load is of another seed:'; cat "$dir/out"; failed=1; }

    # a rank with two thousand times the tokens is the one that is waited for
    awk 'BEGIN { for (r = 0; r < 2; r++) for (t = 0; t < (r ? 4000 : 2); t++) print r, t, t % 8, (t + 3) % 8 }' \
        >"$dir/uneven"
    cat >"$dir/waits.py" <<'END'
import json, sys
op, = json.load(sys.stdin)["ops"]
assert [waits["rank"] for waits in op["waits"]] == [0, 1], op
for waits in op["waits"]:
    assert waits["waited_us"][waits["rank"]] == 0 and abs(sum(waits["waited_us"]) - waits["mean_us"]) < 1, waits
    assert waits["mean_us"] <= waits["max_us"] and 0 <= waits["percent"] <= 100, waits
means = [waits["mean_us"] for waits in op["waits"]]
assert means[1] > 3 * means[0], means
END
    for iters in 5 10 20 40; do # other processes may keep rank 0 away, too, but not always
        ./xep_run -n 2 .libs/xep_perf --mode ll --tokens 4000 --hidden 4096 --experts 8 --topk 2 \
            --routing "file:$dir/uneven" --op dispatch --iters $iters --waits --json - |
            python3 "$dir/waits.py" 2>"$dir/out" && break
    done || { echo 'the slow rank is not the one that is waited for'; cat "$dir/out"; failed=1; }
fi

expect 0 5 '^xep  *[0-9.]*, /.*libxep' ./xep_info
expect 0 1 '^xep_info [0-9.]*$' ./xep_info -V
expect 0 0 '^  XEP_TIMEOUT=120s$' env -u XEP_TIMEOUT ./xep_info --config
expect 0 0 '^\* XEP_INFLIGHT=9m$' env XEP_INFLIGHT=9m ./xep_info -c
expect 0 0 '^  normal  *[a-z]' ./xep_info -p
expect 0 0 'XEP_BOOT' ./xep_info -a
expect 2 1 '^xep_info: unknown option: "--frob" (xep_info --help lists the options)$' ./xep_info --frob
expect 2 1 '^xep_info: unexpected argument: "frob" (xep_info --help lists the options)$' ./xep_info frob
printf 'text' >"$dir/xep_bad.so"
expect 0 0 '^  bad  *refused: ' env XEP_PLUGIN_PATH="$dir" ./xep_info -p

# the benchmark of the kernels
expect 0 28 '^cast bf16, e4m3_pow2  *[0-9]*\.[0-9]' test/bench/kernels 1 2 300
expect 2 1 '^usage: kernels' test/bench/kernels 1 0
exit $failed
