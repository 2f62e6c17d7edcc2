//! File descriptors that are open only in the process that opened them. A forked child must not inherit any: it would
//! keep its parent's slots occupied and hide the parent's exit from peers.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io::Error;
use std::mem::ManuallyDrop;
use std::num::NonZeroI32;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::{DupFlags, Errno, Result, dup3};

use super::{expendable, files};
use crate::abi::fork::Process;

/// A socket option that allows peers to send files. Accepted connections inherit the option. If it is 0, `sendmsg` with
/// a file fails with `EPERM`. Defined in `asm-generic/socket.h` since Linux 6.16.
const SO_PASSRIGHTS: c_int = 83;

/// All open descriptors. The lock is held while a descriptor is opened or closed, and while the process forks.
static OPEN: spin::Mutex<Open> =
    spin::Mutex::new(Open { own: Own(Vec::new()), foreign: Vec::new(), path: None, forks: 0 });

struct Open {
    own: Own,
    foreign: Vec<RawFd>,
    /// The descriptor that replaces a foreign file. It names a folder, so closing it does nothing.
    path: Option<Arc<Descriptor>>,
    /// The number of threads that are about to fork.
    forks: u32,
}

/// The descriptors that the device has opened: for each number, whether it is one of them.
struct Own(Vec<bool>);

impl Own {
    fn set(&mut self, fd: RawFd, is_open: bool) {
        let Ok(place) = usize::try_from(fd) else { return };
        if place >= self.0.len() {
            self.0.resize(place + 1, false);
        }
        self.0[place] = is_open;
    }

    /// Removes and returns all descriptors.
    fn drain(&mut self) -> impl Iterator<Item = RawFd> {
        (0..).zip(&mut self.0).filter_map(|(fd, is_open)| std::mem::take(is_open).then_some(fd))
    }
}

impl Open {
    /// Locks the list; the first call registers the fork handlers.
    fn lock() -> spin::MutexGuard<'static, Self> {
        static HANDLERS: Once = Once::new();
        HANDLERS.call_once(|| {
            // SAFETY: SAFETY.md F15: the handlers only make calls that are allowed in a child (close(2)), and their
            // code is never unloaded before they are removed. If they are linked into a library that can be unloaded,
            // unloading removes them (pthread_atfork(3)).
            unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
        });
        OPEN.lock()
    }
}

/// A file descriptor that is closed in a forked child before `fork` returns there.
///
/// Fork handlers close the child's descriptors. They do not run for a child that was created with a bare `clone` or
/// `vfork` call. Such a child keeps the descriptors open until it calls `execve`, which closes them.
#[derive(Debug)]
pub(crate) struct Descriptor {
    fd: RawFd,
    opened_by: Process,
    /// Whether the socket's queue may contain files that others have sent.
    holds_files: AtomicBool,
}

impl Descriptor {
    /// Opens a descriptor by calling `open`.
    pub(crate) fn open(open: impl FnOnce() -> Result<OwnedFd>) -> Result<Self> {
        let all = &mut Open::lock().own;
        let fd = open()?.into_raw_fd();
        all.set(fd, true);
        Ok(Self { fd, opened_by: Process::current(), holds_files: AtomicBool::new(false) })
    }

    /// Opens a socket that others can send to. If the kernel supports it, the socket refuses files from now on.
    pub(crate) fn open_for_others(open: impl FnOnce() -> Result<OwnedFd>) -> Result<Self> {
        let socket = Self::open(open)?;
        if set_flag(socket.get()?, libc::SOL_SOCKET, SO_PASSRIGHTS, false).is_err() {
            socket.holds_files.store(true, Ordering::Relaxed);
        }
        Ok(socket)
    }

    /// Allows the other end of a connection to send files from now on.
    pub(crate) fn allow_files(&self) -> Result<()> {
        self.holds_files.store(true, Ordering::Relaxed);
        // An older kernel lacks this option and does not refuse files.
        let _ = set_flag(self.get()?, libc::SOL_SOCKET, SO_PASSRIGHTS, true);
        Ok(())
    }

    /// Returns true if a message to this socket may have files attached.
    pub(crate) fn holds_files(&self) -> bool {
        self.holds_files.load(Ordering::Relaxed)
    }

    /// Returns the descriptor. Fails in any process other than the one that opened it.
    pub(crate) fn get(&self) -> Result<BorrowedFd<'_>> {
        if !self.opened_by.is_current() {
            return Err(Errno::BADF);
        }
        // SAFETY: SAFETY.md F15: the descriptor is open in this process until `self` is dropped, and it is not -1.
        Ok(unsafe { BorrowedFd::borrow_raw(self.fd) })
    }

    /// Returns the process at the other end of a connection, and its user. A process in another PID namespace may have
    /// no process ID here. The kernel then reports 0, which rustix cannot represent.
    pub(crate) fn peer(&self) -> Result<(Option<ProcessId>, u32)> {
        let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
        let mut length = libc::socklen_t::try_from(size_of_val(&peer)).unwrap_or(0);
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let fd = self.get()?.as_raw_fd();
        // SAFETY: the call writes at most `length` bytes, and any bytes are valid integers (unix(7), SAFETY.md F15).
        let failed =
            unsafe { libc::getsockopt(fd, level, option, (&raw mut peer).cast(), &raw mut length) };
        check(failed).map(|()| (ProcessId::new(peer.pid), peer.uid))
    }
}

/// Sets a socket option that rustix lacks, to 1 or 0.
pub(super) fn set_flag(
    socket: BorrowedFd<'_>,
    level: c_int,
    option: c_int,
    value: bool,
) -> Result<()> {
    let value = c_int::from(value);
    let length = libc::socklen_t::try_from(size_of_val(&value)).unwrap_or(0);
    let fd = socket.as_raw_fd();
    // SAFETY: SAFETY.md F15: the call reads the `length` bytes of `value`, which lives until the call returns.
    check(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) })
}

