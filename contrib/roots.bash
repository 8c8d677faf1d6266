# SPDX-License-Identifier: BSD-3-Clause
# Sourced by check-wheel, release-wheels and check-aarch64: bare systems by debootstrap, one for each version of Python,
# each kept in build/downloads/root-VERSION. Needs root and the network.

ubuntu_keyring=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1-0.2_all.deb
ubuntu_keyring_sha256=b2e7ed48431bf9e7978ae810bbdaf253093570d6e3f864e575b7c13554b81174
debian=http://deb.debian.org/debian
ubuntu=http://archive.ubuntu.com/ubuntu

# suite, mirror and script of debootstrap whose Python is of that version; the oldest has glibc 2.31
suite_of() {
    case $1 in
    3.9) echo bullseye $debian sid ;;
    3.10) echo jammy $ubuntu gutsy ;;
    3.11) echo bookworm $debian sid ;;
    3.12) echo noble $ubuntu gutsy ;;
    3.13) echo trixie $debian sid ;;
    3.14) echo forky $debian sid ;;
    *) return 1 ;;
    esac
}

# Debian vouches for Ubuntu's keys
fetch_ubuntu_keyring() {
    local deb=$downloads/ubuntu-keyring.deb
    [ -e "$downloads/ubuntu-keyring/usr" ] && return
    python3 -c 'import sys, urllib.request as u; u.urlretrieve(*sys.argv[1:])' $debian/$ubuntu_keyring "$deb" &&
        echo "$ubuntu_keyring_sha256  $deb" | sha256sum -c --quiet && dpkg-deb -x "$deb" "$downloads/ubuntu-keyring"
}

# make_root VERSION: prints the folder
make_root() {
    local folder=$downloads/root-$1 suite mirror script options=()
    read -r suite mirror script < <(suite_of "$1") || return 1
    echo "$folder"
    [ -e "$folder/made" ] && return
    rm -rf "$folder"
    case $mirror in
    *ubuntu*)
        fetch_ubuntu_keyring || return 1
        options=(--components=main,universe
            --keyring="$downloads/ubuntu-keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg")
        ;;
    esac
    bounded 900 debootstrap --variant=minbase "${options[@]}" --include=python3,python3-venv,python3-pip,python3-dev \
        "$suite" "$folder" "$mirror" "/usr/share/debootstrap/scripts/$script" >"$downloads/root-$1.log" 2>&1 &&
        touch "$folder/made" || { tail -n 5 "$downloads/root-$1.log" >&2; rm -rf "$folder"; return 1; }
}

# unpack_root aarch64 PACKAGE...: of Debian 12 for that processor, with what they need: files to compile with and for
# emulators, which need no installation; nothing of this machine's apt is changed. Prints the folder.
unpack_root() {
    local folder=$downloads/root-$1 apt deb options made
    shift
    apt=$folder/apt made=$folder/made-$(echo "$*" | sha256sum | cut -c1-12)
    echo "$folder"
    [ ! -e "$made" ] || return 0
    mkdir -p "$apt"/{state/lists,cache/archives}/partial "$folder"/usr/{bin,sbin,lib}
    for deb in bin sbin lib; do ln -sfn usr/$deb "$folder/$deb"; done
    : >"$apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $debian bookworm main" >"$apt/sources.list"
    options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User=root
        -o Dir::State="$apt/state" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt/cache"
        -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null -o Acquire::Languages=none)
    { bounded 300 apt-get "${options[@]}" update &&
        bounded 600 apt-get "${options[@]}" -y --no-install-recommends --download-only install "$@"; } \
        >"$folder.log" 2>&1 || { tail -n 5 "$folder.log" >&2; return 1; }
    for deb in "$apt"/cache/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$deb" | tar -C "$folder" --keep-directory-symlink -xf - || return 1
    done
    touch "$made"
}
