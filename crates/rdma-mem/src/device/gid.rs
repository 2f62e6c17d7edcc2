//! One GID of a port.
#![allow(unsafe_code)]

use rdma_sys::{Errno, ibv_gid};
use rdma_types::{Gid, GidType};

use crate::device::context::Context;
use crate::error::Error;
use crate::error::verb::VerbError;

/// One GID of a port, from [`Context::gid_table`](crate::Context::gid_table).
#[doc(alias = "ibv_gid_entry")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// The port's number, starting at 1.
    pub port: u8,
    /// The index in the port's table, starting at 0, for `ibv_global_route.sgid_index`.
    pub index: u32,
    /// The GID.
    pub gid: Gid,
    /// The packet format that the GID selects.
    pub gid_type: GidType,
    /// The index (`if_nametoindex`) of the network interface that has this GID's address. `None` on
    /// InfiniBand and software ports.
    pub netdev_index: Option<u32>,
    /// The number of leading bits of the GID that identify its network: 120 for an IPv4 address in
    /// a /24. It is derived from the mask of the network interface that has this address. `None` if
    /// no interface in this network namespace has it.
    pub prefix_length: Option<u8>,
}

impl Context {
    /// Returns the GID at an index in a port's table; see `man ibv_query_gid`. An empty entry is
    /// [`Gid::ZERO`].
    ///
    /// # Errors
    /// Returns an error if the port or the index does not exist.
    #[doc(alias = "ibv_query_gid")]
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid, Error> {
        self.check_process()?;
        let verb = "ibv_query_gid";
        let place = i32::try_from(index).map_err(|_| VerbError::new(verb, Errno::EINVAL))?;
        let mut gid = ibv_gid::default();
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table, and the GID may
        // be written.
        let returned =
            unsafe { (self.verbs().query_gid)(self.as_raw(), port, place, &raw mut gid) };
        Errno::check_minus_one(returned).map_err(|errno| VerbError::new(verb, errno))?;
        Ok(read(&gid))
    }
}

/// Reads the GID from the C union.
pub(crate) fn read(raw: &ibv_gid) -> Gid {
    Gid::from_bytes(raw.to_bytes())
}