/// Converts the result of a system call that returns 0, or returns -1 and sets `errno`.
fn check(returned: c_int) -> Result<()> {
    match returned {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

/// A process ID.
pub(crate) type ProcessId = NonZeroI32;

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.opened_by.is_current() {
            return; // closed when the child began; the number may be another file's
        }
        if self.holds_files() {
            // The queue is emptied on a thread that may block. After that, closing the socket takes no time.
            let (fd, opened_by) = (self.fd, self.opened_by);
            let emptied = Self { fd, opened_by, holds_files: AtomicBool::new(false) };
            return expendable::run(move || {
                if let Ok(socket) = emptied.get() {
                    files::empty(socket);
                }
                drop(emptied);
            });
        }
        let mut open = OPEN.lock();
        open.own.set(self.fd, false);
        // SAFETY: SAFETY.md F15: the descriptor is open, this value owns it, and nothing else uses it when the value is
        // dropped.
        drop(unsafe { OwnedFd::from_raw_fd(self.fd) });
    }
}

/// A file that another process sent, open in this process for a moment. Closing it may take as long as the sender
/// likes, in any process that has it open. Therefore, a fork waits until the file's descriptor names a folder instead;
/// a bare `clone` or `vfork` call does not wait.
#[derive(Debug)]
pub(super) struct Foreign {
    file: Option<OwnedFd>,
    path: Arc<Descriptor>,
}

impl Foreign {
    /// Opens the descriptor that replaces such files, unless this process has one.
    pub(super) fn prepare() -> Result<()> {
        let path = Open::lock().path.clone();
        if path.is_none_or(|path| path.get().is_err()) {
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            let path = Descriptor::open(|| open("/", flags, Mode::empty()))?;
            let _before = Open::lock().path.replace(Arc::new(path));
        }
        Ok(())
    }

    /// Calls `receive`, which may receive a file. Returns the file, and the other result of `receive`. Fails with
    /// `BUSY` while the process forks.
    pub(super) fn open<T>(
        receive: impl FnOnce() -> Result<(Option<OwnedFd>, T)>,
    ) -> Result<(Self, T)> {
        let open = &mut *Open::lock();
        if open.forks > 0 {
            return Err(Errno::BUSY);
        }
        let path = open.path.clone().ok_or(Errno::BADF)?;
        let (file, message) = receive()?;
        open.foreign.extend(file.as_ref().map(AsRawFd::as_raw_fd));
        Ok((Self { file, path }, message))
    }

    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }
}

/// Unless the file is known to be memory, dropping it may take as long as the sender likes.
impl Drop for Foreign {
    fn drop(&mut self) {
        let Some(mut file) = self.file.take() else { return };
        let number = file.as_raw_fd();
        // The file cannot be replaced if the program has closed the path, or has lowered its descriptor limit below
        // this number.
        let path = self.path.get();
        let replaced = path.and_then(|path| dup3(path, &mut file, DupFlags::CLOEXEC)).is_ok();
        let mut open = OPEN.lock();
        open.foreign.retain(|&foreign| foreign != number);
        if !replaced {
            drop(open);
        }
        drop(file);
    }
}

/// Returns true if closing the descriptor with this number does nothing, or if no such descriptor is open.
fn is_path(fd: RawFd) -> bool {
    // SAFETY: SAFETY.md F15: the call touches no memory.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags & libc::O_PATH != 0
}

/// Calls `run` when this process exits through `exit` or a return from `main`. It is not called in a forked child.
pub(crate) fn at_exit(run: fn()) {
    static RUN: OnceLock<(Process, fn())> = OnceLock::new();
    extern "C" fn ends() {
        if let Some((process, run)) = RUN.get()
            && process.is_current()
        {
            run();
        }
    }
    if RUN.set((Process::current(), run)).is_ok() {
        // SAFETY: SAFETY.md F15: the handler does not unwind, and is never unloaded before it runs. If it is linked
        // into a library that can be unloaded, it is called when that happens (atexit(3)).
        unsafe { libc::atexit(ends) };
    }
}

/// The interval at which a fork checks whether foreign files have been replaced.
const REPLACED: Duration = Duration::from_micros(50);

extern "C" fn before_fork() {
    let mut open = OPEN.lock();
    open.forks += 1;
    while !open.foreign.iter().all(|&fd| is_path(fd)) {
        drop(open);
        // If the file is memory, the thread that opened it closes it. Otherwise it is passed to a claimed thread, which
        // replaces it at once.
        std::thread::sleep(REPLACED);
        open = OPEN.lock();
    }
    let _ = ManuallyDrop::new(open);
}

extern "C" fn in_parent() {
    // SAFETY: SAFETY.md F15: this thread, or the parent's thread that it copies, locked the mutex in `before_fork` and
    // forgot the guard.
    unsafe { OPEN.force_unlock() };
    let mut open = OPEN.lock();
    debug_assert!(open.forks > 0, "a fork ended that had not begun");
    open.forks = open.forks.saturating_sub(1);
}

extern "C" fn in_child() {
    // This is the only thread of the child.
    in_parent();
    let open = &mut *OPEN.lock();
    open.forks = 0;
    for fd in open.own.drain().chain(open.foreign.drain(..)) {
        // SAFETY: SAFETY.md F15: this is the child's copy of the descriptor. Nothing in the child uses it, because
        // `get` returns it only in the parent.
        unsafe { libc::close(fd) };
    }
}
