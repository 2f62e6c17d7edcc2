//! Streams with time limits for reads and writes.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::PIPE_BUF;

/// A byte stream with time limits for reads and writes, for [`exchange`](crate::exchange) and
/// [`confirm`](crate::confirm).
///
/// Sockets implement this trait, by value or by reference, and so does a pair of files ([`Pipes`]). They may be
/// blocking or not, and none of their settings is changed, even temporarily. For a wrapped stream, such as a TLS
/// stream, implement the trait like this:
///
/// ```
/// use std::io::{self, Read, Write};
/// use std::net::TcpStream;
/// use std::time::Duration;
///
/// use rdma_channel::TimedStream;
///
/// struct Wrapped {
///     socket: TcpStream,
/// }
/// # impl Read for Wrapped {
/// #     fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> { self.socket.read(buf) }
/// # }
/// # impl Write for Wrapped {
/// #     fn write(&mut self, bytes: &[u8]) -> io::Result<usize> { self.socket.write(bytes) }
/// #     fn flush(&mut self) -> io::Result<()> { Ok(()) }
/// # }
///
/// impl TimedStream for Wrapped {
///     fn read_within(&mut self, buf: &mut [u8], time: Duration) -> io::Result<usize> {
///         // A timeout of a socket must not be zero.
///         self.socket.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
///         self.read(buf)
///     }
///
///     fn write_within(&mut self, bytes: &[u8], time: Duration) -> io::Result<usize> {
///         self.socket.set_write_timeout(Some(time.max(Duration::from_millis(1))))?;
///         let count = self.write(bytes)?;
///         self.flush()?;
///         Ok(count)
///     }
/// }
/// # let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let there = TcpStream::connect(listener.local_addr()?)?;
/// # let here = Wrapped { socket: listener.accept()?.0 };
/// # let peer = std::thread::spawn(move || rdma_channel::confirm(there, Duration::from_secs(10)));
/// # rdma_channel::confirm(here, Duration::from_secs(10))?;
/// # peer.join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub trait TimedStream {
    /// Reads available bytes, like [`Read::read`](io::Read::read). 0 bytes mean the end of the stream.
    ///
    /// # Errors
    /// An error of kind [`TimedOut`](io::ErrorKind::TimedOut) or [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing
    /// arrives within this time. Even with a time of zero, available bytes are read.
    fn read_within(&mut self, buf: &mut [u8], time: Duration) -> io::Result<usize>;

    /// Sends as many bytes as the stream accepts, like [`Write::write`](io::Write::write). Does not buffer any of them.
    ///
    /// # Errors
    /// An error of kind [`TimedOut`](io::ErrorKind::TimedOut) or [`WouldBlock`](io::ErrorKind::WouldBlock) if nothing
    /// can be sent within this time.
    fn write_within(&mut self, bytes: &[u8], time: Duration) -> io::Result<usize>;
}

impl<S: TimedStream + ?Sized> TimedStream for &mut S {
    fn read_within(&mut self, buf: &mut [u8], time: Duration) -> io::Result<usize> {
        (**self).read_within(buf, time)
    }

    fn write_within(&mut self, bytes: &[u8], time: Duration) -> io::Result<usize> {
        (**self).write_within(bytes, time)
    }
}

/// Implements the trait only for sockets, not for every type that has a file descriptor. An encrypting stream may have
/// one, too, and its encryption must not be bypassed.
macro_rules! sockets {
    ($($socket:ty),+) => { $(
        impl TimedStream for $socket {
            fn read_within(&mut self, buf: &mut [u8], time: Duration) -> io::Result<usize> {
                read(self.as_fd(), buf, time)
            }

            fn write_within(&mut self, bytes: &[u8], time: Duration) -> io::Result<usize> {
                write(self.as_fd(), bytes, time)
            }
        }
    )+ };
}

sockets!(TcpStream, &TcpStream, UnixStream, &UnixStream);

