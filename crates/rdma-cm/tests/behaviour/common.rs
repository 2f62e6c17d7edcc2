//! The parts that the tests share: a device, its queue pairs, and two connected ends.
#![allow(unsafe_code)] // posting is unsafe

use rdma_cm::{Connection, EventChannel, Listener, PreparedQueuePair, QueuePair};
use rdma_mem::{AccessFlags, Context, OwnedRegion, ProtectionDomain};
use rdma_qp::prelude::*;
use rdma_qp::{CompletionQueue, PollSlot, ReceiveWorkRequest, SendWorkRequest, WorkError};
use test_support::rig::pause;

pub(crate) use test_support::rig::PATIENCE as LIMIT;

pub(crate) fn open(name: &str) -> Context {
    rdma_soft::install();
    rdma_mem::open_device(name).unwrap()
}

/// The objects of one end.
pub(crate) struct Node {
    pub(crate) channel: EventChannel,
    pub(crate) pd: ProtectionDomain,
    pub(crate) cq: CompletionQueue,
    region: OwnedRegion,
}

impl Node {
    pub(crate) fn new(context: &Context) -> Self {
        let pd = context.allocate_pd().unwrap();
        let region = pd.allocate_region(64).unwrap();
        let cq = CompletionQueue::create(context, 16).unwrap();
        Self { channel: EventChannel::open(context).unwrap(), pd, cq, region }
    }

    pub(crate) fn queue_pair(&self) -> PreparedQueuePair {
        let access = AccessFlags::new().with_remote_write();
        self.pd.create_qp().send_cq(&self.cq).recv_cq(&self.cq).access(access).build().unwrap()
    }

    pub(crate) fn listen(&self) -> Listener {
        Listener::bind(&self.channel, "127.0.0.1:0").unwrap()
    }

    pub(crate) fn post_receive(&mut self, queue_pair: &QueuePair) {
        let mut buffer = self.region.get_mut(0, 64).unwrap();
        let mut elements = [buffer.scatter_element()];
        let receive = ReceiveWorkRequest::new(&mut elements);
        // SAFETY: SAFETY.md F8: nothing uses the region before `received` has polled the completion.
        unsafe { queue_pair.post_receive(receive, 1) }.unwrap();
    }

    /// Waits for the completion of a request.
    pub(crate) fn complete(&self) -> Result<u64, WorkError> {
        let (mut slots, mut turns) = ([PollSlot::default(); 1], 0);
        loop {
            if let Some(completion) = self.cq.poll(&mut slots).unwrap().next() {
                return completion.result().map(|_| completion.wr_id());
            }
            pause(&mut turns);
        }
    }

    /// Waits for a posted receive, and returns its first bytes.
    pub(crate) fn received(&mut self, length: usize) -> Vec<u8> {
        assert_eq!(self.complete().unwrap(), 1);
        self.region[..length].to_vec()
    }

    /// Sends a message and waits until it has arrived.
    pub(crate) fn send(&mut self, queue_pair: &QueuePair, message: &[u8]) {
        self.region[..message.len()].copy_from_slice(message);
        let data = [self.region.get_ref(0, message.len()).unwrap().gather_element()];
        // SAFETY: SAFETY.md F8: the region is not used before the request has completed below.
        unsafe { queue_pair.post_send(SendWorkRequest::new(&data), 2) }.unwrap();
        assert_eq!(self.complete().unwrap(), 2);
    }
}

/// Connects two ends, whose channels are polled in turn by one thread.
pub(crate) fn connect(
    client: &Node,
    server: &Node,
    listener: &Listener,
) -> (Connection, Connection) {
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"hello").unwrap();
    let request = listener.incoming(LIMIT).unwrap();
    let accepting = request.prepare(server.queue_pair()).unwrap();
    let accepted = accepting.accept(b"welcome").unwrap();
    let active = connecting.wait(LIMIT).unwrap().establish().unwrap();
    (active, accepted.wait(LIMIT).unwrap())
}
