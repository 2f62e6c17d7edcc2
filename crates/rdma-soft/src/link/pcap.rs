//! Captures: the packets that a device sends and receives, in a file for Wireshark.
//!
//! A packet is buffered in memory where it is sent or received, under its queue pair's locks. The call that did this
//! writes all buffered packets before it returns, after it has released its locks (`fabric/run_queue.rs`). If a program
//! is killed, its file therefore contains only whole packets.

mod format;

use std::ffi::OsString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::mem;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use rdma_proto::Burst;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use self::format::{Direction, Interface, put_interface, put_packet, put_section};
use crate::address::Path;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::fabric::Fabric;
use crate::fabric::emitters::emit_one;
use crate::fabric::run_queue::Settle;
use crate::link::{Link, frame};
#[cfg(not(all(test, loom)))]
use crate::sync::assert_nothing_held;
use crate::sync::{locked, locked_to_wait};

/// The number of bytes of buffer memory that an idle capture keeps.
const KEPT: usize = 1 << 20;

/// The captures of the process. Each file is written by only one of them.
static CAPTURES: Mutex<Vec<Weak<Capture>>> = Mutex::new(Vec::new());

/// The connection between a device and its capture.
#[derive(Debug)]
pub(crate) struct Tap {
    fabric: &'static Fabric,
    capture: Arc<Capture>,
    /// The device's number in the file.
    interface: Interface,
}

impl Tap {
    /// Starts the file, or joins the capture if other devices of this process write to the same file. `%p` in its name
    /// is replaced by the process ID.
    pub(crate) fn new(
        fabric: &'static Fabric,
        name: &str,
        link: Link,
        path: &FilePath,
    ) -> Result<Arc<Self>> {
        let capture = Capture::open(&with_process(path))?;
        let interface = capture.add_interface(name, link);
        if let Err(error) = capture.flush() {
            capture.remove_tap();
            return Err(error);
        }
        fabric.run_queue.reserve();
        Ok(Arc::new(Self { fabric, capture, interface }))
    }

    /// Ends the tap, because its device no longer sends or receives packets.
    pub(crate) fn end(&self) {
        self.capture.remove_tap();
    }

    /// Adds packets that the device sends. Callers may hold any locks except the fabric's.
    pub(crate) fn sent(
        &self,
        path: &Path,
        burst: &Burst,
        datagram: Option<&Datagram>,
        payload: &[u8],
    ) {
        self.add(Direction::Out, path, burst, datagram, payload);
    }

    /// Adds packets that have arrived at the device. `sender` is the tap of the device that sent them; if that tap
    /// writes to the same file, the packets are already there.
    pub(crate) fn received(&self, sender: Option<&Arc<Self>>, letter: &Letter) {
        if sender.is_none_or(|sender| !Arc::ptr_eq(&sender.capture, &self.capture)) {
            let Letter { path, burst, datagram, .. } = letter;
            self.add(Direction::In, path, burst, datagram.as_ref(), letter.payload());
        }
    }

    fn add(
        &self,
        direction: Direction,
        path: &Path,
        burst: &Burst,
        datagram: Option<&Datagram>,
        payload: &[u8],
    ) {
        if self.capture.stopped.load(Ordering::Relaxed) {
            return;
        }
        let pending = &mut *locked(&self.capture.pending);
        // Read under the lock, so that times stay in order.
        let time = self.fabric.clock.wallclock(self.fabric.clock.now());
        let payload = payload.get(..burst.length as usize).unwrap_or(payload);
        for (headers, payload) in burst.packets(payload) {
            let begin = pending.blocks.len();
            let put = put_packet(&self.interface, direction, time, &mut pending.blocks, |out| {
                frame::write(path, datagram, &headers, payload, out)
            });
            if put.is_err() {
                pending.blocks.truncate(begin);
            }
        }
        if !pending.queued_in.iter().any(|queued_in| std::ptr::eq(*queued_in, self.fabric)) {
            pending.queued_in.push(self.fabric);
            self.fabric.run_queue.add_unsettled(Arc::clone(&self.capture) as Arc<dyn Settle>);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.fabric.run_queue.unreserve();
    }
}

/// A file to which taps write.
#[derive(Debug)]
struct Capture {
    /// The identity of the file: its file system number and inode number.
    file: (u64, u64),
    /// The process that started the file. A forked child writes nothing.
    process: u32,
    pending: Mutex<Pending>,
    /// Locked while the file is written. The thread that writes holds no engine locks.
    output: Mutex<Output>,
    /// Whether writing has stopped.
    stopped: AtomicBool,
    /// The number of taps that write to the file or are being created. It changes only under the lock on the captures.
    taps: AtomicU32,
}

/// Data that has not been written to the file yet.
#[derive(Debug, Default)]
struct Pending {
    blocks: Vec<u8>,
    /// The number of devices recorded in the file.
    interfaces: u32,
    /// The fabrics whose run queues contain this capture, because their devices have added pending data. Each fabric
    /// settles separately.
    queued_in: Vec<&'static Fabric>,
}

#[derive(Debug)]
struct Output {
    /// The file, until the last tap ends.
    file: Option<File>,
    /// The number of bytes of whole blocks written so far.
    length: u64,
    spare: Vec<u8>,
}

impl Capture {
    fn open(path: &FilePath) -> Result<Arc<Self>> {
        let mut captures = locked_to_wait(&CAPTURES);
        captures.retain(|capture| capture.strong_count() > 0);
        let mut options = File::options();
        // Only the owner may read the file, because it contains messages. Opening and writing never wait for a reader.
        // Data is always appended, even if others have shortened the file.
        options.append(true).create(true).mode(0o600);
        let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = file.map_err(|error| match Errno::from_io_error(&error) {
            // The path is a pipe without a reader, or a socket.
            Some(Errno::NXIO) => no_file(),
            _ => error,
        })?;
        let found = file.metadata()?;
        let place = (found.dev(), found.ino());
        let known = captures.iter().filter_map(Weak::upgrade).find(|it| it.file == place);
        let is_ours = |capture: &Arc<Self>| {
            capture.process == std::process::id() && capture.taps.load(Ordering::Relaxed) > 0
        };
        if let Some(capture) = known.filter(is_ours) {
            capture.taps.fetch_add(1, Ordering::Relaxed);
            return Ok(capture);
        }
        if found.is_file() {
            if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
                let reason = "another process writes to it: put `%p` into the name, so that each process has its own file";
                return Err(Error::new(ErrorKind::WouldBlock, reason));
            }
            file.set_len(0)?;
        } else if !found.file_type().is_char_device() {
            return Err(no_file());
        }
        let capture = Arc::new(Self::of(file, place));
        put_section(&mut locked(&capture.pending).blocks);
        captures.push(Arc::downgrade(&capture));
        Ok(capture)
    }

