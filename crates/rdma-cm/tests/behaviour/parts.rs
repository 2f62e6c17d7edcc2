//! Connections without their queue pairs, and programs whose parts share a channel.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rdma_cm::{Error, EventChannel, Listener, Step};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::rig::until;

use crate::common::{
    LIMIT, Node, address, connect, disconnected, is_over_kernel, open, system_device,
};
use crate::other_hosts::Host;

/// A client, a server and its listener: on one host, and on different hosts unless the device is the system's.
fn ends() -> Vec<(Node, Node, Listener)> {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    if system_device().is_some() {
        return vec![(client, server, listener)];
    }
    let (near, far) = (Host::new(), Host::new());
    let (active, passive) = (near.node(), far.node());
    let outside = far.listen(&passive.channel);
    vec![(client, server, listener), (active, passive, outside)]
}

pub(crate) fn is_readable(file: &Arc<OwnedFd>) -> bool {
    let mut files = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
    poll(&mut files, Some(&Timespec::default())).unwrap() == 1
}

/// Processes the messages of a channel like another thread, which leaves the events to this one.
pub(crate) fn process(channel: &EventChannel) {
    assert!(channel.next_of(|_| false, Some(Duration::ZERO)).unwrap().is_none());
}

/// The file stays readable although another thread has received the message.
#[test]
fn the_file_of_a_connection_is_readable_after_its_end() {
    for (client, server, listener) in ends() {
        let (active, passive) = connect(&client, &server, &listener);
        let (_queue_pair, id) = passive.into_parts();
        let file = id.file().unwrap();
        assert!(Arc::ptr_eq(&file, &id.file().unwrap()), "there is one file");
        assert!(matches!(id.wait(Duration::ZERO), Err(Error::TimedOut { .. })));
        let (_queue_pair, other) = active.into_parts();
        other.disconnect(b"bye").unwrap();
        until("the message was received", || {
            process(&server.channel);
            // Only the end is queued, so the channel's file is readable for good.
            let mut files = [PollFd::from_borrowed_fd(server.channel.as_fd(), PollFlags::IN)];
            poll(&mut files, Some(&Timespec::default())).unwrap() == 1 && is_readable(&file)
        });
        process(&server.channel);
        assert!(is_readable(&file));
        assert_eq!(id.wait(Duration::ZERO).unwrap(), disconnected(b"bye", 220));
        assert!(is_readable(&file), "it stays readable");
    }
}

/// A file that was opened after the end shows it, too.
#[test]
fn the_file_of_an_ended_connection_is_readable() {
    for (client, server, listener) in ends() {
        let (active, passive) = connect(&client, &server, &listener);
        let (_queue_pair, id) = passive.into_parts();
        drop(active);
        let ended = |event: &rdma_cm::Event| event.id() == id.id();
        let event = server.channel.next_of(|of| of == id.id(), Some(LIMIT)).unwrap().unwrap();
        assert!(ended(&event));
        assert!(is_readable(&id.file().unwrap()));
        assert!(id.end(event).is_ok());
    }
}

/// The answer is one message of several, so the file must not depend on the socket.
#[test]
fn the_file_of_a_request_is_readable_after_its_answer() {
    for (client, server, listener) in ends() {
        let resolved = client.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        let file = connecting.file().unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        let peer = request.peer_address().ip();
        assert!(peer == address() || (peer.is_loopback() && !is_over_kernel()), "{peer}");
        let accepting = request.prepare(server.queue_pair()).unwrap();
        let accepted = accepting.accept(b"").unwrap();
        let id = connecting.id();
        until("the answer was received", || {
            process(&client.channel);
            let mut files = [PollFd::from_borrowed_fd(client.channel.as_fd(), PollFlags::IN)];
            poll(&mut files, Some(&Timespec::default())).unwrap() == 1
        });
        process(&client.channel);
        assert!(is_readable(&file));
        let event = client.channel.next_of(|of| of == id, Some(Duration::ZERO)).unwrap().unwrap();
        let Step::Next(replied) = connecting.advance(event) else { panic!("no answer") };
        let (_queue_pair, id) = replied.establish().unwrap().into_parts();
        let passive = accepted.wait(LIMIT).unwrap();
        assert!(matches!(id.wait(Duration::ZERO), Err(Error::TimedOut { .. })));
        let file = id.file().unwrap();
        until("only the end makes the file readable", || {
            process(&client.channel);
            !is_readable(&file)
        });
        drop(passive);
        until("the end was received", || {
            process(&client.channel);
            is_readable(&file)
        });
        id.wait(LIMIT).unwrap();
    }
}

