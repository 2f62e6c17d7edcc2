//! The order in which the bytes of a message reach memory.
#![allow(unsafe_code)]

use rdma_sys::{ibv_query_qp_data_in_order_caps, ibv_query_qp_data_in_order_flags, ibv_wr_opcode};
use rdma_types::WcOpcode;

use crate::error::Error;
use crate::qp::queue_pair::QueuePair;

/// A device's guarantees about the order in which the bytes of one message reach memory.
///
/// A program that polls memory for the last byte of a message, instead of polling for its completion, needs one of
/// these guarantees. With adaptive routing, packets take different paths through the network, so later bytes may arrive
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DataOrder {
    /// Whether all bytes of a message arrive in order.
    pub whole_message: bool,
    /// Whether the bytes of each aligned block of 128 bytes arrive in order.
    pub aligned_128_bytes: bool,
}

impl QueuePair {
    /// Returns the device's guarantees for messages of this kind that arrive on this queue pair:
    /// [`SEND`](WcOpcode::SEND), [`RDMA_WRITE`](WcOpcode::RDMA_WRITE) or [`RDMA_READ`](WcOpcode::RDMA_READ). There are
    /// no guarantees for other kinds, nor with a libibverbs without this query (before rdma-core 36). See
    /// `man ibv_query_qp_data_in_order`.
    ///
    /// # Errors
    /// [`rdma_mem::Error::Forked`] in a forked child.
    ///
    /// # Examples
    /// ```
    /// use rdma_qp::{CompletionQueue, WcOpcode, prelude::*};
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 16)?;
    /// let prepared = context.allocate_pd()?.create_qp().send_cq(&cq).recv_cq(&cq).build()?;
    /// let own = prepared.endpoint();
    /// let qp = prepared.handshake(own)?;
    /// if !qp.data_order(WcOpcode::RDMA_WRITE)?.whole_message {
    ///     println!("wait for a completion, not for the last byte");
    /// }
    /// # Ok::<(), rdma_qp::Error>(())
    /// ```
    #[doc(alias = "ibv_query_qp_data_in_order")]
    pub fn data_order(&self, opcode: WcOpcode) -> Result<DataOrder, Error> {
        self.pd().check_process().map_err(rdma_mem::Error::from)?;
        let opcode = match opcode {
            WcOpcode::SEND => ibv_wr_opcode::IBV_WR_SEND,
            WcOpcode::RDMA_WRITE => ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            WcOpcode::RDMA_READ => ibv_wr_opcode::IBV_WR_RDMA_READ,
            _ => return Ok(DataOrder::default()),
        };
        let Some(query) = self.pd().verbs().query_qp_data_in_order else {
            return Ok(DataOrder::default());
        };
        let caps = ibv_query_qp_data_in_order_flags::IBV_QUERY_QP_DATA_IN_ORDER_RETURN_CAPS.0;
        // SAFETY: SAFETY.md F1, F2: the queue pair is live and belongs to this table.
        let plain = unsafe { query(self.as_raw(), opcode, 0) };
        // SAFETY: SAFETY.md F1, F2: same argument as above.
        let caps = unsafe { query(self.as_raw(), opcode, caps) };
        Ok(order(plain, caps))
    }
}

/// Interprets the results of two queries: one without and one with the capability flag. A library that does not know
/// the flag returns the same result for both, or an error for the second.
fn order(plain: i32, caps: i32) -> DataOrder {
    let whole_message = plain == 1;
    let aligned = ibv_query_qp_data_in_order_caps::IBV_QUERY_QP_DATA_IN_ORDER_ALIGNED_128_BYTES.0;
    let has_aligned = u32::try_from(caps).is_ok_and(|caps| caps & aligned != 0);
    DataOrder { whole_message, aligned_128_bytes: whole_message || has_aligned }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answer_of_the_verb_is_understood() {
        let parts = |plain, caps| {
            let DataOrder { whole_message, aligned_128_bytes } = order(plain, caps);
            (whole_message, aligned_128_bytes)
        };
        assert_eq!(parts(0, 0), (false, false));
        assert_eq!(parts(1, 3), (true, true));
        assert_eq!(parts(1, 1), (true, true), "an old library: the whole includes its blocks");
        assert_eq!(parts(0, 2), (false, true));
        assert_eq!(parts(0, -22), (false, false), "an error");
    }
}
