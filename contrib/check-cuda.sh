#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Rows in device memory, on all devices of this machine: compiles the kernels with nvcc, compares what they do with the
# oracle, byte for byte, and times them; then the same with the library, a rank for each device, and the Python
# packages, where python3 has torch and pytest. The kernels alone need neither UCX nor PMIx nor configure; the library
# is left out where these are not. The last lines say what ran. Exit status 77: there is no nvcc, or no device.
#
#     contrib/check-cuda.sh [--compile|--check|--sanitize|--carry FOLDER|--help] [--with FOLDER] [--ucx FOLDER]
#
#     --compile       only compile the kernels: any machine with nvcc will do
#     --check         compile and compare, without the times
#     --sanitize      small shapes under compute-sanitizer: memcheck, racecheck and synccheck
#     --carry FOLDER  puts the library, its tests, and the UCX and PMIx of wheels into FOLDER, for a machine with
#                     devices that has none of them: any machine with nvcc and patchelf makes it
#     --with FOLDER   uses what --carry has made, in place of a build
#     --ucx FOLDER    also runs what needs a UCX that knows CUDA, with the libraries there (of the wheel libucx-cu13)
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/build/cuda
what=all carried= ucx=
while [ $# -gt 0 ]; do
    case $1 in
    --compile | --check | --sanitize) what=${1#--} ;;
    --carry | --with | --ucx)
        [ $# -gt 1 ] || { echo "check-cuda.sh: missing folder: $1 (--help says which)" >&2; exit 2; }
        [ "$1" != --carry ] || what=carry
        if [ "$1" = --ucx ]; then ucx=$(cd "$2" && pwd) || exit 2; else carried=$2; fi
        shift
        ;;
    --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "check-cuda.sh: unknown option: $1 (--help lists them)" >&2; exit 2 ;;
    esac
    shift
done
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)} || { echo 'skipped: there is no nvcc'; exit 77; }
mkdir -p "$work/include/xep"
tests='test/mp/device/cuda_ops test/mp/device/cuda_survivors test/bench/cuda_calls'

# ---- the library: built here, or carried ----

# logged COMMAND...: what it says goes into the log, whose end is shown if it fails
logged() {
    "$@" >>"$work/library.log" 2>&1 || { tail "$work/library.log"; echo "FAIL: $*" >&2; return 1; }
}

build_library() {
    home=$work/library bin=$home
    export XEP_PLUGIN_PATH=$home/.libs
    mkdir -p "$home"
    : >"$work/library.log"
    [ -x "$top/configure" ] || (cd "$top" && logged ./autogen.sh) || return 1
    [ -e "$home/Makefile" ] ||
        (cd "$home" && logged "$top/contrib/configure-release" NVCC="$nvcc" PYTHON=false) || return 1
    logged make -C "$home" -s -j"$(nproc)" all || return 1
    # shellcheck disable=SC2086
    logged make -C "$home" -s -j"$(nproc)" $tests || return 1 # not at once: both would make the library
    library=$home/.libs/libxep.so
    for program in $tests; do declare -g "$(basename "$program")=$home/$program"; done
}

carry() {
    local folder=$1 files=() program
    command -v patchelf >/dev/null || { echo 'check-cuda.sh: --carry needs patchelf (Debian: patchelf)' >&2; return 1; }
    mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || return 1
    [ -z "$(ls -A "$folder")" ] || { echo "check-cuda.sh: not empty: $folder" >&2; return 2; }
    build_library || return 1
    rm -rf "$work/stage"
    logged make -C "$home" -s install DESTDIR="$work/stage" || return 1
    for program in $tests; do files+=("$home/$(dirname "$program")/.libs/$(basename "$program")"); done
    for program in "${!files[@]}"; do # by libtool, or without it
        [ -x "${files[program]}" ] || files[program]=$home/$(echo $tests | cut -d' ' -f$((program + 1)))
    done
    portable=$(. "$top/contrib/setup.bash" && . "$top/contrib/portable.bash" && arch=$(uname -m) make_portable &&
        echo "$portable") || return 1
    python3 "$top/contrib/wheel.py" --bundle "$(dirname "$(dirname "$(find "$work/stage" -path '*/bin/xep_run')")")" \
        "$portable" "$folder" "${files[@]}"
}

