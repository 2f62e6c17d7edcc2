//! The multicast groups of a queue pair.
#![allow(unsafe_code)]

use std::borrow::Cow;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

use rdma_mem::{Context, Errno, Gid, Lid, ProtectionDomain, VerbError};
use rdma_sys::{ibv_gid, ibv_qp};

use crate::error::Error;
use crate::qp::queue_pair::QueuePair;

/// The groups that a queue pair has joined. Dropping this value leaves the groups, because a queue pair in a group
/// cannot be destroyed.
#[derive(Debug)]
pub(crate) struct Groups {
    qp: *mut ibv_qp,
    pd: ProtectionDomain,
    joined: Mutex<Vec<(Gid, Lid)>>,
}

// SAFETY: SAFETY.md F9: any thread may call verbs on the queue pair, which is destroyed only after this value is
// dropped.
unsafe impl Send for Groups {}
// SAFETY: SAFETY.md F9: same argument as above.
unsafe impl Sync for Groups {}

type Verb = unsafe extern "C" fn(*mut ibv_qp, *const ibv_gid, u16) -> c_int;

impl Groups {
    /// # Safety
    /// The queue pair belongs to this domain, and is live until this value is dropped or empty.
    pub(crate) unsafe fn new(qp: *mut ibv_qp, pd: &ProtectionDomain) -> Self {
        Self { qp, pd: pd.clone(), joined: Mutex::default() }
    }

    fn join(&self, group: (Gid, Lid)) -> Result<(), Error> {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        self.call(self.pd.verbs().attach_mcast, group, |errno| {
            let hint = attach_hint(errno, self.pd.context());
            VerbError::new("ibv_attach_mcast", errno).with_hint(hint)
        })?;
        if !joined.contains(&group) {
            joined.push(group);
        }
        Ok(())
    }

    fn leave(&self, group: (Gid, Lid)) -> Result<(), Error> {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        self.detach(group)?;
        joined.retain(|other| *other != group);
        Ok(())
    }

    /// Leaves all groups, beginning with the one joined last.
    ///
    /// # Errors
    /// Stops at the first error and returns it. The queue pair remains in the group that it could not leave, and in
    /// every group that it joined earlier.
    pub(crate) fn leave_all(&self) -> Result<(), Error> {
        let mut joined = self.joined.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(group) = joined.last() {
            self.detach(*group)?;
            joined.pop();
        }
        Ok(())
    }

    fn detach(&self, group: (Gid, Lid)) -> Result<(), Error> {
        self.call(self.pd.verbs().detach_mcast, group, |errno| {
            VerbError::new("ibv_detach_mcast", errno).with_hint(detach_hint(errno))
        })
    }

    fn call(
        &self,
        verb: Verb,
        (gid, lid): (Gid, Lid),
        fail: impl FnOnce(Errno) -> VerbError,
    ) -> Result<(), Error> {
        self.pd.check_process().map_err(rdma_mem::Error::from)?;
        let gid = ibv_gid { raw: gid.to_bytes() };
        // SAFETY: SAFETY.md F1, F2: the queue pair is live and belongs to this table, and the address is live.
        let returned = unsafe { verb(self.qp, &raw const gid, lid.get()) };
        Ok(Errno::check(returned).map_err(fail)?)
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        // If this fails, destroying the queue pair also fails, and that emits a `tracing` event.
        let _ = self.leave_all();
    }
}

