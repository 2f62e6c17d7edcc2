//! The same tests over librdmacm: that of `cargo xtask dropin`, which stands for the machine's. They run in children whose
//! libibverbs and librdmacm are those files.

use std::env;
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdma_cm::unmanaged::{self, Event, Parameters, PortSpace, SidrStatus};
use rdma_cm::{BindOptions, Connecting, End, Error, EventChannel, Listener, Reason, Step};
use rdma_mem::Context;
use rdma_qp::{QueuePairType, prelude::*};
use rdma_sys::cm::rdma_cm_event_type;
use rdma_types::{AckTimeout, Lid, MaxAckRetries, MaxRnrRetries, Psn, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use test_support::program::{dropin, in_own_process_with, is_emulated};
use test_support::rig::until;

use crate::common::{self, LIMIT, Node, SYSTEM, address, ended, is_over_kernel, open};
use crate::groups::groups;
use crate::options::connect_traffic_classes;
use crate::other_hosts::Host;
use crate::parts::{is_readable, process};
use crate::unmanaged::queries;

/// Makes a child use the drop-in libraries as the system's.
fn over_library(program: &mut Command) {
    let folder = dropin();
    program.env("RDMA_LIBIBVERBS", folder.join("libibverbs.so.1"));
    program.env("RDMA_LIBRDMACM", folder.join("librdmacm.so.1"));
    program.env_remove("RDMA_PROVIDERS").env(SYSTEM, "soft0");
}

/// Runs the tests of a module over the library, except some, and checks how many pass.
fn pass(module: &str, except: &[&str], expected: usize) {
    if is_emulated() {
        return println!("SKIP: the libraries are not for the emulated machine");
    }
    common::pass(&format!("{module}::"), except, expected, over_library);
}

/// Runs a test in a child, or in this process if the kernel connects its devices.
fn in_child(test: &str, work: impl FnOnce()) {
    if is_over_kernel() {
        return work();
    }
    if is_emulated() {
        return println!("SKIP: the libraries are not for the emulated machine");
    }
    in_own_process_with(&format!("library::{test}"), over_library, work);
}

#[test]
fn connections_are_established_used_and_ended() {
    // This librdmacm binds 127.0.0.1 to its first device.
    pass("connecting", &["on_infiniband"], 12);
}

#[test]
fn connections_are_refused() {
    let except = [
        "a_port_has_one_listener_per_device",
        // The module `unmanaged` has no such connections.
        "connections_to_its_own_host",
        // The errors differ; see below.
        "addresses_of_other_hosts",
        "the_cure_of_a_device_that_cannot_listen",
        "queue_pairs_that_do_not_fit",
        "a_request_that_is_withdrawn",
    ];
    pass("refusals", &except, 11);
}

#[test]
fn ports_have_options() {
    pass("options", &["shared_port", "traffic_class", "state_the_retries"], 1);
}

#[test]
fn everything_is_dropped_in_any_order() {
    // The kernel does not report a request that is withdrawn.
    pass("orders", &["two_hosts", "until_they_are_withdrawn"], 2);
}

#[test]
fn connections_have_files_and_parts() {
    // The rejection may arrive later.
    pass("parts", &["a_request_without_a_listener"], 10);
}

#[test]
fn connections_pass_each_phase_together() {
    pass("phases", &[], 1);
}

#[test]
fn processes_that_exit_end_their_connections() {
    pass("processes", &[], 3);
}

#[test]
fn queue_pairs_that_the_kernel_does_not_connect_are_refused() {
    in_child("queue_pairs_that_the_kernel_does_not_connect_are_refused", || {
        let node = Node::new(&open("soft0"));
        let listener = node.listen();
        let resolved = node.channel.resolve(listener.local_address()).unwrap();
        let new = || node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
        let unreliable = || new().qp_type(QueuePairType::UC).build().unwrap();
        let error = resolved.connect(unreliable(), b"").unwrap_err();
        assert!(error.to_string().ends_with("does not connect queue pairs of type UC (unreliable connection): build one of type RC"), "{error}");

        for wrong in [unreliable(), new().mtu(rdma_cm::Mtu::MTU256).build().unwrap()] {
            let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
            let error = listener.incoming(LIMIT).unwrap().prepare(wrong).unwrap_err();
            assert!(matches!(error, Error::NotReliable { .. } | Error::Mtu { .. }), "{error}");
            // librdmacm has no other reason.
            let End::Rejected { reason, .. } = ended(connecting.wait(LIMIT)) else { panic!() };
            assert_eq!(reason, Reason::CONSUMER_DEFINED);
        }
    });
}

#[test]
fn a_request_that_is_withdrawn_is_not_established() {
    in_child("a_request_that_is_withdrawn_is_not_established", || {
        let node = Node::new(&open("soft0"));
        let server = Node::new(node.channel.context());
        let listener = server.listen();
        let resolved = node.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
        let request = listener.incoming(LIMIT).unwrap();
        drop(connecting);
        // The kernel does not report it, and may accept the request before the peer's message arrives.
        let accepted = request.prepare(server.queue_pair()).and_then(|it| it.accept(b""));
        let end = ended(accepted.and_then(|accepted| accepted.wait(LIMIT)));
        assert!(matches!(end, End::Rejected { .. } | End::PeerGone), "{end}");
    });
}

/// Waits for the end of a request that the listener does not report.
fn rejected(listener: &Listener, connecting: Connecting) -> End {
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ended(connecting.wait(LIMIT)));
        until("the request is rejected", || {
            let none = listener.incoming(Duration::from_millis(1));
            assert!(matches!(none, Err(Error::TimedOut { .. })), "{none:?}");
            waiting.is_finished()
        });
        waiting.join().unwrap()
    })
}

