//! The tables of GIDs of a device's ports.
#![allow(unsafe_code)]

use rdma_sys::{Errno, ibv_gid, ibv_gid_entry};
use rdma_types::{Gid, GidType};

use crate::device::context::Context;
use crate::device::gid_sysfs;
use crate::error::{Error, VerbError};

/// One GID of a port, from [`Context::gid_table`](crate::Context::gid_table).
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The port's number, from 1.
    pub port: u8,
    /// The place in the port's table, from 0: what `ibv_global_route.sgid_index` wants.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// What kind of packets it is for.
    pub gid_type: GidType,
    /// The number of the network interface (`if_nametoindex`) that the GID is an address of. `None`
    /// on InfiniBand and software ports.
    pub netdev_index: Option<u32>,
}

pub(crate) fn query(context: &Context) -> Result<Vec<GidEntry>, Error> {
    let ports = 1..=context.query_device()?.port_count;
    let ports = ports.map(|port| context.query_port(port)).collect::<Result<Vec<_>, _>>()?;
    if context.verbs().query_gid_table.is_none() {
        return gid_sysfs::query(context, &ports);
    }
    let places = ports.iter().map(|port| port.gid_table_length as usize).sum();
    let mut entries = vec![ibv_gid_entry::default(); places];
    // SAFETY: SAFETY.md F1, F12: a live context of this table, and `places` entries to write to.
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

fn entry(raw: &ibv_gid_entry) -> Option<GidEntry> {
    let gid = gid(&raw.gid);
    // The verb leaves empty places out; a provider that does not is no worse.
    (!gid.is_zero()).then_some(())?;
    Some(GidEntry {
        port: u8::try_from(raw.port_num).ok()?,
        index: raw.gid_index,
        gid,
        gid_type: GidType::from_raw(raw.gid_type),
        netdev_index: (raw.ndev_ifindex != 0).then_some(raw.ndev_ifindex),
    })
}

pub(crate) fn gid(raw: &ibv_gid) -> Gid {
    // SAFETY: SAFETY.md F4: both variants of the union are plain bytes of the same size.
    Gid::from_bytes(unsafe { raw.raw })
}
