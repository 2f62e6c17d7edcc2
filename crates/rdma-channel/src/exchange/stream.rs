//! Streams whose reads and writes end in time.

use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::PIPE_BUF;

/// A stream of bytes whose reads and writes end in time, for [`exchange`](crate::exchange) and
/// [`confirm`](crate::confirm).
///
/// Sockets are such streams, by value or by reference, and two [`Pipes`]. They may be blocking or not;
/// nothing about them is changed, not even for a while. Of what wraps a stream, such as one with TLS, make
/// one like this:
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
///         // A socket takes no zero.
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
    /// Reads what there is, as [`Read::read`](io::Read::read) does, 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// Of kind [`TimedOut`](io::ErrorKind::TimedOut) or [`WouldBlock`](io::ErrorKind::WouldBlock) if
    /// nothing came in this time. With no time left, what is there already is still read.
    fn read_within(&mut self, buf: &mut [u8], time: Duration) -> io::Result<usize>;

    /// Sends as much as the stream takes, as [`Write::write`](io::Write::write) does, and holds nothing of
    /// it back.
    ///
    /// # Errors
    /// Of kind [`TimedOut`](io::ErrorKind::TimedOut) or [`WouldBlock`](io::ErrorKind::WouldBlock) if
    /// nothing could be sent in this time.
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

/// Not for all that is a file: what encrypts may be one, too.
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

/// A stream of two files, one for each direction: pipes to a child process, or from the parent.
///
/// Anything that is a file of the kernel and can be waited for will do: the `ChildStdout` and
/// `ChildStdin` of a [`Child`](std::process::Child), the standard input and output of this process,
/// pipes, FIFOs, terminals, sockets of other kinds; by value or by reference. What this process
/// keeps in buffers of its own is passed by: flush the output before, and read nothing of the input
/// that belongs to the exchange. Nobody else may use them meanwhile, else a pipe that has space for
/// a write may have none any more, and block.
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
    /// A stream that comes from `reader` and goes to `writer`.
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

/// Reads what there is as soon as there is something.
fn read(file: BorrowedFd<'_>, buf: &mut [u8], time: Duration) -> io::Result<usize> {
    when(file, PollFlags::IN, time, || match recv(file, &mut *buf, RecvFlags::DONTWAIT) {
        Err(Errno::NOTSOCK) => rustix::io::read(file, &mut *buf),
        outcome => outcome.map(|(count, _)| count),
    })
}

/// Writes what there is space for as soon as there is some.
fn write(file: BorrowedFd<'_>, bytes: &[u8], time: Duration) -> io::Result<usize> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    when(file, PollFlags::OUT, time, || match send(file, bytes, flags) {
        // A pipe that says that it has space has space for so much; more would block.
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
        let timeout = Timespec::try_from(left).ok(); // a time that cannot be expressed is no limit
        let mut files = [PollFd::from_borrowed_fd(file, ready)];
        let outcome = match poll(&mut files, timeout.as_ref()) {
            Ok(0) => Err(Errno::TIMEDOUT),
            Ok(_) => step(),
            Err(error) => Err(error),
        };
        match outcome {
            // Somebody else was faster, or a signal came.
            Err(Errno::AGAIN | Errno::INTR) if !left.is_zero() => {}
            outcome => return Ok(outcome?),
        }
    }
}
