//! Descriptors of a context are closed with it, whatever its queue pairs were connected to, and later calls need no
//! additional ones. In a process of its own, so that its descriptors can be counted.

use rdma_sys::{Errno, ibv_qp_attr, ibv_qp_type};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use test_support::program::in_own_process;
use test_support::rig::connect::{Knobs, Side, connect_sides, connect_unreliably, to_init};
use test_support::rig::datagram;
use test_support::rig::post::Wr;
use test_support::rig::{Context, Size};

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Runs a scene with a queue pair that stays. Returns the number of descriptors left open by those that are gone.
fn left_open(qp_type: ibv_qp_type, scene: impl Fn(&Side, &Side)) -> isize {
    let size = Size { qp_type, ..Size::default() };
    let stays = Side::new("soft0", &size, 64);
    let before = open_files().cast_signed();
    let goes = Side::new("soft0", &size, 64);
    scene(&stays, &goes);
    drop(goes);
    let left = open_files().cast_signed() - before;
    drop(stays);
    left
}

#[test]
fn a_context_takes_its_files_along() {
    in_own_process("files::a_context_takes_its_files_along", || {
        rdma_soft::install();
        let knobs = Knobs { rnr_retries: 7, ..Knobs::default() };
        // The requester stays, and has sent to the one that is closed.
        let sent = left_open(ibv_qp_type::IBV_QPT_RC, |stays, goes| {
            connect_sides(stays, goes, &knobs);
            goes.qp.post_receive(1, &[]);
            stays.qp.post(&Wr::send(1, &[]));
            stays.send_cq.expect_success(1);
        });
        // The responder stays, and the requester that is closed waits for a receive request there.
        let waited = left_open(ibv_qp_type::IBV_QPT_RC, |stays, goes| {
            connect_sides(stays, goes, &knobs);
            goes.qp.post(&Wr::send(1, &[]));
            assert!(goes.send_cq.is_empty());
        });
        // The one that is closed was connected to another before, which has sent nothing.
        let moved = left_open(ibv_qp_type::IBV_QPT_RC, |stays, goes| {
            connect_sides(stays, goes, &knobs);
            goes.qp.post_receive(1, &[]);
            stays.qp.post(&Wr::send(1, &[]));
            stays.send_cq.expect_success(1);
            goes.qp.to_reset();
            let other = Side::new("soft0", &Size::default(), 64);
            connect_sides(&other, goes, &knobs);
            goes.qp.post_receive(2, &[]);
            other.qp.post(&Wr::send(2, &[]));
            other.send_cq.expect_success(2);
            goes.receive_cq.expect_success(2);
        });
        // An unreliable sender remembers its last destination.
        let lost = left_open(ibv_qp_type::IBV_QPT_UC, |stays, goes| {
            let (at_stays, at_goes) = (stays.endpoint(), goes.endpoint());
            connect_unreliably(&stays.qp, &at_stays, &at_goes, &knobs);
            connect_unreliably(&goes.qp, &at_goes, &at_stays, &knobs);
            stays.qp.post(&Wr::send(1, &[]));
            stays.send_cq.expect_success(1);
        });
        let datagram = left_open(ibv_qp_type::IBV_QPT_UD, |stays, goes| {
            [stays, goes].into_iter().for_each(|side| datagram::activate(&side.qp, datagram::QKEY));
            let to = goes.endpoint();
            let ah = stays.pd.ah_to(&stays.endpoint(), &to);
            stays.qp.post(&Wr::send(1, &[]).to(&ah, to.qpn, datagram::QKEY));
            stays.send_cq.expect_success(1);
        });
        let left = [sent, waited, moved, lost, datagram];
        assert_eq!(left, [0; 5], "descriptors of closed contexts");
        events_need_no_more();
        there_may_be_no_more();
    });
}

/// Events arrive, are read, and are discarded with their objects while no file can be opened. No file is reopened for
/// this, whether the program waits for events or not.
fn events_need_no_more() {
    let context = Context::open("soft0");
    let (pd, size) = (context.pd(), Size { send_wr: 4, receive_wr: 4, ..Size::default() });
    for waits in [true, false] {
        let channel = context.channel();
        channel.set_non_blocking(!waits);
        let [stays, goes] = [(); 2].map(|()| context.cq_with(&channel, 4));
        let [of_stays, of_goes] = [&stays, &goes].map(|cq| pd.qp(cq, cq, &size));
        for qp in [&of_stays, &of_goes] {
            to_init(qp, &ibv_qp_attr { port_num: 1, ..ibv_qp_attr::default() });
            qp.to_error();
        }
        with_more(0, || {
            for (cq, qp) in [(&stays, &of_stays), (&goes, &of_goes)] {
                cq.request_event(false);
                // Flushed at once.
                qp.post_receive(1, &[]);
            }
            assert!(channel.is_readable());
            assert_eq!(channel.get(), Ok(stays.0));
            stays.acknowledge(1);
            assert!(channel.is_readable(), "the other's");
            drop(of_goes);
            drop(goes);
            assert!(!channel.is_readable(), "an event of a destroyed queue");
            if !waits {
                assert_eq!(channel.get(), Err(Errno::EAGAIN));
            }
            stays.request_event(false);
            of_stays.post_receive(2, &[]);
            assert_eq!(channel.get(), Ok(stays.0));
            stays.acknowledge(1);
            assert!(!channel.is_readable());
        });
    }
}

/// Creation fails with the kernel's error, which programs can handle.
fn there_may_be_no_more() {
    let (context, before) = (Context::open("soft0"), open_files());
    let none = Err(Errno::EMFILE);
    let (unix, stream) = (AddressFamily::UNIX, SocketType::STREAM);
    let pair = with_more(0, || socketpair(unix, stream, SocketFlags::CLOEXEC, None));
    if pair.map(std::mem::forget).is_ok() {
        return println!("skipped: valgrind closes both descriptors and reports success");
    }
    let make = || (context.try_channel().map(drop), Context::try_open("soft0").map(drop));
    assert_eq!([0, 1].map(|more| with_more(more, make)), [(none, none); 2]);
    assert_eq!(with_more(2, make), (Ok(()), none), "a channel has two, and a context three");
    assert_eq!(with_more(3, make), (Ok(()), Ok(())));
    assert_eq!(open_files(), before, "a failed creation leaves descriptors");
}

/// Runs `make` while the process may have `more` more descriptors.
fn with_more<T>(more: usize, make: impl FnOnce() -> T) -> T {
    let allowed = getrlimit(Resource::Nofile);
    let open: Vec<String> = std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    // The listing itself was open for a moment: its number is free again.
    let is_free = |number: &u64| {
        !open.contains(&number.to_string())
            || !std::path::Path::new(&format!("/proc/self/fd/{number}")).exists()
    };
    let current = (0..).filter(is_free).nth(more);
    setrlimit(Resource::Nofile, Rlimit { current, ..allowed }).unwrap();
    let made = make();
    setrlimit(Resource::Nofile, allowed).unwrap();
    made
}
