#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Compiles the kernels for device memory with nvcc, compares what they do with the oracle, byte for byte, on all devices
# of this machine, and times them. Needs neither UCX nor PMIx nor configure. Exit status 77: there is no nvcc, or no
# device.
#
#     contrib/check-cuda.sh [--compile|--check|--help]
#
#     --compile  only compile: any machine with nvcc will do
#     --check    compile and compare, without the times
set -u
top=$(cd "$(dirname "$0")/.." && pwd)
work=$top/build/cuda
what=all
case ${1:-} in
'') ;;
--compile | --check) what=${1#--} ;;
--help) sed -n 's/^# \{0,1\}//; 3,10p' "$0"; exit 0 ;;
*) echo "check-cuda.sh: unknown option: $1 (--compile, --check or --help)" >&2; exit 2 ;;
esac
nvcc=${NVCC:-$(PATH=$PATH:/usr/local/cuda/bin command -v nvcc)} || { echo 'skipped: there is no nvcc'; exit 77; }
mkdir -p "$work/include/xep"
sed 's/@[A-Z_]*@/0/' "$top/include/xep/version.h.in" >"$work/include/xep/version.h"
flags=(-I"$top/include" -I"$work/include" -I"$top/oracle" -I"$top/plugins/cuda" -I"$top/plugins/normal")

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
[ "$what" != check ] || exec timeout 600 "$work/cuda_kernels" check
exec timeout 600 "$work/cuda_kernels"
