//! Forking children during connections.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::panic)] // A failing helper fails its test.

use std::io::{Read as _, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_cm::unmanaged::{self, PortSpace};
use rdma_cm::{BindOptions, End, Error, EventChannel, Reason};

#[path = "behaviour/common.rs"]
#[allow(dead_code)] // `behaviour` uses all of it
mod common;

use common::{LIMIT, Node, connect, open};
use test_support::program::in_own_process;
use test_support::rig::fork::Child;

#[test]
fn a_forked_child_cannot_touch_connections_and_its_end_changes_nothing() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (active, passive) = connect(&client, &server, &listener);
    // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child");
    if pid == 0 {
        // SAFETY: SAFETY.md F15: it ends a child that hangs.
        unsafe { libc::alarm(120) };
        let forked = |error| matches!(error, Error::Memory(rdma_mem::Error::Forked(_)));
        let next = client.channel.next(Some(Duration::ZERO)).err().is_some_and(forked);
        let resolve = client.channel.resolve("127.0.0.1:1").err().is_some_and(forked);
        let wait = active.wait(Duration::ZERO).err().is_some_and(forked);
        let listen = listener.incoming(Duration::ZERO).err().is_some_and(forked);
        drop((active, passive, listener));
        client.channel.close();
        // SAFETY: SAFETY.md F15: nothing else runs in this child.
        unsafe { libc::_exit(i32::from(!(next && resolve && wait && listen))) };
    }
    assert_eq!(wait_for(pid), 0, "a call in the child did not fail");

    assert!(matches!(active.wait(Duration::ZERO), Err(Error::TimedOut { .. })));
    drop(passive);
    assert!(matches!(active.wait(LIMIT).unwrap(), End::Disconnected { .. }));
    drop(connect(&client, &server, &listener));
}

#[test]
fn a_dropped_listener_refuses_clients_while_a_forked_child_lives() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    // SAFETY: SAFETY.md F15: the child waits for no other thread, and ends below.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child");
    if pid == 0 {
        drop(writer);
        let _ = std::io::Read::read(&mut &reader, &mut [0]);
        // SAFETY: SAFETY.md F15: nothing else runs in this child.
        unsafe { libc::_exit(0) };
    }
    let waiting = resolved.connect(client.queue_pair(), b"").unwrap();
    drop(listener);
    let refused = resolved.connect(client.queue_pair(), b"").unwrap();
    let [waiting, refused] = [waiting, refused].map(|it| it.wait(LIMIT));
    drop(writer);
    assert_eq!(wait_for(pid), 0);
    assert!(matches!(waiting, Err(Error::Ended(End::PeerGone))), "{waiting:?}");
    let Err(Error::Ended(End::Rejected { reason, .. })) = refused else { panic!("{refused:?}") };
    assert_eq!(reason, Reason::INVALID_SERVICE_ID);
}

#[test]
fn a_forked_child_does_not_share_a_port_of_its_parent() {
    in_own_process("a_forked_child_does_not_share_a_port_of_its_parent", || {
        let shared = BindOptions::new().with_shared_port(true);
        let channel = EventChannel::open(&open("soft0")).unwrap();
        let to = |port: u16| ([127, 0, 0, 1], port).into();
        let port = unmanaged::bind(&channel, PortSpace::Tcp, to(0), shared).unwrap();
        let bind =
            |channel: &_| unmanaged::bind(channel, PortSpace::Tcp, to(port.number()), shared);
        drop(bind(&channel).unwrap());
        let child = forked(|| {
            let own = EventChannel::open(&open("soft0")).unwrap();
            let bound = bind(&own);
            assert!(matches!(bound, Err(Error::PortInUse { .. })), "it owns its parent's port");
        });
        child.join();
    });
}

#[test]
fn forked_children_of_a_process_with_queue_pairs_connect_to_each_other() {
    in_own_process("forked_children_of_a_process_with_queue_pairs_connect_to_each_other", || {
        let _queue_pair = Node::new(&open("soft0")).queue_pair();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let passive = forked(|| {
            let mut server = Node::new(&open("soft0"));
            let listener = server.listen();
            writer.write_all(&listener.local_address().port().to_ne_bytes()).unwrap();
            let request = listener.incoming(LIMIT).unwrap();
            let accepting = request.prepare(server.queue_pair()).unwrap();
            server.post_receive(accepting.queue_pair());
            let connection = accepting.accept(b"").unwrap().wait(LIMIT).unwrap();
            assert_eq!(server.received(5), b"hello");
            connection.wait(LIMIT).unwrap();
        });
        let active = forked(|| {
            let mut client = Node::new(&open("soft0"));
            let mut port = [0; 2];
            reader.read_exact(&mut port).unwrap();
            let to = client.channel.resolve(("127.0.0.1", u16::from_ne_bytes(port))).unwrap();
            let replied = to.connect(client.queue_pair(), b"").unwrap().wait(LIMIT).unwrap();
            let connection = replied.establish().unwrap();
            client.send(connection.queue_pair(), b"hello");
        });
        [active, passive].into_iter().for_each(Child::join);
    });
}

#[test]
fn calls_in_a_forked_child_do_not_wait_for_threads_of_its_parent() {
    in_own_process("calls_in_a_forked_child_do_not_wait_for_threads_of_its_parent", || {
        let channel = EventChannel::open(&open("soft0")).unwrap();
        let address = "127.0.0.1:7471".parse().unwrap();
        let _query = unmanaged::join(&channel, "239.1.2.3".parse().unwrap(), None).unwrap();
        let (is_locked, locked) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        thread::scope(|threads| {
            let channel = &channel;
            threads.spawn(move || {
                let wants = |_| {
                    is_locked.send(()).unwrap();
                    released.recv().is_ok()
                };
                channel.next_of(wants, Some(Duration::ZERO))
            });
            locked.recv().unwrap();
            let child = forked(|| {
                assert_eq!(channel.counters().received, 0);
                let bound = unmanaged::bind(channel, PortSpace::Tcp, address, BindOptions::new());
                assert!(matches!(bound, Err(Error::Memory(_))));
            });
            child.join();
            drop(release);
        });
    });
}

/// Runs a function in a forked child. The device's threads, the only others, are idle and hold no lock.
fn forked(work: impl FnOnce()) -> Child {
    Child::fork(|| {
        // SAFETY: SAFETY.md F15: it ends a child that hangs.
        unsafe { libc::alarm(120) };
        work();
    })
}

/// Waits for a child, and returns its status.
fn wait_for(pid: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: SAFETY.md F15: it waits for the child, and `status` is alive.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    status
}
