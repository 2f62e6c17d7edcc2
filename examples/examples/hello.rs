//! Two channels of a software device: one writes into memory of the other. They are in one process, to be
//! short; `shared_memory` does so between two.

use rdma::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pd = open_device("soft0")?.allocate_pd()?; // softib0, or a device of the machine's own

    let mut source = pd.allocate_region(4096)?;
    source[..5].copy_from_slice(b"hello");
    let access = AccessFlags::new().with_local_write().with_remote_write();
    let target = pd.allocate_shared_region(4096, access)?; // peers may write it

    // Each side needs the other's endpoint. Between processes, `exchange` does it through a socket.
    let (here, there) = (pd.create_channel().build()?, pd.create_channel().build()?);
    let endpoint = here.endpoint();
    let mut here = here.handshake(there.endpoint())?;
    let _there = there.handshake(endpoint)?;

    let hello = GatherList::from([source.get_ref(0, 5).ok_or("no such range")?]);
    here.write(WriteWorkRequest::from_list(&hello, target.remote()))?; // returns when it is there

    let mut text = [0; 5];
    target.read(0, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
