#!/bin/sh
# Checks a package of build.sh: its fields, its files, and that a program finds the software devices.
set -eu
[ $# = 1 ] || { echo "usage: $0 PACKAGE.deb" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
dpkg-deb --field "$1" Depends | grep --quiet '^libc6 (>= 2\.[0-9]*)$'
dpkg-deb --extract "$1" "$work"
# A file in a folder of the dynamic linker would replace the system's library.
libraries=$(cd "$work" && find . -name 'lib*.so*' ! -path './usr/lib/rdma-soft/lib/*')
[ -z "$libraries" ] || { echo "other libraries: $libraries" >&2; exit 1; }
"$work/usr/bin/rdma-soft-run" --stats ibv_devinfo | grep hca_id
"$work/usr/bin/rdma-soft-run" --no-namespace grep CA /sys/class/infiniband/soft0/node_type
