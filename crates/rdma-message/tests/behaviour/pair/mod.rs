//! Two ends joined by an ordered, lossless link, as a reliable connection is. Completions stay
//! pending until the test reports them, in any order.

pub(crate) mod conversation;
mod end;
mod machine;

use std::collections::VecDeque;

use rdma_message::frame::Remote;
use rdma_message::{Incoming, Options, Stream};
use test_support::fuzz::trace;

pub(crate) use conversation::{Choices, Conversation, converse};
pub(crate) use end::{End, bytes};
pub(crate) use machine::Machine;

/// Small limits.
pub(crate) fn small() -> Options {
    let mut options = Options::default();
    (options.receives, options.receive_bytes, options.window_bytes) = (4, 128, 1024);
    (options.sends, options.send_bytes, options.eager_bytes) = (6, 128, 500);
    (options.max_message, options.fetch_bytes, options.offer_bytes) = (20_000, 6_000, 6_000);
    (options.offers, options.reads, options.operations, options.calls) = (3, 2, 64, 8);
    options
}

/// A request in a send queue.
#[derive(Debug)]
pub(crate) enum Posted {
    Send { slot: u32, frame: Vec<u8> },
    Read { message: Incoming, source: Remote, length: u32 },
}

/// A completion that was not reported.
#[derive(Debug)]
pub(crate) enum Completion {
    Send(u32),
    Read(Incoming, Vec<u8>),
}

pub(crate) struct Pair<M> {
    pub(crate) ends: [End<M>; 2],
    /// The requests that the devices have not executed, by end.
    pub(crate) posted: [VecDeque<Posted>; 2],
    /// The completions that were not reported, by end.
    pub(crate) completions: [Vec<Completion>; 2],
}

impl<M: Machine> Pair<M> {
    pub(crate) fn new(options: [Options; 2]) -> Self {
        Self {
            ends: options.map(End::new),
            posted: Default::default(),
            completions: Default::default(),
        }
    }

    /// Two open ends with the same options.
    pub(crate) fn open(options: Options) -> Self {
        let mut pair = Self::new([options; 2]);
        pair.run();
        assert!(pair.ends.iter().all(|end| end.is_open));
        pair
    }

    /// Polls one end, and posts its requests.
    pub(crate) fn drive(&mut self, at: usize) {
        while let Some(posted) = self.ends[at].poll() {
            self.posted[at].push_back(posted);
            let sends = self.sends(at);
            let options = &self.ends[at].options;
            assert!(sends.0 <= options.sends as usize, "{} SENDs are posted", sends.0);
            assert!(sends.1 <= options.reads as usize, "{} READs are posted", sends.1);
        }
    }

    /// Returns the number of SENDs and READs in the send queue.
    pub(crate) fn sends(&self, at: usize) -> (usize, usize) {
        let posted = self.posted[at].iter().map(|it| matches!(it, Posted::Send { .. }));
        let completions = self.completions[at].iter().map(|it| matches!(it, Completion::Send(_)));
        let all: Vec<_> = posted.chain(completions).collect();
        let sends = all.iter().filter(|&&is_send| is_send).count();
        (sends, all.len() - sends)
    }

    /// Executes the oldest request of an end. Returns false if it has none.
    pub(crate) fn execute(&mut self, at: usize) -> bool {
        let Some(posted) = self.posted[at].pop_front() else { return false };
        trace(&posted);
        let peer = &mut self.ends[1 - at];
        let completion = match posted {
            Posted::Send { slot, frame } => {
                peer.arrive(&frame);
                Completion::Send(slot)
            }
            Posted::Read { message, source, length } => {
                Completion::Read(message, peer.read(source, length))
            }
        };
        self.completions[at].push(completion);
        true
    }

    /// Reports a completion of an end. Returns false if it has none.
    pub(crate) fn complete(&mut self, at: usize, index: usize) -> bool {
        if index >= self.completions[at].len() {
            return false;
        }
        let completion = self.completions[at].remove(index);
        self.ends[at].complete(completion);
        true
    }

    /// Runs until both ends are idle.
    pub(crate) fn run(&mut self) {
        loop {
            let mut has_run = false;
            for at in 0..2 {
                self.drive(at);
                while self.execute(at) {
                    has_run = true;
                    self.drive(1 - at);
                }
                while self.complete(at, 0) {
                    has_run = true;
                }
                self.drive(at);
            }
            if !has_run && self.posted.iter().all(VecDeque::is_empty) {
                return;
            }
        }
    }

    /// Kills both queue pairs: posted requests are flushed.
    pub(crate) fn kill(&mut self) {
        for at in 0..2 {
            self.posted[at].clear();
            self.completions[at].clear();
            self.ends[at].machine.lost();
            self.drive(at);
        }
    }
}

impl Pair<Stream> {
    /// Writes as many of these bytes as the stream accepts. Returns their number.
    pub(crate) fn write(&mut self, at: usize, bytes: &[u8]) -> usize {
        self.write_while(at, bytes, |_| ())
    }

    /// Same as [`write`](Self::write), with work before each frame is posted.
    pub(crate) fn write_while(
        &mut self,
        at: usize,
        bytes: &[u8],
        mut work: impl FnMut(&mut Self),
    ) -> usize {
        let mut written = 0;
        while written < bytes.len()
            && let Some((posted, len)) = self.ends[at].write(&bytes[written..]).unwrap()
        {
            work(self);
            self.posted[at].push_back(posted);
            self.ends[at].machine.posted();
            self.drive(at);
            written += len;
        }
        written
    }
}
