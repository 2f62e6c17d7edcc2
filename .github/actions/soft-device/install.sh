#!/bin/sh
# Builds libibverbs.so.1, librdmacm.so.1 and rdma-soft-run, and makes the later steps of a GitHub job use them.
set -eu
: "${GITHUB_ENV:?is not set; a runner of GitHub sets it}" "${GITHUB_PATH:?is not set; a runner of GitHub sets it}"
cd "$(dirname "$0")/../../.."
printed=$(cargo xtask dropin)
built=$(dirname "$(dirname "$(printf '%s\n' "$printed" | head -n 1)")")
echo "LD_LIBRARY_PATH=$built/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" >> "$GITHUB_ENV"
echo "$built/bin" >> "$GITHUB_PATH"
LD_LIBRARY_PATH="$built/lib" "$built/bin/rdma-soft-run" --no-files true
