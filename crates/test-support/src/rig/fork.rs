//! Forks child processes.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // Like the rig.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::verbs;

/// A forked child that has not called `exec`.
pub struct Child(libc::pid_t);

impl Child {
    /// Forks a child that runs `act` and exits without running its parent's exit handlers.
    pub fn fork(act: impl FnOnce()) -> Self {
        match unsafe { libc::fork() } {
            0 => {
                let failed = catch_unwind(AssertUnwindSafe(act)).is_err();
                unsafe { libc::_exit(failed.into()) }
            }
            pid => {
                assert!(pid > 0, "no child");
                Self(pid)
            }
        }
    }

    /// Waits until the child exits, and checks that it succeeded.
    #[track_caller]
    pub fn join(self) {
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed");
    }
}

/// Returns the number of pages in this range that are mapped in this process. A forked child of a process with threads
/// may call it, because it only makes system calls.
#[must_use]
pub fn mapped_pages(address: u64, length: usize) -> usize {
    let page = rustix::param::page_size();
    let start = ptr::without_provenance_mut::<c_void>(address as usize);
    // The call fails if the page is not mapped, and otherwise changes nothing (`man 2 msync`).
    let is_mapped =
        |at: &usize| unsafe { libc::msync(start.wrapping_byte_add(*at), page, libc::MS_ASYNC) } == 0;
    (0..length).step_by(page).filter(is_mapped).count()
}

/// Exits from this process with success, without running exit handlers.
pub fn leave() -> ! {
    unsafe { libc::_exit(0) }
}

/// Prepares the process for forks. Returns 0 or an error number.
pub fn fork_init() -> i32 {
    unsafe { (verbs().fork_init)() }
}

/// Returns whether the process is prepared for forks, or needs no preparation, as a value of `enum
/// ibv_fork_status`.
pub fn fork_status() -> rdma_sys::ibv_fork_status {
    let status = verbs().is_fork_initialized.expect("since 1.13 of the library");
    unsafe { status() }
}

/// Returns true if programs that the process starts inherit this descriptor.
pub fn is_inherited(fd: i32) -> bool {
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    assert!(flags >= 0, "no descriptor");
    flags & libc::FD_CLOEXEC == 0
}
