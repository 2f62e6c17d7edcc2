//! The state of a stream: its protocol, the chunks that have arrived, and the tasks that wait.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice};
use std::task::{Poll, Waker};

use rdma_mem::Buffer;
use rdma_message::{self as machine, ConnectionError, Output, Payload, SendError, Transmit};

use super::slots::write_frame;
use super::{End, Protocol, Requests, wait};

/// A chunk of a receive slot, with the memory of the slot.
pub type Arrived = (machine::Chunk, Buffer);

/// The tasks that wait, by what they wait for.
#[derive(Debug, Default)]
struct Waiting {
    reader: Option<Waker>,
    writer: Option<Waker>,
    end: Option<Waker>,
}

/// The number of frames after which a writer polls the completion queue. So it acknowledges the peer's credit frames
/// before its credit is used up.
const UNPOLLED: u32 = 8;

/// The state of a stream.
#[derive(Debug)]
pub struct StreamState {
    machine: machine::Stream,
    arrived: VecDeque<Arrived>,
    waiting: Waiting,
    has_peer_finished: bool,
    has_flushed: bool,
    /// Whether this end has ended its stream.
    has_finished: bool,
    /// Whether this end no longer reads.
    has_stopped: bool,
    /// The number of frames that were posted since the completion queue was polled.
    unpolled: u32,
    end: End,
    /// The number of halves that the program has.
    halves: u8,
}

impl StreamState {
    /// Creates the state for a protocol. The program has two halves.
    #[must_use]
    pub fn new(machine: machine::Stream) -> Self {
        Self {
            machine,
            arrived: VecDeque::new(),
            waiting: Waiting::default(),
            has_peer_finished: false,
            has_flushed: false,
            has_finished: false,
            has_stopped: false,
            unpolled: 0,
            end: End::default(),
            halves: 2,
        }
    }

    /// Returns the next chunk, `None` at the end of the peer's stream.
    ///
    /// # Errors
    /// If the connection has ended before.
    pub fn poll_next(&mut self, waker: &mut Option<Waker>) -> Poll<io::Result<Option<Arrived>>> {
        if let Some(arrived) = self.arrived.pop_front() {
            return Poll::Ready(Ok(Some(arrived)));
        }
        if self.has_peer_finished {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = self.end.reason() {
            return Poll::Ready(Err(cut_off(error)));
        }
        wait(&mut self.waiting.reader, waker);
        Poll::Pending
    }

    /// Returns true, at most once per some frames, if the writer is to poll the completion queue.
    pub const fn must_poll(&mut self) -> bool {
        let must = self.unpolled >= UNPOLLED;
        if must {
            self.unpolled = 0;
        }
        must
    }

    /// Ready when the peer's device has everything, with the end of the stream.
    ///
    /// # Errors
    /// If the connection has ended before.
    pub fn poll_flushed(&mut self, waker: &mut Option<Waker>) -> Poll<io::Result<()>> {
        if self.has_flushed {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = self.end.reason() {
            return Poll::Ready(Err(cut_off(error)));
        }
        wait(&mut self.waiting.writer, waker);
        Poll::Pending
    }

    /// Ends this end's stream.
    pub fn finish(&mut self) {
        self.has_finished = true;
        self.machine.finish();
    }

    /// Returns the error of a write that the protocol refuses, or `None` if it may succeed later.
    fn refusal(&self, error: SendError) -> Option<io::Error> {
        match error {
            SendError::NotOpen => None,
            SendError::Ended => Some(cut_off(self.machine.error())),
            error => Some(io::Error::new(ErrorKind::BrokenPipe, error)),
        }
    }

    /// Returns the memory of a chunk to its slot.
    pub fn release(&mut self, (chunk, buffer): Arrived, requests: &mut impl Requests) {
        requests.slots().set_receive(chunk.slot(), buffer);
        self.machine.release(chunk);
    }

    /// Releases what has arrived, and discards what arrives later.
    pub fn stop(&mut self, requests: &mut impl Requests) {
        while let Some(arrived) = self.arrived.pop_front() {
            self.release(arrived, requests);
        }
        if !self.has_peer_finished {
            self.has_stopped = true;
            self.machine.stop();
        }
    }

    /// Begins the next frame of a write. Until [`posted`](Self::posted), the stream posts no SEND. Returns `None`
    /// if no further bytes can be posted now.
    ///
    /// # Errors
    /// If the stream accepts no bytes, and none of these was posted.
    pub fn poll_frame(
        &mut self,
        write: &WriteCursor<'_, '_>,
        waker: &mut Option<Waker>,
        requests: &mut impl Requests,
    ) -> Poll<io::Result<Option<StreamFrame>>> {
        if write.length == 0 {
            return Poll::Ready(Ok(None));
        }
        let error = match self.machine.write(write.length) {
            Ok(Some(transmit)) => {
                self.unpolled += 1;
                if let Some(buffer) = requests.slots().take_send(transmit.slot) {
                    return Poll::Ready(Ok(Some(StreamFrame { transmit, buffer })));
                }
                // The connection has ended, and its slots are closed.
                self.machine.posted();
                Some(ending())
            }
            Ok(None) => None,
            Err(error) => self.refusal(error),
        };
        if write.written > 0 {
            return Poll::Ready(Ok(None));
        }
        if let Some(error) = error {
            return Poll::Ready(Err(error));
        }
        wait(&mut self.waiting.writer, waker);
        Poll::Pending
    }

    /// Records that the last frame of a write is posted, or cannot be posted.
    pub const fn posted(&mut self) {
        self.machine.posted();
    }
}

/// A frame of a write that is not posted, and the memory of its send slot.
#[derive(Debug)]
pub struct StreamFrame {
    transmit: Transmit,
    buffer: Buffer,
}

impl StreamFrame {
    /// Writes the frame with the next bytes to the memory. Returns the slot, the memory, and the length of the frame.
    #[must_use]
    pub fn fill(mut self, write: &mut WriteCursor<'_, '_>) -> (u32, Buffer, usize) {
        let Transmit { slot, header, payload, .. } = self.transmit;
        let length = match payload {
            Payload::Stream { len } => len as usize,
            _ => 0,
        };
        let fill = |memory: &mut [u8]| write.copy_to(memory.get_mut(..length).unwrap_or_default());
        let length = write_frame(&mut self.buffer, header.as_bytes(), fill);
        (slot, self.buffer, length)
    }
}

/// A position in the slices of a write.
#[derive(Debug)]
pub struct WriteCursor<'s, 'b> {
    slices: &'s [IoSlice<'b>],
    /// The number of bytes of the first slice that were written.
    start: usize,
    length: usize,
    written: usize,
}

impl<'s, 'b> WriteCursor<'s, 'b> {
    /// Creates a cursor at the first byte.
    #[must_use]
    pub fn new(slices: &'s [IoSlice<'b>]) -> Self {
        let length = slices.iter().map(|slice| slice.len()).sum();
        Self { slices, start: 0, length, written: 0 }
    }

