//! The device's own threads, which take nothing over from the thread that happens to start them.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// What a thread of the device needs, in bytes, that calls nothing of the program's.
pub(crate) const STACK: usize = 256 << 10;

/// What a thread of the program gets.
pub(crate) const STACK_OF_PROGRAM: usize = 2 << 20;

/// Starts a thread that takes no signal, and asks for every processor and the usual policy.
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

/// The signals of the calling thread, which a new thread inherits.
struct Mask(libc::sigset_t);

impl Mask {
    /// Blocks all; what was blocked before is kept.
    fn all_blocked() -> Self {
        let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: fills the set that it is given (sigfillset(3), SAFETY.md F15).
        unsafe { libc::sigfillset(all.as_mut_ptr()) };
        // SAFETY: reads the one, which was filled, and fills the other: the call fails for no other reason
        // than a first argument that it does not know (pthread_sigmask(3), SAFETY.md F15).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr()) };
        // SAFETY: filled by the call above (SAFETY.md F15).
        Self(unsafe { before.assume_init() })
    }

    fn restore(&mut self) {
        // SAFETY: reads the set, which the kernel gave (pthread_sigmask(3), SAFETY.md F15).
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, ptr::null_mut()) };
    }
}

/// A thread that was started from one which is bound to a processor, or runs before all others, is neither. What
/// the kernel refuses changes nothing: a thread of the policy `SCHED_IDLE` may not leave it without a right of its
/// own. The nice value stays as it is.
fn usual_scheduling() {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: reads the parameters (sched_setscheduler(2), SAFETY.md F15).
    unsafe { libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const parameters) };
    // More processors than there are: the kernel takes those that it has and the process may use.
    let all = [u64::MAX; 128];
    // SAFETY: reads so many bytes of the array (sched_setaffinity(2), SAFETY.md F15).
    unsafe { libc::sched_setaffinity(0, size_of_val(&all), all.as_ptr().cast()) };
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// What `/proc` says of the thread that asks, line by line (proc_pid_status(5)).
    fn status(line: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        let line = status.lines().find_map(|found| found.strip_prefix(line));
        line.unwrap_or_default().trim().to_owned()
    }

    /// The policy of the thread that asks.
    fn policy() -> libc::c_int {
        // SAFETY: takes two integers, of which 0 is the calling thread (sched_getscheduler(2)).
        unsafe { libc::sched_getscheduler(0) }
    }

    /// Whether the thread that asks has taken this policy.
    fn takes(policy: libc::c_int) -> bool {
        let parameters = libc::sched_param { sched_priority: 0 };
        // SAFETY: reads the parameters (sched_setscheduler(2)).
        unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
    }

    /// What `run` says on a thread of its own.
    fn elsewhere<T: Send + 'static>(
        run: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::Result<T> {
        std::thread::spawn(run).join()
    }

    /// It has the usual policy, but where the kernel lets nobody leave that of its caller.
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
        // All that a thread of this process can have, also if the process was started on some of them.
        let processors = elsewhere(|| {
            let all = [u64::MAX; 128];
            // SAFETY: reads the array, of that size (sched_setaffinity(2), SAFETY.md F15).
            unsafe { libc::sched_setaffinity(0, size_of_val(&all), all.as_ptr().cast()) };
            status("Cpus_allowed:")
        })
        .unwrap();
        let before = status("SigBlk:");
        elsewhere(move || {
            // Bound to the first processor that it may use.
            let mut first = [0u64; 128];
            let size = size_of_val(&first);
            // SAFETY: fills the array, of that size (sched_getaffinity(2), SAFETY.md F15).
            unsafe { libc::sched_getaffinity(0, size, first.as_mut_ptr().cast()) };
            let word = first.iter().position(|&word| word != 0).unwrap();
            let bit = first[word] & first[word].wrapping_neg();
            first.fill(0);
            first[word] = bit;
            // SAFETY: reads the array, of that size (sched_setaffinity(2), SAFETY.md F15).
            unsafe { libc::sched_setaffinity(0, size, first.as_ptr().cast()) };
            // A policy that every thread may take.
            takes(libc::SCHED_BATCH);
            assert!(policy() == libc::SCHED_BATCH || test_support::program::is_emulated());
            spawn("test", STACK, move || {
                let said = ["SigBlk:", "Cpus_allowed:", "Name:"].map(status);
                sender.send((said, policy())).unwrap();
            })
            .unwrap();
            assert_eq!(status("SigBlk:"), before, "the caller's mask has changed");
        })
        .unwrap();
        let ([blocked, allowed, name], policy) = receiver.recv().unwrap();
        assert_eq!(policy, libc::SCHED_OTHER);
        let blocked = u64::from_str_radix(&blocked, 16).unwrap();
        // The kernel lets nobody block SIGKILL and SIGSTOP; and the C library, memcheck and emulators keep
        // signals for themselves: real-time ones, and an emulator those of bad memory.
        let mut free = 1 << (libc::SIGKILL - 1) | 1 << (libc::SIGSTOP - 1) | !0 << 31;
        if test_support::program::is_emulated() {
            free |= 1 << (libc::SIGSEGV - 1) | 1 << (libc::SIGBUS - 1);
        }
        assert_eq!(blocked | free, u64::MAX, "{blocked:x}");
        assert_eq!((allowed, name.as_str()), (processors, "test"));
    }
}
