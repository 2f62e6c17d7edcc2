//! Random programs of safe calls on channels to several peers. Each call ends, nothing is left in flight or overflows,
//! and an open connection works like a new one.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use crate::common::random::{Handle, Random, serve, treat};
use crate::common::{LATE, everything, install, must_end, open};
use rdma_channel::{
    Channel, CloseReason, MultiChannel, PeerReadWorkRequest, PeerReceiveWorkRequest,
    PeerRemoteMemoryRegion, PeerSendWorkRequest, PeerWriteWorkRequest, Scope, ScopeError,
    TransportError, prelude::*,
};
use rdma_mem::{GatherElement, ProtectionDomain, ScatterElement, SharedElement, SharedRegion};
use rdma_qp::{MaxRnrRetries, Qpn, SendWorkRequest, WorkSuccess, WriteWorkRequest};
use rdma_soft::SoftDevice;

const BRIEF: Duration = Duration::from_millis(1);
const DRAIN: Duration = Duration::from_millis(5);

/// The peers of a center, and what they use.
struct Star {
    peers: Vec<Channel>,
    qpns: Vec<Qpn>,
    memory: SharedRegion,
    board: SharedRegion,
    device: SoftDevice,
    depths: (u32, u32),
}

fn star(device: &str, pd: &ProtectionDomain, random: &mut Random) -> (MultiChannel, Star) {
    let depth = |random: &mut Random| 1 + u32::try_from(random.below(6)).unwrap();
    let (count, depths) = (1 + random.below(3), (depth(random), depth(random)));
    let center = pd.create_multi_channel().num_channels(usize::try_from(count).unwrap());
    let center = center.max_send_wr(depths.0).max_recv_wr(depths.1).access(everything(pd));
    let center = center.send_timeout(BRIEF).write_timeout(BRIEF).read_timeout(BRIEF);
    let center = center.sq_sig_all(random.one_in(4)).extended(random.one_in(4));
    let center = center.drain_timeout(DRAIN).build().unwrap();
    let prepare = |_| {
        let peer = pd.create_channel().max_rnr_retries(MaxRnrRetries::unlimited());
        peer.access(everything(pd)).build().unwrap()
    };
    let peers: Vec<_> = (0..count).map(prepare).collect();
    let ends = center.endpoints();
    let mut qpns: Vec<_> = ends.iter().map(|end| end.qpn()).collect();
    qpns.extend(peers.iter().map(|peer| peer.endpoint().qpn()));
    let center = center.handshake(peers.iter().map(|peer| peer.endpoint())).unwrap();
    let peers = peers.into_iter().zip(ends).map(|(peer, end)| peer.handshake(end).unwrap());
    let [memory, board] = [(); 2].map(|()| pd.allocate_shared_region(64, everything(pd)).unwrap());
    let device = SoftDevice::find(device).unwrap();
    (center, Star { peers: peers.collect(), qpns, memory, board, device, depths })
}

impl Star {
    fn release(&self, count: u32) {
        for &qpn in &self.qpns {
            self.device.release(qpn, count);
        }
    }

    fn element(&self, random: &mut Random) -> SharedElement<'_> {
        let begin = usize::try_from(random.below(8)).unwrap() * 8;
        self.memory.element(begin..begin + 8).unwrap()
    }

    /// Mostly an existing peer.
    fn peer(&self, random: &mut Random) -> usize {
        let count = self.peers.len() as u64 + u64::from(random.one_in(30));
        usize::try_from(random.below(count)).unwrap()
    }

    fn remote(&self, peer: usize) -> PeerRemoteMemoryRegion {
        PeerRemoteMemoryRegion::new(peer, self.board.remote())
    }

    /// Lets a peer do its part of some messages.
    fn serve(&self, random: &mut Random) {
        let peer = &self.peers[usize::try_from(random.below(self.peers.len() as u64)).unwrap()];
        serve(peer, self.board.element(0..8).unwrap(), random);
    }

    /// Number of requests in flight in the center's send queues.
    fn in_flight(&self) -> usize {
        let own = &self.qpns[..self.peers.len()];
        own.iter().map(|&qpn| self.device.in_flight(qpn)).sum()
    }
}

