//! Queues and queue pairs of C, each owned and borrowed by a wrapper.

#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull, null_mut};
use std::sync::OnceLock;

use crate::common::{HANG, everything, must_end, open, parts};
use rdma_mem::{
    AccessFlags, Context, GatherElement, MemoryRegion, ObjectId, Ownership, ProtectionDomain,
};
use rdma_qp::{
    AddressHandle, CompletionChannel, CompletionQueue, Error, PollSlot, QpState, QueuePair,
    QueuePairType, ReceiveWorkRequest, SendWorkRequest, SharedReceiveQueue, WorkCompletion,
    WriteWorkRequest, prelude::*,
};
use rdma_sys::{
    Verbs, ibv_ah, ibv_ah_attr, ibv_comp_channel, ibv_cq, ibv_mr, ibv_mtu, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_attr_mask as Mask, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_state, ibv_qp_type,
    ibv_srq, ibv_srq_attr, ibv_srq_init_attr,
};

const BOTH: [Ownership; 2] = [Ownership::Owned, Ownership::Borrowed];

thread_local! {
    static DESTROYED: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// Wraps functions of the software device to record the destroyed objects.
macro_rules! counted {
    ($($name:ident: $object:ty,)+) => {
        $(unsafe extern "C" fn $name(object: *mut $object) -> c_int {
            DESTROYED.with_borrow_mut(|all| all.push(stringify!($name)));
            // SAFETY: SAFETY.md F1: the caller's own contract.
            unsafe { (rdma_soft::verbs().$name)(object) }
        })+

        fn verbs() -> &'static Verbs {
            static VERBS: OnceLock<Verbs> = OnceLock::new();
            VERBS.get_or_init(|| {
                let mut verbs = *rdma_soft::verbs();
                $(verbs.$name = $name;)+
                verbs
            })
        }
    };
}

counted! {
    dealloc_pd: ibv_pd,
    dereg_mr: ibv_mr,
    destroy_ah: ibv_ah,
    destroy_comp_channel: ibv_comp_channel,
    destroy_cq: ibv_cq,
    destroy_qp: ibv_qp,
    destroy_srq: ibv_srq,
}

/// A context that records the destroyed objects.
fn context() -> Context {
    let device = open("soft0").device().as_raw();
    // SAFETY: SAFETY.md F2: a device of this table.
    let raw = NonNull::new(unsafe { (verbs().open_device)(device) }).unwrap();
    // SAFETY: SAFETY.md F2: just opened, by a table whose functions are the software device's.
    unsafe { Context::from_raw(raw, verbs(), Ownership::Owned) }.unwrap()
}

/// The objects that C creates for one end of a connection.
struct Made {
    pd: NonNull<ibv_pd>,
    channel: NonNull<ibv_comp_channel>,
    cq: NonNull<ibv_cq>,
    srq: NonNull<ibv_srq>,
    qp: NonNull<ibv_qp>,
    mr: NonNull<ibv_mr>,
    memory: Vec<u64>,
}

