#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# limit: 300, again: 2
# Ranks die and stop while others use rows in device memory, with a stand-in for the driver: cuda_survivors.c.
. "${srcdir:-.}/test/rig/ranks.bash" || exit 99
ln -s "$builddir/test/cuda/.libs/standin_cuda.so" "$dir/libcuda.so.1"
export LD_LIBRARY_PATH=$dir:${LD_LIBRARY_PATH:-} XEP_PLUGIN_PATH=$builddir/test/cuda/.libs:$builddir/.libs

# survive RANKS MODE SCENARIO SEED SURVIVE LEAVE [MILLISECONDS]: the timeout, which a rank that runs must never reach
survive() {
    on_ranks "$1" XEP_TIMEOUT=10m -k ./test/mp/device/cuda_survivors "${@:2:3}" $((${7:-2500} * slow))
    say survived "$5" && say left "$6" || wrong "$2 $3 $4: of $1 ranks $5 survive, $6 leave"
}

# larger MODE: a process that no launcher has started joins two ranks, with a device of its own
larger() {
    XEP_TIMEOUT=$((60 * slow))s timeout $((100 * slow)) ./test/mp/device/cuda_survivors "$1" joiner 3 \
        $((10000 * slow)) "$dir/address" >"$dir/joiner" 2>&1 &
    on_ranks 2 ./test/mp/device/cuda_survivors "$1" grow 3 $((10000 * slow)) "$dir/address"
    wait $!
    sed 's/^\[[0-9]\] //' "$dir/joiner" >>"$dir/out"
    say survived 3 || wrong "$1 grow: of 2 ranks and a joiner 3 go on"
}

for mode in ${XEP_TEST_MODES:-ll normal}; do
    survive 4 $mode between 1 2 0
    survive 4 $mode anywhere 2 2 0
    survive 3 $mode graph 3 2 0
    in_brief || for seed in ${XEP_TEST_SEEDS:-11}; do survive 4 $mode anywhere "$seed" 2 0; done
    in_brief || survive 3 $mode stopped 4 2 1
    in_brief || survive 3 $mode asked 5 2 1 10000
    survive 3 $mode shrink 6 2 0
    larger $mode
done
exit $failed
