//! The table of verbs.

use std::sync::OnceLock;

use rdma_sys::Verbs;

use super::completion::{cq, event};
#[cfg(not(loom))]
use super::device::mads;
use super::device::{context, list, port, query, text};
use super::memory::{mr, pd};
use super::queue_pair::{ah, qp, qp_ex, srq};
use super::{absent, fork};

/// The table of the software devices' verbs, for [`DeviceList::of`] and for C callers. [`install`] registers it.
///
/// [`DeviceList::of`]: https://docs.rs/rdma-mem
/// [`install`]: crate::install
#[must_use]
pub fn verbs() -> &'static Verbs {
    static TABLE: OnceLock<Verbs> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut verbs = Verbs::unsupported();
        verbs.name = "soft";
        verbs.get_device_list = list::get_device_list;
        verbs.free_device_list = list::free_device_list;
        verbs.get_device_name = list::get_device_name;
        verbs.get_device_guid = list::get_device_guid;
        verbs.get_device_index = Some(list::get_device_index);
        verbs.open_device = context::open_device;
        verbs.close_device = context::close_device;
        verbs.query_device = query::query_device;
        verbs.query_port = port::query_port_compat;
        verbs.query_gid = port::query_gid;
        verbs.query_gid_ex = Some(port::query_gid_ex);
        verbs.query_gid_table = Some(port::query_gid_table);
        verbs.query_pkey = port::query_pkey;
        verbs.get_pkey_index = Some(port::get_pkey_index);
        verbs.alloc_pd = pd::alloc_pd;
        verbs.dealloc_pd = pd::dealloc_pd;
        verbs.reg_mr = mr::reg_mr;
        verbs.reg_mr_iova = Some(mr::reg_mr_iova);
        verbs.reg_mr_iova2 = Some(mr::reg_mr_iova2);
        verbs.reg_dmabuf_mr = Some(mr::reg_dmabuf_mr);
        verbs.dereg_mr = mr::dereg_mr;
        verbs.note_mapped = Some(mr::note_mapped);
        verbs.wants_file = Some(mr::wants_file);
        verbs.note_file = Some(mr::note_file);
        verbs.rereg_mr = absent::rereg_mr;
        verbs.create_ah = ah::create_ah;
        verbs.create_ah_from_wc = ah::create_ah_from_wc;
        verbs.init_ah_from_wc = ah::init_ah_from_wc;
        verbs.destroy_ah = ah::destroy_ah;
        verbs.fork_init = fork::fork_init;
        verbs.is_fork_initialized = Some(fork::is_fork_initialized);
        verbs.create_comp_channel = event::create_comp_channel;
        verbs.wake_early = Some(event::wake_early);
        #[cfg(not(loom))]
        {
            verbs.mads = Some(mads::MADS);
        }
        verbs.destroy_comp_channel = event::destroy_comp_channel;
        verbs.get_cq_event = event::get_cq_event;
        verbs.ack_cq_events = event::ack_cq_events;
        verbs.get_async_event = event::get_async_event;
        verbs.ack_async_event = event::ack_async_event;
        verbs.create_cq = cq::create_cq;
        verbs.destroy_cq = cq::destroy_cq;
        verbs.resize_cq = cq::resize_cq;
        verbs.create_srq = srq::create_srq;
        verbs.modify_srq = srq::modify_srq;
        verbs.query_srq = srq::query_srq;
        verbs.destroy_srq = srq::destroy_srq;
        verbs.create_qp = qp::create_qp;
        verbs.qp_to_qp_ex = Some(qp_ex::qp_to_qp_ex);
        verbs.modify_qp = qp::modify_qp;
        verbs.query_qp = qp::query_qp;
        verbs.destroy_qp = qp::destroy_qp;
        verbs.attach_mcast = qp::attach_mcast;
        verbs.detach_mcast = qp::detach_mcast;
        verbs.wc_status_str = text::wc_status_str;
        verbs.event_type_str = text::event_type_str;
        verbs.node_type_str = text::node_type_str;
        verbs.port_state_str = text::port_state_str;
        verbs
    })
}

/// Registers the table with `rdma-sys`.
pub(crate) fn register() {
    // SAFETY: each function in the table behaves like the verb with its name, on this provider's objects, from any
    // thread (SAFETY.md F2, F9).
    unsafe { rdma_sys::register(verbs()) }
}
