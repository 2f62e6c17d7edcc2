//! H8: a field of a peer's struct has the length of its type.

use rdma_mem::{Error, RemoteMemoryRegion, RemoteRef, open_device, remote_ref};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    #[repr(C)]
    struct Head {
        sequence: u64,
    }
    let (region, head) = (RemoteMemoryRegion::new(0x1000, 64, 7), Head { sequence: 1 });
    let field: RemoteRef<u64> = remote_ref!(region, Head::sequence).unwrap();
    println!("{:?} {} {pd:?}", field.region(), head.sequence);
    Ok(())
}