impl Made {
    fn on(context: &Context, qp_type: ibv_qp_type, user: *mut c_void) -> Self {
        let context = context.as_raw();
        // SAFETY: SAFETY.md F2: a live context.
        let pd = NonNull::new(unsafe { (verbs().alloc_pd)(context) }).unwrap();
        // SAFETY: SAFETY.md F2: as above.
        let channel = NonNull::new(unsafe { (verbs().create_comp_channel)(context) }).unwrap();
        // SAFETY: SAFETY.md F2: as above.
        let cq = unsafe { (verbs().create_cq)(context, 64, user, channel.as_ptr(), 0) };
        let cq = NonNull::new(cq).unwrap();
        let attr = ibv_srq_attr { max_wr: 8, max_sge: 2, srq_limit: 0 };
        let mut init = ibv_srq_init_attr { srq_context: user, attr };
        // SAFETY: SAFETY.md F2: a live domain.
        let srq = unsafe { (verbs().create_srq)(pd.as_ptr(), &raw mut init) };
        let srq = NonNull::new(srq).unwrap();
        let mut init = ibv_qp_init_attr {
            send_cq: cq.as_ptr(),
            recv_cq: cq.as_ptr(),
            srq: srq.as_ptr(),
            cap: ibv_qp_cap { max_send_wr: 8, max_send_sge: 2, ..Default::default() },
            qp_type,
            sq_sig_all: 1,
            ..Default::default()
        };
        // SAFETY: SAFETY.md F2: a live domain and live queues.
        let qp = unsafe { (verbs().create_qp)(pd.as_ptr(), &raw mut init) };
        let qp = NonNull::new(qp).unwrap();
        let mut memory = vec![0_u64; 8];
        let (start, flags) = (memory.as_mut_ptr().cast(), everything().bits().cast_signed());
        // SAFETY: SAFETY.md F8: memory that is freed after it is deregistered.
        let mr = unsafe { (verbs().reg_mr)(pd.as_ptr(), start, 64, flags) };
        Self { pd, channel, cq, srq, qp, mr: NonNull::new(mr).unwrap(), memory }
    }

    fn modify(&self, mut attributes: ibv_qp_attr, state: ibv_qp_state, mask: &[Mask]) {
        attributes.qp_state = state;
        let mask = mask.iter().fold(Mask::IBV_QP_STATE.0, |all, one| all | one.0);
        let (modify, qp) = (verbs().modify_qp, self.qp.as_ptr());
        // SAFETY: SAFETY.md F2: a live queue pair.
        let returned = unsafe { modify(qp, &raw mut attributes, mask.cast_signed()) };
        assert_eq!(returned, 0, "{state:?}");
    }

    /// Connects to `to`, which is on the same port.
    fn connect(&self, context: &Context, to: &Self) {
        let init =
            ibv_qp_attr { port_num: 1, qp_access_flags: everything().bits(), ..Default::default() };
        let mask = [Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT, Mask::IBV_QP_ACCESS_FLAGS];
        self.modify(init, ibv_qp_state::IBV_QPS_INIT, &mask);
        let rtr = ibv_qp_attr {
            // SAFETY: SAFETY.md F1: live.
            dest_qp_num: unsafe { (*to.qp.as_ptr()).qp_num },
            path_mtu: ibv_mtu::IBV_MTU_1024,
            ah_attr: address(context),
            min_rnr_timer: 1,
            ..Default::default()
        };
        let mask = [Mask::IBV_QP_AV, Mask::IBV_QP_PATH_MTU, Mask::IBV_QP_DEST_QPN]
            .into_iter()
            .chain([Mask::IBV_QP_RQ_PSN, Mask::IBV_QP_MAX_DEST_RD_ATOMIC])
            .chain([Mask::IBV_QP_MIN_RNR_TIMER]);
        self.modify(rtr, ibv_qp_state::IBV_QPS_RTR, &mask.collect::<Vec<_>>());
        let rts = ibv_qp_attr { timeout: 14, retry_cnt: 7, rnr_retry: 7, ..Default::default() };
        let mask = [Mask::IBV_QP_TIMEOUT, Mask::IBV_QP_RETRY_CNT, Mask::IBV_QP_RNR_RETRY]
            .into_iter()
            .chain([Mask::IBV_QP_SQ_PSN, Mask::IBV_QP_MAX_QP_RD_ATOMIC]);
        self.modify(rts, ibv_qp_state::IBV_QPS_RTS, &mask.collect::<Vec<_>>());
    }

