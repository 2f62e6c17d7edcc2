//! Tests that a piece of code makes no system call: a filter stops the process at the first one.
//!
//! The code runs in a separate process, because a seccomp filter cannot be removed (`man 2
//! seccomp`). Calls that do not enter the kernel (`man 7 vdso`) are not detected.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_long, c_ulong, c_void};
use std::fs;
use std::mem::MaybeUninit;
use std::process::Command;
use std::ptr;

pub mod traced;

/// The exit status of a process that was not allowed to install the filter.
const NO_FILTER: c_int = 254;

/// Runs the code, and then exits from the process. The exit status is the one that
/// [`first_system_call`] expects. This function does not return.
pub fn end_at_first_system_call(piece: impl FnOnce()) {
    let status = if filter() {
        piece();
        0
    } else {
        NO_FILTER
    };
    end(status)
}

/// Exits from the process with the only call that the filter allows. `_exit` is not used: under a
/// sanitizer, it makes more calls, and so does any function that is declared not to return.
fn end(status: c_int) {
    // SAFETY: SAFETY.md F15: the call only ends the process.
    unsafe { libc::syscall(libc::SYS_exit_group, status) };
}

/// Runs a program that [ends at its first system call](end_at_first_system_call).
///
/// Returns the number of that call (`man 2 syscalls`). Numbers above 252 are not reported exactly.
/// Returns `None` if the program made no call.
///
/// # Panics
/// Panics if the program cannot be run, or if the kernel refuses the filter.
#[expect(clippy::expect_used, reason = "a failing helper fails its test")]
pub fn first_system_call(program: &mut Command) -> Option<c_int> {
    let status = program.status().expect("the program runs");
    let code = status.code().expect("no signal ends the program");
    assert_ne!(code, NO_FILTER, "the kernel refuses filters of system calls");
    (code > 0).then(|| code - 1)
}

/// From now on, stops this thread at every system call, except those that exit from the process or
/// return from a signal handler. If the clock cannot be read without a call, that call is allowed
/// too. Returns false if the kernel refuses the filter.
fn filter() -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    let set_up = action.as_mut_ptr();
    let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = stop;
    // SAFETY: SAFETY.md F15: the field belongs to the struct that is being set up; the rest of the
    // struct is zero.
    unsafe { (*set_up).sa_sigaction = handler as libc::sighandler_t };
    // SAFETY: SAFETY.md F15: same argument as above.
    unsafe { (*set_up).sa_flags = libc::SA_SIGINFO };
    // SAFETY: SAFETY.md F15: the handler calls nothing that a signal handler must not call.
    assert_eq!(unsafe { libc::sigaction(libc::SIGSYS, set_up, ptr::null_mut()) }, 0);

    let give = |what| instruction(libc::BPF_RET | libc::BPF_K, 0, what);
    let clock =
        if has_clock_without_calls() { libc::SYS_exit_group } else { libc::SYS_clock_gettime };
    let allowed = [libc::SYS_exit_group, libc::SYS_rt_sigreturn, clock];
    let mut program = vec![load(0)];
    for (n, call) in (0_u8..).zip(allowed) {
        // If the call has this number, jumps to the last instruction, which allows the call.
        let skipped = 3 - n;
        program.push(instruction(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            skipped,
            number(call),
        ));
    }
    program.extend([give(libc::SECCOMP_RET_TRAP), give(libc::SECCOMP_RET_ALLOW)]);
    install(&mut program)
}

/// Makes the kernel behave as if it did not support this socket option. This applies to this
/// thread, and to threads and processes that it starts from now on. Setting the option then fails
/// with `ENOPROTOOPT` (`man 2 setsockopt`).
///
/// # Panics
/// Panics if the kernel refuses the filter.
pub fn refuse_socket_option(level: c_int, option: c_int) {
    refuse_if(
        libc::SYS_setsockopt,
        libc::ENOPROTOOPT,
        &[
            load(SECOND),
            expect(level.cast_unsigned(), 3),
            load(THIRD),
            expect(option.cast_unsigned(), 1),
        ],
    );
}

