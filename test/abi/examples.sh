# SPDX-License-Identifier: BSD-3-Clause
# The programs in C and C++ in examples/, which the documents show, compile with the command that is in them and print
# what they should, alone and on ranks. (Those in Python are run by python/run-tests, as they need the package.) And
# they run after "make install" without more ado, or it says what they need; and bash completes the tools' options.
set -u
. "$srcdir/test/rig/installed.bash" || exit 99

# example NAME LINE [DIVISOR]: compiled, and run alone and on 1, 2 and 4 ranks; every rank prints what one alone prints,
# or one of so many of them, and that has the LINE
example() {
    name=$1
    case $program in
    *.cpp)
        ${CXX:-c++} ${CXXFLAGS:-} ${LDFLAGS:-} -std=c++17 -pedantic -Wall -Wextra -Werror $(pkg-config --cflags xep) \
            -o "$tmp/$name" "$program" $(pkg-config --libs xep) || exit 1 ;;
    *) compile "$tmp/$name" "$program" $(pkg-config --libs xep) ;;
    esac
    (cd "$tmp" && XEP_BOOT=single "./$name") >"$tmp/alone" || exit 1
    grep -qx "$2" "$tmp/alone" || { echo "$name alone:"; cat "$tmp/alone"; exit 1; }
    for ranks in 1 2 4; do
        "$builddir/xep_run" -n $ranks "$tmp/$name" >"$tmp/out" || { cat "$tmp/out"; exit 1; }
        lines=$(((ranks + ${3:-1} - 1) / ${3:-1} * $(wc -l <"$tmp/alone")))
        [ "$(sort -u "$tmp/out")" = "$(cat "$tmp/alone")" ] && [ "$(wc -l <"$tmp/out")" -eq $lines ] ||
            { echo "$name on $ranks ranks:"; cat "$tmp/out"; echo "alone:"; cat "$tmp/alone"; exit 1; }
    done
}

# whichever mode serves it: the same program, the same sums
in_mode_ll() {
    XEP_MODE=ll "$builddir/xep_run" -n 3 "$tmp/$name" >"$tmp/out" &&
        [ "$(sort -u "$tmp/out")" = "$(cat "$tmp/alone")" ] ||
        { echo "$name with XEP_MODE=ll:"; cat "$tmp/out"; exit 1; }
}

# rank 1 of 4 is killed, and xep_run says so by its status
ranks_left() {
    name=failure
    compile "$tmp/$name" "$srcdir/examples/$name.c" $(pkg-config --libs xep)
    "$builddir/xep_run" -k -n 4 "$tmp/$name" >"$tmp/out" 2>"$tmp/errors"
    [ $? -eq 137 ] && [ "$(grep -cx '3 ranks are left; my token 3 came back as 3' "$tmp/out")" -eq 3 ] ||
        { cat "$tmp/out" "$tmp/errors"; echo 'failure: three ranks must go on'; exit 1; }
}

# the last of the ranks has all experts and prints nothing; each of the others has compared its results; a rank alone
# does not wait for others for ever
serving() {
    name=serve_experts
    compile "$tmp/$name" "$srcdir/examples/$name.c" $(pkg-config --libs xep)
    XEP_BOOT=single "$tmp/$name" | grep -q '^start two ranks' || { echo "$name alone does not say so"; exit 1; }
    for ranks in 2 4; do
        "$builddir/xep_run" -n $ranks "$tmp/$name" >"$tmp/out" || { cat "$tmp/out"; exit 1; }
        [ "$(grep -cx 'step 3, token 1: from 67 to 410.375' "$tmp/out")" -eq $((ranks - 1)) ] ||
            { echo "$name on $ranks ranks:"; cat "$tmp/out"; exit 1; }
    done
}

two_nodes() {
    name=nodes
    compile "$tmp/$name" "$srcdir/examples/$name.c" $(pkg-config --libs xep)
    "$builddir/xep_run" -n 4 -N 2 "$tmp/$name" >"$tmp/out" || { cat "$tmp/out"; exit 1; }
    grep -qx 'rank 3 of 4 is on node 1 of 2; rows take the path nodes' "$tmp/out" &&
        grep -qx 'rank 3 reaches rank 2: mapped' "$tmp/out" && ! grep -q 'rank 3 reaches rank 0: mapped' "$tmp/out" ||
        { cat "$tmp/out"; echo 'nodes: not two nodes'; exit 1; }
}

