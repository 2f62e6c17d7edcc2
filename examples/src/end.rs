//! One end of a connection on which messages of one length go back and forth.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use rdma::memory::OwnedRegion;
use rdma::qp::{
    PollSlot, PreparedQueuePair, QueuePair, QueuePairEndpoint, ReceiveWorkRequest, SendWorkRequest,
    WorkSuccess,
};

use rdma_examples_common::Failure;

const RECEIVED: u64 = 1;
const SENT: u64 = 2;

/// A queue pair, and the memory that its requests use, which is freed after it.
#[derive(Debug)]
pub struct End {
    qp: QueuePair,
    outgoing: OwnedRegion,
    /// As long as a message. No message is read.
    incoming: OwnedRegion,
    receives: u32,
    sends: u32,
    /// How many polls may find nothing before the processor is left to others between two of them. The peer may need
    /// it: if there is one alone, at once.
    spins: u32,
}

/// As many as a channel does.
const SPINS: u32 = 1024;

impl End {
    /// Connects, and is ready for the first message.
    ///
    /// # Errors
    /// If the endpoints do not fit, or the device refuses.
    pub fn connect(
        prepared: PreparedQueuePair,
        peer: QueuePairEndpoint,
        size: usize,
    ) -> Result<Self, Failure> {
        let qp = prepared.handshake(peer)?;
        let region = |length| qp.pd().allocate_region(length);
        let (outgoing, incoming) = (region(size)?, region(size)?);
        let alone = thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let spins = if alone { 0 } else { SPINS };
        let mut end = Self { qp, outgoing, incoming, receives: 0, sends: 0, spins };
        end.receive()?; // before the peer sends
        Ok(end)
    }

    /// Sends a message and waits for the answer, so many times, and until the last message has arrived.
    ///
    /// # Errors
    /// If nothing comes from the peer for ten seconds, a request failed, or the device refuses.
    pub fn ask(&mut self, times: u32) -> Result<(), Failure> {
        (0..times).try_for_each(|_| self.send().and_then(|()| self.next_message()))?;
        self.wait(|_, sends| sends == 0)
    }

    /// Waits for a message and answers, so many times, and until the last answer has arrived.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask).
    pub fn answer(&mut self, times: u32) -> Result<(), Failure> {
        (0..times).try_for_each(|_| self.next_message().and_then(|()| self.send()))?;
        self.wait(|_, sends| sends == 0)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let mut room = self.incoming.as_slice_mut();
        let elements = &mut [room.scatter_element()];
        // SAFETY: SAFETY.md F8: nothing makes a reference to the bytes of `incoming`, which goes after the queue pair.
        unsafe { self.qp.post_receive(ReceiveWorkRequest::new(elements), RECEIVED) }?;
        self.receives += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let data = [self.outgoing.as_slice().gather_element()];
        let request = SendWorkRequest::new(&data);
        // SAFETY: SAFETY.md F8: nothing writes `outgoing`, which goes after the queue pair.
        unsafe { self.qp.post_send(request, SENT) }?;
        self.sends += 1;
        Ok(())
    }

    /// Waits for a message, and is ready for the next one then, before it is answered. What was sent before has arrived, but
    /// for the last message perhaps: its acknowledgement may come after the answer, which does not wait for it.
    fn next_message(&mut self) -> Result<(), Failure> {
        self.wait(|receives, sends| receives == 0 && sends <= 1)?;
        self.receive()
    }

    /// Takes completions until so few requests are in flight.
    fn wait(&mut self, over: impl Fn(u32, u32) -> bool) -> Result<(), Failure> {
        let (cq, mut slots) = (self.qp.recv_cq(), [PollSlot::default(); 4]);
        let (begin, limit) = (Instant::now(), Duration::from_secs(10));
        let mut spins = self.spins;
        while !over(self.receives, self.sends) {
            let mut done = cq.poll(&mut slots)?;
            if let (true, Some(channel)) = (done.is_empty(), cq.channel()) {
                cq.req_notify(false)?;
                done = cq.poll(&mut slots)?; // what came in between sends no event
                if done.is_empty() {
                    channel.get_event_timeout(limit)?; // sleeps
                }
            }
            if done.is_empty() {
                if begin.elapsed() > limit {
                    let why =
                        "nothing comes from the peer; was it given the same size and iterations?";
                    return Err(why.into());
                }
                match spins.checked_sub(1) {
                    Some(left) => spins = left,
                    None => thread::yield_now(),
                }
            }
            for completion in done {
                let success = completion.result()?;
                match completion.wr_id() {
                    RECEIVED => {
                        self.receives -= 1;
                        self.check(&success)?;
                    }
                    _ => self.sends -= 1,
                }
            }
        }
        Ok(())
    }

    /// A message is as long as was agreed on.
    fn check(&self, success: &WorkSuccess) -> Result<(), Failure> {
        // The length of `outgoing`: even that of `incoming` is asked by a reference to its bytes.
        let got = success.scattered_bytes();
        if got == Some(self.outgoing.len()) {
            return Ok(());
        }
        Err(match got {
            Some(got) => format!(
                "a message of {} bytes came, not of {}: was the peer given the same size?",
                got,
                self.outgoing.len()
            ),
            None => "a receive ended as something else".to_owned(),
        }
        .into())
    }
}
