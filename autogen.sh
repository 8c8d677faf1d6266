#!/bin/sh
# SPDX-License-Identifier: BSD-3-Clause
# Makes ./configure.
set -e
cd "$(dirname "$0")"
for tool in autoconf automake libtoolize pkg-config; do
    command -v "$tool" >/dev/null || {
        echo "autogen.sh: $tool is needed" \
            "(on Debian and Ubuntu: apt-get install autoconf automake libtool pkg-config)" >&2
        exit 1
    }
done
exec autoreconf --install --force