use_carried() {
    home=$(cd "$carried" && pwd) || return 1
    bin=$home/bin library=$home/lib/libxep.so.1
    chmod -R u+x "$bin" || return 1
    export PATH=$bin:$PATH LD_LIBRARY_PATH=$home/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PMIX_PREFIX=$home \
        XEP_PLUGIN_PATH=$home/lib/xep
    for program in $tests; do declare -g "$(basename "$program")=$bin/$(basename "$program")"; done
}

if [ $what = carry ]; then
    carry "$carried"
    exit
fi

# ---- the kernels alone ----

sed 's/@[A-Z_]*@/0/' "$top/include/xep/version.h.in" >"$work/include/xep/version.h"
flags=(-I"$top/include" -I"$work/include" -I"$top/oracle" -I"$top/plugins/cuda" -I"$top/plugins/normal"
    -I"$top/plugins/ll" -I"$top/plugins/kernels")

# the architecture there is most of today, and what newer ones compile for themselves
compile_device() {
    "$nvcc" -std=c++17 -O3 -lineinfo -gencode 'arch=compute_90,code=[sm_90,compute_90]' \
        -Werror all-warnings -Xcompiler -Wall "${flags[@]}" -c -o "$work/$(basename "$1" .cu).cu.o" "$1"
}

compile_host() {
    cc -std=gnu11 -O2 "${flags[@]}" -c -o "$work/$(basename "$1" .c).o" "$1"
}

# every build compiles the kernels; here they are for those who run or look at them
kernels=("$top"/plugins/cuda/*.cu) jobs=()
[ "$what" = compile ] || nvidia-smi --list-gpus >/dev/null 2>&1 || kernels=()
for source in "$top"/oracle/*.c; do compile_host "$source" & jobs+=($!); done
for source in "${kernels[@]}" "$top"/test/bench/cuda_{kernels,world}.cu; do # cuda_puts is a program of its own
    compile_device "$source" &
    jobs+=($!)
done
for job in "${jobs[@]}"; do wait "$job" || { echo 'FAIL: a file was not compiled' >&2; exit 1; }; done
[ ${#kernels[@]} -gt 0 ] || { echo 'skipped: there is no device'; exit 77; }
"$nvcc" -arch=sm_90 -o "$work/cuda_kernels" "$work"/*.o -lm || exit 1
[ "$what" != compile ] || exit 0

# ---- what runs on devices: each step is a line of the summary ----

export CUDA_MODULE_LOADING=EAGER # a kernel that is loaded late waits for one that waits for it
export XEP_TIMEOUT=60s
export XEP_RUN_RAW=1 # what programs print is compared as they print it
status=0 ran=() limit=300 # seconds
said=$(mktemp -d) || exit 1
trap 'rm -rf "$said"' EXIT

# step NAME COMMAND...: what a failed one has said last is repeated at the end
step() {
    local name=$1 began=$SECONDS result=passed
    shift
    echo "== $name"
    timeout -k 10 $limit "$@" 2>&1 | tee "$said/now"
    [ "${PIPESTATUS[0]}" -eq 0 ] || {
        result=FAILED status=1
        { echo "== the end of $name"; tail -n 15 "$said/now" | cut -c1-500; } >>"$said/failed"
    }
    ran+=("$(printf '%-7s %4d s  %s' "$result" $((SECONDS - began)) "$name")")
}

leave() {
    [ ! -e "$said/failed" ] || cat "$said/failed"
    echo "== on $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c | sed 's/^ *//')," \
        "of which $devices may be used, by up to $several ranks"
    printf '%s\n' "${ran[@]}"
    exit $status
}

