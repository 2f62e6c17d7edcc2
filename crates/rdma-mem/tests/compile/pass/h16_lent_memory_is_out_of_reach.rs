//! H16: lent memory belongs to its window, and cannot be accessed.

use rdma_mem::{Error, MemoryWindow, WindowType, open_device};

pub fn main() -> Result<(), Error> {
    rdma_soft::install();
    let pd = open_device("soft0")?.allocate_pd()?;
    let region = pd.allocate_bindable_region(64)?;
    let window = MemoryWindow::allocate(region, WindowType::Two).map_err(|(_, error)| error)?;
    let bytes = window.region().map_or(0, |region| region.len());
    println!("{bytes} {window:?}");
    Ok(())
}
