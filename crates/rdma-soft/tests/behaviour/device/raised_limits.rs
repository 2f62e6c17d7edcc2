//! Devices whose limits exceed the machine's memory: objects that do not fit are refused and leave nothing allocated.

use rdma_soft::{Builder, Limits};
use rdma_sys::{Errno, ibv_qp_create_send_ops_flags as Operation, ibv_qp_type};

use crate::device::rig::extended::init;
use crate::device::rig::{Context, Size};

const NO_ROOM: Option<Errno> = Some(Errno::ENOMEM);

/// The number of elements of that size which is more than the system should give to one queue: half of its memory. So
/// none is ever touched. `None` on a machine where the largest number is less than that.
fn too_many(bytes_each: u64) -> Option<u32> {
    let system = rustix::system::sysinfo();
    let memory = u64::from(system.mem_unit) * system.totalram;
    u32::try_from(memory / 2 / bytes_each + 1).ok()
}

fn unlimited(name: &str) -> Context {
    let most = u32::MAX;
    let limits = Limits::default().max_qp(1).max_srq(1).max_cqe(most);
    let limits = limits.max_qp_wr(most).max_sge(most).max_inline_data(most);
    let limits = limits.max_srq_wr(most).max_srq_sge(most);
    Builder::new(name).limits(limits).install().unwrap();
    Context::open(name)
}

/// Sizes that exceed memory, each in one parameter.
fn too_large() -> Vec<Size> {
    let (small, most) = (Size { sge: 1, inline: 0, ..Size::default() }, u32::MAX);
    let mut sizes = vec![
        Size { send_wr: most, sge: most, ..small },
        Size { send_wr: 4096, inline: most, ..small },
        Size { send_wr: most, inline: most, ..small },
    ];
    sizes.extend(too_many(64).map(|receive_wr| Size { receive_wr, ..small }));
    sizes.extend(too_many(64).map(|send_wr| Size { send_wr, ..small }));
    sizes.extend(too_many(16).map(|sge| Size { sge, ..small }));
    let datagrams = sizes.iter().map(|&size| Size { qp_type: ibv_qp_type::IBV_QPT_UD, ..size });
    datagrams.chain(sizes.iter().copied()).collect()
}

#[test]
fn queue_pairs_beyond_memory_are_refused_and_leave_nothing() {
    let context = unlimited("unlimited-queue-pairs");
    let (pd, cq) = (context.pd(), context.cq(8));
    for size in too_large() {
        assert_eq!(pd.try_qp(&cq, &cq, &size).err(), NO_ROOM);
        let sends = u64::from(Operation::IBV_QP_EX_WITH_SEND.0);
        assert_eq!(context.try_qp_ex(&init(&pd, &cq, &cq, &size, sends)).err(), NO_ROOM);
    }
    drop(pd.qp(&cq, &cq, &Size::default()));
}

#[test]
fn shared_receive_queues_beyond_memory_are_refused_and_leave_nothing() {
    let context = unlimited("unlimited-shared-queues");
    let pd = context.pd();
    let mut sizes = vec![(u32::MAX, u32::MAX)];
    sizes.extend(too_many(64).map(|max_wr| (max_wr, 1)));
    sizes.extend(too_many(16).map(|max_sge| (1, max_sge.saturating_add(2))));
    for (max_wr, max_sge) in sizes {
        assert_eq!(pd.try_srq(max_wr, max_sge).err(), NO_ROOM);
    }
    drop(pd.srq(8, 1));
}

#[test]
fn completion_queues_beyond_memory_are_refused_and_leave_nothing() {
    let context = unlimited("unlimited-completions");
    let Some(entries) = too_many(64).and_then(|entries| i32::try_from(entries).ok()) else {
        return; // This machine has memory for the largest possible queue.
    };
    let most = context.query_device().max_cq;
    for entries in [entries, i32::MAX] {
        for _ in 0..=most {
            assert_eq!(context.try_cq(entries, 0).err(), NO_ROOM);
        }
    }
    drop(context.cq(8));
}

#[test]
fn device_with_the_maximum_of_regions_registers_some() {
    let limits = Limits::default().max_mr(u32::MAX).max_mw(u32::MAX).max_qp(u32::MAX);
    Builder::new("unlimited-regions").limits(limits).install().unwrap();
    let context = Context::open("unlimited-regions");
    let pd = context.pd();
    let keys: Vec<u32> = (0..2_000).map(|_| pd.register(8, 0).key()).collect();
    assert!(keys.windows(2).all(|pair| pair[0] != pair[1]));
}
