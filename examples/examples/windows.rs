//! Memory is lent to a peer through a memory window, and given back by the peer's own message.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use clap::Parser;
use rdma_mem::{
    AccessFlags, MemoryWindow, OwnedRegion, RemoteMemoryRegion, WindowType, open_device,
};
use rdma_qp::{
    BindWindow, CompletionQueue, PollSlot, PreparedQueuePair, QueuePair, ReceiveWorkRequest,
    SendWithInvalidate, SendWorkRequest, WorkResult, WriteWorkRequest, prelude::*,
};

/// Lends memory to a peer, takes it back, and shows that the peer is out.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[arg(long, value_name = "NAME", default_value = "soft0", help = "The RDMA device")]
    device: String,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

const PAGE: usize = 4096;
const TEXT: &[u8] = b"written by the peer";

/// A queue pair, and the memory that its requests use, which is freed after it.
struct End {
    qp: QueuePair,
    memory: OwnedRegion,
}

fn main() -> Result<(), Failure> {
    print!("{}", run(&Arguments::parse())?);
    Ok(())
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    rdma_soft::install();
    let (owner, peer) = (prepare(&arguments.device)?, prepare(&arguments.device)?);
    let (owner_end, peer_end) = (owner.endpoint(), peer.endpoint());
    let mut owner = End::new(owner.handshake(peer_end)?)?;
    let mut peer = End::new(peer.handshake(owner_end)?)?;
    owner.receive()?;
    peer.receive()?;
    // The owner lends the second half of a page: binds a window to it, and tells the peer.
    let page = owner.qp.pd().allocate_bindable_region(PAGE)?;
    let mut window = MemoryWindow::allocate(page, WindowType::Two).map_err(|(_, error)| error)?;
    let write = AccessFlags::new().with_remote_write();
    let bind = BindWindow::new(&mut window, PAGE / 2..PAGE, write)?.signaled(false);
    let remote = bind.remote();
    owner.memory[..8].copy_from_slice(&remote.address().to_be_bytes());
    let address = owner.memory.get_ref(0, 8).ok_or("too short")?;
    let elements = [address.gather_element()];
    let tell = SendWorkRequest::new(&elements).with_immediate(remote.rkey().get());
    // SAFETY: SAFETY.md F8: the page is the window's own, and nobody writes the address.
    unsafe { owner.qp.post_batch(&mut [bind.with_id(1), tell.with_id(2)]) }?;
    owner.next()??;

    // The peer writes, and gives the window back with its message.
    let rkey = peer.next()??.immediate_data().ok_or("no key")?;
    let address = u64::from_be_bytes(peer.memory[..8].try_into()?);
    let lent = RemoteMemoryRegion::new(address, PAGE / 2, rkey);
    peer.write(lent)??;
    // SAFETY: a request without memory.
    unsafe { peer.qp.post(SendWithInvalidate::new(&[], lent.rkey()), 4) }?;
    peer.next()??;
    if owner.next()??.invalidated_rkey() != window.rkey() {
        return Err("another window was given back".into());
    }
    // SAFETY: the receive said that this window is invalidated.
    unsafe { window.unbound() };
    // The page is the owner's again, for the peer is out.
    let page = window.region().ok_or("still lent")?;
    let text = String::from_utf8_lossy(&page[PAGE / 2..][..TEXT.len()]);
    let error = peer.write(lent)?.err().ok_or("the peer could still write")?;
    Ok(format!("lent and given back: {text}\na second write: {:?}\n", error.code()))
}

fn prepare(device: &str) -> Result<PreparedQueuePair, Failure> {
    let context = open_device(device)?;
    let cq = CompletionQueue::create(&context, 8)?;
    let pd = context.allocate_pd()?;
    let access = AccessFlags::new().with_remote_write();
    let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access);
    Ok(builder.max_send_wr(4).max_recv_wr(2).build()?)
}

impl End {
    fn new(qp: QueuePair) -> Result<Self, Failure> {
        let memory = qp.pd().allocate_region(64)?;
        Ok(Self { qp, memory })
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let mut room = self.memory.get_mut(0, 8).ok_or("too short")?;
        let elements = &mut [room.scatter_element()];
        // SAFETY: SAFETY.md F8: nobody looks at the memory before the completion.
        Ok(unsafe { self.qp.post_receive(ReceiveWorkRequest::new(elements), 3) }?)
    }

    fn write(&mut self, to: RemoteMemoryRegion) -> Result<WorkResult, Failure> {
        self.memory[8..8 + TEXT.len()].copy_from_slice(TEXT);
        let data = [self.memory.get_ref(8, TEXT.len()).ok_or("too short")?.gather_element()];
        // SAFETY: SAFETY.md F8: nobody writes the memory before the completion.
        unsafe { self.qp.post_write(WriteWorkRequest::new(&data, to), 5) }?;
        self.next()
    }

    fn next(&self) -> Result<WorkResult, Failure> {
        let (begin, mut slots) = (Instant::now(), [PollSlot::default()]);
        while begin.elapsed() < Duration::from_secs(10) {
            if let Some(done) = self.qp.send_cq().poll(&mut slots)?.next() {
                return Ok(done.result());
            }
        }
        Err("nothing comes from the other side".into())
    }
}
