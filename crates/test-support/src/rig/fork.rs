//! Forked children.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // As the rig.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::verbs;

/// A child that was forked and did not execute a program.
pub struct Child(libc::pid_t);

impl Child {
    /// Forks. The child does this, and ends without what its parent would do at its end.
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

    /// Waits for its end, which must be a good one.
    #[track_caller]
    pub fn join(self) {
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(self.0, &raw mut status, 0) }, self.0);
        assert!(libc::WIFEXITED(status), "ended by signal {}", libc::WTERMSIG(status));
        assert_eq!(libc::WEXITSTATUS(status), 0, "the child failed");
    }
}

/// Ends this process with success, and without what it would do at its end.
pub fn leave() -> ! {
    unsafe { libc::_exit(0) }
}

/// Prepares for forks: 0 or an error number.
pub fn fork_init() -> i32 {
    unsafe { (verbs().fork_init)() }
}

/// Whether forks were prepared for, or need no preparation: what `enum ibv_fork_status` says.
pub fn fork_status() -> rdma_sys::ibv_fork_status {
    let status = verbs().is_fork_initialized.expect("since 1.13 of the library");
    unsafe { status() }
}

/// Whether programs that the process starts get this descriptor too.
pub fn is_inherited(fd: i32) -> bool {
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    assert!(flags >= 0, "no descriptor");
    flags & libc::FD_CLOEXEC == 0
}
