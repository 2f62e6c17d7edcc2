//! Captures: what a device sends and receives, in a file for Wireshark.
//!
//! A packet is put into memory where it is sent or received, under the locks of its queue pair. Before the call
//! that did this returns, when it holds no lock any more, all that has come together is written at once
//! (`fabric/overflow.rs`). So a program that is killed leaves whole packets behind.

mod environment;
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

pub(crate) use self::environment::of_environment;
use self::format::{Direction, Interface, put_interface, put_packet, put_section};
use crate::address::Path;
use crate::engine::wire::letter::{Datagram, Letter};
use crate::fabric::Fabric;
use crate::fabric::run_queue::Settle;
use crate::fabric::tellers::tell_aside;
use crate::link::{Link, frame};
#[cfg(not(all(test, loom)))]
use crate::sync::assert_nothing_held;
use crate::sync::{locked, locked_to_wait};

/// How many bytes of memory a capture keeps while nothing happens.
const KEPT: usize = 1 << 20;

/// The captures of the process: a file is written by one of them.
static CAPTURES: Mutex<Vec<Weak<Capture>>> = Mutex::new(Vec::new());

/// What a device writes to a capture.
#[derive(Debug)]
pub(crate) struct Tap {
    fabric: &'static Fabric,
    capture: Arc<Capture>,
    /// The device in its file.
    interface: Interface,
}

impl Tap {
    /// Begins the file, or goes on with it if other devices of this process write to it. `%p` in
    /// its name stands for the process ID.
    pub(crate) fn new(
        fabric: &'static Fabric,
        name: &str,
        link: Link,
        path: &FilePath,
    ) -> Result<Arc<Self>> {
        let capture = Capture::open(&with_process(path))?;
        let interface = capture.add_interface(name, link);
        if let Err(error) = capture.flush() {
            capture.leave();
            return Err(error);
        }
        fabric.run_queue.reserve();
        Ok(Arc::new(Self { fabric, capture, interface }))
    }

    /// Its device sends and takes no packets any more.
    pub(crate) fn end(&self) {
        self.capture.leave();
    }

    /// Its device sends packets. Any lock may be held but those of the fabric.
    pub(crate) fn sent(
        &self,
        path: &Path,
        burst: &Burst,
        datagram: Option<&Datagram>,
        payload: &[u8],
    ) {
        self.add(Direction::Out, path, burst, datagram, payload);
    }

    /// Packets have arrived at its device; `sender` is the tap of the device that they come from. If that one
    /// writes to the same file they are there already.
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
        // Under the lock, so that times do not go back.
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
        if !pending.noted.iter().any(|noted| std::ptr::eq(*noted, self.fabric)) {
            pending.noted.push(self.fabric);
            self.fabric.run_queue.leave(Arc::clone(&self.capture) as Arc<dyn Settle>);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.fabric.run_queue.unreserve();
    }
}

/// A file that taps write to.
#[derive(Debug)]
struct Capture {
    /// Which file it is: the numbers of its file system and of its inode.
    file: (u64, u64),
    /// A forked child writes nothing.
    process: u32,
    pending: Mutex<Pending>,
    /// Held while the file is written, by who holds no lock of the engine.
    output: Mutex<Output>,
    /// Nothing is written any more.
    stopped: AtomicBool,
    /// How many taps write to it, or are being made. It changes under the lock of the captures.
    taps: AtomicU32,
}

/// What is not in the file yet.
#[derive(Debug, Default)]
struct Pending {
    blocks: Vec<u8>,
    /// How many devices write.
    interfaces: u32,
    /// Where it is noted that there is something: in each fabric whose devices added some, since each settles its
    /// own.
    noted: Vec<&'static Fabric>,
}

#[derive(Debug)]
struct Output {
    /// Until nobody writes to it any more.
    file: Option<File>,
    /// How many bytes of whole blocks there are.
    length: u64,
    spare: Vec<u8>,
}

