//! The two sides of a transfer, from connecting them to their end.

use std::io::{Read, Write};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use super::connect::connect;
use super::message::Trailer;
use super::stop::Stop;
use super::{Error, Settings};

/// The caller's hooks into a running transfer. The functions are called on the receiver's thread.
#[derive(Clone, Copy)]
pub struct Control<'a> {
    /// Called after each chunk, with the number of bytes of the stream written so far.
    pub progress: &'a (dyn Fn(u64) + Sync),
    /// Called before each chunk is checked and written, with its offset in the stream and its bytes. A test damages
    /// them here.
    pub arrival: &'a (dyn Fn(u64, &mut [u8]) + Sync),
    /// Set it, from anywhere, to end the transfer with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
    /// The limit of every wait, for a message of the other side or a request of its own, before a side ends with
    /// [`Error::Stalled`]. The default is two minutes: the other side's disk may be slow.
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

/// A transfer that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// The length of the stream.
    pub bytes: u64,
    /// Its CRC-32 of IEEE 802.3, which both sides computed.
    pub crc32: u32,
    /// The total number of bytes that each side registered.
    pub registered_bytes: usize,
    /// The duration after the sides were connected.
    pub time: Duration,
}

/// Sends everything from `source` to `sink`, through two connected channels of a device.
///
/// The sender runs on this thread, the receiver on a new one.
///
/// # Errors
/// The error of the side that failed first. `sink` has then received a part of the stream, or all of it if the checksum
/// was wrong.
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
