//! Forks and child processes of a parent that uses a device (man `ibv_fork_init`).

use std::io::{self, PipeReader, PipeWriter, Read as _, Write as _};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rdma_sys::ibv_fork_status;
use test_support::rig::connect::pair;
use test_support::rig::fork::{Child, fork_init, fork_status, is_inherited};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, LOCAL_WRITE, Mr};

use crate::case::cases;
use crate::device::Device;

cases![
    forks_are_prepared_for_before_the_first_region,
    the_parents_memory_stays_the_devices_while_a_child_lives,
    the_parents_receives_stay_posted_while_a_child_lives,
    what_peers_write_does_not_reach_a_childs_copy,
    the_parents_objects_outlive_a_child_that_ends,
    a_parent_that_forks_all_the_time_loses_nothing,
    programs_are_started_while_requests_wait,
    programs_that_are_started_do_not_get_the_descriptors,
    a_child_uses_the_device_for_itself,
];

/// More than a page, so some pages contain only bytes of the region.
const LENGTH: usize = 4 * 4096;

/// A child that runs a closure on command.
struct Waiting {
    child: Child,
    tell: PipeWriter,
}

impl Waiting {
    fn fork(act: impl FnOnce()) -> Self {
        let (told, tell) = io::pipe().unwrap();
        let child = Child::fork(|| {
            wait(&told);
            act();
        });
        Self { child, tell }
    }

    #[track_caller]
    fn go(mut self) {
        self.tell.write_all(&[1]).unwrap();
        self.child.join();
    }
}

fn wait(mut told: &PipeReader) {
    told.read_exact(&mut [0]).unwrap();
}

fn prepare() {
    assert_eq!(fork_init(), 0);
}

fn forks_are_prepared_for_before_the_first_region(device: &Device) {
    prepare();
    assert_ne!(fork_status(), ibv_fork_status::IBV_FORK_DISABLED);
    // Another call does no harm: a region can still be registered afterwards.
    prepare();
    let (a, _b) = pair(device);
    drop(a.pd.register(LENGTH, LOCAL_WRITE));
}

fn the_parents_memory_stays_the_devices_while_a_child_lives(device: &Device) {
    prepare();
    let (a, b) = pair(device);
    let from = a.pd.register_filled(vec![3; LENGTH], ALL_ACCESS);
    let to = b.pd.register_filled(vec![1; LENGTH], ALL_ACCESS);
    let child = Waiting::fork(|| {});
    // After a fork, the first process that writes to a page gets a copy of it. That must not detach
    // the parent's memory from the device.
    from.fill(4);
    to.fill(2);
    a.qp.post(&Wr::write(1, &[from.sge(0, LENGTH)], &to, 0));
    a.send_cq.expect_success(1);
    to.assert_filled(4);
    to.fill(5);
    a.qp.post(&Wr::read(2, &[from.sge(0, LENGTH)], &to, 0));
    a.send_cq.expect_success(2);
    from.assert_filled(5);
    child.go();
}

fn the_parents_receives_stay_posted_while_a_child_lives(device: &Device) {
    prepare();
    let (a, b) = pair(device);
    let from = a.pd.register_filled(vec![3; LENGTH], LOCAL_WRITE);
    let to = b.pd.register_filled(vec![1; LENGTH], LOCAL_WRITE);
    b.qp.post_receive(1, &[to.sge(0, LENGTH)]);
    let child = Waiting::fork(|| {});
    to.fill(2);
    a.qp.post(&Wr::send(2, &[from.sge(0, LENGTH)]));
    b.receive_cq.expect_success(1);
    to.assert_filled(3);
    a.send_cq.expect_success(2);
    child.go();
}

/// Skips the case unless children get copies of registered memory, as they do of other memory.
fn needs_copies(device: &Device) {
    let unneeded = fork_status() == ibv_fork_status::IBV_FORK_UNNEEDED;
    device.needs(unneeded, "children do not have registered memory here");
}

