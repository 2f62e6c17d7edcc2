#!/bin/sh
# Compiles a crate of the workspace with AddressSanitizer. Cargo passes the path of rustc and its
# arguments. Cargo compiles all other crates directly, so that jobs share them.
RUSTC_BOOTSTRAP=1 exec "$@" -Zsanitizer=address --cfg rdma_visible_copies
