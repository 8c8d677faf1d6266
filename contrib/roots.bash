# SPDX-License-Identifier: BSD-3-Clause
# Sourced by check-wheel and release-wheels: bare systems by debootstrap, one for each version of Python, each kept in
# build/downloads/root-VERSION. Needs root and the network.

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
