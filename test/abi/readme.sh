# SPDX-License-Identifier: BSD-3-Clause
# The programs in README.md are whole: they compile with the command beside the first and say what they should, alone and on ranks.
set -u
. "$srcdir/test/rig/installed.bash" || exit 99

# example NAME: compiled, and run alone and on 1, 2 and 4 ranks
example() {
    name=$1
    awk -v mark="<!-- example: $name.c -->" 'index($0, mark) == 1 { found = 1; next } found && /^```c/ { on = 1; next } on && /^```/ { exit } on' \
        "$srcdir/README.md" >"$tmp/$name.c"
    [ -s "$tmp/$name.c" ] || { echo "README.md has no example $name.c"; exit 1; }
    compile "$tmp/$name" "$tmp/$name.c" $(pkg-config --libs xep)
    (cd "$tmp" && XEP_BOOT=single "./$name") >"$tmp/alone" || exit 1
    for ranks in 1 2 4; do
        "$builddir/xep_run" -n $ranks "$tmp/$name" >"$tmp/out" || { cat "$tmp/out"; exit 1; }
        # the same routing and weights everywhere: every rank prints what one alone prints
        [ "$(sort -u "$tmp/out")" = "$(cat "$tmp/alone")" ] && [ "$(wc -l <"$tmp/out")" -eq $((ranks * $(wc -l <"$tmp/alone"))) ] ||
            { echo "$name on $ranks ranks:"; cat "$tmp/out"; echo "alone:"; cat "$tmp/alone"; exit 1; }
    done
}

example moe
grep -q '^token 1: 3.5 times its value$' "$tmp/alone" || { cat "$tmp/alone"; exit 1; }
# mode-neutral: the same program, the same sums
XEP_MODE=ll "$builddir/xep_run" -n 3 "$tmp/moe" >"$tmp/out" && [ "$(sort -u "$tmp/out")" = "$(cat "$tmp/alone")" ] ||
    { echo "moe with XEP_MODE=ll:"; cat "$tmp/out"; exit 1; }
example overlap
grep -q '^batch 1, token 1: 3.5 times its value$' "$tmp/alone" || { cat "$tmp/alone"; exit 1; }
