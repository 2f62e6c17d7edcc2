//! Processes that do not follow the protocol.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use rdma_cm::{Connecting, End, Error, Listener};
use rdma_mem::Context;
use rdma_proto::cm::wire::{MAD_LEN, Mad, Message, Offer, Reason, Rej, Rejection, Subject};
use rdma_proto::cm::{CommId, PortSpace};
use rdma_types::{Gid, Guid, Lid, Qpn};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown,
    SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen, recv, send, sendmsg,
    shutdown, socket_with,
};
use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use test_support::rig::until;

use crate::common::{LIMIT, Node, open, req};

/// The greatest number of half-open connections of a listener.
const HALF_OPEN: usize = 128;

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn name(context: &Context, port: u16) -> SocketAddrUnix {
    let (guid, service) = (context.device().guid(), PortSpace::Tcp.service_id(port));
    SocketAddrUnix::new_abstract_name(format!("rdma-cm/1/{guid}/{service}").as_bytes()).unwrap()
}

/// A server, and the names that its enemies use.
struct Target {
    server: Node,
    listener: Listener,
}

impl Target {
    fn new() -> Self {
        let server = Node::new(&open("soft0"));
        let listener = server.listen();
        Self { server, listener }
    }

    fn port(&self) -> u16 {
        self.listener.local_address().port()
    }

    fn enemy(&self) -> OwnedFd {
        let socket = socket();
        connect(&socket, &name(self.server.channel.context(), self.port())).unwrap();
        socket
    }

    fn gid(&self) -> Gid {
        self.server.channel.context().gid_table().unwrap()[0].gid
    }

    /// Processes what has arrived, which must be nothing for the program.
    fn ignore(&self) {
        assert!(self.server.channel.next(Some(Duration::ZERO)).unwrap().is_none());
    }

    fn honest_client(&self, client: &Node) -> Connecting {
        let resolved = client.channel.resolve(self.listener.local_address()).unwrap();
        resolved.connect(client.queue_pair(), b"").unwrap()
    }

    /// Checks that a client can still connect.
    fn serves(&self) {
        let client = Node::new(self.server.channel.context());
        let connecting = self.honest_client(&client);
        let accepting = self.listener.incoming(LIMIT).unwrap();
        let accepted = accepting.prepare(self.server.queue_pair()).unwrap().accept(b"").unwrap();
        let _active = connecting.wait(LIMIT).unwrap().establish().unwrap();
        drop(accepted.wait(LIMIT).unwrap());
    }