    fn of(file: File, place: (u64, u64)) -> Self {
        Self {
            file: place,
            process: std::process::id(),
            pending: Mutex::default(),
            output: Mutex::new(Output { file: Some(file), length: 0, spare: Vec::new() }),
            stopped: AtomicBool::new(false),
            taps: AtomicU32::new(1),
        }
    }

    /// Ends a tap. The last tap closes the file. A later capture to the same path overwrites it.
    fn remove_tap(&self) {
        let mut captures = locked_to_wait(&CAPTURES);
        if self.taps.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        captures.retain(|capture| !std::ptr::eq(capture.as_ptr(), self));
        // An earlier failure was reported when it occurred. A failure of this last write is not reported.
        let _ = self.flush();
        self.stopped.store(true, Ordering::Relaxed);
        let output = &mut *locked_to_wait(&self.output);
        (output.file, output.spare) = (None, Vec::new());
    }

    /// Adds a device to the file.
    fn add_interface(&self, name: &str, link: Link) -> Interface {
        let pending = &mut *locked(&self.pending);
        put_interface(name, link, &mut pending.blocks);
        pending.interfaces += 1;
        Interface { number: pending.interfaces - 1, link }
    }

    /// Writes the pending blocks to the file. If this fails, nothing more is ever written, and the file ends with its
    /// last whole block.
    fn flush(&self) -> Result<()> {
        let output = &mut *locked_to_wait(&self.output);
        let spare = mem::take(&mut output.spare);
        let mut blocks = mem::replace(&mut locked(&self.pending).blocks, spare);
        let ours = self.process == std::process::id() && !self.stopped.load(Ordering::Relaxed);
        let written = if ours { output.write(&blocks) } else { Ok(()) };
        if written.is_err() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        blocks.clear();
        blocks.shrink_to(KEPT);
        output.spare = blocks;
        let pending = &mut *locked(&self.pending);
        // If other threads have added blocks in the meantime, those threads will write them.
        if pending.blocks.is_empty() {
            for fabric in pending.queued_in.drain(..) {
                fabric.run_queue.remove_settled(std::ptr::from_ref(self).cast());
            }
        }
        written
    }
}

impl Settle for Capture {
    fn settle(&self) {
        #[cfg(not(all(test, loom)))]
        assert_nothing_held();
        if let Err(error) = self.flush() {
            emit_one(move || {
                tracing::warn!(%error, "the capture of a software device ends: its file cannot be written");
            });
        }
    }
}

impl Output {
    fn write(&mut self, blocks: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        // Device files have no length. A file that others have written to or shortened is no longer a valid capture.
        let found = file.metadata()?;
        if found.is_file() && found.len() != self.length {
            return Err(Error::other("another process has changed its length"));
        }
        let written = file.write_all(blocks);
        match written {
            Ok(()) => self.length += blocks.len() as u64,
            // A file without a length keeps its partial block.
            Err(_) => drop(file.set_len(self.length)),
        }
        written
    }
}

