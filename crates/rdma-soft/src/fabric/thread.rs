//! The device's own threads, which inherit no settings from the thread that starts them.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The stack size in bytes of a device thread that calls no code of the program.
pub(crate) const STACK: usize = 256 << 10;

/// The stack size in bytes of a device thread that calls code of the program.
pub(crate) const STACK_OF_PROGRAM: usize = 2 << 20;

/// Starts a thread that blocks all signals, may run on every processor, and has the default scheduling policy.
pub(crate) fn spawn(
    name: &str,
    stack: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<()> {
    let mut mask = Mask::all_blocked();
    let run = move || {
        usual_scheduling();
        run();
    };
    #[expect(clippy::disallowed_methods, reason = "this is where threads are made")]
    let spawned = std::thread::Builder::new().name(name.into()).stack_size(stack).spawn(run);
    mask.restore();
    spawned.map(drop)
}

/// The signal mask of the calling thread, which a new thread inherits.
struct Mask(libc::sigset_t);

impl Mask {
    /// Blocks all signals, and returns the previous mask.
    fn all_blocked() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: the call fills the set that it is passed (sigfillset(3), SAFETY.md F15).
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: the call reads the first set, which was filled, and fills the second. It fails only if its first
        // argument is unknown (pthread_sigmask(3), SAFETY.md F15).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: the call above filled the set (SAFETY.md F15).
        Self(unsafe { before.assume_init() })
    }

    fn restore(&mut self) {
        // SAFETY: the call reads the set, which the kernel returned (pthread_sigmask(3), SAFETY.md F15).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// Undoes the scheduling that the thread has inherited: a processor affinity, or a real-time policy. Errors are
/// ignored: for example, leaving the policy `SCHED_IDLE` needs a privilege. The nice value is kept.
fn usual_scheduling() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the call reads the parameters (sched_setscheduler(2), SAFETY.md F15).
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
    // These are more processors than exist. The kernel selects the ones that exist and that the process may use.
    let all = [u64::MAX; 128];
    // SAFETY: the call reads that many bytes of the array (sched_setaffinity(2), SAFETY.md F15).
    unsafe { libc::sched_setaffinity(0, size_of_val(&all), all.as_ptr().cast()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Returns a line of the status of the calling thread (proc_pid_status(5)).
    fn status(line: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let line = status.lines().find_map(|found| found.strip_prefix(line));
        line.unwrap_or_default().trim().to_owned()
    }

    /// Returns the policy of the calling thread.
    fn policy() -> libc::c_int {
        // SAFETY: the call takes an integer; 0 means the calling thread (sched_getscheduler(2)).
        unsafe { libc::sched_getscheduler(0) }
    }

    /// Sets the policy of the calling thread. Returns true if the kernel accepted it.
    fn takes(policy: libc::c_int) -> bool {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: the call reads the parameters (sched_setscheduler(2)).
        unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
    }

    /// Returns the result of `run` on a new thread.
    fn elsewhere<T: Send + 'static>(
        run: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::Result<T> {
        std::thread::spawn(run).join()
    }

    /// The new thread has the default policy if the kernel lets threads leave the idle policy.
    #[test]
    fn a_thread_of_the_idle_policy_starts_one_that_leaves_it_if_it_may() {
        let (sender, receiver) = mpsc::channel();
        let may_leave = elsewhere(move || {
            assert!(takes(libc::SCHED_IDLE));
            spawn("test", STACK, move || sender.send(policy()).unwrap()).unwrap();
            takes(libc::SCHED_OTHER)
        })
        .unwrap();
        let usual = may_leave || test_support::program::is_emulated();
        let expected = if usual { libc::SCHED_OTHER } else { libc::SCHED_IDLE };
        assert_eq!(receiver.recv().unwrap(), expected);
    }

    #[test]
    fn no_signal_processor_or_policy_of_the_thread_that_starts_it_is_inherited() {
        let (sender, receiver) = mpsc::channel();
        // All processors that a thread of this process can use, even if the process was started with fewer.
        let processors = elsewhere(|| {
            let all = [u64::MAX; 128];
            // SAFETY: the call reads the array, which has this size (sched_setaffinity(2), SAFETY.md F15).
            unsafe { libc::sched_setaffinity(0, size_of_val(&all), all.as_ptr().cast()) };
            status("Cpus_allowed:")
        })
        .unwrap();
        let before = status("SigBlk:");
        elsewhere(move || {
            // This thread is bound to the first processor that it may use.
            let mut first = [0u64; 128];
            let size = size_of_val(&first);
            // SAFETY: the call fills the array, which has this size (sched_getaffinity(2), SAFETY.md F15).
            unsafe { libc::sched_getaffinity(0, size, first.as_mut_ptr().cast()) };
            let word = first.iter().position(|&word| word != 0).unwrap();
            let bit = first[word] & first[word].wrapping_neg();
            first.fill(0);
            first[word] = bit;
            // SAFETY: the call reads the array, which has this size (sched_setaffinity(2), SAFETY.md F15).
            unsafe { libc::sched_setaffinity(0, size, first.as_ptr().cast()) };
            // A policy that every thread may set.
            takes(libc::SCHED_BATCH);
            assert!(policy() == libc::SCHED_BATCH || test_support::program::is_emulated());
            spawn("test", STACK, move || {
                let inherited = ["SigBlk:", "Cpus_allowed:", "Name:"].map(status);
                sender.send((inherited, policy())).unwrap();
            })
            .unwrap();
            assert_eq!(status("SigBlk:"), before, "the caller's mask has changed");
        })
        .unwrap();
        let ([blocked, allowed, name], policy) = receiver.recv().unwrap();
        assert_eq!(policy, libc::SCHED_OTHER);
        let blocked = u64::from_str_radix(&blocked, 16).unwrap();
        // SIGKILL and SIGSTOP cannot be blocked. The C library, memcheck and emulators reserve real-time signals for
        // themselves. Emulators also reserve the signals of invalid memory accesses.
        let mut free = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1) | !0 << 31;
        if test_support::program::is_emulated() {
            free |= 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);
        }
        assert_eq!(blocked | free, u64::MAX, "{blocked:x}");
        assert_eq!((allowed, name.as_str()), (processors, "test"));
    }
}