/// Runs a test in a child whose device listens at an address of its own, and passes both.
fn in_listening_child(test: &str, number: u32, work: impl FnOnce(Context, Ipv4Addr)) {
    const LISTEN: &str = "RDMA_SOFT_LISTEN";
    if is_emulated() {
        return println!("SKIP: the libraries are not for the emulated machine");
    }
    // The hosts of tests have lower addresses.
    let own = Ipv4Addr::from_bits(0x7fc0_0000 | (std::process::id() & 0xffff) << 2 | number);
    let prepare = |program: &mut Command| {
        over_library(program);
        program.env(LISTEN, own.to_string());
    };
    in_own_process_with(&format!("library::{test}"), prepare, || {
        // The address is the library's, so `soft0` of this crate is not installed.
        let own = rdma_mem::open_device("soft0").unwrap();
        work(own, env::var(LISTEN).unwrap().parse().unwrap());
    });
}

#[test]
fn a_listener_has_128_undecided_requests() {
    in_listening_child("a_listener_has_128_undecided_requests", 0, |own, ip| {
        let (near, far) = (Node::new(&own), Host::new().node());
        let listener = Listener::bind(&near.channel, "0.0.0.0:0").unwrap();
        let port = listener.local_address().port();
        let resolved = near.channel.resolve(("127.0.0.1", port)).unwrap();
        let connect = |()| resolved.connect(near.queue_pair(), b"").unwrap();
        // This librdmacm has the same limit, but counts the requests of other hosts apart.
        let _inside = [(); 127].map(connect);
        let mut requests = vec![];
        requests.resize_with(127, || listener.incoming(LIMIT).unwrap());
        let resolved = far.channel.resolve((ip, port)).unwrap();
        let outside = || resolved.connect(far.queue_pair(), b"").unwrap();
        let _last = outside();
        requests.push(listener.incoming(LIMIT).unwrap());
        let end = rejected(&listener, outside());
        assert!(matches!(end, End::Rejected { .. }), "{end}");

        // A decision makes room.
        drop(requests);
        let _next = outside();
        let _request = listener.incoming(LIMIT).unwrap();
    });
}

#[test]
fn a_listener_at_localhost_rejects_requests_whose_path_leads_to_another_host() {
    let test = "a_listener_at_localhost_rejects_requests_whose_path_leads_to_another_host";
    in_listening_child(test, 1, |own, ip| {
        let (near, far) = (Node::new(&own), Host::new().node());
        let listener = Listener::bind(&near.channel, (ip, 0)).unwrap();
        // The peer's address is one of the loopback interface, as if the peer had invented it.
        let resolved = far.channel.resolve((ip, listener.local_address().port())).unwrap();
        let connecting = resolved.connect(far.queue_pair(), b"").unwrap();
        let end = rejected(&listener, connecting);
        assert!(matches!(end, End::Rejected { .. }), "{end}");
    });
}