    /// Activates the queue pair for datagrams with this key.
    fn activate(&self, qkey: u32) {
        let init = ibv_qp_attr { port_num: 1, qkey, ..Default::default() };
        let mask = [Mask::IBV_QP_PKEY_INDEX, Mask::IBV_QP_PORT, Mask::IBV_QP_QKEY];
        self.modify(init, ibv_qp_state::IBV_QPS_INIT, &mask);
        self.modify(ibv_qp_attr::default(), ibv_qp_state::IBV_QPS_RTR, &[]);
        self.modify(ibv_qp_attr::default(), ibv_qp_state::IBV_QPS_RTS, &[Mask::IBV_QP_SQ_PSN]);
    }

    fn destroy(self) {
        let Self { pd, channel, cq, srq, qp, mr, memory } = self;
        // SAFETY: SAFETY.md F2: live, and not wrapped by a value; so below.
        assert_eq!(unsafe { (verbs().destroy_qp)(qp.as_ptr()) }, 0);
        // SAFETY: SAFETY.md F2: as above.
        assert_eq!(unsafe { (verbs().destroy_srq)(srq.as_ptr()) }, 0);
        // SAFETY: SAFETY.md F2: as above.
        assert_eq!(unsafe { (verbs().destroy_cq)(cq.as_ptr()) }, 0);
        // SAFETY: SAFETY.md F2: as above.
        assert_eq!(unsafe { (verbs().destroy_comp_channel)(channel.as_ptr()) }, 0);
        // SAFETY: SAFETY.md F2: as above.
        assert_eq!(unsafe { (verbs().dereg_mr)(mr.as_ptr()) }, 0);
        // SAFETY: SAFETY.md F2: as above.
        assert_eq!(unsafe { (verbs().dealloc_pd)(pd.as_ptr()) }, 0);
        drop(memory);
    }
}

/// Returns the address of this port, by its first GID.
fn address(context: &Context) -> ibv_ah_attr {
    let own = context.gid_table().unwrap()[0];
    let mut address = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    address.grh.dgid.raw = own.gid.to_bytes();
    address.grh.sgid_index = u8::try_from(own.index).unwrap();
    address.grh.hop_limit = 1;
    address
}

/// The same objects as owners.
struct Owners {
    qp: QueuePair,
    mr: MemoryRegion,
    srq: SharedReceiveQueue,
    cq: CompletionQueue,
    channel: CompletionChannel,
    pd: ProtectionDomain,
}

impl Owners {
    fn of(made: &Made, context: &Context, ownership: Ownership) -> Self {
        // SAFETY: SAFETY.md F6: C created these from each other, in this order; with `Borrowed`, `Made::destroy`
        // destroys them after this. So below.
        let pd = unsafe { ProtectionDomain::from_raw(made.pd, context, ownership) };
        let (raw, access) = (made.channel, everything());
        // SAFETY: SAFETY.md F6: as above.
        let channel = unsafe { CompletionChannel::from_raw(raw, context, ownership) }.unwrap();
        let of = Some(&channel);
        // SAFETY: SAFETY.md F6: as above.
        let cq = unsafe { CompletionQueue::from_raw(made.cq, context, of, ownership) };
        // SAFETY: SAFETY.md F6: as above.
        let srq = unsafe { SharedReceiveQueue::from_raw(made.srq, &pd, ownership) }.unwrap();
        let parents = pd.create_qp().send_cq(&cq).recv_cq(&cq).srq(&srq);
        // SAFETY: SAFETY.md F6: as above.
        let qp = unsafe { QueuePair::from_raw(made.qp, parents, ownership) }.unwrap();
        // SAFETY: SAFETY.md F8: as above.
        let mr = unsafe { MemoryRegion::from_raw(made.mr, &pd, access, ownership) }.unwrap();
        Self { qp, mr, srq, cq, channel, pd }
    }

    /// Waits for the next completion, and sleeps until then.
    fn next(&self) -> WorkCompletion {
        let mut slots = [PollSlot::default()];
        loop {
            self.cq.req_notify(false).unwrap();
            if let Some(completion) = self.cq.poll(&mut slots).unwrap().next() {
                return completion;
            }
            let event = self.channel.get_event_timeout(HANG).unwrap();
            assert_eq!(event, Some(self.cq.id()));
        }
    }

