//! Contexts that are closed, even before the objects made from them, and their descriptors.

use std::fs;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use rdma_sys::ibv_wc_status as Status;

use crate::device::rig::connect::{Knobs, Side, connect, endpoint};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Context, LOCAL_WRITE, Size, on_each_device};

/// The kernel's name for the file of a descriptor. It is unique among open files for a socket, or an eventfd with its
/// own count.
fn name_of(fd: i32) -> String {
    let link = fs::read_link(format!("/proc/self/fd/{fd}"));
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let count = info.lines().find(|line| line.starts_with("eventfd-count")).unwrap_or_default();
    format!("{:?} {count}", link.ok())
}

/// Returns true if a file of that name is open; other tests open and close theirs meanwhile.
fn is_open(name: &str) -> bool {
    let fds = fs::read_dir("/proc/self/fd").unwrap().flatten();
    fds.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).any(|fd| name_of(fd) == name)
}

/// The names of a context's files; the one for commands gets its own count.
fn files(context: &Context) -> [String; 2] {
    static NEXT: AtomicU64 = AtomicU64::new(1000);
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    assert_eq!(rustix::io::write(context.command_file(), &count.to_ne_bytes()), Ok(8));
    [context.async_fd(), context.command_fd()].map(name_of)
}

#[test]
fn a_closed_context_is_released_with_its_last_object() {
    on_each_device("left", |device| {
        let context = Context::open(device);
        let files = files(&context);
        let (cq, pd, channel) = (context.cq(10), context.pd(), context.channel());
        let region = pd.register(8, ALL_ACCESS);
        let qp = pd.qp(&cq, &cq, &Size::default());
        assert_eq!(context.close(), 0);
        drop(channel);
        drop(qp);
        drop(region);
        drop(cq);
        assert_eq!(files.each_ref().map(|file| is_open(file)), [true; 2], "the domain is left");
        drop(pd);
        assert_eq!(files.each_ref().map(|file| is_open(file)), [false; 2]);
    });
}

#[test]
fn a_context_that_is_closed_last_is_released_at_once() {
    on_each_device("last", |device| {
        let context = Context::open(device);
        let files = files(&context);
        drop((context.cq(10), context.pd(), context.channel()));
        assert_eq!(files.each_ref().map(|file| is_open(file)), [true; 2]);
        assert_eq!(context.close(), 0);
        assert_eq!(files.each_ref().map(|file| is_open(file)), [false; 2]);
    });
}

#[test]
fn queue_pairs_left_by_a_closed_context_grant_no_access() {
    on_each_device("reach", |device| {
        let a = Side::new(device, &Size::default(), 8);
        let context = Context::open(device);
        let (cq, pd) = (context.cq(10), context.pd());
        let there = pd.register_filled(vec![1; 8], ALL_ACCESS);
        let qp = pd.qp(&cq, &cq, &Size::default());
        let (at_a, at_b) = (a.endpoint(), endpoint(&context, &qp));
        let knobs = Knobs { timeout: 1, retries: 0, ..Knobs::default() };
        connect(&a.qp, &at_a, &at_b, &knobs);
        connect(&qp, &at_b, &at_a, &knobs);
        let here = a.pd.register_filled(vec![2; 8], LOCAL_WRITE);
        assert_eq!(context.close(), 0);
        a.qp.post(&Wr::write(1, &[here.sge(0, 8)], &there, 0));
        a.send_cq.expect(1, Status::IBV_WC_RETRY_EXC_ERR);
        drop(qp);
        assert_eq!(there.deregister(), [1; 8]);
        drop((pd, cq));
    });
}

#[test]
fn the_descriptor_for_commands_can_be_duplicated_and_does_nothing() {
    on_each_device("commands", |device| {
        let context = Context::open(device);
        let copy = context.command_file().try_clone_to_owned().unwrap();
        assert_eq!(rustix::io::read(&copy, &mut [0; 8]), Err(rustix::io::Errno::AGAIN));
        let [asynchronous, command] = files(&context);
        assert_ne!(asynchronous, command);
        assert_eq!(name_of(copy.as_raw_fd()), command);
        drop(context);
        assert_eq!(name_of(copy.as_raw_fd()), command, "the copy is the program's");
    });
}