#[test]
fn a_request_contains_the_retries_and_the_timeout_of_its_queue_pair() {
    in_listening_child(
        "a_request_contains_the_retries_and_the_timeout_of_its_queue_pair",
        2,
        |own, _| {
            let (near, far) = (Node::new(&own), Host::new());
            let server = far.node();
            let to = SocketAddr::new(far.ip.into(), 0);
            let bind = unmanaged::bind(&server.channel, PortSpace::Tcp, to, BindOptions::new());
            let port = bind.unwrap();
            let _listener = unmanaged::listen(&server.channel, &port).unwrap();
            let srq = near.pd.create_srq().build().unwrap();
            let builder = near.pd.create_qp().send_cq(&near.cq).recv_cq(&near.cq).srq(&srq);
            let timeout = AckTimeout::limited(17).unwrap();
            let builder = builder.max_ack_retries(MaxAckRetries::limited(3).unwrap());
            let builder = builder.ack_timeout(timeout);
            let queue_pair = builder.max_rnr_retries(MaxRnrRetries::limited(4).unwrap()).build();
            let resolved = near.channel.resolve((far.ip, port.number())).unwrap();
            let _connecting = resolved.connect(queue_pair.unwrap(), b"").unwrap();
            let event = server.channel.next(Some(LIMIT)).unwrap().unwrap();
            let (_, event) = unmanaged::event(event);
            let Event::Requested { parameters, route, .. } = event else { panic!("{event:?}") };
            let stated = (parameters.retry_count, parameters.rnr_retry_count, parameters.srq);
            assert_eq!((stated, route.ack_timeout), ((3, 7, true), timeout));
        },
    );
}

#[test]
fn errors_name_the_device_and_the_address() {
    in_child("errors_name_the_device_and_the_address", || {
        let node = Node::new(&open("soft0"));
        let error = node.channel.resolve("192.0.2.1:7471").unwrap_err();
        assert!(error.to_string().starts_with("`soft0` has no route to 192.0.2.1"), "{error}");
        let error = Listener::bind(&node.channel, "192.0.2.1:0").unwrap_err();
        assert!(matches!(error, Error::NotOwn { .. }), "{error}");

        let resolving = node.channel.start_resolving("192.0.2.1:7471").unwrap();
        let event = node.channel.next(Some(LIMIT)).unwrap().unwrap();
        let Step::Failed(error) = resolving.advance(event) else { panic!() };
        assert!(matches!(error, Error::NoRoute { .. }), "{error}");

        // This librdmacm binds 127.0.0.1 to its first device.
        let other = EventChannel::open(&open("softib0")).unwrap();
        let error = other.resolve("127.0.0.1:7471").unwrap_err();
        assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
        let error = Listener::bind(&other, "127.0.0.1:0").unwrap_err();
        assert!(
            error.to_string().starts_with("127.0.0.1 leads through `soft0`, not through `softib0`"),
            "{error}"
        );
    });
}

/// The file stays readable although another thread has received the events of all attempts.
#[test]
fn the_file_of_a_resolution_is_readable_after_its_last_failure() {
    in_child("the_file_of_a_resolution_is_readable_after_its_last_failure", || {
        // This librdmacm binds 127.0.0.1 to its first device.
        let channel = EventChannel::open(&open("softib0")).unwrap();
        let resolving = channel.start_resolving("127.0.0.1:7471").unwrap();
        let file = resolving.file().unwrap();
        until("the failure is queued", || {
            process(&channel);
            let mut files = [PollFd::new(&channel, PollFlags::IN)];
            poll(&mut files, Some(&Timespec::default())).unwrap() == 1
        });
        process(&channel);
        assert!(is_readable(&file));
        let event = channel.next(Some(Duration::ZERO)).unwrap().unwrap();
        let Step::Failed(error) = resolving.advance(event) else { panic!() };
        assert!(matches!(error, Error::OtherDevice { .. }), "{error}");
    });
}

/// The results of calls that wait are not events.
#[test]
fn a_thread_that_waits_for_events_receives_no_result_of_another_call() {
    in_child("a_thread_that_waits_for_events_receives_no_result_of_another_call", || {
        let channel = EventChannel::open(&open("soft0")).unwrap();
        let (announce, first) = mpsc::channel();
        thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                let event = channel.next(Some(LIMIT)).unwrap().unwrap();
                announce.send(event.id()).unwrap();
                channel.next(Some(LIMIT))
            });
            let resolving = channel.start_resolving((address(), 9)).unwrap();
            assert_eq!(first.recv_timeout(LIMIT).unwrap(), resolving.id());
            for _ in 0..20 {
                channel.resolve((address(), 9)).unwrap();
            }
            channel.close();
            let received = waiting.join().unwrap();
            assert!(matches!(received, Err(Error::Closed)), "{received:?}");
        });
    });
}

