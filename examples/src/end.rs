//! One end of a connection, or of datagrams, on which messages of one length go back and forth or one way.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use rdma::memory::OwnedRegion;
use rdma::qp::{
    AddressHandle, GlobalRouteHeader, PollSlot, PreparedQueuePair, QueuePair, QueuePairEndpoint,
    QueuePairType, ReceiveWorkRequest, SendWorkRequest, WorkSuccess,
};

use rdma_examples_common::Failure;

const RECEIVED: u64 = 1;
const SENT: u64 = 2;

/// A queue pair, and the memory that its requests use, which is freed after it.
#[derive(Debug)]
pub struct End {
    qp: QueuePair,
    /// Of datagrams: whom they go to.
    to: Option<(AddressHandle, QueuePairEndpoint)>,
    outgoing: OwnedRegion,
    /// As long as a message behind its header. All receives have the same bytes, which nobody looks at.
    incoming: OwnedRegion,
    /// How many bytes are in front of a message: of datagrams some.
    header: usize,
    receives: u32,
    sends: u32,
    /// How many polls may find nothing before the processor is left to others between two of them. The peer may need
    /// it: if there is one alone, at once.
    spins: u32,
}

/// As many as a channel does.
const SPINS: u32 = 1024;

impl End {
    /// Connects, and is ready for the first message. A queue pair of datagrams sends to that peer alone.
    ///
    /// # Errors
    /// If the endpoints do not fit, or the device refuses.
    pub fn connect(
        prepared: PreparedQueuePair,
        peer: QueuePairEndpoint,
        size: usize,
    ) -> Result<Self, Failure> {
        let (qp, to, header) = if prepared.endpoint().qp_type() == QueuePairType::UD {
            let qp = prepared.activate()?;
            let handle = qp.address_handle(&peer)?;
            (qp, Some((handle, peer)), GlobalRouteHeader::BYTES)
        } else {
            (prepared.handshake(peer)?, None, 0)
        };
        let region = |length| qp.pd().allocate_region(length);
        let (outgoing, incoming) = (region(size)?, region(header + size)?);
        let alone = thread::available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let spins = if alone { 0 } else { SPINS };
        let mut end = Self { qp, to, outgoing, incoming, header, receives: 0, sends: 0, spins };
        end.receive()?; // before the peer sends
        Ok(end)
    }

    /// Is ready for so many messages, of which [`connect`](Self::connect) has made it ready for one.
    ///
    /// # Errors
    /// If the queue is too short for them.
    pub fn make_room(&mut self, messages: u32) -> Result<(), Failure> {
        (self.receives..messages).try_for_each(|_| self.receive())
    }

    /// Sends so many messages, so many at a time, and waits until all have arrived.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask).
    pub fn stream(&mut self, times: u32, at_a_time: u32) -> Result<(), Failure> {
        for _ in 0..times {
            self.wait(|_, sends| sends < at_a_time)?;
            self.send()?;
        }
        self.wait(|_, sends| sends == 0)
    }

    /// Takes so many messages, and is ready for as many at a time as there is room made. Calls `first` when the
    /// first one is there.
    ///
    /// # Errors
    /// Those of [`ask`](Self::ask).
    pub fn take(&mut self, times: u32, first: impl FnOnce()) -> Result<(), Failure> {
        let (room, mut arrived, mut first) = (self.receives, 0, Some(first));
        while arrived < times {
            let before = self.receives;
            self.wait(|receives, _| receives < before).map_err(|error| {
                format!("{arrived} of {times} messages arrived, and then: {error}")
            })?;
            if let Some(first) = first.take() {
                first();
            }
            arrived += before - self.receives;
            while self.receives < room.min(times.saturating_sub(arrived)) {
                self.receive()?;
            }
        }
        Ok(())
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
        // The other receives that are posted name the same bytes, which is the device's affair.
        unsafe { self.qp.post_receive(ReceiveWorkRequest::new(elements), RECEIVED) }?;
        self.receives += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<(), Failure> {
        let data = [self.outgoing.as_slice().gather_element()];
        let mut request = SendWorkRequest::new(&data);
        if let Some((handle, peer)) = &self.to {
            request = request.to(handle, peer.qpn(), peer.qkey());
        }
        // SAFETY: SAFETY.md F8: nothing writes `outgoing`, which goes after the queue pair, as the handle does.
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
        if got == Some(self.header + self.outgoing.len()) {
            return Ok(());
        }
        Err(match got {
            Some(got) => format!(
                "a message of {} bytes came, not of {}: was the peer given the same size?",
                got.saturating_sub(self.header),
                self.outgoing.len()
            ),
            None => "a receive ended as something else".to_owned(),
        }
        .into())
    }
}
