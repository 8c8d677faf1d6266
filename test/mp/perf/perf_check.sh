#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 300
# xep_perf --check over types, routings and shapes: every byte of every output, on ranks and alone.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

# not in brief: what is one option away from another line
at_length() { in_brief || check "$@"; }

small="--tokens 37 --hidden 264 --experts 24 --topk 4"
for dtype in bf16 fp16 fp32 fp8; do
    check 2 $small --dtype $dtype --mask 150 --iters 2 --check
done
for routing in group:6,2 zipf:1.3 one-rank self; do
    at_length 4 $small --routing $routing --check-only
done
at_length 3 $small --experts 7 --topk 7 --check-only
at_length 4 $small --experts 2 --topk 1 --check-only
check 2 $small --hidden 1 --check-only
check 2 $small --mask 1000 --check-only
check 3 $small --quant nvfp4 --mask 150 --peer --iters 2 --check
check 4 XEP_MAP=never $small --quant mxfp8 --slots 2 --check-only
for quant in ue8m0 mxfp8_e5m2 mxfp4 int8 int8_row e4m3_static; do
    at_length 2 XEP_MAP=never $small --hidden 329 --quant $quant --combine $quant --payloads 3,8:8 --check-only
done
at_length 4 XEP_NODE_RANKS=2 XEP_PATH=nodes $small --quant e4m3 --cached --check-only
for e in 2 0 2 1 1 0 2 2 2 0 2 1 1 0 2 2 2 0 2 1 1 0 2 2; do echo $e; done >"$dir/owners"
check 3 $small --owners "$dir/owners" --check-only
at_length 4 $small --owners random:3 --check-only
at_length 4 $small --owners split:1 --mode ll --check-only
check 3 $small --slots 3 --threads 2 --iters 3 --check
check 3 $small --cached --copy-in --iters 3 --check
check 2 $small --op combine --iters 3 --check
check 3 $small --dtype fp8 --mask 150 --peer --iters 3 --check
at_length 2 $small --peer --pressure 2 --check-only
check 4 --experts 2 --topk 2 --tokens 8 --hidden 64 --peer --iters 2 --check # two ranks have no experts
check 3 $small --in-place --mask 150 --iters 3 --check
at_length 2 $small --dtype fp8 --cached --in-place --check-only
check 2 XEP_MAP=never $small --in-place --check-only
check 2 $small --mode ll --in-place --mask 150 --iters 3 --check
at_length 2 $small --mode ll --quant none --layout padded --in-place --check-only
check 3 $small --recv-rows 9 --mask 150 --iters 3 --check
check 3 XEP_MAP=never $small --recv-rows 1 --dtype fp8 --check-only
at_length 2 $small --recv-rows 1000 --routing one-rank --copy-in --iters 2 --check
check 3 $small --mode ll --recv-rows 9 --mask 150 --iters 3 --check
at_length 2 $small --mode ll --quant none --recv-rows 1000 --copy-in --iters 2 --check
check 3 XEP_MAP=never $small --mode ll --quant ue8m0 --recv-rows 2 --check-only
check 3 $small --pressure 5 --check-only
grep -q '^pressure: two runs of 5 seeds, ok$' "$dir/out" || wrong 'no pressure'

# ragged: rank 1 has no token
printf '%s\n' '# rank token experts' '0 0 3 1 20' '0 1 23' '2 5 0 1 2 3' '2 0 -1 7' >"$dir/routes"
check 3 --hidden 264 --experts 24 --topk 4 --routing "file:$dir/routes" --peer --iters 2 --check

# alone, with neither launcher nor server
timeout $((100 * slow)) ./xep_perf $small --check-only >"$dir/out" 2>&1 &&
    grep -q '^check: every byte compared, ok$' "$dir/out" ||
    { echo 'xep_perf alone failed'; cat "$dir/out"; failed=1; }
exit $failed