#[test]
fn a_listener_rejects_requests_for_another_device() {
    in_child("a_listener_rejects_requests_for_another_device", || {
        let node = Node::new(&open("soft0"));
        let other = EventChannel::open(&open("softib0")).unwrap();
        // It listens on all devices.
        let listener = Listener::bind(&other, "0.0.0.0:0").unwrap();
        let resolved =
            node.channel.resolve(("127.0.0.1", listener.local_address().port())).unwrap();
        let connecting = resolved.connect(node.queue_pair(), b"").unwrap();
        let end = rejected(&listener, connecting);
        assert!(matches!(end, End::Rejected { .. } | End::PeerGone), "{end}");
    });
}

#[test]
fn both_ends_use_the_traffic_class_of_the_request() {
    in_child("both_ends_use_the_traffic_class_of_the_request", || {
        let node = Node::new(&open("soft0"));
        let new = || node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
        let active = || new().traffic_class(0x68).build().unwrap();
        connect_traffic_classes(&node, active, |expected, [passive, active]| {
            assert_eq!((passive.0, active.0), (expected, 0x68));
        });
    });
}

#[test]
fn the_reads_of_both_ends_are_negotiated() {
    in_child("the_reads_of_both_ends_are_negotiated", || {
        let node = Node::new(&open("soft0"));
        let listener = node.listen();
        let new = |starts, serves| {
            let builder = node.pd.create_qp().send_cq(&node.cq).recv_cq(&node.cq);
            builder.max_rd_atomic(starts).max_dest_rd_atomic(serves).build().unwrap()
        };
        let resolved = node.channel.resolve(listener.local_address()).unwrap();
        let connecting = resolved.connect(new(5, 3), b"").unwrap();
        let accepting = listener.incoming(LIMIT).unwrap().prepare(new(4, 2)).unwrap();
        let peer = accepting.queue_pair().peer().unwrap();
        // It starts at most what the other end serves, and serves at most what that starts.
        assert_eq!((peer.max_rd_atomic, peer.max_dest_rd_atomic), (3, 2));
        let _accepted = accepting.accept(b"").unwrap();
        let replied = connecting.wait(LIMIT).unwrap();
        let peer = replied.queue_pair().peer().unwrap();
        assert_eq!((peer.max_rd_atomic, peer.max_dest_rd_atomic), (2, 3));
    });
}

#[test]
fn the_module_for_own_queue_pairs_refuses_connections_of_the_device() {
    in_child("the_module_for_own_queue_pairs_refuses_connections_of_the_device", || {
        let channel = EventChannel::open(&open("soft0")).unwrap();
        let to = SocketAddr::new(address(), 9);
        let route = unmanaged::route(&channel, to).unwrap();
        let own = Parameters::new(Qpn::masked(7), Psn::masked(8));
        for space in [PortSpace::Tcp, PortSpace::Ib] {
            let bound = unmanaged::bind(&channel, space, to, BindOptions::new()).map(drop);
            let connected = unmanaged::connect(&channel, space, &route, &own, b"").map(drop);
            let queried = unmanaged::query(&channel, space, &route, b"").map(drop);
            for result in [bound, connected, queried] {
                let error = result.unwrap_err();
                let name = channel.context().device().name();
                let text = format!("the module `unmanaged` has no connections of `{name}`, ");
                assert!(error.to_string().starts_with(&text), "{error}");
            }
        }
    });
}

#[test]
fn a_datagram_service_answers_queries() {
    in_child("a_datagram_service_answers_queries", || {
        let channels = [(); 2].map(|()| EventChannel::open(&open("soft0")).unwrap());
        queries([&channels[0], &channels[1]], SocketAddr::new(address(), 0));
    });
}

#[test]
fn members_of_a_group_receive_its_datagrams() {
    in_child("members_of_a_group_receive_its_datagrams", || {
        let group = groups(&open("soft0"), "239.1.2.3");
        assert_eq!((group.gid, group.lid), ("::ffff:239.1.2.3".parse().unwrap(), Lid::NONE));
        let channel = EventChannel::open(&open("soft0")).unwrap();
        let IpAddr::V4(own) = address() else { panic!("an IPv4 address") };
        let mapped = own.to_ipv6_mapped().into();
        let _id = unmanaged::join(&channel, [239, 1, 2, 3].into(), Some(mapped)).unwrap();
        let (_, event) = unmanaged::event(channel.next(Some(LIMIT)).unwrap().unwrap());
        let Event::Joined(group) = event else { panic!("{event:?}") };
        assert_eq!(group.route.source.ip(), own);
        let error = unmanaged::join(&channel, [192, 0, 2, 1].into(), None).unwrap_err();
        assert!(matches!(error, Error::NotGroup { .. }), "{error}");
    });
}