/// The result of the resolution makes only its own file readable.
#[test]
fn the_file_of_a_request_is_not_readable_before_its_answer() {
    for (client, _server, listener) in ends() {
        let resolving = client.channel.start_resolving(listener.local_address()).unwrap();
        let resolution = resolving.file().unwrap();
        let resolved = resolving.wait(LIMIT).unwrap();
        assert!(is_readable(&resolution));
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        let file = connecting.file().unwrap();
        let _request = listener.incoming(LIMIT).unwrap();
        until("nothing makes the file readable", || {
            process(&client.channel);
            !is_readable(&file)
        });
    }
}

#[test]
fn the_file_of_a_request_that_was_answered_before_is_readable() {
    for (client, server, listener) in ends() {
        let resolved = client.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        let _accepted = request.prepare(server.queue_pair()).unwrap().accept(b"").unwrap();
        until("the answer was received", || {
            process(&client.channel);
            let mut files = [PollFd::from_borrowed_fd(client.channel.as_fd(), PollFlags::IN)];
            poll(&mut files, Some(&Timespec::default())).unwrap() == 1
        });
        process(&client.channel);
        assert!(is_readable(&connecting.file().unwrap()));
    }
}

/// The connection has ended before `connect` returns.
#[test]
fn the_file_of_a_request_without_a_listener_is_readable() {
    let client = Node::new(&open("soft0"));
    let address = client.listen().local_address();
    let resolved = client.channel.resolve(address).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    assert!(is_readable(&connecting.file().unwrap()));
    assert!(connecting.wait(Duration::ZERO).is_err());
}

/// Later callers receive another one.
#[test]
fn a_closed_channel_is_shared_no_longer() {
    let context = Host::new().node().channel.context().clone();
    let closed = EventChannel::shared(&context).unwrap();
    closed.close();
    let shared = EventChannel::shared(&context).unwrap();
    assert!(closed.next_of(|_| true, Some(Duration::ZERO)).is_err());
    assert!(shared.next_of(|_| true, Some(Duration::ZERO)).unwrap().is_none());
}

#[test]
fn events_of_other_parts_stay_queued() {
    for (client, server, listener) in ends() {
        let (active, passive) = connect(&client, &server, &listener);
        let resolved = client.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        drop(active);
        let own = passive.id();
        let event = server.channel.next_of(|id| id == own, Some(LIMIT)).unwrap().unwrap();
        assert_eq!(event.id(), own);
        drop(listener.incoming(LIMIT).unwrap());
        assert!(connecting.wait(LIMIT).is_err());
    }
}

#[test]
fn a_wait_for_an_address_ends_at_its_limit_if_another_part_has_the_event() {
    for (client, _server, listener) in ends() {
        let resolving = client.channel.start_resolving(listener.local_address()).unwrap();
        let own = resolving.id();
        let _event = client.channel.next_of(|id| id == own, Some(LIMIT)).unwrap().unwrap();
        let error = resolving.wait(Duration::ZERO).unwrap_err();
        let expected = "the resolved address did not arrive within 0ns: check `ip route get`";
        assert!(error.to_string().starts_with(expected), "{error}");
        assert!(matches!(error, Error::TimedOut { limit: Duration::ZERO, .. }));
    }
}

#[test]
fn a_shared_channel_is_that_of_its_device() {
    let (one, other) = (open("soft0"), open("softib0"));
    let shared = |context| EventChannel::shared(context).unwrap();
    let first = shared(&one);
    let listener = Listener::bind(&first, "localhost:0").unwrap();
    drop(first);
    // The listener keeps the channel.
    let client = Node::new(&one);
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let _connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    let own = listener.id();
    let wants = |id| id == own;
    assert!(shared(&other).next_of(wants, Some(Duration::ZERO)).unwrap().is_none());
    let event = shared(&one).next_of(wants, Some(LIMIT)).unwrap().unwrap();
    assert!(listener.request(event).is_ok());
}

/// The file of the established connection is another one, which the confirmation does not make readable.
#[test]
fn the_file_of_an_accepted_request_is_readable_after_its_confirmation() {
    for (client, server, listener) in ends() {
        let resolved = client.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        let accepting = request.prepare(server.queue_pair()).unwrap();
        let accepted = accepting.accept(b"").unwrap();
        let file = accepted.file().unwrap();
        process(&server.channel);
        assert!(!is_readable(&file));
        let active = connecting.wait(LIMIT).unwrap().establish().unwrap();
        until("the confirmation was received", || {
            process(&server.channel);
            is_readable(&file)
        });
        let is_ours = |id| id == accepted.id();
        let event = server.channel.next_of(is_ours, Some(Duration::ZERO)).unwrap();
        let Step::Next(connection) = accepted.advance(event.unwrap()) else { panic!() };
        let (_queue_pair, id) = connection.into_parts();
        let file = id.file().unwrap();
        process(&server.channel);
        assert!(!is_readable(&file), "nothing has happened since");
        drop(active);
        assert!(id.wait(LIMIT).is_ok());
        assert!(is_readable(&file));
    }
}
