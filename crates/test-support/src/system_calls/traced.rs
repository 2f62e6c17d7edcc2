//! Lists the system calls of a thread in a child process, as a debugger does (`man 2 ptrace`).
//!
//! Unlike a filter, this lets the calls happen. So a thread whose peer gets no processor for a while, and which then
//! makes calls, can go on until a round that needs none.
#![allow(unsafe_code)]
#![expect(clippy::expect_used, reason = "a failing helper fails its test")]

use std::ffi::{c_int, c_long, c_void};
use std::io::{BufRead, BufReader};
use std::mem::MaybeUninit;
use std::process::{Child, Command, Stdio};
use std::ptr;

use libc::{c_uint, pid_t};

/// The word before the ID of the traced thread in the output of the child.
const TRACED: &str = "traced thread: ";

/// Makes the parent, which has called [`trace`], the tracer of this thread.
///
/// # Panics
/// Panics if the kernel refuses that.
pub fn be_traced() {
    assert_eq!(
        ptrace(libc::PTRACE_TRACEME, 0, 0, ptr::null_mut()),
        0,
        "the kernel refuses to trace"
    );
    println!("{TRACED}{}", rustix::thread::gettid());
    // SAFETY: SAFETY.md F15: the argument is only a number. The tracer waits for this stop, and continues the thread.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Begins a round. Returns false if the tracer has seen enough.
#[must_use]
pub fn begin_round() -> bool {
    mark();
    let stdin = std::io::stdin();
    let mut tracer = [rustix::event::PollFd::new(&stdin, rustix::event::PollFlags::IN)];
    let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    let has_ended = rustix::event::poll(&mut tracer, Some(&at_once)) != Ok(0);
    mark();
    !has_ended
}

/// Makes a system call that the tracer knows.
fn mark() {
    let _ = rustix::process::getppid();
}

/// Runs a program in which a thread calls [`be_traced`], and then [`begin_round`] before each round. Passes the numbers of
/// the system calls (`man 2 syscalls`) of each round to `is_last`, until it returns true.
///
/// # Panics
/// Panics if the program cannot be run or traced, ends before that, or fails.
pub fn trace(program: &mut Command, mut is_last: impl FnMut(&[c_long]) -> bool) {
    let program = program.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut traced = Traced { child: program.spawn().expect("the program runs"), thread: None };
    let output = traced.child.stdout.take().expect("its output");
    let mut lines = BufReader::new(output).lines();
    while traced.thread.is_none() {
        let line = lines.next().expect("the program has a traced thread").expect("its output");
        // The test harness writes to the same line.
        if let Some((_, thread)) = line.split_once(TRACED) {
            traced.thread = Some(thread.parse().expect("a number"));
        }
    }
    assert!(libc::WIFSTOPPED(traced.wait()));
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
    traced.request(libc::PTRACE_SETOPTIONS, options);
    let mut calls = Vec::new();
    let (mut signal, mut marks) = (0, 0);
    loop {
        traced.request(libc::PTRACE_SYSCALL, signal);
        let status = traced.wait();
        assert!(libc::WIFSTOPPED(status), "the program ended after {} rounds", marks / 2);
        /// Set in the signal of a stop at a system call.
        const CALL: c_int = 0x80;
        signal = libc::WSTOPSIG(status);
        if signal != libc::SIGTRAP | CALL {
            continue;
        }
        signal = 0;
        match traced.entered() {
            Some(libc::SYS_getppid) => {
                marks += 1;
                // A round lies between the second mark of one `begin_round` and the first of the next.
                if marks > 1 && marks % 2 == 1 && is_last(&calls) {
                    break;
                }
                calls.clear();
            }
            Some(call) => calls.push(call),
            None => {}
        }
    }
    traced.request(libc::PTRACE_DETACH, 0);
    drop(traced.child.stdin.take());
    lines.for_each(drop);
    assert!(traced.child.wait().expect("its status").success());
}

/// A program with a traced thread. Dropped, it is killed.
struct Traced {
    child: Child,
    thread: Option<pid_t>,
}

impl Traced {
    fn thread(&self) -> pid_t {
        self.thread.expect("the thread is known")
    }

    fn request(&self, request: c_uint, data: c_int) {
        let data = ptr::without_provenance_mut(data.cast_unsigned() as usize);
        assert_eq!(ptrace(request, self.thread(), 0, data), 0, "request {request}");
    }

    /// Waits until the thread stops or ends, and returns its status.
    fn wait(&self) -> c_int {
        let mut status = 0;
        // SAFETY: SAFETY.md F15: the status is a valid place during the call.
        let found = unsafe { libc::waitpid(self.thread(), &raw mut status, libc::__WALL) };
        assert_eq!(found, self.thread(), "the thread is traced");
        status
    }

    /// Returns the number of the call at whose beginning the thread has stopped. Returns `None` at the end of a call.
    fn entered(&self) -> Option<c_long> {
        let mut info = MaybeUninit::<libc::ptrace_syscall_info>::zeroed();
        let size = size_of_val(&info);
        let read =
            ptrace(libc::PTRACE_GET_SYSCALL_INFO, self.thread(), size, info.as_mut_ptr().cast());
        assert!(read > 0, "the kernel reports the number of a call");
        // SAFETY: SAFETY.md F15: all fields are numbers, and the kernel has written the first ones. The others are zero.
        let info = unsafe { info.assume_init() };
        // SAFETY: SAFETY.md F15: the kernel has written these fields, as `op` states.
        (info.op == libc::PTRACE_SYSCALL_INFO_ENTRY)
            .then(|| unsafe { info.u.entry }.nr.cast_signed())
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let mut status = 0;
        // The end of the process is reported only after that of the traced thread.
        while let Some(thread) = self.thread
            // SAFETY: SAFETY.md F15: the status is a valid place during the call.
            && unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL) } == thread
            && libc::WIFSTOPPED(status)
        {}
        let _ = self.child.wait();
    }
}

fn ptrace(request: c_uint, thread: pid_t, address: usize, data: *mut c_void) -> c_long {
    // SAFETY: SAFETY.md F15: the requests of this module read and write no memory of this process, except the struct that
    // `PTRACE_GET_SYSCALL_INFO` fills, whose length is `address`.
    unsafe { libc::ptrace(request, thread, address, data) }
}