    fn req(&self, change: impl FnOnce(&mut Offer<'_>)) -> [u8; MAD_LEN] {
        req(1, [self.gid(); 2], self.port(), change)
    }
}

fn send_to(socket: &OwnedFd, bytes: &[u8]) {
    assert_eq!(send(socket, bytes, SendFlags::NOSIGNAL).unwrap(), bytes.len());
}

#[test]
fn sockets_that_send_nothing_do_not_keep_clients_out() {
    let target = Target::new();
    let mut enemies = Vec::new();
    for _ in 0..2 * HALF_OPEN {
        enemies.push(target.enemy());
        target.ignore();
    }
    until("the oldest one is closed", || {
        target.ignore();
        matches!(recv(&enemies[0], &mut [0_u8], RecvFlags::DONTWAIT), Ok((0, _)))
    });
    target.serves();
}

#[test]
fn a_full_listener_gives_a_client_time_for_its_request() {
    let target = Target::new();
    let undecided: Vec<_> = (1..HALF_OPEN)
        .map(|_| {
            let enemy = target.enemy();
            send_to(&enemy, &target.req(|_| ()));
            (enemy, target.listener.incoming(LIMIT).unwrap())
        })
        .collect();
    // Only a test that is slower than the limit of a silent client needs a second turn.
    until("the client's request is received", || {
        let client = target.enemy();
        target.ignore();
        let _next = target.enemy();
        target.ignore();
        let _ = send(&client, &target.req(|_| ()), SendFlags::NOSIGNAL);
        target.listener.incoming(Duration::ZERO).is_ok()
    });
    drop(undecided);
    target.serves();
}

#[test]
fn a_listener_has_128_undecided_requests() {
    let target = Target::new();
    let client = Node::new(target.server.channel.context());
    let connecting: Vec<_> = (0..=HALF_OPEN)
        .map(|_| {
            let connecting = target.honest_client(&client);
            // Queues the request.
            let _ = target.server.channel.next(Some(Duration::ZERO));
            connecting
        })
        .collect();
    drop(connecting);
    target.serves();

    let connecting: Vec<_> = (0..=HALF_OPEN).map(|_| target.honest_client(&client)).collect();
    let next = |limit| target.listener.incoming(limit);
    let mut requests: Vec<_> = (0..HALF_OPEN).map(|_| next(LIMIT).unwrap()).collect();
    assert!(matches!(next(Duration::ZERO), Err(Error::TimedOut { .. })));
    requests.pop().unwrap().reject(b"").unwrap();
    requests.push(next(LIMIT).unwrap());
    drop((requests, connecting));
    target.serves();
}

#[test]
fn bytes_that_are_no_message_are_ignored() {
    let target = Target::new();
    let enemy = target.enemy();
    let mut random = fastrand::Rng::with_seed(41);
    for length in [1, 24, 255, 256, 257, 4096] {
        for _ in 0..20 {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            send_to(&enemy, &bytes);
            target.ignore();
        }
    }
    for _ in 0..500 {
        let mut req = target.req(|_| ());
        req[random.usize(..24)] = random.u8(..);
        // A request that is still valid ends with its event, so each has its own socket.
        send_to(&target.enemy(), &req);
        let _ = target.server.channel.next(Some(Duration::ZERO)).unwrap();
    }
    target.serves();
}

#[test]
fn requests_from_elsewhere_are_dropped() {
    let target = Target::new();
    let other: Gid = "::ffff:192.0.2.1".parse().unwrap();
    let enemy = target.enemy();
    for change in [
        |offer: &mut Offer<'_>, gid| offer.primary.local_gid = gid,
        |offer: &mut Offer<'_>, _| offer.primary.local_lid = Lid::new(1),
    ] {
        send_to(&enemy, &target.req(|offer| change(offer, other)));
        target.ignore();
    }
    assert!(recv(&enemy, &mut [0_u8], RecvFlags::DONTWAIT).is_err(), "no answer");
    target.serves();
}

#[test]
fn invalid_requests_are_rejected() {
    let target = Target::new();
    let changes: [fn(&mut Offer<'_>); 4] = [
        |offer| offer.private_data = &[],
        |offer| offer.mtu_code = 0,
        |offer| offer.service_id = PortSpace::Tcp.service_id(1),
        |offer| offer.service_id = PortSpace::Ib.service_id(1),
    ];
    for change in changes {
        let enemy = target.enemy();
        send_to(&enemy, &target.req(change));
        target.ignore();
        let mut mad = [0_u8; MAD_LEN];
        recv(&enemy, &mut mad, RecvFlags::DONTWAIT).unwrap();
        assert!(matches!(Mad::parse(&mad).unwrap().message, Message::Rej(_)));
    }
    target.serves();
}

#[test]
fn a_socket_has_one_request() {
    let target = Target::new();
    let enemy = target.enemy();
    send_to(&enemy, &target.req(|_| ()));
    let request = target.listener.incoming(LIMIT).unwrap();
    send_to(&enemy, &target.req(|offer| offer.qpn = Qpn::masked(0x78)));
    target.ignore();
    // After the first request is withdrawn, the socket still has no second one.
    let guid = Guid::from_u64(1).to_bytes();
    let rejection = Rejection { info: &guid, ..Rejection::new(Reason::TIMEOUT) };
    let (local_id, remote_id, subject) = (CommId::new(1), CommId::NONE, Subject::Req);
    let rej = Message::Rej(Rej { local_id, remote_id, subject, rejection });
    send_to(&enemy, &Mad { tid: 1, message: rej }.emit().unwrap());
    send_to(&enemy, &target.req(|_| ()));
    let event = target.server.channel.next(Some(LIMIT)).unwrap().unwrap();
    assert_eq!((event.id(), event.end()), (request.id(), Some(&End::PeerGone)));
    target.ignore();
    drop(request);
    target.serves();
}

#[test]
fn requests_that_are_withdrawn_unread_occupy_nothing() {
    let target = Target::new();
    let waits_for_another = target.server.listen();
    let process = || {
        let nothing = waits_for_another.incoming(Duration::ZERO);
        assert!(matches!(nothing, Err(Error::TimedOut { .. })));
    };
    for n in 0..2 * HALF_OPEN {
        let enemy = target.enemy();
        send_to(&enemy, &target.req(|_| ()));
        if n % 2 == 0 {
            process();
        }
        // Also reaches the listener while a child that another test has forked has a copy of the socket.
        shutdown(&enemy, Shutdown::Both).unwrap();
        drop(enemy);
        process();
    }
    target.ignore();
    target.serves();
}

/// Sends a file, and returns the error.
fn send_a_file(socket: &OwnedFd) -> Option<Errno> {
    let (files, mut space) =
        ([socket.as_fd()], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))]);
    let mut along = SendAncillaryBuffer::new(&mut space);
    along.push(SendAncillaryMessage::ScmRights(&files));
    sendmsg(socket, &[IoSlice::new(b"1")], &mut along, SendFlags::NOSIGNAL).err()
}

