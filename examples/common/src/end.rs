//! One end of a connection, or of an exchange of datagrams, that sends messages of one length,
//! either back and forth or in one direction.
#![allow(unsafe_code)]

use std::thread;
use std::time::{Duration, Instant};

use rdma::memory::OwnedRegion;
use rdma::qp::{
    AddressHandle, GlobalRouteHeader, PollSlot, PreparedQueuePair, QueuePair, QueuePairEndpoint,
    QueuePairType, ReceiveWorkRequest, SendWorkRequest, WorkSuccess,
};

use crate::Failure;

const RECEIVED: u64 = 1;
const SENT: u64 = 2;
/// The time limit for any completion.
const LIMIT: Duration = Duration::from_secs(10);
/// The number of empty polls without a yield. After that, the thread yields after each empty poll.
/// On a machine with one processor, the thread always yields, because the peer may need the
/// processor.
const SPINS: u32 = 1024;

/// A queue pair and the memory of its requests. The memory is freed after the queue pair.
#[derive(Debug)]
pub struct End {
    qp: QueuePair,
    /// The destination of datagrams.
    to: Option<(AddressHandle, QueuePairEndpoint)>,
    outgoing: OwnedRegion,
    /// Space for a header and a message. All receives use the same memory, because no message is
    /// read.
    incoming: OwnedRegion,
    /// The number of bytes before each received message. Zero except for datagrams.
    header: usize,
    receives: u32,
    sends: u32,
    spins: u32,
}

impl End {
    /// Connects to the peer, and posts a receive. A datagram queue pair is not connected, but sends
    /// only to this peer.
    ///
    /// # Errors
    /// Returns an error if the endpoints do not match, or if the device refuses a call.
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

    /// Posts receives until `messages` of them are posted.
    ///
    /// # Errors
    /// Returns an error if the queue has no space for them.
    pub fn make_room(&mut self, messages: u32) -> Result<(), Failure> {
        (self.receives..messages).try_for_each(|_| self.receive())
    }

    /// Sends `times` messages, keeping at most `depth` of them outstanding. Returns when all have
    /// completed.
    ///
    /// # Errors
    /// Same errors as [`ask`](Self::ask).
    pub fn stream(&mut self, times: u32, depth: u32) -> Result<(), Failure> {
        for _ in 0..times {
            self.wait(|_, sends| sends < depth)?;
            self.send()?;
        }
        self.wait(|_, sends| sends == 0)
    }

    /// Receives `times` messages, and posts a new receive after each. Calls `first` when the first
    /// message has arrived.
    ///
    /// # Errors
    /// Same errors as [`ask`](Self::ask).
    pub fn take(&mut self, times: u32, first: impl FnOnce()) -> Result<(), Failure> {
        let (room, mut arrived, mut first) = (self.receives, 0, Some(first));
        while arrived < times {
            let before = self.receives;
            self.wait(|receives, _| receives < before)
                .map_err(|error| format!("{arrived} of {times} messages arrived: {error}"))?;
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

    /// Sends a message and waits for the answer, `times` times. Returns when the last message has
    /// completed.
    ///
    /// # Errors
    /// Returns an error if nothing completes for ten seconds, a request fails, or the device
    /// refuses a call.
    pub fn ask(&mut self, times: u32) -> Result<(), Failure> {
        (0..times).try_for_each(|_| self.send().and_then(|()| self.next_message()))?;
        self.wait(|_, sends| sends == 0)
    }

    /// Waits for a message and answers it, `times` times. Returns when the last answer has
    /// completed.
    ///
    /// # Errors
    /// Same errors as [`ask`](Self::ask).
    pub fn answer(&mut self, times: u32) -> Result<(), Failure> {
        (0..times).try_for_each(|_| self.next_message().and_then(|()| self.send()))?;
        self.wait(|_, sends| sends == 0)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let mut room = self.incoming.as_slice_mut();
        let elements = &mut [room.scatter_element()];
        // SAFETY: SAFETY.md F8: no reference to the bytes of `incoming` is created, and it is freed
        // after the queue pair. Other posted receives use the same bytes, which only the device
        // writes.
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
        // SAFETY: SAFETY.md F8: nothing writes to `outgoing`. It and the address handle are freed
        // after the queue pair.
        unsafe { self.qp.post_send(request, SENT) }?;
        self.sends += 1;
        Ok(())
    }

    /// Waits for the next message, and posts a receive for the one after it before this message is
    /// answered. At that time, all sends have completed except perhaps the last, whose
    /// acknowledgement may arrive after the peer's message.
    fn next_message(&mut self) -> Result<(), Failure> {
        self.wait(|receives, sends| receives == 0 && sends <= 1)?;
        self.receive()
    }

    /// Polls until `over` returns true. Its arguments are the numbers of posted receives and of
    /// outstanding sends.
    fn wait(&mut self, over: impl Fn(u32, u32) -> bool) -> Result<(), Failure> {
        let (cq, mut slots) = (self.qp.recv_cq(), [PollSlot::default(); 4]);
        let (begin, mut spins) = (Instant::now(), self.spins);
        while !over(self.receives, self.sends) {
            let mut done = cq.poll(&mut slots)?;
            if let (true, Some(channel)) = (done.is_empty(), cq.channel()) {
                cq.req_notify(false)?;
                done = cq.poll(&mut slots)?; // completions before the call cause no event
                if done.is_empty() {
                    channel.get_event_timeout(LIMIT)?; // sleeps until there is an event
                }
            }
            if done.is_empty() {
                if begin.elapsed() > LIMIT {
                    let error = "give the peer the same size and iterations";
                    return Err(format!("nothing completed for {LIMIT:?}: {error}").into());
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

    /// Checks that a received message has the expected length.
    fn check(&self, success: &WorkSuccess) -> Result<(), Failure> {
        let received =
            success.scattered_bytes().ok_or("a receive completed as another operation")?;
        let (received, size) = (received.saturating_sub(self.header), self.outgoing.len());
        if received == size {
            return Ok(());
        }
        let cure = "give the peer the same size";
        Err(format!("a message of {received} bytes arrived, not of {size}: {cure}").into())
    }
}