    fn close(self) {
        let Self { qp, mr, srq, cq, channel, pd } = self;
        qp.close().map_err(|(_, error)| error).unwrap();
        srq.close().map_err(|(_, error)| error).unwrap();
        cq.close().map_err(|(_, error)| error).unwrap();
        channel.close().map_err(|(_, error)| error).unwrap();
        mr.close().map_err(|(_, error)| error).unwrap();
        pd.close().map_err(|(_, error)| error).unwrap();
    }
}

/// The functions in the order of [`Made::destroy`].
const ALL: [&str; 6] =
    ["destroy_qp", "destroy_srq", "destroy_cq", "destroy_comp_channel", "dereg_mr", "dealloc_pd"];

#[test]
fn a_connection_of_c_carries_messages_and_is_destroyed_once_by_its_owner() {
    for ownership in BOTH {
        for drops in [true, false] {
            must_end(move || {
                let context = context();
                let user = ObjectId::unique().to_context();
                let made = || Made::on(&context, ibv_qp_type::IBV_QPT_RC, user);
                let (a, mut b) = (made(), made());
                a.connect(&context, &b);
                b.connect(&context, &a);
                let one = Owners::of(&a, &context, ownership);
                let two = Owners::of(&b, &context, ownership);
                assert_eq!(one.qp.peer(), None);
                assert_eq!(
                    (one.qp.qp_type(), one.qp.capabilities().max_recv_wr),
                    (QueuePairType::RC, 0)
                );
                assert!(one.qp.capabilities().max_send_wr >= 8 && one.srq.max_wr() >= 8);
                assert_eq!(
                    (one.cq.id(), one.srq.id()),
                    (ObjectId::from_context(user), one.cq.id())
                );

                let data = [0x11_u8; 16];
                let local = one.pd.register_local_mr_slice(&data).unwrap();
                let gather = [local.gather_element(&data)];
                let remote = two.mr.remote().slice(8..24).unwrap();
                // SAFETY: SAFETY.md F8: both are not used elsewhere until the completion.
                unsafe { one.qp.post_write(WriteWorkRequest::new(&gather, remote), 1) }.unwrap();
                assert_eq!((one.next().wr_id(), one.qp.state().unwrap()), (1, QpState::RTS));
                // SAFETY: SAFETY.md F8: no memory.
                unsafe { two.srq.post_receive(ReceiveWorkRequest::only_immediate(), 2) }.unwrap();
                // SAFETY: SAFETY.md F8: no memory.
                unsafe { one.qp.post_send(SendWorkRequest::only_immediate(7), 3) }.unwrap();
                let arrived = two.next();
                assert_eq!(arrived.result().unwrap().immediate_data(), Some(7));
                assert_eq!((arrived.wr_id(), one.next().wr_id()), (2, 3));
                drop(local);
                DESTROYED.take();

                if drops {
                    let Owners { qp, srq, cq, channel, mr, pd } = one;
                    drop((pd, channel, cq, srq));
                    assert_eq!(DESTROYED.with_borrow(Vec::len), 0, "the queue pair needs them");
                    drop((qp, mr));
                } else {
                    one.close();
                }
                let mut calls = DESTROYED.take();
                calls.sort_unstable();
                let mut all = ALL;
                all.sort_unstable();
                match ownership {
                    Ownership::Owned => assert_eq!(calls, all),
                    Ownership::Borrowed => assert!(calls.is_empty(), "{calls:?}"),
                }
                two.close();
                // SAFETY: SAFETY.md F8: no further writes.
                let word = unsafe { ptr::from_mut(&mut b.memory[2]).read_volatile() };
                assert_eq!(word, 0x1111_1111_1111_1111);
                if ownership == Ownership::Borrowed {
                    a.destroy();
                    b.destroy();
                }
                context.close().map_err(|(_, error)| error).unwrap();
            });
        }
    }
}

