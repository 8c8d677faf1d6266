# SPDX-License-Identifier: BSD-3-Clause
# Every installed header compiles alone, as C11 and as C++11, without a warning. Everything is installed that should be.
set -u
. "$srcdir/test/rig/installed.bash" || exit 99
failed=0

include=$(pkg-config --variable=includedir xep)
[ -d "$include" ] || include=$tmp/root$include
for header in "$include"/xep/*.h; do
    name=xep/${header##*/}
    printf '#include <%s>\n#include <%s>\nextern int not_empty;\n' "$name" "$name" >"$tmp/alone.c"
    cp "$tmp/alone.c" "$tmp/alone.cpp"
    ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Wstrict-prototypes -Werror -I"$include" -fsyntax-only "$tmp/alone.c" ||
        { echo "$name does not compile alone as C11"; failed=1; }
    ${CXX:-c++} -std=c++11 -pedantic -Wall -Wextra -Wshadow -Werror -I"$include" -fsyntax-only "$tmp/alone.cpp" ||
        { echo "$name does not compile alone as C++11"; failed=1; }
done

printf '#include <xep/xep.hpp>\n#include <xep/xep.hpp>\n' >"$tmp/alone.cpp"
${CXX:-c++} -std=c++17 -pedantic -Wall -Wextra -Wshadow -Werror -I"$include" -fsyntax-only "$tmp/alone.cpp" ||
    { echo "xep/xep.hpp does not compile alone as C++17"; failed=1; }

# the initialisers, in both languages, with the warnings users turn on
use='    { \2 value = \1; if (value.size != sizeof value) return 1; }'
sed -n "s/^#define \(XEP_[A-Z_]*_INIT\) XEP_INIT_(\(xep_[a-z_]*_t\)).*/$use/p" \
    "$include"/xep/{xep,cuda,elastic,inspect,pieces}.h >"$tmp/uses"
[ -s "$tmp/uses" ] || { echo "no _INIT macros were found"; failed=1; }
{ printf '#include <xep/%s.h>\n' xep cuda elastic inspect pieces; printf 'int main(void)\n{\n'
  cat "$tmp/uses"; printf '    return 0;\n}\n'; } >"$tmp/init.c"
cp "$tmp/init.c" "$tmp/init.cpp"
{ ${CC:-cc} -std=c11 -pedantic -Wall -Wextra -Werror -I"$include" -o "$tmp/init_c" "$tmp/init.c" && "$tmp/init_c"; } ||
    { echo "an _INIT macro fails in C"; failed=1; }
{ ${CXX:-c++} -std=c++11 -pedantic -Wall -Wextra -Werror -I"$include" -o "$tmp/init_cxx" "$tmp/init.cpp" &&
    "$tmp/init_cxx"; } ||
    { echo "an _INIT macro fails in C++"; failed=1; }

(cd "$tmp/root" && find . -type f -o -type l | sed 's|.*/||' | sort) >"$tmp/files"
for file in xep.h status.h dtype.h cuda.h elastic.h inspect.h pieces.h serve.h experts.h plugin.h wire.h launch.h \
    version.h xep.hpp libxep.so libxep.so.1 xep_normal.so xep_ll.so xep.pc \
    xep-kit.pc libxep_kit.a kit.h steps.h xep_info xep_perf xep_run xep_trace xep_info.1 \
    xep_perf.1 xep_run.1 xep_trace.1; do
    grep -qx "$file" "$tmp/files" || { echo "$file is not installed"; failed=1; }
done
if grep -E '\.(t|mp|a)$' "$tmp/files" | grep -vx libxep_kit.a; then
    echo "the above must not be installed"
    failed=1
fi
exit $failed
