//! One end of a connection on which messages of one length go back and forth.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use rdma_mem::OwnedRegion;
use rdma_qp::{
    PollSlot, PreparedQueuePair, QueuePair, QueuePairEndpoint, ReceiveWorkRequest, SendWorkRequest,
};

use crate::Failure;

const RECEIVED: u64 = 1;
const SENT: u64 = 2;

/// A queue pair, and the memory that its requests use, which is freed after it.
#[derive(Debug)]
pub struct End {
    qp: QueuePair,
    outgoing: OwnedRegion,
    incoming: OwnedRegion,
    receives: u32,
    sends: u32,
}

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
        let (outgoing, incoming) = (qp.pd().allocate_region(size)?, qp.pd().allocate_region(size)?);
        let mut end = Self { qp, outgoing, incoming, receives: 0, sends: 0 };
        end.receive()?; // before the peer sends
        Ok(end)
    }

    /// Sends a message and waits for the answer, so many times.
    ///
    /// # Errors
    /// If nothing comes from the peer for ten seconds, a request failed, or the device refuses.
    pub fn ask(&mut self, times: u32) -> Result<(), Failure> {
        (0..times).try_for_each(|_| self.send().and_then(|()| self.next_message()))
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
        let mut room = self.incoming.get_mut(0, self.outgoing.len()).ok_or("too short")?;
        let elements = &mut [room.scatter_element()];
        // SAFETY: SAFETY.md F8: nothing looks at `incoming`, which goes after the queue pair.
        unsafe { self.qp.post_receive(ReceiveWorkRequest::new(elements), RECEIVED) }?;
        self.receives += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let data = self.outgoing.get_ref(0, self.outgoing.len()).ok_or("too short")?;
        // SAFETY: SAFETY.md F8: nothing writes `outgoing`, which goes after the queue pair.
        unsafe { self.qp.post_send(SendWorkRequest::new(&[data.gather_element()]), SENT) }?;
        self.sends += 1;
        Ok(())
    }

    /// Waits for a message, and until all that was sent has arrived, and is ready for the next one then.
    fn next_message(&mut self) -> Result<(), Failure> {
        self.wait(|receives, sends| receives == 0 && sends == 0)?;
        self.receive()
    }

    /// Takes completions until so few requests are in flight.
    fn wait(&mut self, over: impl Fn(u32, u32) -> bool) -> Result<(), Failure> {
        let (cq, mut slots) = (self.qp.recv_cq(), [PollSlot::default(); 4]);
        let (begin, limit) = (Instant::now(), Duration::from_secs(10));
        while !over(self.receives, self.sends) {
            let mut done = cq.poll(&mut slots)?;
            if let (true, Some(channel)) = (done.is_empty(), cq.channel()) {
                cq.req_notify(false)?;
                done = cq.poll(&mut slots)?; // what came in between sends no event
                if done.is_empty() {
                    channel.get_event_timeout(limit)?; // sleeps
                }
            }
            if done.is_empty() && begin.elapsed() > limit {
                return Err(
                    "nothing comes from the peer; was it given the same size and iterations?"
                        .into(),
                );
            }
            for completion in done {
                completion.result()?;
                match completion.wr_id() {
                    RECEIVED => self.receives -= 1,
                    _ => self.sends -= 1,
                }
            }
        }
        Ok(())
    }
}
