# SPDX-License-Identifier: BSD-3-Clause
# Which orders between words are needed, by Relacy: every execution that C11 allows (orders.cpp).
set -u
# no change of the library changes them
[ -z "${XEP_TEST_BRIEF:-}" ] || { echo 'skipped: the whole check has it'; exit 77; }
read -r -a compiler <<<"${CXX:-c++}"
command -v "${compiler[0]}" >/dev/null || { echo 'skipped: no C++ compiler'; exit 77; }
echo '#include <relacy/relacy.hpp>' | "${compiler[@]}" -std=c++17 -E -x c++ - >/dev/null 2>&1 ||
    { echo 'skipped: there is no Relacy (Debian: relacy-dev)'; exit 77; }
tmp=$(mktemp -d) || exit 99
trap 'rm -rf "$tmp"' EXIT
"${compiler[@]}" -std=c++17 -O0 -w -o "$tmp/orders" "$srcdir/test/model/orders.cpp" && "$tmp/orders"
