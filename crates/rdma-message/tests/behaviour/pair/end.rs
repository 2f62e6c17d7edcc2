//! One end: a machine with its driver, whose memory is `Vec`s.

use std::collections::{BTreeSet, HashMap, VecDeque};

use rdma_message::frame::{CallId, Remote};
use rdma_message::{
    Chunk, ConnectionError, Delivery, Incoming, Messages, Operation, OperationError, Options,
    Output, Payload, SendError, Stream, Transmit,
};
use rdma_types::Rkey;

use super::machine::Machine;
use super::{Completion, Posted};

/// A message that was delivered.
#[derive(Debug)]
pub(crate) struct Delivered {
    pub(crate) message: Incoming,
    pub(crate) delivery: Delivery,
    pub(crate) bytes: Vec<u8>,
}

/// Bytes that the program holds in their slot.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) chunk: Chunk,
    bytes: Vec<u8>,
}

pub(crate) struct End<M> {
    pub(crate) machine: M,
    pub(crate) options: Options,
    /// The posted receives.
    pub(crate) receives: VecDeque<u32>,
    slots: Vec<Vec<u8>>,
    /// The slots with bytes that were not released.
    in_use: BTreeSet<u32>,
    /// Whether the program holds the chunks that arrive.
    pub(crate) holds: bool,
    pub(crate) held: Vec<Held>,
    /// The bytes of the operations that have not completed.
    pub(crate) sending: HashMap<Operation, Vec<u8>>,
    /// The memory that the peer may read, by its key.
    lent: HashMap<u32, Operation>,
    /// Whether memory cannot be lent.
    pub(crate) cannot_lend: bool,
    keys: u32,
    /// The messages that are arriving.
    pub(crate) arriving: HashMap<Incoming, Vec<u8>>,
    /// The messages that were delivered and not taken, and the replies.
    pub(crate) inbox: VecDeque<Delivered>,
    pub(crate) replies: HashMap<Operation, Vec<u8>>,
    pub(crate) completed: HashMap<Operation, Result<(), OperationError>>,
    pub(crate) cancelled: Vec<CallId>,
    /// The bytes of the stream.
    pub(crate) read: Vec<u8>,
    pub(crate) is_open: bool,
    pub(crate) is_flushed: bool,
    pub(crate) peer_finished: bool,
    pub(crate) peer_stopped: bool,
    /// The number of reports that the stream is writable again.
    pub(crate) writable: usize,
    pub(crate) disconnect: Option<Option<ConnectionError>>,
    pub(crate) ended: Option<Option<ConnectionError>>,
    /// The kinds of the frames that were sent.
    pub(crate) kinds: Vec<u8>,
}

impl<M: Machine> End<M> {
    pub(crate) fn new(options: Options) -> Self {
        Self {
            machine: M::new(&options),
            options,
            receives: (0..options.receive_slots()).collect(),
            slots: vec![Vec::new(); options.receive_slots() as usize],
            in_use: BTreeSet::new(),
            holds: false,
            held: Vec::new(),
            sending: HashMap::new(),
            lent: HashMap::new(),
            cannot_lend: false,
            keys: 0,
            arriving: HashMap::new(),
            inbox: VecDeque::new(),
            replies: HashMap::new(),
            completed: HashMap::new(),
            cancelled: Vec::new(),
            read: Vec::new(),
            is_open: false,
            is_flushed: false,
            peer_finished: false,
            peer_stopped: false,
            writable: 0,
            disconnect: None,
            ended: None,
            kinds: Vec::new(),
        }
    }

    /// Polls the machine until it posts a request.
    pub(crate) fn poll(&mut self) -> Option<Posted> {
        loop {
            match self.machine.poll_output()? {
                Output::Send(transmit) => return Some(self.post(&transmit, &[])),
                Output::Fetch { message, source, length } => {
                    assert!(self.arriving.insert(message, Vec::new()).is_none());
                    return Some(Posted::Read { message, source, length });
                }
                other => self.process(other),
            }
        }
    }

    /// Builds the frame of a SEND.
    pub(crate) fn post(&mut self, transmit: &Transmit, stream: &[u8]) -> Posted {
        let mut frame = transmit.header.as_bytes().to_vec();
        self.kinds.push(frame[0]);
        match transmit.payload {
            Payload::Message { operation, at, len } => {
                frame.extend(&self.sending[&operation][at as usize..][..len as usize]);
            }
            Payload::Stream { len } => frame.extend(&stream[..len as usize]),
            _ => {}
        }
        assert!(frame.len() <= self.options.send_bytes as usize);
        Posted::Send { slot: transmit.slot, frame }
    }

