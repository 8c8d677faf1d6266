#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds xep in build/demo, installing what is missing, and runs DeepSeek-V3-sized batches on 4 ranks of this machine,
# in both modes, comparing every byte. Options are those of xep_perf, in place of the batches. Can be run again.
set -u
if [ "${1:-}" = --help ]; then
    sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"
    echo "    contrib/demo.sh [XEP_PERF-OPTION...]       (xep_perf --help lists them)"
    exit 0
fi
. "$(dirname "$0")/setup.bash"
work=$top/build/demo
mkdir -p "$work"

install_to_build
generate
configure "$work" "$top/configure" CFLAGS='-O3 -g' || die "configure failed"
say "make"
make -C "$work" -j"$jobs" -s >"$work/make.log" 2>&1 || { cat "$work/make.log"; die "make failed"; }

cd "$work" || exit 1
export XEP_RUN_RAW=1 # one rank prints, for all
say "xep_run -n 4 xep_perf --check ${*:-}"
[ $# -eq 0 ] || exec ./xep_run -n 4 -t 600 ./xep_perf --check "$@"
./xep_run -n 4 -t 600 ./xep_perf --check || exit
say "xep_run -n 4 xep_perf --mode ll --check"
exec ./xep_run -n 4 -t 600 ./xep_perf --mode ll --check
