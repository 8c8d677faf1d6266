#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 400
# xep_perf --mode ll --check: every quantisation, arrangement and way of moving bytes; every byte of every output.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99

small="--mode ll --tokens 21 --hidden 328 --experts 22 --topk 5 --mask 80"
for dtype in fp16 fp32 fp8; do check 2 $small --dtype $dtype --check-only; done
if in_brief; then # each cast once, and each way of moving bytes
    check 2 $small --quant none --layout compact --check-only
    check 2 $small --quant e4m3 --layout padded --check-only
    check 2 XEP_MAP=never $small --quant e4m3_pow2 --layout padded --check-only
    check 2 UCX_TLS=tcp,self $small --quant ue8m0 --slots 3 --check-only
    check 4 XEP_NODE_RANKS=2 $small --combine logfmt --routing zipf:1.3 --check-only
else
    for quant in none e4m3 e4m3_pow2 ue8m0; do
        for layout in compact padded; do
            check 3 $small --quant $quant --layout $layout --check-only
            check 3 XEP_MAP=never $small --quant $quant --layout $layout --check-only
        done
        check 3 UCX_TLS=tcp,self $small --quant $quant --slots 3 --check-only
        check 4 XEP_NODE_RANKS=2 $small --quant $quant --check-only
    done
    for setting in XEP_SIMD=scalar XEP_SIMD=avx2 XEP_STREAMING=0 XEP_STREAMING=inf XEP_THREADS=3 XEP_PREFAULT=0 \
        XEP_PROGRESS=thread; do
        check 3 $setting $small --check-only
    done
    for put in rma am; do check 3 XEP_MAP=never XEP_PUT=$put UCX_TLS=tcp,self $small --slots 2 --check-only; done
    for routing in group:2,1 zipf:1.3 one-rank self; do check 4 $small --routing $routing --check-only; done
fi
check 2 XEP_MAP=never --mode ll --tokens 5 --hidden 3072 --experts 6 --topk 3 --combine logfmt --check-only
for quant in mxfp8 mxfp8_e5m2 mxfp4 nvfp4 int8 int8_row e4m3_static; do # the last groups are short
    check 2 XEP_MAP=never --mode ll --tokens 5 --hidden 329 --experts 6 --topk 3 --quant $quant --combine $quant \
        --payloads 3,8:8 --check-only
done
check 3 XEP_NODE_RANKS=2 $small --combine mxfp8 --iters 2 --check
grep -q '^combine  by mxfp8: 340 bytes a row, not 656$' "$dir/out" || wrong 'not the bytes of the format'
check 4 XEP_NODE_RANKS=2 XEP_PATH=nodes $small --sum-at-owner --combine e4m3 --check-only
check 4 XEP_NODE_RANKS=2 XEP_PATH=nodes XEP_PART=0 $small --check-only
check 4 --mode ll --tokens 9 --hidden 40 --experts 2 --topk 1 --check-only
check 3 --mode ll --tokens 1 --hidden 1 --experts 7 --topk 7 --check-only
check 2 $small --mask 1000 --check-only
check 3 $small --split --overlap 50 --slots 2 --cached --iters 3 --check
grep -q '^dispatch with 50 us of computing between send and receive of 2 operations, 25.0 us for each: ' "$dir/out" ||
    wrong 'not the 50 us that were asked for'
check 3 $small --copy-in --iters 3 --check
check 3 $small --pressure 10 --check-only
grep -q '^pressure: two runs of 10 seeds, ok$' "$dir/out" || wrong 'no pressure'
exit $failed
