//! The partition key tables of a device's ports.
#![allow(unsafe_code)]

use rdma_sys::Errno;
use rdma_types::Pkey;

use crate::device::context::Context;
use crate::error::Error;
use crate::error::verb::VerbError;

impl Context {
    /// Returns a port's partition keys, by index. A queue pair's `pkey_index` option is an index
    /// into this table. Entries that the subnet manager has not set [are empty](Pkey::is_empty).
    /// See `man ibv_query_pkey`.
    ///
    /// # Errors
    /// Returns an error if the port does not exist, or the provider refuses.
    ///
    /// # Examples
    /// ```
    /// use rdma_mem::Pkey;
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let pkeys = context.pkeys(1)?;
    /// let index = pkeys.iter().position(|&pkey| pkey == Pkey::DEFAULT);
    /// assert_eq!(index, Some(0));
    /// # Ok::<(), rdma_mem::Error>(())
    /// ```
    #[doc(alias = "ibv_query_pkey")]
    pub fn pkeys(&self, port: u8) -> Result<Vec<Pkey>, Error> {
        let count = self.query_port(port)?.pkey_table_length;
        (0..count).map(|index| self.query_pkey(port, index)).collect()
    }

    fn query_pkey(&self, port: u8, index: u16) -> Result<Pkey, Error> {
        let mut pkey = 0_u16;
        // SAFETY: SAFETY.md F1, F2: the context is live and belongs to this table, and the key may
        // be written.
        let returned =
            unsafe { (self.verbs().query_pkey)(self.as_raw(), port, index.into(), &raw mut pkey) };
        Errno::check_minus_one(returned)
            .map_err(|errno| VerbError::new("ibv_query_pkey", errno))?;
        Ok(Pkey::new(u16::from_be(pkey)))
    }
}