/// Listens at the name of a free port, and requests a connection from this listener. Returns the listener's socket.
fn fake_listener(client: &Node, listen: impl FnOnce(&OwnedFd)) -> (OwnedFd, Connecting) {
    let fake = socket();
    let mut port = 0;
    // Until its `exec`, a child that another test has forked keeps the name of a dropped listener.
    until("the name of a port is free", || {
        port = Target::new().port();
        bind(&fake, &name(client.channel.context(), port)).is_ok()
    });
    listen(&fake);
    let resolved = client.channel.resolve(("127.0.0.1", port)).unwrap();
    let connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    (accept(&fake).unwrap(), connecting)
}

fn as_this_user(fake: &OwnedFd) {
    listen(fake, 1).unwrap();
}

/// Runs `attack` on a thread of another user. Returns false if this user must not become another.
fn as_other_user(attack: impl FnOnce() + Send) -> bool {
    let is_other = thread::scope(|threads| {
        let nobody = Uid::from_raw(65534);
        let run = move || set_thread_res_uid(nobody, nobody, nobody).map(|()| attack());
        threads.spawn(run).join().unwrap().is_ok()
    });
    if !is_other {
        eprintln!("skipped: only root can become another user");
    }
    is_other
}

#[test]
fn clients_of_another_user_are_disconnected() {
    let target = Target::new();
    let (req, enemy) = (target.req(|_| ()), socket());
    let attack = || {
        connect(&enemy, &name(target.server.channel.context(), target.port())).unwrap();
        send_to(&enemy, &req);
    };
    if as_other_user(attack) {
        target.ignore();
        assert_eq!(recv(&enemy, &mut [0_u8], RecvFlags::DONTWAIT), Err(Errno::CONNRESET));
        target.serves();
    }
}

#[test]
fn a_listener_of_another_user_receives_nothing() {
    let client = Node::new(&open("soft0"));
    let mut is_other = false;
    let (peer, connecting) =
        fake_listener(&client, |fake| is_other = as_other_user(|| as_this_user(fake)));
    if is_other {
        let Err(Error::Ended(end)) = connecting.wait(LIMIT) else { panic!("an end") };
        assert_eq!(end, End::OtherUser);
        assert_eq!(recv(&peer, &mut [0_u8], RecvFlags::empty()).unwrap().0, 0, "no REQ");
    }
}

/// The release of a file that a peer sent may take as long as the peer likes.
#[test]
fn no_peer_can_send_files() {
    let kernel = rustix::system::uname();
    let mut version =
        kernel.release().to_str().unwrap().split('.').map(|part| part.parse::<u32>().ok());
    if (version.next(), version.next()) < (Some(Some(6)), Some(Some(16))) {
        eprintln!("skipped: Linux {kernel:?} cannot refuse files");
        return;
    }
    let expected = Some(Errno::PERM);
    let target = Target::new();
    let enemy = target.enemy();
    assert_eq!(send_a_file(&enemy), expected, "before the connection is accepted");
    target.ignore();
    assert_eq!(send_a_file(&enemy), expected, "after the connection was accepted");
    let client = Node::new(&open("soft0"));
    let (enemy, connecting) = fake_listener(&client, as_this_user);
    assert_eq!(send_a_file(&enemy), expected, "to a client");
    target.ignore();
    target.serves();
    drop(connecting);
}

#[test]
fn a_listener_that_answers_nonsense_is_no_peer() {
    let client = Node::new(&open("soft0"));
    let (peer, connecting) = fake_listener(&client, as_this_user);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..20 {
        let mut bytes = [0; MAD_LEN];
        random.fill(&mut bytes);
        send_to(&peer, &bytes);
    }
    assert!(client.channel.next(Some(Duration::ZERO)).unwrap().is_none());
    drop(peer);
    let Err(Error::Ended(end)) = connecting.wait(LIMIT) else { panic!("an end") };
    assert_eq!(end, End::PeerGone);
}

#[test]
fn a_panic_while_events_are_chosen_loses_no_event() {
    let context = open("soft0");
    let (client, server) = (Node::new(&context), Node::new(&context));
    let listener = server.listen();
    let resolved = client.channel.resolve(listener.local_address()).unwrap();
    let _connecting = resolved.connect(client.queue_pair(), b"").unwrap();
    let choose = || server.channel.next_of(|_| panic!("on purpose"), Some(LIMIT));
    assert!(catch_unwind(AssertUnwindSafe(choose)).is_err());
    let mut files = [PollFd::from_borrowed_fd(server.channel.as_fd(), PollFlags::IN)];
    assert_eq!(poll(&mut files, Some(&Timespec::default())).unwrap(), 1, "no event");
    drop(listener.incoming(LIMIT).unwrap());
}
