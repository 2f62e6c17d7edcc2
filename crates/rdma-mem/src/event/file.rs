//! Files that become readable when a provider has events.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::time::{Duration, Instant};

use rdma_sys::Errno;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::error::verb::VerbError;

/// The file of a provider's object, made non-blocking. It is readable while the object has events.
///
/// [`AsyncEvents`](crate::AsyncEvents) and the completion channels of `rdma-qp` use it; programs do
/// not need it. It does not own the file.
#[derive(Debug)]
pub struct EventFile(BorrowedFd<'static>);

impl EventFile {
    /// Makes an object's file non-blocking. Otherwise, if several threads woke up for one event,
    /// the threads that did not get the event would block.
    ///
    /// # Errors
    /// Returns an error if the kernel refuses.
    ///
    /// # Safety
    /// The file stays open while the `EventFile` exists.
    pub unsafe fn new(fd: RawFd) -> Result<Self, VerbError> {
        // SAFETY: SAFETY.md F15: by this function's contract, the file stays open while `self`,
        // which holds the borrow, exists.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = fcntl_getfl(file).map_err(failed("fcntl"))?;
        fcntl_setfl(file, flags | OFlags::NONBLOCK).map_err(failed("fcntl"))?;
        Ok(Self(file))
    }

    /// Calls `take` until it returns a value, and sleeps between calls until the file is readable.
    /// Returns `None` after `timeout`. If `timeout` is `None`, waits without a limit.
    ///
    /// # Errors
    /// Returns the error of `take`, or of `poll` if the device was removed.
    pub fn wait<T, E: From<VerbError>>(
        &self,
        timeout: Option<Duration>,
        take: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        self.wait_with(None, timeout, take)
    }

    /// Like [`wait`](Self::wait), but also wakes up when `other` is readable.
    pub(crate) fn wait_with<T, E: From<VerbError>>(
        &self,
        other: Option<BorrowedFd<'_>>,
        timeout: Option<Duration>,
        mut take: impl FnMut() -> Result<Option<T>, E>,
    ) -> Result<Option<T>, E> {
        if let Some(event) = take()? {
            return Ok(Some(event));
        }
        // A deadline that cannot be represented is never reached.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        while self.sleep(other, deadline)? {
            if let Some(event) = take()? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// Waits until this file or `other` is readable, or until the deadline. Returns true if one of
    /// the files is readable.
    fn sleep(
        &self,
        other: Option<BorrowedFd<'_>>,
        deadline: Option<Instant>,
    ) -> Result<bool, VerbError> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            let mut files = [self.0, other.unwrap_or(self.0)]
                .map(|file| PollFd::from_borrowed_fd(file, PollFlags::IN));
            let files = &mut files[..1 + usize::from(other.is_some())];
            match poll(files, left.as_ref()) {
                Ok(0) => return Ok(false),
                Ok(_) if files.iter().any(|file| file.revents().contains(PollFlags::IN)) => {
                    return Ok(true);
                }
                Ok(_) => return Err(VerbError::new("poll", Errno::EIO)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(failed("poll")(error)),
            }
        }
    }
}

impl AsFd for EventFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
    }
}

/// Returns a function that creates a system call's error.
pub(crate) fn failed(call: &'static str) -> impl Fn(rustix::io::Errno) -> VerbError {
    move |error| VerbError::new(call, Errno::from_raw(error.raw_os_error()))
}

#[cfg(all(test, not(miri)))] // Miri does not support ppoll
mod tests {
    use std::io::{ErrorKind, PipeReader, Read, Write, pipe};
    use std::os::fd::AsRawFd;

    use super::*;

    fn take(mut reader: &PipeReader) -> Result<Option<u8>, VerbError> {
        let mut byte = [0];
        match reader.read(&mut byte) {
            Ok(_) => Ok(Some(byte[0])),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(_) => Err(VerbError::new("read", Errno::EIO)),
        }
    }

    #[test]
    fn waiting_ends_with_an_event_or_at_the_deadline() {
        let (reader, mut writer) = pipe().unwrap();
        // SAFETY: SAFETY.md F15: the reader is dropped after the file.
        let file = unsafe { EventFile::new(reader.as_raw_fd()) }.unwrap();
        for short in [Duration::ZERO, Duration::from_millis(3)] {
            let begin = Instant::now();
            assert_eq!(file.wait(Some(short), || take(&reader)), Ok(None));
            assert!(begin.elapsed() >= short);
        }
        std::thread::scope(|threads| {
            let waiter = threads.spawn(|| file.wait(Some(Duration::MAX), || take(&reader)));
            writer.write_all(&[7]).unwrap();
            assert_eq!(waiter.join().unwrap(), Ok(Some(7)));
        });
    }

    #[test]
    fn each_of_two_waiters_gets_one_event() {
        let (reader, mut writer) = pipe().unwrap();
        // SAFETY: SAFETY.md F15: the reader is dropped after the file.
        let file = unsafe { EventFile::new(reader.as_raw_fd()) }.unwrap();
        std::thread::scope(|threads| {
            let waiter = || file.wait(None, || take(&reader));
            let waiters = [threads.spawn(waiter), threads.spawn(waiter)];
            for n in [1, 2] {
                writer.write_all(&[n]).unwrap();
            }
            let mut taken = waiters.map(|waiter| waiter.join().unwrap().unwrap());
            taken.sort_unstable();
            assert_eq!(taken, [Some(1), Some(2)]);
        });
    }

    #[test]
    fn a_device_that_went_away_is_an_error() {
        let (reader, writer) = pipe().unwrap();
        // SAFETY: SAFETY.md F15: the reader is dropped after the file.
        let file = unsafe { EventFile::new(reader.as_raw_fd()) }.unwrap();
        drop(writer);
        let gone = file.wait(None, || Ok::<Option<()>, VerbError>(None));
        assert_eq!(gone, Err(VerbError::new("poll", Errno::EIO)));
    }
}
