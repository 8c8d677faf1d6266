#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Rows in device memory, on all devices of this machine: compiles the kernels with nvcc, compares what they do with the
# oracle, byte for byte, and times them; then the same with the library, a rank for each device, and the Python
# packages, where python3 has torch and pytest. The kernels alone need neither UCX nor PMIx nor configure; the library
# is left out where these are not. Exit status 77: there is no nvcc, or no device.
#
#     contrib/check-cuda.sh [--compile|--check|--help]
#
#     --compile  only compile the kernels: any machine with nvcc will do
#     --check    compile and compare, without the times
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/build/cuda
what=all
case ${1:-} in
'') ;;
--compile | --check) what=${1#--} ;;
--help) sed -n 's/^# \{0,1\}//; 3,11p' "$0"; exit 0 ;;
*) echo "check-cuda.sh: unknown option: $1 (--compile, --check or --help)" >&2; exit 2 ;;
esac
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)} || { echo 'skipped: there is no nvcc'; exit 77; }
mkdir -p "$work/include/xep"
sed 's/@[A-Z_]*@/0/' "$top/include/xep/version.h.in" >"$work/include/xep/version.h"
flags=(-I"$top/include" -I"$work/include" -I"$top/oracle" -I"$top/plugins/cuda" -I"$top/plugins/normal"
    -I"$top/plugins/ll")

# the architecture there is most of today, and what newer ones compile for themselves
compile_device() {
    "$nvcc" -std=c++17 -O3 -lineinfo -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90 \
        -Werror all-warnings -Xcompiler -Wall "${flags[@]}" -c -o "$work/$(basename "$1" .cu).cu.o" "$1"
}

compile_host() {
    cc -std=gnu11 -O2 "${flags[@]}" -c -o "$work/$(basename "$1" .c).o" "$1"
}

jobs=()
for source in "$top"/oracle/*.c; do compile_host "$source" & jobs+=($!); done
for source in "$top"/plugins/cuda/*.cu "$top"/test/bench/*.cu; do compile_device "$source" & jobs+=($!); done
for job in "${jobs[@]}"; do wait "$job" || { echo 'FAIL: a file was not compiled' >&2; exit 1; }; done
"$nvcc" -arch=sm_90 -o "$work/cuda_kernels" "$work"/*.o -lm || exit 1
[ "$what" != compile ] || exit 0
export CUDA_MODULE_LOADING=EAGER # a kernel that is loaded late waits for one that waits for it
status=0
case $what in
check) timeout 600 "$work/cuda_kernels" check || exit ;;
*) timeout 600 "$work/cuda_kernels" || exit ;;
esac

# the library: the programs of make check that a stand-in serves where there is no device
pkg-config --exists 'ucx >= 1.13' 'pmix >= 4' || { echo 'the library: left out, UCX or PMIx is not here'; exit 0; }
build=$work/library
mkdir -p "$build"
[ -x "$top/configure" ] || (cd "$top" && ./autogen.sh) >"$work/library.log" 2>&1 || exit 1
{ [ -e "$build/Makefile" ] || (cd "$build" && "$top/contrib/configure-release" NVCC="$nvcc"); } \
    >"$work/library.log" 2>&1 &&
    make -C "$build" -s -j"$(nproc)" all test/mp/cuda_ops test/mp/cuda_ll_ops test/bench/cuda_calls \
        >>"$work/library.log" 2>&1 ||
    { tail "$work/library.log"; echo 'FAIL: the library was not built' >&2; exit 1; }
export XEP_PLUGIN_PATH=$build/.libs XEP_TIMEOUT=60s
devices=$(nvidia-smi --list-gpus | wc -l)
for ranks in $(printf '%s\n' 1 2 "$devices" | sort -nu); do
    for program in cuda_ops cuda_ll_ops; do
        timeout 300 "$build/xep_run" -n "$ranks" "$build/test/mp/$program" && echo "$program, $ranks ranks: passed" ||
            { echo "FAIL: $program, $ranks ranks"; status=1; }
    done
done
# tensors: xep and deep_ep; Python's own tests of them skip what is not on a device
python_tests() {
    (cd "$top/python" && python3 setup.py -q build_ext --build-lib "$build/python" --build-temp "$work/temp") \
        >>"$work/library.log" 2>&1 || { echo 'Python: left out, the compiled module was not built'; return; }
    local file ranks
    for ranks in $(printf '%s\n' 2 "$devices" | sort -nu); do
        for file in "$top"/python/tests/ranks_cuda*.py; do
            (cd "$top/python/tests" && PYTHONPATH=$top/python XEP_LIBRARY=$build/.libs/libxep.so timeout 300 \
                "$build/xep_run" -n "$ranks" python3 run_ranks.py "$file") ||
                { echo "FAIL: $(basename "$file"), $ranks ranks"; status=1; }
        done
    done
}
if python3 -c 'import torch, pytest, setuptools, numpy' 2>/dev/null; then
    python_tests
else
    echo 'Python: left out, python3 has no torch, pytest, setuptools or numpy'
fi
perf() { timeout 300 "$build/xep_run" -n "$devices" "$build/xep_perf" --memory cuda --check "$@" || status=1; }
perf --check-only
perf --mode ll --check-only
if [ "$what" != check ] && [ "$devices" -ge 2 ]; then
    for sms in 8 16 24; do perf --sms "$sms"; done
    perf --dtype fp8
    perf --mode ll --sms 64
fi
[ "$what" = check ] || [ "$devices" -lt 2 ] ||
    timeout 300 "$build/xep_run" -n "$devices" "$build/test/bench/cuda_calls" || status=1
exit $status
