//! H8: a field and its size come from the named struct.

use rdma_mem::{Error, RemoteMemoryRegion, open_device, remote_struct_field};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    #[repr(C)]
    struct Head {
        sequence: u64,
    }
    let (region, head) = (RemoteMemoryRegion::new(0x1000, 64, 7), Head { sequence: 1 });
    let field = remote_struct_field!(region, Head::sequence);
    println!("{field:?} {} {pd:?}", head.sequence);
    Ok(())
}