#[test]
fn datagrams_of_c_go_by_its_handle_and_are_destroyed_once_by_their_owner() {
    for ownership in BOTH {
        let context = context();
        let made = || Made::on(&context, ibv_qp_type::IBV_QPT_UD, null_mut());
        let (a, b) = (made(), made());
        a.activate(5);
        b.activate(6);
        let (one, two) = (Owners::of(&a, &context, ownership), Owners::of(&b, &context, ownership));
        assert_eq!((one.qp.qkey(), two.qp.qkey(), one.qp.peer()), (Some(5), Some(6), None));
        let mut to = address(&context);
        // SAFETY: SAFETY.md F2: a live domain.
        let raw = unsafe { (verbs().create_ah)(a.pd.as_ptr(), &raw mut to) };
        let raw = NonNull::new(raw).unwrap();
        // SAFETY: SAFETY.md F6: just created in this domain; destroyed below if it is borrowed.
        let handle = unsafe { AddressHandle::from_raw(raw, &one.pd, ownership) };
        // SAFETY: SAFETY.md F8: no memory.
        let post = unsafe { two.srq.post_receive(ReceiveWorkRequest::only_immediate(), 1) };
        post.unwrap();
        let request = SendWorkRequest::only_immediate(9).to(&handle, two.qp.qpn(), 6);
        // SAFETY: SAFETY.md F8: no memory, and the handle lives until the completion.
        unsafe { one.qp.post_send(request, 2) }.unwrap();
        assert_eq!(one.next().wr_id(), 2);
        one.qp.drain(HANG, |_| ()).unwrap();
        DESTROYED.take();
        handle.close().map_err(|(_, error)| error).unwrap();
        let calls = usize::from(ownership == Ownership::Owned);
        assert_eq!(DESTROYED.take(), vec!["destroy_ah"; calls]);
        if ownership == Ownership::Borrowed {
            // SAFETY: SAFETY.md F2: the value was dropped.
            assert_eq!(unsafe { (verbs().destroy_ah)(raw.as_ptr()) }, 0);
        }
        // A queue pair for datagrams has a handle of its own, created here, for the last request.
        one.close();
        two.close();
        if ownership == Ownership::Borrowed {
            a.destroy();
            b.destroy();
        }
        context.close().map_err(|(_, error)| error).unwrap();
    }
}

#[test]
fn a_queue_pair_that_cannot_be_wrapped_stays_the_callers() {
    let (context, other) = (context(), context());
    let made = Made::on(&context, ibv_qp_type::IBV_QPT_UD, null_mut());
    // SAFETY: SAFETY.md F6: with its real parents, and destroyed below.
    let pd = unsafe { ProtectionDomain::from_raw(made.pd, &context, Ownership::Borrowed) };
    let cq = CompletionQueue::create(&other, 8).unwrap();
    let parents = || pd.create_qp().send_cq(&cq).recv_cq(&cq);
    // SAFETY: the call fails before it uses the queue pair.
    let refused = unsafe { QueuePair::from_raw(made.qp, parents(), Ownership::Owned) };
    assert!(matches!(refused, Err(Error::ForeignCompletionQueue { .. })), "{refused:?}");
    // SAFETY: SAFETY.md F6: with its real parents, and destroyed below.
    let cq = unsafe { CompletionQueue::from_raw(made.cq, &context, None, Ownership::Borrowed) };
    let parents = pd.create_qp().send_cq(&cq).recv_cq(&cq);
    // SAFETY: SAFETY.md F6: with its real parents.
    let refused = unsafe { QueuePair::from_raw(made.qp, parents, Ownership::Owned) };
    assert!(matches!(refused, Err(Error::NoSuchPort { port: 0, .. })), "not ready: {refused:?}");
    drop((cq, pd));
    made.destroy();
    drop(other);
    context.close().map_err(|(_, error)| error).unwrap();
}

