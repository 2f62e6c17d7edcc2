#!/bin/sh
# Builds a Debian package with the library and `rdma-soft-run`. The library is in a folder of its own, so it does not
# replace Debian's libibverbs: only programs that `rdma-soft-run` starts use it.
set -eu
[ $# = 1 ] || { echo "usage: $0 PACKAGE.deb" >&2; exit 2; }
package=$(realpath "$1")
cd "$(dirname "$0")/../../.."
for tool in dpkg-deb objdump; do
    command -v "$tool" > /dev/null || { echo "$tool is missing; Debian: apt-get install dpkg binutils" >&2; exit 1; }
done
printed=$(cargo xtask dropin)
built=$(dirname "$(dirname "$(printf '%s\n' "$printed" | head -n 1)")")
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"$/\1/p' Cargo.toml)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The runner finds the library next to the folder of its own file, not of the link.
home=usr/lib/rdma-soft
mkdir -p "$work/DEBIAN" "$work/$home" "$work/usr/bin" "$work/usr/share/doc/rdma-soft"
cp -R "$built/bin" "$built/lib" "$work/$home"
ln -s "../lib/rdma-soft/bin/rdma-soft-run" "$work/usr/bin/rdma-soft-run"
for licence in LICENSE-*; do
    printf '%s\n\n' "$licence:"
    cat "$licence"
done > "$work/usr/share/doc/rdma-soft/copyright"

glibc=$(objdump -T "$work/$home"/lib/lib*.so* "$work/$home"/bin/rdma-soft-run |
    sed -n 's/.*(\{0,1\}GLIBC_\([0-9.]*\).*/\1/p' | sort --version-sort --unique | tail -n 1)
cat > "$work/DEBIAN/control" <<CONTROL
Package: rdma-soft
Version: $version
Architecture: $(dpkg --print-architecture)
Depends: libc6 (>= $glibc)
Recommends: ibverbs-utils
Section: net
Priority: optional
Maintainer: the authors of rdma-soft <rdma-soft@git.example>
Installed-Size: $(du --summarize --apparent-size --block-size=1024 "$work/usr" | cut -f 1)
Description: RDMA devices in software, without a NIC, a kernel module or root
 rdma-soft-run starts an RDMA program with a libibverbs whose devices are
 implemented in software. The system's libibverbs stays in use for all other
 programs.
CONTROL
chmod -R u=rwX,go=rX "$work"
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) dpkg-deb --root-owner-group --build "$work" "$package"
