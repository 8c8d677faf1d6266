# SPDX-License-Identifier: BSD-3-Clause
# limit: 400
#
# Rows in device memory without a device: the programs of contrib/check-cuda.sh with a stand-in for the driver, whose
# streams are delayed in other ways with each seed; and the errors where there is no driver.
set -u
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
ln -s "$builddir/test/cuda/.libs/standin_cuda.so" "$tmp/libcuda.so.1"
export XEP_PLUGIN_PATH=$builddir/test/cuda/.libs:$builddir/.libs XEP_TIMEOUT=60s
failed=0
program=$builddir/test/mp/device/cuda_ops perf=$builddir/.libs/xep_perf
# ranks and seed; three ranks do what two do
jobs='1:1 3:2'
[ -z "${XEP_TEST_BRIEF:-}" ] || jobs=2:2

# rows by expert sum thousands of long rows: most of the time of mode normal, of which a sanitizer sees all
is_quick= parts=
[ "${XEP_TEST_BRIEF:-}" != quick ] || is_quick=yes
[ -z "$is_quick" ] || [ -n "${ASAN_OPTIONS:-}" ] || parts=-experts
for job in $jobs; do
    ranks=${job%:*} seed=${job#*:}
    which=$parts
    [ "$ranks" -gt 1 ] || which=-experts
    for mode in normal ll; do
        LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH STANDIN_SEED=$seed timeout $((100 * ${XEP_TEST_SLOW:-1})) \
            "$builddir/xep_run" -n "$ranks" "$program" $mode $which ||
            { echo "FAIL: cuda_ops $mode, $ranks ranks, seed $seed"; failed=1; }
    done
done

# what xep_perf compares and prints: each mode, and each way of an operation
perf() {
    local ranks=$1
    shift
    LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH timeout $((100 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -n "$ranks" \
        "$perf" --memory cuda --tokens 40 --hidden 256 --experts 12 --topk 3 --iters 3 --check "$@" \
        >"$tmp/perf" 2>&1 && grep -q '^check: every byte compared, ok$' "$tmp/perf" &&
        grep -q '^dispatch on the device [0-9.]* us, [0-9]* SMs, ' "$tmp/perf" ||
        { cat "$tmp/perf"; echo "FAIL: xep_perf --memory cuda, $ranks ranks: $*"; failed=1; }
}
perf 1
perf 3 --sms 8 --pressure 2
perf 2 --dtype fp8 --slots 3
perf 2 --quant nvfp4
perf 2 --cached --copy-in --mask 200
# so much that readers pull what is there while the rest is copied
[ -n "$is_quick" ] || perf 3 --copy-in --tokens 700 --hidden 7168 --iters 1
perf 3 --mode ll --sms 8
perf 2 --mode ll --layout padded --quant none
perf 2 --mode ll --slots 2 --copy-in --pressure 2
perf 3 --mode ll --sum-at-owner --sms 32

# for programs: memory, multiprocessors, and the time on the device
LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH timeout $((100 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -n 2 \
    "$perf" --memory cuda --tokens 40 --hidden 256 --experts 12 --topk 3 --iters 3 --sms 8 --json - \
    >"$tmp/json" 2>&1
grep -q '^{.*"memory": "cuda", "sms": 8, .*"device_us": [0-9.]*, "limit_us": .*"device_us": .*}$' "$tmp/json" ||
    { cat "$tmp/json"; echo 'FAIL: xep_perf --memory cuda --json'; failed=1; }

# staged RANKS "MODE [PART]" [VAR=VALUE...]: no two ranks map one another, by TCP, on nodes and by nodes, with a thread
# that makes progress, and with memory that the driver cannot pin
staged() {
    local ranks=$1 mode=$2
    shift 2
    env LD_LIBRARY_PATH="$tmp:$LD_LIBRARY_PATH" STANDIN_SEED="$ranks" "$@" timeout $((100 * ${XEP_TEST_SLOW:-1})) \
        "$builddir/xep_run" -n "$ranks" "$program" $mode ||
        { echo "FAIL: cuda_ops $mode, staged, $ranks ranks: $*"; failed=1; }
}
only=${is_quick:+staged}
staged 2 "ll $only" XEP_MAP=never XEP_PROGRESS=thread STANDIN_PINS_NOTHING=yes XEP_LOG=error
staged 2 "normal $only" XEP_MAP=never STANDIN_SLOW_COPIES=100000 # counts are there before the rows
# a device too old for kernels: graphs are refused, all else goes on
staged 2 'll staged' XEP_MAP=never XEP_PROGRESS=thread STANDIN_FAILS=cuModuleLoadData
# graphs of them, whose launches the thread goes on with
staged 2 'll graphs' XEP_MAP=never XEP_PROGRESS=thread
staged 2 'll captured' XEP_MAP=never XEP_PROGRESS=thread
staged 2 'normal graphs-exact' XEP_MAP=never XEP_PROGRESS=thread
# a UCX that knows CUDA has pinned the heap before
env LD_LIBRARY_PATH="$tmp:$LD_LIBRARY_PATH" STANDIN_HAS_PINNED=yes XEP_MAP=never \
    timeout $((60 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -n 2 \
    "$perf" --memory cuda --tokens 40 --hidden 256 --check-only >"$tmp/pinned" 2>&1 &&
    ! grep -q 'will be slow' "$tmp/pinned" || { cat "$tmp/pinned"; echo 'FAIL: a heap that UCX has pinned'; failed=1; }
if [ -z "${XEP_TEST_BRIEF:-}" ]; then
    for mode in normal ll; do
        staged 3 "$mode shapes" UCX_TLS=tcp,self
        staged 4 $mode XEP_NODE_RANKS=2 XEP_PATH=nodes XEP_THREADS=2
    done
    staged 4 'normal shapes' XEP_NODE_RANKS=2 XEP_PATH=flat
fi

# rows that go from device to device, by a UCX that says it knows such memory, over shared memory and TCP, with casts,
# which are staged; mode ll, which stages all; and by a UCX that does not know it
direct() {
    local ranks=$1
    shift
    env LD_LIBRARY_PATH="$tmp:$LD_LIBRARY_PATH" STANDIN_SEED="$ranks" XEP_MAP=never XEP_DIRECT=yes XEP_LOG=error \
        ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}verify_asan_link_order=0" \
        timeout $((100 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -n "$ranks" \
        -x "LD_PRELOAD=$builddir/test/cuda/.libs/knows_cuda.so" "$@" ||
        { echo "FAIL: direct, $ranks ranks: $*"; failed=1; }
}
if [ -z "${XEP_TEST_BRIEF:-}" ]; then
    direct 2 "$program" normal
    UCX_TLS=tcp,self direct 3 "$program" normal
    direct 2 "$program" ll
fi
for more in '--copy-in --cached' '--dtype fp8 --slots 3' '--quant nvfp4' '--pressure 2 --hidden 250'; do
    [ -z "${XEP_TEST_BRIEF:-}" ] || [ "$more" = '--copy-in --cached' ] || continue
    # shellcheck disable=SC2086
    direct 3 "$perf" --memory cuda --tokens 40 --hidden 256 --experts 12 --topk 3 --iters 3 --check $more \
        >"$tmp/direct" && grep -q '^check: every byte compared, ok$' "$tmp/direct" ||
        { cat "$tmp/direct"; echo "FAIL: direct, xep_perf $more"; failed=1; }
done
LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH XEP_MAP=never XEP_DIRECT=yes timeout $((60 * ${XEP_TEST_SLOW:-1})) \
    "$builddir/xep_run" -n 2 "$perf" --memory cuda --tokens 40 --hidden 256 >"$tmp/direct" 2>&1
grep -q 'XEP_DIRECT is yes, but UCX [0-9.]* does not know the memory of CUDA devices' "$tmp/direct" ||
    { cat "$tmp/direct"; echo 'FAIL: direct, by a UCX that does not know CUDA'; failed=1; }
(UCX_CUDA_IPC_CACHE=n direct 2 "$perf" --memory cuda --tokens 40 --hidden 256) >"$tmp/direct" 2>&1
grep -q 'invalid UCX_CUDA_IPC_CACHE: n (y, with XEP_DIRECT=yes)' "$tmp/direct" ||
    { cat "$tmp/direct"; echo 'FAIL: direct, by a UCX that unmaps after each put'; failed=1; }
for mode in normal ll; do
    for of_node in 2 3; do # ranks of a node: staged, and mapped
        LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH XEP_NODE_RANKS=$of_node XEP_LOG=error \
            timeout $((60 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -k -n 3 "$program" $mode dies
        [ $? -eq 137 ] || { echo "FAIL: a rank that dies, $of_node ranks on a node, $mode"; failed=1; }
    done
done

LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH XEP_MAP=never XEP_PROGRESS=thread \
    timeout $((60 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -k -n 3 "$program" ll dies
[ $? -eq 137 ] || { echo 'FAIL: a rank that dies between two launches of a staged graph'; failed=1; }

# a device that falls off under a dispatch: mapped, and staged
for mode in normal ll; do
    for of_node in 2 1; do
        LD_LIBRARY_PATH=$tmp:$LD_LIBRARY_PATH XEP_NODE_RANKS=$of_node XEP_LOG=error \
            timeout $((60 * ${XEP_TEST_SLOW:-1})) "$builddir/xep_run" -n 2 "$program" $mode lost ||
            { echo "FAIL: a device that falls off, $of_node ranks on a node, $mode"; failed=1; }
    done
done

# drivers that are none: a library without their functions, and one that finds no device
driver() {
    local what=$1
    shift
    env "$@" "$builddir/xep_run" -n 2 "$program" driver "$what" ||
        { echo "FAIL: a driver that is $what"; failed=1; }
}
mkdir "$tmp/old"
ln -s "$builddir/.libs/xep_normal.so" "$tmp/old/libcuda.so.1"
driver old LD_LIBRARY_PATH="$tmp/old:$LD_LIBRARY_PATH"
driver none LD_LIBRARY_PATH="$tmp:$LD_LIBRARY_PATH" STANDIN_FAILS=cuInit
ldconfig -p | grep -q 'libcuda\.so\.1' || driver absent STANDIN_SEED=1
exit $failed
