//! Programs that poll the files of more connections than the kernel lets contain one epoll instance.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use rdma_cm::{ConnectionId, Listener, QueuePair};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use test_support::rig::until;

use crate::common::{LIMIT, Node, connect, open};
use crate::other_hosts::Host;

/// More than the 100 files that can be in a further epoll instance.
const MANY: usize = 150;

/// An epoll instance with the files of connections, like that of an event loop.
struct Files {
    epoll: OwnedFd,
    all: Vec<Arc<OwnedFd>>,
}

impl Files {
    fn new() -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        Self { epoll, all: Vec::new() }
    }

    fn add(&mut self, file: Arc<OwnedFd>) {
        epoll::add(&self.epoll, &*file, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
            .unwrap();
        self.all.push(file);
    }
}

fn is_readable(file: impl AsFd) -> bool {
    let mut files = [PollFd::new(&file, PollFlags::IN)];
    poll(&mut files, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn the_files_of_many_requests_become_readable_by_their_answers() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let (listener, mut files) = (server.listen(), Files::new());
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let mut requests = Vec::new();
    for _ in 0..MANY {
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        files.add(connecting.file().unwrap());
        requests.push(connecting);
    }
    // The channel accepts further sockets, too.
    let other = client.listen();
    let others = connect(&server, &client, &other);
    for _ in 0..MANY {
        drop(listener.incoming(LIMIT).unwrap());
    }
    // No thread of the program processes the messages.
    until("all have an event", || files.all.iter().all(is_readable));
    assert!(requests.into_iter().all(|it| it.wait(LIMIT).is_err()));
    drop(others);
}

/// Connects two ends on different hosts.
fn connected(client: &Node, server: &Node, listener: &Listener) -> [(QueuePair, ConnectionId); 2] {
    thread::scope(|threads| {
        let accepted = threads.spawn(|| {
            let request = listener.incoming(LIMIT).unwrap();
            let accepted = request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap();
            accepted.wait(LIMIT).unwrap().into_parts()
        });
        let resolved = client.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        let active = connecting.wait(LIMIT).unwrap().establish().unwrap().into_parts();
        [active, accepted.join().unwrap()]
    })
}

#[test]
fn the_files_of_many_connections_become_readable_by_their_ends() {
    let (near, far) = (Host::new(), Host::new());
    let (client, server) = (near.node(), far.node());
    let (listener, mut files) = (far.listen(&server.channel), Files::new());
    let (mut active, mut passive) = (Vec::new(), Vec::new());
    for _ in 0..MANY {
        let [one, other] = connected(&client, &server, &listener);
        files.add(one.1.file().unwrap());
        active.push(one);
        passive.push(other);
    }
    drop(passive.pop());
    until("the last one has an event", || is_readable(&files.all[MANY - 1]));
    until("no other has one", || !files.all[..MANY - 1].iter().any(is_readable));
    assert!(active[MANY - 1].1.wait(LIMIT).is_ok());
    passive.clear();
    until("all have an event", || files.all.iter().all(is_readable));
}
