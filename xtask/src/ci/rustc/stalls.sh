#!/bin/sh
# Compiles a crate of the workspace with randomly delayed threads. Cargo passes the path of rustc and
# its arguments. Cargo compiles all other crates directly, so that jobs share them.
exec "$@" --cfg rdma_stalls