impl Capture {
    fn open(path: &FilePath) -> Result<Arc<Self>> {
        let mut captures = locked_to_wait(&CAPTURES);
        captures.retain(|capture| capture.strong_count() > 0);
        let mut options = File::options();
        // For its owner alone, since it has what messages say. Nothing ever waits for a reader.
        // At its end, also if others have made it shorter.
        options.append(true).create(true).mode(0o600);
        let file = options.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
        let file = file.map_err(|error| match Errno::from_io_error(&error) {
            // A pipe that nobody reads, or a socket.
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
                let reason =
                    "another process writes to it: `%p` in its name makes each have its own";
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

    /// A tap ends. With the last one the file is closed, and begins anew if it is named again.
    fn leave(&self) {
        let mut captures = locked_to_wait(&CAPTURES);
        if self.taps.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        captures.retain(|capture| !std::ptr::eq(capture.as_ptr(), self));
        // What fails has been told before.
        let _ = self.flush();
        self.stopped.store(true, Ordering::Relaxed);
        let output = &mut *locked_to_wait(&self.output);
        (output.file, output.spare) = (None, Vec::new());
    }

    /// One more device.
    fn add_interface(&self, name: &str, link: Link) -> Interface {
        let pending = &mut *locked(&self.pending);
        put_interface(name, link, &mut pending.blocks);
        pending.interfaces += 1;
        Interface { number: pending.interfaces - 1, link }
    }

    /// Writes what there is to the file. If that fails nothing is written any more, and the file ends with its last
    /// whole block.
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
        // What was added meanwhile is for who added it.
        if pending.blocks.is_empty() {
            for fabric in pending.noted.drain(..) {
                fabric.run_queue.forget(std::ptr::from_ref(self).cast());
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
            tell_aside(move || {
                tracing::warn!(%error, "the capture of a software device ends: its file takes no more");
            });
        }
    }
}

impl Output {
    fn write(&mut self, blocks: &[u8]) -> Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        // A device has no length. A file that others write to, or have made shorter, is no capture any more.
        let found = file.metadata()?;
        if found.is_file() && found.len() != self.length {
            return Err(Error::other("its length was changed by somebody else"));
        }
        let written = file.write_all(blocks);
        match written {
            Ok(()) => self.length += blocks.len() as u64,
            // What has no length keeps its half block.
            Err(_) => drop(file.set_len(self.length)),
        }
        written
    }
}

fn no_file() -> Error {
    let reason = "it is a pipe, a socket or a block device, and a capture waits for no reader: write a file, which \
                  `tail -c +1 -f` hands on while it grows";
    Error::new(ErrorKind::InvalidInput, reason)
}

/// The name with the number of this process.
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
    use rdma_proto::{Datagrams, Destination, End};
    use rdma_types::{Mtu, Psn, Qpn};
    use test_support::events::{Event, Hears};

    use super::*;
    use crate::address::Address;

    #[test]
    fn the_number_of_the_process_is_put_into_a_name() {
        let process = std::process::id();
        let name = |path: &str| with_process(FilePath::new(path)).display().to_string();
        assert_eq!(name("/a/b.pcapng"), "/a/b.pcapng");
        assert_eq!(name("/a%p/%%pb%"), format!("/a{process}/%{process}b%"));
    }

    /// A disk that is full: what is to be written later is dropped, and the error is told once.
    #[test]
    fn a_file_that_takes_no_more_ends_the_capture() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let capture = Capture::of(full, (0, 0));
        put_section(&mut locked(&capture.pending).blocks);
        assert_eq!(capture.flush().unwrap_err().kind(), ErrorKind::StorageFull);
        assert!(capture.stopped.load(Ordering::Relaxed));
        put_section(&mut locked(&capture.pending).blocks);
        capture.flush().unwrap();
        assert!(locked(&capture.pending).blocks.is_empty());
    }

    /// Nothing is behind a hole, where nobody could read it.
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
            capture.leave();
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// Two fabrics write to one file: the thread that settles the one may be anywhere when the other settles.
    #[test]
    fn each_fabric_settles_what_it_has_added() {
        static FABRICS: [Fabric; 2] = [const { Fabric::new() }; 2];
        let name = format!("rdma-soft-fabrics-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let length = || std::fs::metadata(&path).unwrap().len();
        let taps = FABRICS
            .each_ref()
            .map(|fabric| Tap::new(fabric, "tap", Link::InfiniBand, &path).unwrap());
        let place = Path { local: Address::Lid(1), remote: Address::Lid(2) };
        let end = End { length: 0, immediate: None, invalidate: None, solicited: false };
        let to = Destination { qpn: Qpn::new(2).unwrap(), qkey: 0, p_key: Bth::DEFAULT_P_KEY };
        let mut datagrams = Datagrams::new(Qpn::new(1).unwrap(), Mtu::MTU4096, Psn::masked(0));
        let burst = datagrams.send(&to, &end).unwrap();
        let begin = length();
        taps.iter().for_each(|tap| tap.sent(&place, &burst, None, &[]));
        FABRICS[1].run_queue.run();
        assert!(length() > begin, "what was added is not in the file");
        let end = length();
        FABRICS[0].run_queue.run();
        assert_eq!(length(), end);
        for tap in &taps {
            let begin = length();
            tap.sent(&place, &burst, None, &[]);
            tap.fabric.run_queue.run();
            assert!(length() > begin, "what was added is not in the file");
        }
        std::fs::remove_file(&path).unwrap();
    }

    /// The subscriber is the program's, and the thread that settles is in the midst of a call.
    #[test]
    fn a_subscriber_that_hears_of_the_end_may_panic() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let capture = Capture::of(full, (0, 0));
        put_section(&mut locked(&capture.pending).blocks);
        let (say, heard) = mpsc::channel();
        let panics = Hears(move |_: Event| {
            let _ = say.send(thread::current().id());
            panic!("a subscriber of a test");
        });
        tracing::subscriber::with_default(panics, || capture.settle());
        let by = heard.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_ne!(by, thread::current().id());
    }

    #[test]
    fn a_forked_child_writes_nothing() {
        let path = std::env::temp_dir().join(format!("rdma-soft-child-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        // As in a child: the process that began it is another.
        let capture = Capture { process: 0, ..Capture::of(file, (0, 0)) };
        put_section(&mut locked(&capture.pending).blocks);
        capture.flush().unwrap();
        assert!(locked(&capture.pending).blocks.is_empty());
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        std::fs::remove_file(&path).unwrap();
    }
}