# without the header and the package: the installed library alone, which sanitizers must come before
if command -v python3 >/dev/null && ! ldd "$libdir/libxep.so.1" | grep -q libasan; then
    "$builddir/xep_run" -n 4 python3 "$srcdir/examples/dlopen.py" "$libdir/libxep.so.1" >"$tmp/out" 2>&1
    [ "$(grep -cx '4 rows for my experts; my token 3 came back as 7' "$tmp/out")" -eq 4 ] ||
        { cat "$tmp/out"; echo 'dlopen.py: it must print what hello prints'; exit 1; }
fi

for program in "$srcdir"/examples/*.{c,cpp}; do
    case $(basename "$program") in
    # on 1, 2 and 4 ranks each rank gets 4 rows, as many as it sends
    hello.c) example hello '4 rows for my experts; my token 3 came back as 7' ;;
    moe.c) example moe 'token 1: 3.5 times its value' && in_mode_ll ;;
    moe.cpp) example moe 'batch 1, token 1: 3.5 times its value' ;;
    attention.c) example attention 'batch 1, token 1: from 353 to 236.482, as in one process' 2 ;;
    overlap.c) example overlap 'batch 1, token 1: 3.5 times its value' ;;
    failure.c) ranks_left ;;
    nodes.c) two_nodes ;;
    serve_experts.c) serving ;;
    *) echo "this test does not say what $program must print"; exit 1 ;;
    esac
done

find "$tmp/root" -path '*/man/man3/xep_dispatch.3' | grep -q . ||
    { echo 'make install has not installed man3/xep_dispatch.3'; exit 1; }

# completes WORD LINE...: the last word of the line is completed to that
completes() {
    local word=$1 PATH=$builddir:$PATH COMP_WORDS COMP_CWORD=$(($# - 2)) COMPREPLY
    shift
    COMP_WORDS=("$@")
    _xep_options "$1"
    [ "${COMPREPLY[*]}" = "$word" ] || { echo "$* is completed to ${COMPREPLY[*]}, not $word"; exit 1; }
}
. "$(find "$tmp/root" -path '*/bash-completion/completions/xep_perf')" || exit 1
completes --combine xep_run -n 4 xep_perf --com
completes --plugins "$builddir/xep_info" --pl
xep_plot() { printf 'usage: xep_plot FILE\n\noptions:\n  -V, --version  the version\n  --what PANELS  some\n'; }
completes --what xep_plot --wh

# hook FOLDER: what make install does once the library is there
hook() {
    env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL "${MAKE:-make}" -s -C "$builddir" install-exec-hook DESTDIR= \
        libdir="$1" 2>&1
}
said=$(hook "$tmp/nowhere")
grep -q "the loader does not search $tmp/nowhere: .* set LD_LIBRARY_PATH=$tmp/nowhere or link" <<<"$said" ||
    { echo "make install does not say what programs need: $said"; exit 1; }

# in a mount namespace, as it changes /etc
unshare -m true 2>/dev/null && [ "$(id -u)" -eq 0 ] || { echo 'left out: ldconfig (no mount namespace)'; exit 0; }
mkdir "$tmp/etc" && cp -R /etc/ld.so.* "$tmp/etc" && echo "$libdir" >>"$tmp/etc/ld.so.conf" || exit 99
export -f hook
unshare -m bash -c '
    mount --bind "$1/etc" /etc || exit 99
    unset LD_LIBRARY_PATH
    ! XEP_BOOT=single "$1/hello" 2>/dev/null || { echo "it runs before"; exit 1; }
    hook "$2" && XEP_BOOT=single "$1/hello"' found "$tmp" "$libdir" >"$tmp/out" 2>&1 &&
    cmp -s "$tmp/out" <(cd "$tmp" && XEP_BOOT=single ./hello) || { echo 'after ldconfig:'; cat "$tmp/out"; exit 1; }