#[test]
fn a_datagram_service_has_a_port_and_one_q_key() {
    in_child("a_datagram_service_has_a_port_and_one_q_key", || {
        let channel = EventChannel::open(&open("soft0")).unwrap();
        let bind = |port| {
            let to = SocketAddr::new(address(), port);
            unmanaged::bind(&channel, PortSpace::Udp, to, BindOptions::new())
        };
        let next = || unmanaged::event(channel.next(Some(LIMIT)).unwrap().unwrap());
        let port = bind(0).unwrap();
        let number = port.number();
        let in_use = |error| assert!(matches!(error, Error::PortInUse { .. }), "{error}");
        in_use(bind(number).map(drop).unwrap_err());
        let listener = unmanaged::listen(&channel, &port).unwrap();
        in_use(unmanaged::listen(&channel, &port).map(drop).unwrap_err());

        let route = unmanaged::route(&channel, SocketAddr::new(address(), number)).unwrap();
        let query = || unmanaged::query(&channel, PortSpace::Udp, &route, b"").unwrap();
        let first = query();
        let (_, Event::Queried { id, .. }) = next() else { panic!() };
        let error = id.answer(Qpn::masked(7), 0x4567, b"").unwrap_err();
        let text = "the kernel's rdma_cm does not answer with the Q_Key 0x4567: activate the queue \
                    pair with 0x1234567";
        assert_eq!(error.to_string(), text);
        id.answer(Qpn::masked(7), unmanaged::QKEY, b"").unwrap();
        let (of, Event::Answered(answered)) = next() else { panic!() };
        assert_eq!((of, answered.qpn), (first.token(), Qpn::masked(7)));

        drop((listener, port));
        let second = query();
        let (of, event) = next();
        let Event::Answered(answered) = event else { panic!("{event:?}") };
        assert_eq!((of, answered.status), (second.token(), SidrStatus::UNSUPPORTED));
        bind(number).unwrap();
    });
}

#[test]
fn a_shared_port_is_bound_twice_but_has_one_listener() {
    in_child("a_shared_port_is_bound_twice_but_has_one_listener", || {
        let node = Node::new(&open("soft0"));
        let name = node.channel.context().device().name().to_owned();
        let first = node.listen();
        let error = Listener::bind(&node.channel, first.local_address()).unwrap_err();
        let port = first.local_address().port();
        assert_eq!(
            error.to_string(),
            format!("port {port} of `{name}` is in use: use another port, or 0 for any free one")
        );
        drop(first);
        let shared = BindOptions::new().with_shared_port(true);
        let _second = Listener::bind_with(&node.channel, (address(), port), shared).unwrap();
        let again = Listener::bind_with(&node.channel, (address(), port), shared);
        assert!(matches!(again, Err(Error::PortInUse { .. })), "{again:?}");
    });
}

#[test]
#[allow(unsafe_code)] // the functions are C's
fn the_library_has_the_optional_functions_of_the_table() {
    in_child("the_library_has_the_optional_functions_of_the_table", || {
        let library = rdma_sys::cm::librdmacm().unwrap();
        assert_eq!(library.lacking(), []);
        let mut count = 0;
        // SAFETY: SAFETY.md F2: the number is valid.
        let list = unsafe { library.get_devices.unwrap()(&raw mut count) };
        assert!(count > 0 && !list.is_null());
        // SAFETY: SAFETY.md F2: the list is that of the library.
        unsafe { library.free_devices.unwrap()(list) };
        // SAFETY: SAFETY.md F2: the function accepts any number.
        let text = unsafe { library.event_str.unwrap()(rdma_cm_event_type::REJECTED) };
        // SAFETY: SAFETY.md F2: the text is static.
        assert_eq!(unsafe { CStr::from_ptr(text) }, c"RDMA_CM_EVENT_REJECTED");
    });
}

/// A child without librdmacm. The machine's libibverbs is still that of the drop-in.
#[test]
fn a_missing_librdmacm_is_named_with_its_package() {
    if is_emulated() {
        return println!("SKIP: the libraries are not for the emulated machine");
    }
    let missing = |program: &mut Command| {
        over_library(program);
        program.env("RDMA_LIBRDMACM", "/nonexistent/librdmacm.so.1");
    };
    let test = "library::a_missing_librdmacm_is_named_with_its_package";
    in_own_process_with(test, missing, || {
        let error = EventChannel::open(&open("soft0")).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("/nonexistent/librdmacm.so.1 cannot be used: "), "{text}");
        for part in ["librdmacm1", "RDMA_LIBRDMACM", "over TCP"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(env::var_os(SYSTEM).is_some());
    });
}
