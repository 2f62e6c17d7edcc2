//! Lends memory to a peer through a memory window. A message from the peer returns the memory.
#![allow(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use rdma::memory::{MemoryWindow, WindowType};
use rdma::prelude::*;
use rdma::qp::{BindWindow, CompletionQueue, PollSlot, QueuePair, SendWithInvalidate, WorkResult};
use rdma_examples::ends::{Ends, OtherEnd};
use rdma_examples_common::{Failure, program};

/// Lends memory to a peer, gets it back, and shows that the peer has no access any more. The peer
/// is a thread, or another process. In that case, the owner of the memory listens, and the peer
/// connects.
#[derive(Debug, Parser)]
pub(crate) struct Arguments {
    #[command(flatten)]
    ends: Ends,
}

const PAGE: usize = 4096;
const TEXT: &[u8] = b"written by the peer";

/// A queue pair and the memory of its requests. The memory is freed after the queue pair.
struct End<'a> {
    qp: QueuePair,
    memory: OwnedRegion,
    other: &'a OtherEnd,
}

fn main() -> ExitCode {
    program(run)
}

pub(crate) fn run(arguments: &Arguments) -> Result<String, Failure> {
    arguments.ends.run(|context, peer| lend(context, peer), |context, owner| write(context, owner))
}

/// Lends the second half of a page: binds a window to it, and sends the window's key to the peer.
fn lend(context: &Context, peer: &OtherEnd) -> Result<String, Failure> {
    let mut own = End::connect(context, peer)?;
    let page = own.qp.pd().allocate_bindable_region(PAGE)?;
    let mut window = MemoryWindow::allocate(page, WindowType::Two).map_err(|(_, error)| error)?;
    let write = AccessFlags::new().with_remote_write();
    let bind = BindWindow::new(&mut window, PAGE / 2..PAGE, write)?.signaled(false);
    let remote = bind.remote();
    // Not the bytes before it, because a receive is using them.
    let mut address = own.memory.get_mut(8, 8).ok_or("too short")?;
    address.copy_from_slice(&remote.address().to_be_bytes());
    let elements = [address.gather_element()];
    let tell = SendWorkRequest::new(&elements).with_immediate(remote.rkey().get());
    // SAFETY: SAFETY.md F8: the window owns the page, and nothing changes the bytes of the address
    // until they are sent.
    unsafe { own.qp.post_batch(&mut [bind.with_id(1), tell.with_id(2)]) }?;

    // One completion shows that the key was sent. The other one is that of the peer's message,
    // which returns the window.
    let done = [own.next()??, own.next()??];
    if !done.iter().any(|success| success.invalidated_rkey() == window.rkey()) {
        return Err("another window was returned".into());
    }
    // SAFETY: the receive has reported that this window was invalidated.
    unsafe { window.unbound() };
    // Now only the owner can access the page.
    let page = window.region().ok_or("still lent")?;
    let text = String::from_utf8_lossy(&page[PAGE / 2..][..TEXT.len()]);
    peer.finish()?;
    Ok(format!("lent and returned: {text}"))
}

/// Writes to the lent memory, returns it, and then tries to write again.
fn write(context: &Context, owner: &OtherEnd) -> Result<String, Failure> {
    let mut own = End::connect(context, owner)?;
    let rkey = own.next()??.immediate_data().ok_or("no key")?;
    let address = u64::from_be_bytes(own.memory[..8].try_into()?);
    let lent = RemoteMemoryRegion::new(address, PAGE / 2, rkey);
    own.write(lent)??;
    // SAFETY: the request has no memory.
    unsafe { own.qp.post(SendWithInvalidate::new(&[], lent.rkey()), 4) }?;
    own.next()??;
    let error = own.write(lent)?.err().ok_or("the peer could still write")?;
    owner.finish()?;
    Ok(format!("a second write: {error}"))
}

impl<'a> End<'a> {
    /// Connects to the other end. Returns when both ends are ready for the first message.
    fn connect(context: &Context, other: &'a OtherEnd) -> Result<Self, Failure> {
        let (cq, pd) = (CompletionQueue::create(context, 8)?, context.allocate_pd()?);
        let access = AccessFlags::new().with_remote_write();
        let builder = pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access);
        let prepared = builder.max_send_wr(4).max_recv_wr(2).build()?;
        let qp = other.connect_queue_pair(prepared)?;
        let mut own = Self { qp, memory: pd.allocate_region(64)?, other };
        own.receive()?;
        other.ready()?;
        Ok(own)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let mut room = self.memory.get_mut(0, 8).ok_or("too short")?;
        let elements = &mut [room.scatter_element()];
        // SAFETY: SAFETY.md F8: no code reads the memory before the receive completes.
        Ok(unsafe { self.qp.post_receive(ReceiveWorkRequest::new(elements), 3) }?)
    }

    fn write(&mut self, to: RemoteMemoryRegion) -> Result<WorkResult, Failure> {
        self.memory[16..16 + TEXT.len()].copy_from_slice(TEXT);
        let data = [self.memory.get_ref(16, TEXT.len()).ok_or("too short")?.gather_element()];
        // SAFETY: SAFETY.md F8: no code writes to the memory before the write completes.
        unsafe { self.qp.post_write(WriteWorkRequest::new(&data, to), 5) }?;
        self.next()
    }

    fn next(&self) -> Result<WorkResult, Failure> {
        let (cq, mut slots) = (self.qp.send_cq(), [PollSlot::default()]);
        self.other.until(|| Ok(cq.poll(&mut slots)?.next().map(|done| done.result())))
    }
}