/// Makes the kernel behave as if it had no memory left for pages that a program allocates in
/// advance (`MADV_POPULATE_WRITE`, `man 2 madvise`). This applies to the same threads as
/// [`refuse_socket_option`].
///
/// # Panics
/// Panics if the kernel refuses the filter.
pub fn refuse_pages() {
    let advice = libc::MADV_POPULATE_WRITE.cast_unsigned();
    refuse_if(libc::SYS_madvise, libc::ENOMEM, &[load(THIRD), expect(advice, 1)]);
}

/// Makes the kernel behave as if it had no `membarrier(2)`. This applies to the same threads as
/// [`refuse_socket_option`].
///
/// # Panics
/// Panics if the kernel refuses the filter.
pub fn refuse_membarrier() {
    refuse_if(libc::SYS_membarrier, libc::ENOSYS, &[]);
}

/// The offset of the low half of a call's second argument in `struct seccomp_data`.
const SECOND: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };
/// The offset of the low half of the third argument.
const THIRD: u32 = SECOND + 8;

/// Makes a call fail with `errno`, unless one of `checks` jumps to the last instruction.
#[expect(clippy::expect_used, reason = "a failing helper fails its test")]
fn refuse_if(call: c_long, errno: c_int, checks: &[libc::sock_filter]) {
    /// The offset in `struct seccomp_data` of the call's number.
    const NUMBER: u32 = 0;
    let give = |what| instruction(libc::BPF_RET | libc::BPF_K, 0, what);
    let refusal = give(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned());
    let behind = u8::try_from(checks.len() + 1).expect("a short filter");
    let begin = [load(NUMBER), expect(number(call), behind)];
    let mut program = [&begin, checks, &[refusal, give(libc::SECCOMP_RET_ALLOW)]].concat();
    assert!(install(&mut program), "the kernel refuses filters of system calls");
}

/// Returns the instruction that loads four bytes at this offset of `struct seccomp_data`.
fn load(at: u32) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, at)
}

/// If the loaded value differs, jumps over `behind` instructions, to the one that allows the call.
fn expect(value: u32, behind: u8) -> libc::sock_filter {
    libc::sock_filter {
        jf: behind,
        ..instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, value)
    }
}

/// Applies the filter to all later calls of this thread, and of the threads and processes that it
/// starts from now on. Returns false if the kernel refuses the filter.
fn install(program: &mut [libc::sock_filter]) -> bool {
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap_or(u16::MAX),
        filter: program.as_mut_ptr(),
    };
    let (one, zero): (c_ulong, c_ulong) = (1, 0);
    // SAFETY: SAFETY.md F15: the arguments are only numbers.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) };
    let mode = libc::SECCOMP_MODE_FILTER;
    // SAFETY: SAFETY.md F15: the filter program and its instructions live during the call, which
    // only reads them.
    quiet == 0
        && unsafe { libc::prctl(libc::PR_SET_SECCOMP, c_ulong::from(mode), &raw const filter) } == 0
}

fn number(call: c_long) -> u32 {
    u32::try_from(call).unwrap_or(u32::MAX)
}

fn instruction(code: u32, jt: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: u16::try_from(code).unwrap_or(u16::MAX), jt, jf: 0, k }
}

/// Exits from the process. The exit status is the number of the call plus one, but at most 253.
extern "C" fn stop(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // The address of the call instruction precedes the number (`man 2 sigaction`, SIGSYS).
    const NUMBER: usize = 24;
    let number = info.wrapping_byte_add(NUMBER).cast::<c_int>();
    // SAFETY: SAFETY.md F15: the kernel passes this signal with its information, which is longer
    // than the bytes read.
    let call = unsafe { number.read() };
    end((call + 1).clamp(1, NO_FILTER - 1))
}

/// Returns true if the clock of this machine can be read without a system call.
fn has_clock_without_calls() -> bool {
    const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let known = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    fs::read_to_string(CLOCK).is_ok_and(|clock| known.contains(&clock.trim()))
}
