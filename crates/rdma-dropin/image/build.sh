#!/bin/sh
# Builds an OCI image with Debian 12, the library, `rdma-soft-run` and `ibv_devinfo`, as an archive for
# `podman load`, `docker load` or `skopeo copy oci-archive:`. It needs neither a daemon nor root.
set -eu
[ $# = 1 ] || { echo "usage: $0 IMAGE.tar" >&2; exit 2; }
image=$(realpath "$1")
cd "$(dirname "$0")/../../.."
command -v mmdebstrap > /dev/null || { echo "mmdebstrap is missing; Debian: apt-get install mmdebstrap" >&2; exit 1; }
printed=$(cargo xtask dropin)
built=$(dirname "$(dirname "$(printf '%s\n' "$printed" | head -n 1)")")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What the image `debian:12-slim` leaves out is left out here too. The dynamic linker prefers /usr/local/lib to
# the folder of Debian's libibverbs.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) mmdebstrap --quiet --variant=minbase \
    --include=usr-is-merged,ibverbs-utils --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --aptopt='APT::Install-Recommends "false"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    --customize-hook="copy-in $built/bin $built/lib /usr/local" --customize-hook='chroot "$1" ldconfig' \
    bookworm "$work/layer.tar"

layout=$work/layout
blobs=$layout/blobs/sha256
mkdir -p "$blobs"
digest() { sha256sum "$1" | cut -d ' ' -f 1; }
# Moves a file to the blobs, and prints its descriptor.
blob() {
    name=$(digest "$1")
    size=$(stat --format=%s "$1")
    mv "$1" "$blobs/$name"
    printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s}' "$2" "$name" "$size"
}
plain=$(digest "$work/layer.tar")
gzip -9 --no-name "$work/layer.tar"
layer=$(blob "$work/layer.tar.gz" layer.v1.tar+gzip)
printf '{"architecture":"%s","os":"linux","config":{"Cmd":["ibv_devinfo"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(dpkg --print-architecture)" "$plain" > "$work/config"
config=$(blob "$work/config" config.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' \
    "$config" "$layer" > "$work/manifest"
manifest=$(blob "$work/manifest" manifest.v1+json)
name='"annotations":{"org.opencontainers.image.ref.name":"rdma-soft:latest","io.containerd.image.name":"docker.io/library/rdma-soft:latest"}'
printf '{"schemaVersion":2,"manifests":[%s,%s}]}' "${manifest%\}}" "$name" > "$layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' > "$layout/oci-layout"
tar --create --file "$image" --directory "$layout" --sort=name --owner=0 --group=0 --numeric-owner \
    oci-layout index.json blobs
echo "$image: $(stat --format=%s "$image") bytes"