fn what_peers_write_does_not_reach_a_childs_copy(device: &Device) {
    needs_copies(device);
    let (a, b) = pair(device);
    let from = a.pd.register_filled(vec![3; LENGTH], LOCAL_WRITE);
    let to = b.pd.register_private(vec![1; LENGTH], ALL_ACCESS);
    let child = Waiting::fork(|| {
        to.assert_filled(1);
        to.fill(7);
    });
    a.qp.post(&Wr::write(1, &[from.sge(0, LENGTH)], &to, 0));
    a.send_cq.expect_success(1);
    child.go();
    to.assert_filled(3);
}

/// Writes to `to`, and checks that the data arrived.
#[track_caller]
fn expect_to_work(
    write: impl FnOnce() -> Wr,
    a: &test_support::rig::connect::Side,
    to: &Mr,
    byte: u8,
) {
    a.qp.post(&write());
    a.send_cq.expect_success(1);
    to.assert_filled(byte);
}

fn the_parents_objects_outlive_a_child_that_ends(device: &Device) {
    prepare();
    let (a, b) = pair(device);
    let from = a.pd.register(LENGTH, LOCAL_WRITE);
    let to = b.pd.register(LENGTH, ALL_ACCESS);
    for byte in 1..4 {
        Child::fork(|| {}).join();
        from.fill(byte);
        let write = || Wr::write(1, &[from.sge(0, LENGTH)], &to, 0);
        expect_to_work(write, &a, &to, byte);
        a.qp.assert_ready();
    }
    // Objects that the parent creates after its children have ended work too.
    let (c, d) = pair(device);
    let more = d.pd.register(8, ALL_ACCESS);
    let source = c.pd.register_filled(vec![9; 8], LOCAL_WRITE);
    expect_to_work(|| Wr::write(1, &[source.sge(0, 8)], &more, 0), &c, &more, 9);
}

fn a_parent_that_forks_all_the_time_loses_nothing(device: &Device) {
    prepare();
    let (a, b) = pair(device);
    let from = a.pd.register(LENGTH, LOCAL_WRITE);
    let to = b.pd.register(LENGTH, ALL_ACCESS);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for byte in 1..=40 {
                from.fill(byte);
                expect_to_work(|| Wr::write(1, &[from.sge(0, LENGTH)], &to, 0), &a, &to, byte);
                to.fill(0);
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            Child::fork(|| {}).join();
        }
    });
}

fn programs_are_started_while_requests_wait(device: &Device) {
    prepare();
    let (a, b) = pair(device);
    let from = a.pd.register_filled(vec![3; LENGTH], LOCAL_WRITE);
    let to = b.pd.register(LENGTH, LOCAL_WRITE);
    // While other programs run, the send waits for a receive, and the receive waits for a message.
    a.qp.post(&Wr::send(1, &[from.sge(0, LENGTH)]));
    a.qp.post_receive(2, &[from.sge(0, 8)]);
    for _ in 0..3 {
        assert!(Command::new("true").status().unwrap().success());
    }
    b.qp.post_receive(3, &[to.sge(0, LENGTH)]);
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(3);
    to.assert_filled(3);
    b.qp.post(&Wr::send(4, &[to.sge(0, 8)]));
    a.receive_cq.expect_success(2);
    b.send_cq.expect_success(4);
}

fn programs_that_are_started_do_not_get_the_descriptors(device: &Device) {
    let context = device.open();
    let channel = context.channel();
    for fd in [context.async_fd(), context.command_fd(), channel.fd()] {
        assert!(fd < 0 || !is_inherited(fd), "{fd}");
    }
}

fn a_child_uses_the_device_for_itself(device: &Device) {
    device.needs(!device.has_network(), "an address of the host belongs to one process");
    prepare();
    let use_it = || {
        let (a, b) = pair(device);
        let from = a.pd.register_filled(vec![9; 8], LOCAL_WRITE);
        let to = b.pd.register(8, ALL_ACCESS);
        expect_to_work(|| Wr::write(1, &[from.sge(0, 8)], &to, 0), &a, &to, 9);
    };
    let child = Child::fork(use_it);
    use_it();
    child.join();
}
