//! The two sides of a transfer, from the connection to the end of both.

use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::connect::connect;
use super::message::Trailer;
use super::stop::Stop;
use super::{Error, Settings};

/// The caller's means to follow and control a transfer. The functions are called on the receiver's
/// thread.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Called after each chunk, with the number of bytes that have been written so far.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Called before each chunk is checked and written, with the chunk's offset in the stream and
    /// its bytes. Tests use it to damage the bytes.
    pub arrival: &'a (dyn Fn(u64, &mut [u8]) + Sync),
    /// If another thread sets this flag, the transfer ends with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
    /// The time that a side waits for a message from the other side, or for one of its own
    /// requests, before it fails with [`Error::Stalled`]. The default is two minutes, because the
    /// other side's disk may be slow.
    pub patience: Duration,
}

impl Default for Control<'_> {
    fn default() -> Self {
        static NEVER: AtomicBool = AtomicBool::new(false);
        let patience = Duration::from_secs(120);
        Self { progress: &|_| {}, arrival: &|_, _| {}, cancelled: &NEVER, patience }
    }
}

impl std::fmt::Debug for Control<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

/// The result of a successful transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// The length of the stream, in bytes.
    pub bytes: u64,
    /// The CRC-32 of the stream (IEEE 802.3), which both sides have computed.
    pub crc32: u32,
    /// The total number of bytes that each side registered.
    pub registered_bytes: usize,
    /// The duration of the transfer, from when the sides were connected.
    pub time: Duration,
}

/// Sends everything that `source` returns to `sink`, over a connection between two channels of this
/// device.
///
/// The sender runs on the calling thread, and the receiver on a new one.
///
/// # Errors
/// Returns the error of the side that failed first. In that case, `sink` has received a part of the
/// stream, or all of it if the checksum did not match.
///
/// # Examples
/// ```
/// use copy_file::{Control, Settings, transfer};
///
/// rdma::soft::install();
/// let mut sink = Vec::new();
/// let settings = Settings::new(64, 2)?;
/// let done = transfer("softib0", &mut &[7; 1000][..], &mut sink, settings, Control::default())?;
/// assert_eq!((done.registered_bytes, sink), (128, vec![7; 1000]));
/// # Ok::<(), copy_file::Error>(())
/// ```
pub fn transfer(
    device: &str,
    source: &mut dyn Read,
    sink: &mut (dyn Write + Send),
    settings: Settings,
    control: Control<'_>,
) -> Result<Transferred, Error> {
    let (mut sender, mut receiver) = connect(device, settings)?;
    let registered_bytes = sender.registered_bytes().max(receiver.registered_bytes());
    let stop = Stop::new(control.cancelled, control.patience);
    let started = Instant::now();
    let sent = thread::scope(|threads| {
        threads.spawn(|| receiver.run(sink, control, &stop));
        sender.run(source, &stop)
    });
    stop.into_result()?;
    let Trailer { bytes, crc32 } = sent?;
    Ok(Transferred { bytes, crc32, registered_bytes, time: started.elapsed() })
}