    /// Returns the number of bytes that were written to frames.
    #[must_use]
    pub const fn written(&self) -> usize {
        self.written
    }

    /// Fills the memory with the next bytes. Returns their number.
    fn copy_to(&mut self, mut memory: &mut [u8]) -> usize {
        let mut copied = 0;
        while let Some((first, others)) = self.slices.split_first()
            && !memory.is_empty()
        {
            let from = first.get(self.start..).unwrap_or_default();
            let count = from.len().min(memory.len());
            let (to, rest) = memory.split_at_mut(count);
            to.copy_from_slice(from.get(..count).unwrap_or_default());
            (memory, copied, self.start) = (rest, copied + count, self.start + count);
            if count == from.len() {
                (self.slices, self.start) = (others, 0);
            }
        }
        (self.length, self.written) = (self.length - copied, self.written + copied);
        copied
    }
}

impl<R: Requests> Protocol<R> for StreamState {
    fn received(&mut self, slot: u32, frame: &[u8]) {
        self.machine.received(slot, frame);
    }

    fn sent(&mut self, slot: u32) {
        self.machine.sent(slot);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.machine.poll_output()
    }

    fn act(&mut self, output: Output, requests: &mut R, woken: &mut Vec<Waker>) {
        match output {
            Output::PostReceive(slot) => requests.post_receive(slot),
            Output::Send(transmit) => {
                requests.post_send(transmit.slot, transmit.header.as_bytes(), |_| 0);
            }
            Output::Data(chunk) => {
                if let Some(buffer) = requests.slots().take_receive(chunk.slot()) {
                    self.arrived.push_back((chunk, buffer));
                }
                woken.extend(self.waiting.reader.take());
            }
            Output::PeerFinished => {
                self.has_peer_finished = true;
                woken.extend(self.waiting.reader.take());
            }
            Output::Flushed => {
                self.has_flushed = true;
                woken.extend(self.waiting.writer.take());
            }
            Output::Opened(_) | Output::Writable | Output::PeerStopped => {
                woken.extend(self.waiting.writer.take());
            }
            Output::Disconnect(_) => requests.fail(),
            Output::Ended(error) => {
                self.end.set(error);
                let Waiting { reader, writer, end } = &mut self.waiting;
                woken.extend([reader, writer, end].into_iter().filter_map(Option::take));
            }
            _ => {}
        }
    }

    fn lost(&mut self, _: &mut R) {
        self.machine.lost();
    }

    fn awaits(&self) -> (bool, bool) {
        let Waiting { reader, writer, end } = &self.waiting;
        let finishes = self.has_finished && !self.has_flushed && self.end.reason().is_none();
        let sends = finishes || writer.is_some() || end.is_some();
        (sends || reader.is_some() || self.has_stopped, sends)
    }

    fn leave(&mut self) -> bool {
        self.halves = self.halves.saturating_sub(1);
        self.halves == 0
    }

    fn await_end(&mut self, waker: &mut Option<Waker>) {
        wait(&mut self.waiting.end, waker);
    }

    fn end(&mut self) -> &mut End {
        &mut self.end
    }
}

/// Returns the bytes of a chunk.
#[must_use]
pub fn chunk_bytes((chunk, buffer): &Arrived) -> &[u8] {
    let start = chunk.start() as usize;
    buffer.get(start..start + chunk.len() as usize).unwrap_or_default()
}

fn ending() -> io::Error {
    io::Error::new(ErrorKind::BrokenPipe, SendError::Ended)
}

/// Returns the error of a stream that was cut off.
fn cut_off(error: Option<ConnectionError>) -> io::Error {
    let Some(error) = error else { return ending() };
    let kind = match error {
        ConnectionError::Aborted => ErrorKind::ConnectionAborted,
        ConnectionError::Lost | ConnectionError::PeerClosed(_) => ErrorKind::ConnectionReset,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}