    fn process(&mut self, output: Output) {
        assert_eq!(self.ended, None, "{output:?} after the end");
        match output {
            Output::PostReceive(slot) => {
                assert!(!self.in_use.contains(&slot), "slot {slot} has unreleased bytes");
                assert!(!self.receives.contains(&slot), "slot {slot} is posted twice");
                self.receives.push_back(slot);
            }
            Output::Lend { operation, length } => self.lend(operation, length),
            Output::Opened(_) => self.is_open = true,
            Output::Part { message, length, at, chunk } => {
                let bytes = self.view(&chunk);
                let arriving = self.arriving.entry(message).or_default();
                assert_eq!(arriving.len(), at as usize, "parts are consecutive");
                arriving.extend(&bytes);
                assert!(arriving.len() <= length as usize);
                self.hold_or_release(chunk, bytes);
            }
            Output::Deliver { message, length, delivery } => {
                let bytes = self.arriving.remove(&message).unwrap_or_default();
                assert_eq!(bytes.len(), length as usize);
                match delivery {
                    Delivery::Reply(operation) => {
                        assert!(self.sending.contains_key(&operation), "the call is pending");
                        assert!(self.replies.insert(operation, bytes).is_none());
                    }
                    _ => self.inbox.push_back(Delivered { message, delivery, bytes }),
                }
            }
            Output::Discard(message) => {
                assert!(self.arriving.remove(&message).is_some(), "{message:?} has memory");
            }
            Output::Fetched(operation) => {
                let before = self.lent.len();
                self.lent.retain(|_, lent| *lent != operation);
                assert_eq!(self.lent.len() + 1, before, "{operation:?} is lent");
            }
            Output::Completed { operation, result } => {
                assert!(self.sending.remove(&operation).is_some(), "{operation:?} is pending");
                self.lent.retain(|_, lent| *lent != operation);
                assert!(self.completed.insert(operation, result).is_none());
            }
            Output::Cancelled(request) => self.cancelled.push(request),
            Output::Data(chunk) => {
                let bytes = self.view(&chunk);
                self.read.extend(&bytes);
                self.hold_or_release(chunk, bytes);
            }
            Output::Writable => self.writable += 1,
            Output::Flushed => self.is_flushed = true,
            Output::PeerFinished => self.peer_finished = true,
            Output::PeerStopped => self.peer_stopped = true,
            Output::Disconnect(error) => assert_eq!(self.disconnect.replace(error), None),
            Output::Ended(error) => self.ended = Some(error),
            other => panic!("{other:?}"),
        }
    }

    fn lend(&mut self, operation: Operation, length: u32) {
        assert_eq!(self.sending[&operation].len(), length as usize);
        let source = (!self.cannot_lend).then(|| {
            self.keys += 1;
            self.lent.insert(self.keys, operation);
            Remote { va: u64::from(self.keys) << 32, rkey: Rkey::new(self.keys) }
        });
        self.machine.lent(operation, source);
    }

    fn view(&self, chunk: &Chunk) -> Vec<u8> {
        let (start, len) = (chunk.start() as usize, chunk.len() as usize);
        self.slots[chunk.slot() as usize][start..][..len].to_vec()
    }

    fn hold_or_release(&mut self, chunk: Chunk, bytes: Vec<u8>) {
        self.in_use.insert(chunk.slot());
        self.held.push(Held { chunk, bytes });
        if !self.holds {
            self.release(self.held.len() - 1);
        }
    }

    /// Releases a chunk, and checks that its bytes are unchanged.
    pub(crate) fn release(&mut self, index: usize) {
        let Held { chunk, bytes } = self.held.remove(index);
        assert_eq!(self.view(&chunk), bytes, "a chunk was overwritten");
        self.in_use.remove(&chunk.slot());
        self.machine.release(chunk);
    }

    /// Receives a frame into the oldest posted receive.
    pub(crate) fn arrive(&mut self, frame: &[u8]) {
        let slot = self.receives.pop_front().expect("the peer never exceeds the posted receives");
        assert!(frame.len() <= self.options.receive_bytes as usize);
        self.slots[slot as usize] = frame.to_vec();
        self.machine.received(slot, frame);
    }

    /// Reads lent memory for the peer.
    pub(crate) fn read(&self, source: Remote, length: u32) -> Vec<u8> {
        let operation = self.lent.get(&source.rkey.get()).expect("the memory is lent");
        assert_eq!(source.va, u64::from(source.rkey.get()) << 32);
        self.sending[operation][..length as usize].to_vec()
    }

    pub(crate) fn complete(&mut self, completion: Completion) {
        match completion {
            Completion::Send(slot) => self.machine.sent(slot),
            Completion::Read(message, bytes) => {
                self.arriving.insert(message, bytes);
                self.machine.fetched(message);
            }
        }
    }
}

impl End<Messages> {
    pub(crate) fn send(&mut self, bytes: Vec<u8>) -> Result<Operation, SendError> {
        let operation = self.machine.send(bytes.len())?;
        self.sending.insert(operation, bytes);
        Ok(operation)
    }

    pub(crate) fn call(&mut self, bytes: Vec<u8>) -> Result<Operation, SendError> {
        let operation = self.machine.call(bytes.len())?;
        self.sending.insert(operation, bytes);
        Ok(operation)
    }

    pub(crate) fn reply(&mut self, id: CallId, bytes: Vec<u8>) -> Result<Operation, SendError> {
        let operation = self.machine.reply(id, bytes.len())?;
        self.sending.insert(operation, bytes);
        Ok(operation)
    }

    /// Takes the oldest message.
    pub(crate) fn take(&mut self) -> Option<Delivered> {
        let delivered = self.inbox.pop_front()?;
        self.machine.taken(delivered.message);
        Some(delivered)
    }

    /// Takes the oldest request.
    pub(crate) fn take_request(&mut self) -> (CallId, Vec<u8>) {
        let Delivered { delivery: Delivery::Request(id), bytes, .. } = self.take().unwrap() else {
            panic!("a request")
        };
        (id, bytes)
    }
}

impl End<Stream> {
    /// Writes the first of these bytes. Returns the request and the number of accepted bytes.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<Option<(Posted, usize)>, SendError> {
        let Some(transmit) = self.machine.write(bytes.len())? else { return Ok(None) };
        let Payload::Stream { len } = transmit.payload else { panic!("bytes of the stream") };
        Ok(Some((self.post(&transmit, bytes), len as usize)))
    }
}

/// Bytes that depend on a number, which they begin with if they are long enough.
pub(crate) fn bytes(n: u32, length: usize) -> Vec<u8> {
    let tail = (8_usize..).map(|at| (at * 7 + at / 251 + n as usize * 31) & 0xff);
    let tail = tail.map(|byte| u8::try_from(byte).unwrap());
    u64::from(n).to_be_bytes().into_iter().chain(tail).take(length).collect()
}
