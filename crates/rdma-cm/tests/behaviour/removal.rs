//! The removal of a device of the system's libibverbs, as when its driver is unloaded.

use std::process::Command;

use rdma_cm::{End, Resolved};

use crate::common::{LIMIT, Node, connect, ended, open, system_device};

/// Runs where a device may be removed, such as the virtual machine of SoftRoCE.
#[test]
#[ignore = "removes the device that RDMA_TEST_CM_SYSTEM names"]
fn a_removed_device_ends_everything_that_uses_it() {
    let device = system_device().expect("RDMA_TEST_CM_SYSTEM must name a device");
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let (active, passive) = connect(&client, &server, &listener);
    let resolve = || client.channel.resolve(listener.local_address()).unwrap();
    let (resolved, again): (Resolved, Resolved) = (resolve(), resolve());
    let connecting = again.connect(client.queue_pair(), b"").unwrap();
    let request = listener.incoming(LIMIT).unwrap();

    // The kernel waits in this command until the last context of the device is closed. librdmacm closes its own when
    // the process exits.
    let command = format!("rdma link delete {device} &");
    assert!(Command::new("sh").args(["-c", &command]).status().unwrap().success());
    // The kernel destroys one ID after the other. Each ends its peer's connection, which may come before the removal.
    let ends = [active, passive].map(|end| end.wait(LIMIT).unwrap());
    let is_end = |end: &End| matches!(end, End::DeviceRemoved | End::Disconnected { .. });
    assert!(ends.iter().all(is_end) && ends.contains(&End::DeviceRemoved), "{ends:?}");
    let end = ended(connecting.wait(LIMIT));
    assert!(matches!(end, End::DeviceRemoved | End::Rejected { .. }), "{end}");
    assert_eq!(ended(listener.incoming(LIMIT)), End::DeviceRemoved);
    ended(request.prepare(server.queue_pair()).and_then(|it| it.accept(b"")));
    // The route is lost, and the kernel finds no other one.
    let connecting = resolved.connect(client.queue_pair(), b"");
    let end = ended(connecting.and_then(|it| it.wait(LIMIT)));
    assert!(matches!(end, End::Kernel { .. } | End::DeviceRemoved), "{end}");
}
