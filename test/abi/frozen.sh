# SPDX-License-Identifier: BSD-3-Clause
# Structs, other types and constants of the public headers are as test/abi/layouts has them, with enums of any size, and
# structs have no holes: a field put into one would not change the size, which is how versions are told.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT

{
    echo '#include <stdint.h>'
    echo '#pragma GCC diagnostic push'
    echo '#pragma GCC diagnostic error "-Wpadded"'
    printf '#include <xep/%s.h>\n' cuda elastic experts inspect launch pieces serve xep
    echo '#pragma GCC diagnostic pop'
    echo '#include <xep/plugin.h>'
    echo '#if UINTPTR_MAX == UINT64_MAX'
    awk '
        function check(what, number) {
            printf "_Static_assert(%s == %s, \"%s is not %s\");\n", what, number, what, number
        }
        function check_entry(    head, list, pair, n, i) {
            if (entry == "") return
            split(entry, head, ":")
            if (split(head[1], pair, " ") == 2) check("sizeof(" pair[1] ")", pair[2])
            for (n = split(head[2], list, ","); n > 0; n--) {
                split(list[n], pair, " ")
                if (head[1] == "values") check(pair[1], pair[2])
                else if (head[1] == "types") check("sizeof(" pair[1] ")", pair[2])
                else check("offsetof(" substr(head[1], 1, index(head[1], " ") - 1) ", " pair[1] ")", pair[2])
            }
        }
        /^ / { entry = entry $0; next }
        { check_entry(); entry = /^#/ ? "" : $0 }
        END { check_entry() }' "$srcdir/test/abi/layouts"
    echo '#endif'
} >"$tmp/frozen.c"
grep -q '^_Static_assert' "$tmp/frozen.c" || { echo 'FAIL: there are no layouts'; exit 1; }
for enums in -fno-short-enums -fshort-enums; do
    ${CC:-cc} -std=gnu11 $enums -I"$srcdir/include" -I"$builddir/include" -fsyntax-only "$tmp/frozen.c" || exit 1
done
