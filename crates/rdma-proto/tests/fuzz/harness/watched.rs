//! A host that knows the current packet, and checks the calls that are allowed for it.

use rdma_proto::wire::{Headers, Operation};
use rdma_proto::{Delivered, Host, Kind, MessageEnd, MessageStart, Nak, Remote, Source, Stop};

use super::ends::Memory;

/// A message that has arrived in part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Message {
    pub(crate) start: MessageStart,
    pub(crate) at: u32,
}

/// The calls for the current packet.
#[derive(Default)]
pub(crate) struct Hand {
    packet: Option<(Headers, Vec<u8>)>,
    /// Its message in the current state.
    message: Option<Message>,
    pub(crate) began: bool,
    /// Whether the receive of a WRITE with immediate was consumed.
    took: bool,
    pub(crate) placed: bool,
    pub(crate) finished: bool,
    pub(crate) abandoned: bool,
    pub(crate) original: Option<u64>,
    /// The error that it was answered with, if it was not executed.
    pub(crate) stopped: Option<Stop>,
}

impl Hand {
    /// Returns true if any call was made.
    pub(crate) fn asked(&self) -> bool {
        self.began
            || self.took
            || self.placed
            || self.finished
            || self.original.is_some()
            || self.abandoned
    }
}

/// Memory with a selectable next answer.
pub(crate) struct Plain {
    pub(crate) memory: Memory,
    /// The answer to the next call of any kind.
    pub(crate) next: Option<Stop>,
}

impl Plain {
    pub(crate) fn new() -> Self {
        Self { memory: Memory::new(), next: None }
    }

    fn ready(&mut self) -> Result<&mut Memory, Stop> {
        self.next.take().map_or(Ok(&mut self.memory), Err)
    }
}

impl Host for Plain {
    fn begin(&mut self, start: &MessageStart) -> Result<(), Stop> {
        self.ready()?.begin(start)
    }
    fn place(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        self.ready()?.place(start, at, payload)
    }
    fn fetch(&mut self, start: &MessageStart, at: u32, out: &mut [u8]) -> Result<(), Stop> {
        self.ready()?.fetch(start, at, out)
    }
    fn atomic(&mut self, start: &MessageStart) -> Result<u64, Stop> {
        self.ready()?.atomic(start)
    }
    fn take_receive(&mut self, start: &MessageStart) -> Result<(), Stop> {
        self.ready()?.take_receive(start)
    }
    fn finish(&mut self, start: &MessageStart, end: &MessageEnd) -> Result<(), Stop> {
        self.ready()?.finish(start, end)
    }
    fn abandon(&mut self) {
        self.memory.abandon();
    }
    fn fail(&mut self, nak: Nak) {
        self.memory.fail(nak);
    }
    fn datagram(&mut self, from: &Source, end: &MessageEnd, payload: &[u8]) -> Delivered {
        self.memory.datagram(from, end, payload)
    }
}

/// A host that knows the current packet.
pub(crate) struct Watched {
    pub(crate) plain: Plain,
    /// The message that has begun before the current packet.
    pub(crate) open: Option<Message>,
    pub(crate) hand: Hand,
    /// The messages that it allowed to begin.
    pub(crate) begun: Vec<MessageStart>,
}

impl Watched {
    pub(crate) fn new() -> Self {
        Self { plain: Plain::new(), open: None, hand: Hand::default(), begun: Vec::new() }
    }

    /// Notes the arrival of a packet.
    pub(crate) fn take_up(&mut self, headers: &Headers, payload: &[u8]) {
        let packet = Some((*headers, payload.to_vec()));
        self.hand = Hand { packet, message: self.open, ..Hand::default() };
    }

    /// Notes that the packet was executed, so that it will not arrive again.
    pub(crate) fn settle(&mut self) {
        self.open = self.hand.message;
    }

    fn packet(&self) -> &(Headers, Vec<u8>) {
        self.hand.packet.as_ref().expect("only for a packet")
    }

    fn said<T>(&mut self, answer: Result<T, Stop>) -> Result<T, Stop> {
        assert_eq!(self.hand.stopped, None, "an error ends a message");
        self.hand.stopped = answer.as_ref().err().copied();
        answer
    }
}