fn no_file() -> Error {
    let reason = "it is a pipe, a socket or a block device, and captures never wait for a reader: write to a file, which \
                  `tail -c +1 -f` can read while it grows";
    Error::new(ErrorKind::InvalidInput, reason)
}

/// Returns the path, with `%p` replaced by the ID of this process.
fn with_process(path: &FilePath) -> PathBuf {
    let mut rest = path.as_os_str().as_bytes();
    let mut name = Vec::new();
    while let Some((&byte, behind)) = rest.split_first() {
        if let Some(behind) = rest.strip_prefix(b"%p") {
            name.extend_from_slice(std::process::id().to_string().as_bytes());
            rest = behind;
        } else {
            name.push(byte);
            rest = behind;
        }
    }
    PathBuf::from(OsString::from_vec(name))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use rdma_proto::wire::Bth;
    use rdma_proto::{Datagrams, Destination, MessageEnd};
    use rdma_types::{Mtu, Psn, Qpn};
    use test_support::events::{Event, Hears};

    use super::*;
    use crate::address::Address;

    #[test]
    fn a_placeholder_in_a_name_is_replaced_by_the_process_id() {
        let process = std::process::id();
        let name = |path: &str| with_process(FilePath::new(path)).display().to_string();
        assert_eq!(name("/a/b.pcapng"), "/a/b.pcapng");
        assert_eq!(name("/a%p/%%pb%"), format!("/a{process}/%{process}b%"));
    }

    /// A full disk: later packets are dropped, and the error is reported once.
    #[test]
    fn a_failed_write_ends_the_capture() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let capture = Capture::of(full, (0, 0));
        put_section(&mut locked(&capture.pending).blocks);
        assert_eq!(capture.flush().unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(capture.stopped.load(Ordering::Relaxed));
        put_section(&mut locked(&capture.pending).blocks);
        capture.flush().unwrap();
        assert!(locked(&capture.pending).blocks.is_empty());
    }

    /// Nothing is written to the file after others have removed blocks from it, because no reader could read the
    /// result.
    #[test]
    fn a_file_that_others_make_shorter_ends_the_capture() {
        let name = format!("rdma-soft-shorter-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        for length in [0, 8] {
            let capture = Capture::open(&path).unwrap();
            capture.flush().unwrap();
            File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
            put_section(&mut locked(&capture.pending).blocks);
            capture.flush().unwrap_err();
            assert!(capture.stopped.load(Ordering::Relaxed));
            assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
            capture.remove_tap();
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// Two fabrics write to one file. The fabrics settle independently, so each must write the packets that it has
    /// added.
    #[test]
    fn each_fabric_writes_its_own_packets() {
        static FABRICS: [Fabric; 2] = [const { Fabric::new() }; 2];
        let name = format!("rdma-soft-fabrics-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let length = || std::fs::metadata(&path).unwrap().len();
        let taps = FABRICS
            .each_ref()
            .map(|fabric| Tap::new(fabric, "tap", Link::InfiniBand, &path).unwrap());
        let place = Path { local: Address::Lid(1), remote: Address::Lid(2) };
        let end = MessageEnd { length: 0, immediate: None, invalidate: None, solicited: false };
        let to = Destination { qpn: Qpn::new(2).unwrap(), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
        let mut datagrams = Datagrams::new(Qpn::new(1).unwrap(), Mtu::MTU4096, Psn::masked(0));
        let burst = datagrams.send(&to, &end).unwrap();
        let begin = length();
        taps.iter().for_each(|tap| tap.sent(&place, &burst, None, &[]));
        FABRICS[1].run_queue.run();
        assert!(length() > begin, "the added packets are not in the file");
        let end = length();
        FABRICS[0].run_queue.run();
        assert_eq!(length(), end);
        for tap in &taps {
            let begin = length();
            tap.sent(&place, &burst, None, &[]);
            tap.fabric.run_queue.run();
            assert!(length() > begin, "the added packets are not in the file");
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// The subscriber belongs to the program, and the thread that settles may be in the middle of a call. The report is
    /// therefore made on another thread.
    #[test]
    fn a_subscriber_may_panic_when_the_end_is_reported() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let capture = Capture::of(full, (0, 0));
        put_section(&mut locked(&capture.pending).blocks);
        let (sender, receiver) = mpsc::channel();
        let panics = Hears(move |_: Event| {
            let _ = sender.send(thread::current().id());
            panic!("a subscriber of a test");
        });
        tracing::subscriber::with_default(panics, || capture.settle());
        let by = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_ne!(by, thread::current().id());
    }

    #[test]
    fn a_forked_child_writes_nothing() {
        let path = std::env::temp_dir().join(format!("rdma-soft-child-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        // As in a forked child, another process started this capture.
        let capture = Capture { process: 0, ..Capture::of(file, (0, 0)) };
        put_section(&mut locked(&capture.pending).blocks);
        capture.flush().unwrap();
        assert!(locked(&capture.pending).blocks.is_empty());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
    }
}