if [ "$what" = check ] || [ "$what" = all ]; then
    name='the kernels alone'
    echo "== $name"
    if [ "$what" = check ]; then timeout 600 "$work/cuda_kernels" check; else timeout 600 "$work/cuda_kernels"; fi
    case $? in
    0) ran+=("passed          $name") ;;
    77) exit 77 ;;
    *) echo "FAIL: $name" >&2; exit 1 ;;
    esac
fi
if [ -n "$carried" ]; then
    use_carried || exit 1
elif ! pkg-config --exists 'ucx >= 1.13' 'pmix >= 4'; then
    ran+=('left out        the library: UCX or PMIx is not here (--with)')
    leave
else
    build_library || exit 1
fi
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then devices=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | wc -l)
else devices=$(nvidia-smi --list-gpus | wc -l); fi
several=$((devices < 2 ? 2 : devices)) # several ranks may have one device
few=$((several < 4 ? several : 4))

# Each rank under its own, as that of xep_run would wait for what is no program with kernels. That the driver refuses an
# address, which it is asked about, is no error; ll has more barriers than synccheck keeps unless it is told to.
sanitize() {
    local name=$1 ranks=$2 tool=${1%%,*} more=()
    shift 2
    [ "$tool" != memcheck ] || more=(--report-api-errors no --leak-check full)
    [ "$tool" != synccheck ] || more=(--num-cuda-barriers 65536)
    step "$name, $ranks ranks" "$bin/xep_run" -n "$ranks" \
        compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 5 "${more[@]}" "$@"
}

if [ "$what" = sanitize ]; then
    limit=120
    small=(--memory cuda --check-only --tokens 40 --hidden 256 --experts 12 --topk 3 --sms 4)
    large=(--memory cuda --check-only --tokens 64 --experts 64)
    for tool in memcheck racecheck synccheck; do
        for mode in normal ll; do
            sanitize "$tool, mode $mode" 1 "$bin/xep_perf" --mode $mode "${small[@]}"
            sanitize "$tool, mode $mode" 2 "$bin/xep_perf" --mode $mode "${small[@]}"
            sanitize "$tool, mode $mode, owners" 2 "$bin/xep_perf" --mode $mode "${small[@]}" --owners random:3
            # shellcheck disable=SC2154
            sanitize "$tool, mode $mode, masks" 2 "$cuda_survivors" $mode none 2 60000
            sanitize "$tool, mode $mode, long rows" 1 "$bin/xep_perf" --mode $mode "${large[@]}"
        done
    done
    # shellcheck disable=SC2154
    for mode in normal ll; do sanitize "memcheck, cuda_ops $mode" 1 "$cuda_ops" $mode; done
    leave
fi

# ---- the programs of make check that a stand-in serves where there is no device ----

for ranks in $(seq 1 $few; [ $several -le $few ] || echo $several); do
    for mode in normal ll; do
        step "cuda_ops $mode, $ranks ranks" "$bin/xep_run" -n "$ranks" "$cuda_ops" $mode
        [ "$ranks" = 1 ] ||
            step "cuda_ops $mode, $ranks ranks, staged" env XEP_MAP=never "$bin/xep_run" -n "$ranks" "$cuda_ops" $mode
        [ "$ranks" = 1 ] || [ $mode = normal ] || for queues in 1 8; do # of the device: 1 is the one all streams share
            for part in graphs captured; do
                step "cuda_ops ll $part, $ranks ranks, staged, $queues queues" env XEP_MAP=never XEP_PROGRESS=thread \
                    CUDA_DEVICE_MAX_CONNECTIONS=$queues "$bin/xep_run" -n "$ranks" "$cuda_ops" ll $part
            done
        done
    done
done

# what the driver does for ranks that are left: their kernels store into the memory of one that is dead
dies() { "$@"; [ $? -eq 137 ]; }
export -f dies
for mode in normal ll; do
    # shellcheck disable=SC2016
    step "a rank that dies, mode $mode, 3 ranks" \
        bash -c 'dies "$@"' - "$bin/xep_run" -k -n 3 "$cuda_ops" $mode dies