/// One post of a random kind and form.
fn post<'scope>(
    s: &'scope Scope<'scope, '_, MultiChannel>,
    star: &'scope Star,
    random: &mut Random,
) -> Result<Handle<'scope>, TransportError> {
    let (peer, element) = (star.peer(random), star.element(random));
    let (remote, signaled) = (star.remote(peer), random.one_in(2));
    let gather = [GatherElement::from(element)];
    let mut scatter = [ScatterElement::from(element)];
    Ok(match random.below(8) {
        0 => Handle::Rented(s.to(peer)?.send_from(element)?),
        1 => Handle::Rented(s.to(peer)?.write_from(element, remote.remote())?),
        2 => Handle::Rented(s.to(peer)?.read_into(element, remote.remote())?),
        3 => Handle::Rented(s.to(peer)?.receive_into(element)?),
        4 => {
            let wr = SendWorkRequest::new(&gather).signaled(signaled);
            Handle::Borrowed(s.post_send(PeerSendWorkRequest::from_wr(peer, wr))?)
        }
        5 => {
            let wr = WriteWorkRequest::new(&gather, remote.remote()).signaled(signaled);
            Handle::Borrowed(s.post_write(PeerWriteWorkRequest::from_wr(peer, wr))?)
        }
        6 => Handle::Borrowed(s.post_receive(PeerReceiveWorkRequest::new(peer, &mut scatter))?),
        _ => {
            let peers = [peer, star.peer(random)];
            let mut sent = s.post_multicast_send(peers, SendWorkRequest::new(&gather))?;
            Handle::Borrowed(sent.swap_remove(usize::from(signaled)))
        }
    })
}

struct Thrown;

fn closure<'scope>(
    s: &'scope Scope<'scope, '_, MultiChannel>,
    star: &'scope Star,
    random: &mut Random,
) -> Result<(), TransportError> {
    let mut handles = Vec::new();
    for _ in 0..random.below(40) {
        match random.below(8) {
            0..4 => match post(s, star, random) {
                Ok(handle) => handles.push(handle),
                Err(error) => assert_harmless(&error),
            },
            4 => star.serve(random),
            5 => star.release(1 + u32::try_from(random.below(3)).unwrap()),
            _ if !handles.is_empty() => {
                let place = usize::try_from(random.below(handles.len() as u64)).unwrap();
                let handle = handles.swap_remove(place);
                handles.extend(treat(handle, random));
            }
            _ => {}
        }
    }
    if random.one_in(60) {
        s.close();
    }
    if !random.one_in(4) {
        (0..30).for_each(|_| star.serve(random));
        star.release(u32::MAX);
    }
    match random.below(6) {
        0 => Err(TransportError::WouldBlock),
        1 => resume_unwind(Box::new(Thrown)),
        _ => Ok(()),
    }
}

/// Checks an error of a call whose peer does not answer, or that requests too much.
fn assert_harmless(error: &TransportError) {
    match error {
        TransportError::WouldBlock
        | TransportError::Timeout { .. }
        | TransportError::NoSuchPeer { .. }
        | TransportError::Closed {
            reason:
                CloseReason::Timeout { .. } | CloseReason::Unsignaled { .. } | CloseReason::Asked,
            ..
        } => {}
        TransportError::Collective(errors) => {
            errors.iter().for_each(|failed| assert_harmless(&failed.error));
        }
        error => panic!("{error}"),
    }
}

