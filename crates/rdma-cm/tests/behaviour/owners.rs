//! The processes that receive the requests for a port: on this host, and from other hosts.

use std::{env, thread};

use rdma_cm::{End, Error, EventChannel, Reason};

use crate::common::{LIMIT, Node, ended, open};
use crate::other_hosts::Host;
use crate::processes::{
    LISTEN, STAGE, address_of_other, end, process_at, read_line, serve, started, wait_for_the_test,
};

/// Owns the address at which `soft0` listens, without a listener, until the test ends.
fn own_the_address() {
    let channel = EventChannel::open(&open("soft0")).unwrap();
    println!("\nowns {}", env::var(LISTEN).unwrap());
    thread::scope(|threads| {
        threads.spawn(|| {
            wait_for_the_test();
            channel.close();
        });
        let result = channel.next(None);
        assert!(matches!(result, Err(Error::Closed)), "{result:?}");
    });
    // A client that repeats its request is rejected again.
    assert!(channel.counters().rejects > 0);
}

#[test]
fn requests_of_other_hosts_go_to_the_process_that_owns_the_address() {
    match env::var(STAGE).as_deref() {
        Ok("owner") => return own_the_address(),
        Ok(stage) => return serve(stage),
        Err(_) => {}
    }
    let test = "owners::requests_of_other_hosts_go_to_the_process_that_owns_the_address";
    let ip = address_of_other(6);
    let mut owner = process_at(test, "owner").env(LISTEN, ip.to_string()).spawn().unwrap();
    assert_eq!(read_line(&mut owner, "owns "), ip.to_string());
    // A second process listens at a port of the same device.
    let (server, port) = started(&mut process_at(test, ""));

    let far = Host::new().node();
    let resolved = far.channel.resolve((ip, port)).unwrap();
    let refused = ended(resolved.connect(far.queue_pair(), b"").unwrap().wait(LIMIT));
    let End::Rejected { reason, .. } = refused else { panic!("{refused}") };
    assert_eq!(reason, Reason::INVALID_SERVICE_ID);

    let mut local = Node::new(&open("soft0"));
    let resolved = local.channel.resolve(("127.0.0.1", port)).unwrap();
    let replied = resolved.connect(local.queue_pair(), b"").unwrap().wait(LIMIT).unwrap();
    local.post_receive(replied.queue_pair());
    let connection = replied.establish().unwrap();
    local.send(connection.queue_pair(), b"ping");
    assert_eq!(local.received(4), b"ping");
    connection.disconnect(b"").unwrap().wait(LIMIT).unwrap();
    end(server);
    end(owner);
}
