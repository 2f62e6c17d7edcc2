//! Shows programs the files of the software devices without a mount namespace.
//!
//! `rdma-soft-run` preloads this library (`LD_PRELOAD`) if the system refuses namespaces. It writes the files into a
//! folder, and `RDMA_DROPIN_FILES` is the path of that folder.
//!
//! `functions` defines the functions of the C library that take a path. If the path leads to one of the files, it is
//! replaced with a path into the folder (`path`). Then the C library's own function is called.
//!
//! These functions may run in signal handlers and between `vfork` and `exec`. So after the library is loaded, they
//! allocate no memory and take no lock. They need two buffers of 4 KiB on the stack, but only for paths that contain
//! `infiniband`.
//!
//! This is a library of its own, because `libibverbs.so.1` must not define functions of the C library. Programs that
//! only link with it would call them too.

// In a test program, these functions would replace those that the program itself uses.
#[cfg(not(test))]
mod functions;
mod path;
