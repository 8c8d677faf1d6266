#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# xep_perf --check can fail: one bit flipped anywhere, and it names rank, row and column, once, and exits with 1.
set -u
dir=$(mktemp -d) || exit 99
trap 'rm -rf "$dir"' EXIT
failed=0
small="--tokens 16 --hidden 264 --experts 12 --topk 3 --iters 2 --warmup 0"

# run CORRUPTION OPTION...
run() {
    corruption=$1
    shift
    # a sanitizer's runtime comes after what is preloaded, and may
    XEP_TIMEOUT=30s PERF_CORRUPT=$corruption ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0" \
        timeout $((60 * ${XEP_TEST_SLOW:-1})) ./libtool --mode=execute ./xep_run -n 3 \
        -x "LD_PRELOAD=$PWD/test/mp/perf/.libs/perf_corruptor.so" .libs/xep_perf $small "$@" >"$dir/out" 2>&1
}

# found CORRUPTION SENTENCE OPTION...
found() {
    sentence=$2
    corruption=$1
    shift 2
    run "$corruption" "$@"
    status=$?
    if [ $status -ne 1 ] || [ "$(grep -c 'differs: ' "$dir/out")" -ne 1 ] || ! grep -q "$sentence" "$dir/out"; then
        echo "$corruption: status $status, expected \"$sentence\" once in:"
        cat "$dir/out"
        failed=1
    fi
}

run none --check || { echo 'nothing corrupted, and yet:'; cat "$dir/out"; failed=1; }

# in order: dispatch, combine, combine of everything, [cached: dispatch, dispatch, combine], then the timed ones
found dispatch,0,0,0,0 \
    '^xep_perf: dispatch differs: rank 0: x row 0 column 0 is 0x.*, expected 0x.*(token 0 of rank 0)' --check
found dispatch,0,2,7,263 '^xep_perf: dispatch differs: rank 2: x row 7 column 263 is' --check-only
found combine,0,1,15,100 '^xep_perf: combine differs: rank 1: out row 15 column 100 is' --check
found combine,1,1,3,4 \
    '^xep_perf: combine of copied rows, biases and weights differs: rank 1: out row 3 column 4 is' --check
found dispatch,2,1,2,9 '^xep_perf: cached dispatch differs: rank 1: x row 2 column 9 is' --check
found combine,2,0,0,1 '^xep_perf: combine of a cached dispatch differs: rank 0: out row 0 column 1 is' --check
grep -q '^check: every byte compared, failed$' "$dir/out" || { echo 'no result'; cat "$dir/out"; failed=1; }
found dispatch,5,1,4,4 '^xep_perf: dispatch differs: rank 1: x row 4 column 4 is' --check # after two that are timed

# by expert: rank 1's first row is of its first expert
found dispatch,0,1,0,5 '^xep_perf: dispatch differs: rank 1: x row 0 column 5 is' --mode ll --quant none --check-only
found combine,0,2,3,7 '^xep_perf: combine differs: rank 2: out row 3 column 7 is' --mode ll --quant none --check-only

# hashes of two runs: call 0 is timed, 1 and 2 are the first seed twice
run dispatch,0,2,3,4 --pressure 3 --op dispatch --iters 1
status=$?
if [ $status -ne 0 ]; then
    echo "a timed dispatch was corrupted, nobody looks at it: status $status"
    cat "$dir/out"
    failed=1
fi
run dispatch,2,2,3,4 --pressure 3 --op dispatch --iters 1
status=$?
if [ $status -ne 1 ] || ! grep -q '^xep_perf: seed 2: two runs differ in what rank 2 received$' "$dir/out"; then
    echo "two runs that differ: status $status"
    cat "$dir/out"
    failed=1
fi
grep -q '^pressure: two runs of 3 seeds, failed$' "$dir/out" || { echo 'no result'; cat "$dir/out"; failed=1; }

# an operation that fails leaves no result
run refuse,1,2,0,0 --pressure 3 --op dispatch --iters 1
status=$?
if [ $status -ne 1 ] || ! grep -q '^xep_perf: ' "$dir/out" || grep -q '^pressure: ' "$dir/out"; then
    echo "a dispatch that fails: status $status"
    cat "$dir/out"
    failed=1
fi
exit $failed
