#!/bin/sh
# Checks an image of build.sh: its digests, its size, and that its programs find the software devices.
set -eu
[ $# = 1 ] || { echo "usage: $0 IMAGE.tar" >&2; exit 2; }
size=$(stat --format=%s "$1")
[ "$size" -lt 40000000 ] || { echo "the image has $size bytes; the limit is 40,000,000" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/layout" "$work/root"
tar --extract --file "$1" --directory "$work/layout"
cd "$work/layout/blobs/sha256"
for blob in *; do
    echo "$blob  $blob" | sha256sum --check --quiet
done
# Prints the digest in the value of the key, which must be the name of a blob.
digest() {
    sed "s/.*\"$2\":[^}]*\"digest\":\"sha256:\([0-9a-f]*\)\".*/\1/" "$1"
}
manifest=$(digest ../../index.json manifests)
layer=$(digest "$manifest" layers)
config=$(digest "$manifest" config)
plain=$(gunzip --stdout "$layer" | sha256sum | cut -d ' ' -f 1)
grep --quiet "\"diff_ids\":\[\"sha256:$plain\"\]" "$config" || { echo "the layer has another digest" >&2; exit 1; }

# Devices cannot be created without root, and the programs need none.
gunzip --stdout "$layer" | tar --extract --directory "$work/root" --exclude='./dev/*'
inside() {
    unshare --map-root-user --mount sh -ec 'mount --rbind /proc "$0/proc"; exec chroot "$0" "$@"' "$work/root" "$@"
}
inside ibv_devinfo | grep hca_id
inside rdma-soft-run --no-files --stats ibv_devices
