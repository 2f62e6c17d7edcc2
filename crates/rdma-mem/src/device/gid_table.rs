//! The GID tables of a device's ports.
#![allow(unsafe_code)]

use rdma_sys::{Errno, ibv_gid_entry};
use rdma_types::GidType;

use crate::device::context::Context;
use crate::device::gid::{self, GidEntry};
use crate::device::gid_sysfs;
use crate::device::port::PortAttributes;
use crate::error::Error;
use crate::error::verb::VerbError;

impl Context {
    /// Returns the GIDs of all ports, ordered by port and index, without empty entries.
    ///
    /// Types and network interfaces come from `ibv_query_gid_table` or, with an rdma-core before
    /// 32, from `/sys/class/infiniband`. Prefix lengths come from `getifaddrs(3)`. A changed mask of
    /// an unchanged address is seen within 100 ms.
    ///
    /// # Errors
    /// Returns an error if the provider refuses.
    ///
    /// # Examples
    /// ```
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// for entry in context.gid_table()? {
    ///     println!("{}[{}] {} {}", entry.port, entry.index, entry.gid, entry.gid_type);
    /// }
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "ibv_query_gid_table")]
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>, Error> {
        self.check_process()?;
        let mut table = query(self)?;
        self.networks().add_prefix_lengths(&mut table);
        Ok(table)
    }
}

fn query(context: &Context) -> Result<Vec<GidEntry>, Error> {
    if context.verbs().query_gid_table.is_none() {
        return gid_sysfs::query(context, &ports(context)?);
    }
    let places = match context.gid_places().get() {
        Some(&places) => places,
        None => {
            let lengths = ports(context)?.into_iter().map(|port| port.gid_table_length as usize);
            let places = lengths.sum();
            *context.gid_places().get_or_init(|| places)
        }
    };
    let mut entries = vec![ibv_gid_entry::default(); places];
    // SAFETY: SAFETY.md F1, F12: the context is live and belongs to this table, and `places`
    // entries may be written.
    let returned = unsafe {
        rdma_sys::ibv_query_gid_table(
            context.verbs(),
            context.as_raw(),
            entries.as_mut_ptr(),
            places,
            0,
        )
    }?;
    let count = Errno::check_count(returned)
        .map_err(|errno| VerbError::new("ibv_query_gid_table", errno))?;
    entries.truncate(count);
    let mut table: Vec<_> = entries.iter().filter_map(entry).collect();
    table.sort_by_key(|entry| (entry.port, entry.index));
    Ok(table)
}

fn ports(context: &Context) -> Result<Vec<PortAttributes>, Error> {
    let ports = 1..=context.query_device()?.port_count;
    ports.map(|port| context.query_port(port)).collect()
}

fn entry(raw: &ibv_gid_entry) -> Option<GidEntry> {
    let gid = gid::read(&raw.gid);
    // The verb skips empty entries. This check also handles a provider that returns them.
    (!gid.is_zero()).then_some(())?;
    Some(GidEntry {
        port: u8::try_from(raw.port_num).ok()?,
        index: raw.gid_index,
        gid,
        gid_type: GidType::from_raw(raw.gid_type),
        netdev_index: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
        prefix_length: None,
    })
}
