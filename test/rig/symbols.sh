# SPDX-License-Identifier: BSD-3-Clause
# The built objects keep contrib/check-symbols.sh, and every rule of it finds an object that breaks it.
set -u
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
failed=0
check=$srcdir/contrib/check-symbols.sh

bash "$check" "$builddir/.libs/libxep.so" "$srcdir/src/xep.map" "$srcdir/include/xep" \
    "$builddir"/.libs/xep_*.so ||
    { echo "the library or a mode breaks the rules above"; exit 1; }

# object NAME SOURCE [FLAG...]: a shared object of one line of C; without the user's flags, which may add symbols
object() {
    name=$1
    printf '%s\n' "$2" >"$tmp/$name.c"
    shift 2
    ${CC:-cc} -w -shared -fPIC -o "$tmp/$name" "$tmp/$name.c" "$@" || { echo "$name cannot be made"; exit 99; }
}

# finds PATTERN ARGUMENT...: check-symbols.sh fails and says that, and nothing else
finds() {
    pattern=$1
    shift
    bash "$check" "$@" >"$tmp/out" 2>&1
    status=$?
    if [ $status -ne 1 ] || [ "$(wc -l <"$tmp/out")" -ne 1 ] || ! grep -qE "$pattern" "$tmp/out"; then
        echo "expected one line with \"$pattern\"; status $status, found:"
        cat "$tmp/out"
        failed=1
    fi
}

printf '{\nglobal:\n    xep_a;\n    xep_b;\nlocal:\n    *;\n};\n' >"$tmp/map"
printf '#define XEP_API\nXEP_API int xep_a(void);\nXEP_API const char *\n    xep_b(int (*f)(void));\n' >"$tmp/header"
both='int xep_a; int xep_b;'
object good "$both"
bash "$check" "$tmp/good" "$tmp/map" "$tmp/header" || { echo "a good library is refused"; failed=1; }

object extra "$both int other_name;"
printf '{\n xep_a;\n xep_b;\n other_name;\n};\n' >"$tmp/map_other"
printf 'XEP_API int xep_a(void); XEP_API int xep_b(void); XEP_API int other_name(void);\n' >"$tmp/header_other"
finds 'exports other_name, which does not begin with xep_' "$tmp/extra" "$tmp/map_other" "$tmp/header_other"
object more "$both int xep_c;"
finds 'exports xep_c, which is not in' "$tmp/more" "$tmp/map" "$tmp/header"
object less 'int xep_a;'
finds 'does not export xep_b' "$tmp/less" "$tmp/map" "$tmp/header"
printf 'XEP_API int xep_a(void); XEP_API int xep_b(void); XEP_API int xep_c(void);\n' >"$tmp/header_more"
finds 'declares xep_c, which is not in' "$tmp/good" "$tmp/map" "$tmp/header_more"
printf 'XEP_API int xep_a(void);\n' >"$tmp/header_less"
finds 'does not declare xep_b' "$tmp/good" "$tmp/map" "$tmp/header_less"
printf '{\n xep_a;\n xep_b;\n xep_b;\n};\n' >"$tmp/map_twice"
finds 'xep_b stands there twice' "$tmp/good" "$tmp/map_twice" "$tmp/header"

# mode PATTERN SOURCE: as a plugin beside a good library
mode() {
    object mode.so "$2"
    finds "$1" "$tmp/good" "$tmp/map" "$tmp/header" "$tmp/mode.so"
}

plugin='const int xep_plugin = 1;'
hidden='__attribute__((visibility("hidden")))'
object mode.so "$plugin"' static const char *const name = "n";
    const char *const *x(void) '"$hidden"'; const char *const *x(void) { return &name; }'
bash "$check" "$tmp/good" "$tmp/map" "$tmp/header" "$tmp/mode.so" || { echo "a good mode is refused"; failed=1; }
mode 'does not export xep_plugin' "$hidden $plugin"
mode 'exports helper' "$plugin void helper(void) {}"
mode 'imports xep_log' "$plugin void xep_log(void); $hidden void f(void) { xep_log(); }"
mode 'imports ucp_put_nbx' "$plugin void ucp_put_nbx(void); $hidden void f(void) { ucp_put_nbx(); }"
mode 'imports getenv' "$plugin char *getenv(const char *); $hidden char *f(void) { return getenv(\"X\"); }"
mode 'imports puts' "$plugin int puts(const char *); $hidden int f(void) { return puts(\"x\"); }"
mode 'imports elsewhere, which no library' "$plugin int elsewhere(void); $hidden int f(void) { return elsewhere(); }"
mode 'has the mutable global calls' "$plugin static int calls = 1; $hidden int f(void) { return calls++; }"
mode 'has the mutable global [a-z]*zero' "$plugin $hidden int zero;"

bash "$check" "$tmp/nowhere" "$tmp/map" "$tmp/header" >"$tmp/out"
[ $? -eq 2 ] || { echo "a library that is not there is not an error"; failed=1; }
exit $failed
