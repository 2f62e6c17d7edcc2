//! Operations that complete in the first poll read no clock.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::time::Duration;

use rdma_channel::{Channel, TransportError, prelude::*};
use rdma_mem::{AccessFlags, GatherList, OwnedRegion, ProtectionDomain, ScatterList, SharedRegion};
use rdma_qp::{ReadWorkRequest, ReceiveWorkRequest, SendWorkRequest, WriteWorkRequest};

thread_local! {
    /// Number of reads of the clock by this thread.
    static LOOKS: Cell<u32> = const { Cell::new(0) };
}

/// Replaces the function of the C library that `Instant` calls.
///
/// # Safety
/// Same contract as `clock_gettime` of the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(
    clock: libc::clockid_t,
    time: *mut libc::timespec,
) -> libc::c_int {
    LOOKS.set(LOOKS.get() + 1);
    // SAFETY: SAFETY.md F15: the caller upholds the same contract.
    let returned = unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) };
    libc::c_int::try_from(returned).unwrap_or(-1)
}

fn looks<T>(run: impl FnOnce() -> T) -> (u32, T) {
    LOOKS.set(0);
    let value = run();
    (LOOKS.get(), value)
}

const SECOND: Duration = Duration::from_secs(10);

struct Rig {
    channel: Channel,
    memory: OwnedRegion,
    board: SharedRegion,
}

impl Rig {
    /// Creates a channel to itself.
    fn new() -> Self {
        rdma_soft::install();
        let pd: ProtectionDomain = rdma_mem::open_device("soft0").unwrap().allocate_pd().unwrap();
        let access = AccessFlags::new().with_local_write().with_remote_read().with_remote_write();
        let prepared = pd.create_channel().build().unwrap();
        let endpoint = prepared.endpoint();
        Self {
            channel: prepared.handshake(endpoint).unwrap(),
            memory: pd.allocate_region(8).unwrap(),
            board: pd.allocate_shared_region(8, access).unwrap(),
        }
    }
}

#[test]
fn a_blocking_call_that_is_done_at_once_reads_no_clock() {
    let Rig { mut channel, mut memory, board } = Rig::new();
    for _ in 0..3 {
        let list = GatherList::from([memory.as_slice()]);
        let request = WriteWorkRequest::from_list(&list, board.remote());
        assert_eq!(looks(|| channel.write(request).unwrap()).0, 0);
        assert_eq!(looks(|| channel.batch([request.into(), request.into()]).unwrap()).0, 0);
        let mut list = ScatterList::from([memory.as_slice_mut()]);
        let request = ReadWorkRequest::from_list(&mut list, board.remote());
        assert_eq!(looks(|| channel.within(SECOND).read(request).unwrap()).0, 0);
    }
}

#[test]
fn a_scope_whose_operations_are_done_reads_no_clock() {
    let Rig { mut channel, memory, board } = Rig::new();
    let list = GatherList::from([memory.as_slice()]);
    let request = WriteWorkRequest::from_list(&list, board.remote());
    for asked in [true, false] {
        let scope = looks(|| {
            channel.scope(|s| {
                let mut pending = Vec::new();
                for _ in 0..16 {
                    pending.push(s.post_write(request)?);
                }
                if asked {
                    pending.iter().try_for_each(|write| write.spin_poll().map(drop))?;
                }
                Ok::<_, TransportError>(())
            })
        });
        scope.1.unwrap();
        assert_eq!(scope.0, 0, "with handles polled: {asked}");
    }
}

#[test]
fn polling_a_handle_reads_no_clock_and_waiting_does() {
    let Rig { mut channel, .. } = Rig::new();
    channel
        .scope(|s| {
            let received = s.post_receive(ReceiveWorkRequest::only_immediate())?;
            let (polling, _) = looks(|| (0..5000).for_each(|_| assert!(received.poll().is_none())));
            let (waiting, late) = looks(|| received.wait(Duration::ZERO));
            assert!(matches!(late, Err(TransportError::Timeout { .. })));
            assert_eq!((polling, waiting), (0, 1), "one read after the first empty poll");
            s.post_send(SendWorkRequest::only_immediate(1))?;
            let (waiting, done) = looks(|| received.wait(SECOND));
            assert_eq!((waiting, done?.immediate_data()), (0, Some(1)));
            Ok::<_, TransportError>(())
        })
        .unwrap();
}
