#!/bin/sh
# Runs cmake for the build script of `ibverbs-sys`, which needs only the headers of rdma-core. They are complete as soon
# as the build is configured. The libraries, which would need libnl, are not built.
[ "$1" != --build ] || exit 0
exec cmake -DENABLE_RESOLVE_NEIGH=0 "$@"