#[test]
fn an_event_of_a_queue_of_c_is_not_counted_for_one_with_its_name() {
    must_end(|| {
        let context = context();
        let channel = CompletionChannel::create(&context).unwrap();
        let cq = CompletionQueue::create_with_channel(&channel, 8, 0).unwrap();
        let (create, user) = (verbs().create_cq, cq.id().to_context());
        // SAFETY: SAFETY.md F2: a live context and channel.
        let raw = unsafe { create(context.as_raw(), 64, user, channel.as_raw(), 0) };
        let raw = NonNull::new(raw).unwrap();
        // SAFETY: SAFETY.md F6: just created, and destroyed below.
        let theirs = unsafe { CompletionQueue::from_raw(raw, &context, None, Ownership::Borrowed) };
        assert!(matches!(theirs.req_notify(false), Err(Error::NoCompletionChannel)));
        let pd = context.allocate_pd().unwrap();
        let prepare = || pd.create_qp().send_cq(&theirs).recv_cq(&theirs).build().unwrap();
        let (one, two) = (prepare(), prepare());
        let qp = one.handshake(two.endpoint()).unwrap();
        // SAFETY: SAFETY.md F8: no memory.
        unsafe { qp.post_receive(ReceiveWorkRequest::only_immediate(), 1) }.unwrap();
        // SAFETY: SAFETY.md F1: live.
        assert_eq!(unsafe { rdma_sys::ibv_req_notify_cq(raw.as_ptr(), 0) }, 0);
        qp.to_error().unwrap();
        assert_eq!(channel.get_event_timeout(HANG).unwrap(), Some(cq.id()));
        drop((qp, two, theirs));
        // It waits for events that are not acknowledged.
        // SAFETY: SAFETY.md F2: the value was dropped.
        assert_eq!(unsafe { (verbs().destroy_cq)(raw.as_ptr()) }, 0);
        cq.close().map_err(|(_, error)| error).unwrap();
        channel.close().map_err(|(_, error)| error).unwrap();
    });
}

#[test]
fn elements_of_a_region_of_c_lie_within_it() {
    let context = context();
    let made = Made::on(&context, ibv_qp_type::IBV_QPT_RC, null_mut());
    // SAFETY: SAFETY.md F6: with its real parents, and destroyed below.
    let pd = unsafe { ProtectionDomain::from_raw(made.pd, &context, Ownership::Borrowed) };
    let access = AccessFlags::new().with_local_write();
    // SAFETY: SAFETY.md F8: as registered, with a part of its rights.
    let mr = unsafe { MemoryRegion::from_raw(made.mr, &pd, access, Ownership::Borrowed) }.unwrap();
    assert!(GatherElement::new_checked(&mr, &[0; 8]).is_err(), "not its memory");
    drop((mr, pd));
    made.destroy();
}

#[test]
fn a_queue_pair_needs_room_in_its_completion_queue_while_it_has_an_owner_here() {
    let (pd, cq) = parts("soft0");
    let builder = || pd.create_qp().send_cq(&cq).recv_cq(&cq);
    let made = builder().build().unwrap();
    let end = made.endpoint();
    let made = made.handshake(end).unwrap();
    let (size, capacity) = (made.capabilities(), cq.min_capacity());
    let rest = || builder().max_send_wr(capacity - 32).max_recv_wr(0).strict_cq(true).build();
    drop(rest().unwrap());
    let raw = NonNull::new(made.as_raw()).unwrap();
    // SAFETY: SAFETY.md F6: with these parents, connected, and destroyed later by `made`.
    let lent = unsafe { QueuePair::from_raw(raw, builder(), Ownership::Borrowed) }.unwrap();
    let error = rest().unwrap_err();
    let Error::CompletionQueueTooSmall { needed, .. } = error else { panic!("{error}") };
    assert_eq!(needed, capacity + size.max_send_wr + size.max_recv_wr);
    drop(lent);
    drop(rest().unwrap());
}
