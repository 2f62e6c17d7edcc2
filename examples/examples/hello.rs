//! Two queue pairs of a software device: one writes into memory of the other.
#![allow(unsafe_code)]

use rdma_mem::{AccessFlags, open_device};
use rdma_qp::{CompletionQueue, PollSlot, WriteWorkRequest, prelude::*};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    rdma_soft::install(); // puts soft0 and softib0 beside the machine's own devices
    let context = open_device("soft0")?;
    let pd = context.allocate_pd()?;
    let cq = CompletionQueue::create(&context, 64)?;

    let mut source = pd.allocate_region(4096)?;
    source[..5].copy_from_slice(b"hello");
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let target = pd.allocate_shared_region(4096, access)?; // peers may write it

    // Each side needs the other's endpoint. Between machines, send it through a socket.
    let prepare = || pd.create_qp().send_cq(&cq).recv_cq(&cq).access(access).build();
    let (here, there) = (prepare()?, prepare()?);
    let endpoint = here.endpoint();
    let here = here.handshake(there.endpoint())?;
    let _there = there.handshake(endpoint)?;

    let hello = [source.get_ref(0, 5).ok_or("no such range")?.gather_element()];
    // SAFETY: SAFETY.md F8: the source stays registered and unchanged until the completion below.
    unsafe { here.post_write(WriteWorkRequest::new(&hello, target.remote()), 1) }?;
    let mut slots = [PollSlot::default()];
    while cq.poll(&mut slots)?.next().map(|done| done.result()).transpose()?.is_none() {}

    let mut text = [0; 5];
    target.read(0, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
