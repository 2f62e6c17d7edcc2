//! H16: a region cannot be closed while a window borrows it.

use rdma_mem::{AccessFlags, Error, MemoryWindow, WindowType, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_shared_region(64, AccessFlags::new().with_mw_bind())?;
    let window = MemoryWindow::allocate(&region, WindowType::Two).map_err(|(_, error)| error)?;
    let memory = region.len();
    println!("{window:?} {memory:?}");
    Ok(())
}