/// Returns the request in the first packet of a message.
pub(crate) fn start(headers: &Headers) -> MessageStart {
    if let Some(reth) = headers.reth {
        let is_read = headers.bth.opcode.operation() == Operation::RdmaReadRequest;
        let kind = if is_read { Kind::Read } else { Kind::Write };
        return MessageStart::one_sided(kind, Remote { va: reth.va, rkey: reth.rkey }, reth.length);
    }
    let Some(atomic) = headers.atomic else { return MessageStart::send() };
    let remote = Remote { va: atomic.va, rkey: atomic.rkey };
    match headers.bth.opcode.operation() {
        Operation::FetchAdd => MessageStart::atomic(Kind::FetchAdd, remote, atomic.swap_or_add, 0),
        _ => MessageStart::atomic(Kind::CompareSwap, remote, atomic.compare, atomic.swap_or_add),
    }
}

impl Host for Watched {
    fn begin(&mut self, asked: &MessageStart) -> Result<(), Stop> {
        assert!(self.hand.message.is_none() && !self.hand.began, "one after the other");
        assert_eq!(*asked, start(&self.packet().0));
        self.hand.began = true;
        let answer = self.plain.begin(asked);
        self.said(answer)?;
        self.begun.push(*asked);
        self.hand.message = Some(Message { start: *asked, at: 0 });
        Ok(())
    }

    fn place(&mut self, start: &MessageStart, at: u32, payload: &[u8]) -> Result<(), Stop> {
        let message = self.hand.message.expect("begun");
        assert_eq!((*start, at), (message.start, message.at), "without gaps");
        assert!(!self.hand.placed && !payload.is_empty() && !start.kind.fetches());
        assert_eq!(payload, self.packet().1);
        let end = at + u32::try_from(payload.len()).expect("a packet");
        assert!(start.length.is_none_or(|length| end <= length), "{end} of {start:?}");
        self.hand.placed = true;
        self.hand.message = Some(Message { at: end, ..message });
        let answer = self.plain.place(start, at, payload);
        self.said(answer)
    }

    fn fetch(&mut self, start: &MessageStart, at: u32, out: &mut [u8]) -> Result<(), Stop> {
        assert!(start.kind == Kind::Read && self.begun.contains(start), "{start:?}");
        assert!(!out.is_empty());
        self.plain.fetch(start, at, out)
    }

    fn atomic(&mut self, start: &MessageStart) -> Result<u64, Stop> {
        let message = self.hand.message.take().expect("begun");
        assert!(self.hand.began && self.hand.original.is_none() && start.kind.is_atomic());
        assert_eq!(*start, message.start);
        let answer = self.plain.atomic(start);
        let original = self.said(answer)?;
        self.hand.original = Some(original);
        Ok(original)
    }

    fn take_receive(&mut self, start: &MessageStart) -> Result<(), Stop> {
        let message = self.hand.message.expect("begun");
        let (headers, _) = self.packet();
        assert!(headers.imm.is_some() && headers.bth.opcode.operation().ends_message());
        assert!(start.kind == Kind::Write && !self.hand.placed && !self.hand.took);
        assert_eq!(*start, message.start);
        self.hand.took = true;
        let answer = self.plain.take_receive(start);
        self.said(answer)
    }

    fn finish(&mut self, start: &MessageStart, end: &MessageEnd) -> Result<(), Stop> {
        let message = self.hand.message.take().expect("begun");
        let (headers, payload) = self.packet();
        assert!(!self.hand.finished && self.hand.placed != payload.is_empty());
        assert_eq!((*start, end.length), (message.start, message.at));
        assert_eq!(end.immediate, headers.imm.map(|imm| imm.immediate));
        assert_eq!(end.invalidate, headers.ieth.map(|ieth| ieth.rkey));
        assert_eq!(end.solicited, headers.bth.solicited);
        assert_eq!(self.hand.took, start.kind == Kind::Write && headers.imm.is_some());
        self.hand.finished = true;
        let answer = self.plain.finish(start, end);
        self.said(answer)
    }

    fn abandon(&mut self) {
        self.hand.abandoned = true;
        (self.hand.message, self.open) = (None, None);
        self.plain.abandon();
    }

    fn fail(&mut self, nak: Nak) {
        self.plain.fail(nak);
    }

    fn datagram(&mut self, from: &Source, end: &MessageEnd, payload: &[u8]) -> Delivered {
        let (headers, sent) = self.packet();
        let deth = headers.deth.expect("a datagram");
        assert_eq!((from.qpn, from.qkey), (deth.source, deth.qkey));
        assert_eq!((payload, end.length as usize), (&sent[..], sent.len()));
        assert_eq!(end.immediate, headers.imm.map(|imm| imm.immediate));
        assert_eq!((end.invalidate, end.solicited), (None, headers.bth.solicited));
        self.hand.placed = true;
        self.plain.datagram(from, end, payload)
    }
}