impl QueuePair {
    /// Joins a multicast group. After that, this queue pair receives the datagrams that are sent to `gid` and
    /// [`Qpn::MULTICAST`](crate::Qpn::MULTICAST) with this queue pair's Q_Key. On InfiniBand, `lid` is the LID of the
    /// group; elsewhere it is [`Lid::NONE`]. Joining a group twice is equivalent to joining it once. See
    /// `man ibv_attach_mcast`.
    ///
    /// The network must deliver the group's packets to this port. On InfiniBand, a join request to the subnet
    /// administrator arranges that. On Ethernet, the host's interface must also be a member of the group, for example
    /// through [`UdpSocket::join_multicast_v4`](std::net::UdpSocket::join_multicast_v4). Software devices need neither.
    ///
    /// A queue pair that is dropped or closed leaves the groups that it joined through this method.
    ///
    /// # Errors
    /// [`Error::NotDatagrams`] for connected queue pairs. Otherwise the provider's error with a hint. `EINVAL` means
    /// that the address is not a group address, and `ENOMEM` that there are too many groups. `EOPNOTSUPP` or `ENOSYS`
    /// means that the device does not support groups.
    ///
    /// # Examples
    /// ```
    /// use std::net::Ipv4Addr;
    ///
    /// use rdma_qp::{
    ///     AddressHandle, AddressVector, CompletionQueue, Gid, GlobalRoute, GlobalRouteHeader, Lid, PollSlot, Qpn,
    ///     QueuePairType, ReceiveWorkRequest, SendWorkRequest, prelude::*,
    /// };
    ///
    /// rdma_soft::install();
    /// let context = rdma_mem::open_device("soft0")?;
    /// let cq = CompletionQueue::create(&context, 64)?;
    /// let pd = context.allocate_pd()?;
    /// let prepare = || pd.create_qp().qp_type(QueuePairType::UD).send_cq(&cq).recv_cq(&cq).qkey(7).build();
    /// let (sender, member) = (prepare()?.activate()?, prepare()?.activate()?);
    /// let group = Gid::from_ipv4(Ipv4Addr::new(239, 1, 2, 3));
    /// member.attach_multicast(group, Lid::NONE)?;
    /// let mut buffer = pd.allocate_region(GlobalRouteHeader::BYTES)?;
    /// let mut all = buffer.get_mut(0, buffer.len()).unwrap();
    /// let mut elements = [all.scatter_element()];
    /// // SAFETY: the region and the handle outlive both requests.
    /// unsafe { member.post_receive(ReceiveWorkRequest::new(&mut elements), 1) }?;
    ///
    /// let own = context.gid_table()?.into_iter().find(|own| own.gid.is_ipv4_mapped()).unwrap();
    /// let route = GlobalRoute::new(own.index.try_into()?, group);
    /// let way = AddressVector::new(own.port, Lid::NONE).with_route(route);
    /// let to_group = AddressHandle::create(&pd, &way)?;
    /// let message = SendWorkRequest::only_immediate(5).to(&to_group, Qpn::MULTICAST, 7);
    /// // SAFETY: as above.
    /// unsafe { sender.post_send(message, 2) }?;
    ///
    /// let (mut slots, mut left) = ([PollSlot::default(); 4], 2);
    /// while left > 0 {
    ///     for completion in cq.poll(&mut slots)? {
    ///         if completion.result()?.is_receive() {
    ///             assert_eq!(member.datagram(&completion).unwrap().qpn, sender.qpn());
    ///         }
    ///         left -= 1;
    ///     }
    /// }
    /// member.detach_multicast(group, Lid::NONE)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_multicast(&self, gid: Gid, lid: Lid) -> Result<(), Error> {
        self.groups()?.join((gid, lid))
    }

    /// Leaves a multicast group, identified by the same GID and LID as when joining. Datagrams that have already
    /// arrived are not removed. See `man ibv_detach_mcast`.
    ///
    /// # Errors
    /// [`Error::NotDatagrams`] for connected queue pairs. Otherwise the provider's error with a hint. `EINVAL` means
    /// that the queue pair is not in that group; `EOPNOTSUPP` or `ENOSYS` that the device does not support groups.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_multicast(&self, gid: Gid, lid: Lid) -> Result<(), Error> {
        self.groups()?.leave((gid, lid))
    }
}

const NO_GROUPS: &str = "the device has no multicast groups: send to each queue pair";

fn attach_hint(errno: Errno, context: &Context) -> Option<Cow<'static, str>> {
    Some(match errno {
        Errno::EINVAL => Cow::Borrowed(
            "a group's address is in ff00::/8 or, for IPv4, in ::ffff:224.0.0.0/100; on \
             InfiniBand it also has a LID from 0xc000 to 0xfffe, which the subnet administrator \
             assigns",
        ),
        Errno::ENOMEM | Errno::ENOSPC => {
            let device = context.query_device().ok()?;
            Cow::Owned(format!(
                "the device has {} groups of {} queue pairs each, {} in all",
                device.max_mcast_grp, device.max_mcast_qp_attach, device.max_total_mcast_qp_attach
            ))
        }
        Errno::EOPNOTSUPP | Errno::ENOSYS => Cow::Borrowed(NO_GROUPS),
        _ => return None,
    })
}

fn detach_hint(errno: Errno) -> Option<Cow<'static, str>> {
    Some(Cow::Borrowed(match errno {
        Errno::EINVAL => "the queue pair is not in that group: was it joined with another LID?",
        Errno::EOPNOTSUPP | Errno::ENOSYS => NO_GROUPS,
        _ => return None,
    }))
}