done

# survive RANKS MODE SCENARIO SEED SURVIVE: so many ranks are left, all of whose bits are the oracle's
survive() {
    "$bin/xep_run" -k -n "$1" "$cuda_survivors" "$2" "$3" "$4" 1000 2>&1 | tee "$said/survivors"
    [ "$(grep -c '^survived$' "$said/survivors")" -eq "$5" ]
}

# join MODE: a process that no launcher has started joins two ranks
join() {
    rm -f "$said/address"
    {
        "$cuda_survivors" "$1" joiner 3 10000 "$said/address" &
        "$bin/xep_run" -n 2 "$cuda_survivors" "$1" grow 3 10000 "$said/address"
        wait $!
    } 2>&1 | tee "$said/survivors"
    [ "$(grep -c '^survived$' "$said/survivors")" -eq 3 ]
}
export -f survive join
export bin cuda_survivors said
for mode in normal ll; do
    for seed in 1 2; do
        # shellcheck disable=SC2016
        step "ranks that die anywhere, mode $mode, seed $seed" bash -c 'survive "$@"' - 6 $mode anywhere $seed 2
    done
    # shellcheck disable=SC2016
    step "a rank that dies between replays, mode $mode" bash -c 'survive "$@"' - 3 $mode graph 1 2
    # shellcheck disable=SC2016
    step "a group that shrinks, mode $mode" bash -c 'survive "$@"' - 3 $mode shrink 2 2
    step "a group that grows, mode $mode" bash -c "join $mode"
done

# tensors: xep and deep_ep; Python's own tests of them skip what is not on a device
python_tests() {
    (cd "$top/python" && logged python3 setup.py -q build_ext --build-lib "$home/python" --build-temp "$work/temp") ||
        { ran+=('left out        Python: the compiled module was not built'); return; }
    local file
    cd "$top/python/tests" || return
    for file in ranks_cuda*.py; do
        step "$file, $several ranks" env PYTHONPATH="$top/python" XEP_LIBRARY="$library" \
            "$bin/xep_run" -n "$several" python3 run_ranks.py "$file"
    done
    cd "$OLDPWD" || exit 1
}
if python3 -c 'import torch, pytest, setuptools, numpy' 2>/dev/null; then
    python_tests
else
    ran+=('left out        Python: python3 has no torch, pytest, setuptools or numpy')
fi
perf() {
    step "${XEP_MAP:+XEP_MAP=$XEP_MAP }xep_perf --memory cuda $*" \
        "$bin/xep_run" -n "$several" "$bin/xep_perf" --memory cuda --check "$@"
}
perf --check-only
perf --mode ll --check-only
perf --check-only --quant nvfp4
perf --check-only --owners random:3
perf --mode ll --check-only --owners split:1
if [ -n "$ucx" ]; then # rows go straight from device to device
    export XEP_MAP=never XEP_DIRECT=yes LD_LIBRARY_PATH=$ucx:${LD_LIBRARY_PATH:-}
    for ranks in $(seq 2 $few); do
        step "cuda_ops normal, $ranks ranks, direct" "$bin/xep_run" -n "$ranks" "$cuda_ops" normal
    done
    perf --check-only
    unset XEP_MAP XEP_DIRECT
    LD_LIBRARY_PATH=${LD_LIBRARY_PATH#"$ucx:"}
fi
if [ "$what" != check ]; then
    for sms in 8 16 24; do perf --sms "$sms"; done
    for sms in 8 16; do perf --sms "$sms" --cached; done
    perf --dtype fp8
    perf --mode ll --sms 64
    export XEP_MAP=never
    perf # staged
    perf --mode ll
    unset XEP_MAP
    # shellcheck disable=SC2154
    step "cuda_calls" "$bin/xep_run" -n "$several" "$cuda_calls"
    step "cuda_calls, staged" env XEP_MAP=never XEP_PROGRESS=thread \
        "$bin/xep_run" -n "$several" "$cuda_calls" staged 16 128
fi
leave