/// A blocking call, with some peers.
fn call(
    center: &mut MultiChannel,
    star: &Star,
    random: &mut Random,
) -> Result<Vec<WorkSuccess>, TransportError> {
    let peers: Vec<_> = (0..random.below(5)).map(|_| star.peer(random)).collect();
    let (element, limit) = (star.element(random), Duration::from_micros(random.below(500)));
    let gather = [GatherElement::from(element)];
    let mut scatters: Vec<_> = peers.iter().map(|_| [ScatterElement::from(element)]).collect();
    let peers = peers.into_iter();
    match random.below(6) {
        0 => center.within(limit).multicast_send(peers, SendWorkRequest::new(&gather)),
        1 => {
            let writes = peers.map(|peer| PeerWriteWorkRequest::new(&gather, star.remote(peer)));
            center.within(limit).scatter_write(writes)
        }
        2 => {
            let rooms = peers.zip(&mut scatters);
            let rooms = rooms.map(|(peer, room)| PeerReceiveWorkRequest::new(peer, room));
            center.within(limit).gather_receive(rooms)
        }
        3 => {
            let reads = peers.zip(&mut scatters);
            let reads = reads.map(|(peer, room)| PeerReadWorkRequest::new(room, star.remote(peer)));
            center.within(limit).gather_read(reads)
        }
        4 => {
            let send = PeerSendWorkRequest::new(star.peer(random), &gather);
            center.within(limit).send(send).map(|done| vec![done])
        }
        _ => {
            let mut room = [ScatterElement::from(element)];
            let room = PeerReceiveWorkRequest::new(star.peer(random), &mut room);
            center.within(limit).receive(room).map(|done| vec![done])
        }
    }
}

/// Checks that an open connection holds as many requests as before, twice, and that each completes.
fn assert_as_new(center: &mut MultiChannel, star: &Star, peer: usize) {
    let element = star.memory.element(0..8).unwrap();
    for _ in 0..2 {
        center
            .scope(|s| {
                let mut handles = Vec::new();
                for _ in 0..star.depths.0 {
                    handles.push(s.to(peer)?.write_from(element, star.remote(peer).remote())?);
                }
                star.release(u32::MAX);
                for handle in handles {
                    handle.wait(Duration::from_secs(10)).unwrap().result?;
                }
                Ok::<(), TransportError>(())
            })
            .unwrap();
    }
}

/// Runs a center until all of its connections are closed, or for some rounds.
fn program(device: &str, random: &mut Random) -> u32 {
    let pd = open(device).allocate_pd().unwrap();
    let (mut center, star) = star(device, &pd, random);
    for round in 0..8 {
        if random.one_in(3) {
            if let Err(error) = call(&mut center, &star, random) {
                assert_harmless(&error);
            }
        } else {
            let left =
                catch_unwind(AssertUnwindSafe(|| center.scope(|s| closure(s, &star, random))));
            match &left {
                Err(payload) => assert!(payload.is::<Thrown>()),
                Ok(Err(ScopeError::AutoPollError(errors))) => {
                    errors.iter().for_each(|failed| assert_harmless(&failed.error));
                }
                Ok(_) => {}
            }
        }
        assert_eq!((star.in_flight(), center.stray_completions()), (0, 0));
        let is_open = |peer: &usize| center.closed(*peer).unwrap().is_none();
        let open: Vec<_> = (0..star.peers.len()).filter(is_open).collect();
        if open.is_empty() {
            return round;
        }
        open.into_iter().for_each(|peer| assert_as_new(&mut center, &star, peer));
    }
    8
}

#[test]
fn random_programs_with_many_peers_end_and_leave_nothing_in_flight() {
    install();
    let number = |name| env::var(name).ok().and_then(|number| number.parse().ok());
    let (seeds, count) = (number("RDMA_TEST_SEED"), number("RDMA_TEST_SEEDS").unwrap_or(100));
    for device in LATE {
        let mut rounds = 0;
        for seed in seeds.map_or(1..=count, |seed| seed..=seed) {
            let ran = catch_unwind(|| must_end(move || program(device, &mut Random(seed))));
            rounds += ran.unwrap_or_else(|payload| {
                eprintln!("RDMA_TEST_SEED={seed} on {device}");
                resume_unwind(payload)
            });
        }
        assert!(seeds.is_some() || rounds > 50, "{rounds} rounds left a connection open");
    }
}