/// A stream made of two files, one for each direction, such as the pipes to a child process or to the parent.
///
/// Any pollable file works, by value or by reference. Examples are the `ChildStdout` and `ChildStdin` of a
/// [`Child`](std::process::Child), the standard input and output of this process, pipes, FIFOs, terminals, and other
/// kinds of sockets. Buffers within this process are bypassed, so flush the output first, and do not read input that
/// belongs to the exchange. No other thread or process may use the files during the exchange. It could fill a pipe that
/// was just reported writable, and then the write here would block.
///
/// # Examples
/// ```
/// use std::io;
/// use std::thread;
/// use std::time::Duration;
///
/// use rdma_channel::{Pipes, exchange};
/// use rdma_qp::{Qpn, QueuePairEndpoint};
/// use rdma_types::Psn;
///
/// let endpoint = |qpn| QueuePairEndpoint::new(Qpn::masked(qpn), Psn::masked(7));
/// let (from_child, to_parent) = io::pipe()?;
/// let (from_parent, to_child) = io::pipe()?;
/// let child = thread::spawn(move || {
///     let parent = Pipes::new(from_parent, to_parent);
///     exchange(parent, &endpoint(0x200), Duration::from_secs(10))
/// });
/// let peer = exchange(Pipes::new(&from_child, &to_child), &endpoint(0x100), Duration::from_secs(10))?;
/// assert_eq!(peer, endpoint(0x200));
/// assert_eq!(child.join().unwrap()?, endpoint(0x100));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Pipes<R, W> {
    reader: R,
    writer: W,
}

impl<R: AsFd, W: AsFd> Pipes<R, W> {
    /// Creates a stream that reads from `reader` and writes to `writer`.
    pub const fn new(reader: R, writer: W) -> Self {
        Self { reader, writer }
    }
}

impl<R: AsFd, W: AsFd> TimedStream for Pipes<R, W> {
    fn read_within(&mut self, buf: &mut [u8], time: Duration) -> io::Result<usize> {
        read(self.reader.as_fd(), buf, time)
    }

    fn write_within(&mut self, bytes: &[u8], time: Duration) -> io::Result<usize> {
        write(self.writer.as_fd(), bytes, time)
    }
}

/// Waits for bytes, and reads what is available.
fn read(file: BorrowedFd<'_>, buf: &mut [u8], time: Duration) -> io::Result<usize> {
    when(file, PollFlags::IN, time, || match recv(file, &mut *buf, RecvFlags::DONTWAIT) {
        Err(Errno::NOTSOCK) => rustix::io::read(file, &mut *buf),
        outcome => outcome.map(|(count, _)| count),
    })
}

/// Waits for space, and writes as many bytes as fit.
fn write(file: BorrowedFd<'_>, bytes: &[u8], time: Duration) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    when(file, PollFlags::OUT, time, || match send(file, bytes, flags) {
        // A writable pipe has space for at least `PIPE_BUF` bytes. A larger write could block.
        Err(Errno::NOTSOCK) => rustix::io::write(file, bytes.get(..PIPE_BUF).unwrap_or(bytes)),
        outcome => outcome,
    })
}

fn when(
    file: BorrowedFd<'_>,
    ready: PollFlags,
    time: Duration,
    mut step: impl FnMut() -> rustix::io::Result<usize>,
) -> io::Result<usize> {
    let begin = Instant::now();
    loop {
        let left = time.saturating_sub(begin.elapsed());
        let timeout = Timespec::try_from(left).ok(); // unlimited if not representable
        let mut files = [PollFd::from_borrowed_fd(file, ready)];
        let outcome = match poll(&mut files, timeout.as_ref()) {
            Ok(0) => Err(Errno::TIMEDOUT),
            Ok(_) => step(),
            Err(error) => Err(error),
        };
        match outcome {
            // Another reader or writer was faster, or a signal arrived.
            Err(Errno::AGAIN | Errno::INTR) if !left.is_zero() => {}
            outcome => return Ok(outcome?),
        }
    }
}
