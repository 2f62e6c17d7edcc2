//! `rdmatool doctor --peer` and `--listen`, which probe each pair of GIDs between two hosts.

mod probe;
mod wire;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context as _;
use rdma::device::{Context, LinkLayer};
use rdma::qp::{EndpointGid, Psn, Qpn, QueuePairEndpoint};

use super::finding::{Finding, Severity};
use crate::output::{print, printable, warn};
use probe::{Prober, path_mtu};
use wire::{Answer, Offer, Outcome, Sent, Try, Wire};

/// The TCP port of `doctor --listen`.
pub(crate) const PORT: u16 = 18514;

/// The maximum number of GID pairs to probe.
const MAX_PAIRS: usize = 16;

/// The maximum number of probes that a listener answers on one connection.
const MAX_TRIES: usize = 64;

const CONNECT: Duration = Duration::from_secs(5);

/// The endpoints that two hosts have exchanged, and the findings about them.
#[derive(Debug)]
pub(crate) struct Met {
    pub(crate) own: QueuePairEndpoint,
    pub(crate) peer: QueuePairEndpoint,
    pub(crate) port: u8,
    /// Whether the pair of GIDs that programs would choose reaches the peer.
    pub(crate) is_reached: bool,
    pub(crate) findings: Vec<Finding>,
}

/// A pair of GIDs, given by their positions in the two endpoints. `None` on InfiniBand if both ends
/// need only LIDs.
type Pair = Option<(usize, usize)>;

/// Probes the path to a listener, once with each pair of GIDs.
pub(crate) fn probe(address: SocketAddr, context: Context) -> anyhow::Result<Met> {
    let prober = Prober::new(context)?;
    let stream = TcpStream::connect_timeout(&address, CONNECT)
        .with_context(|| format!("no connection to {address}"))?;
    let mut wire = Wire::greet(stream).with_context(|| address.to_string())?;
    let (own, peer) = exchange(&mut wire, &prober)?;
    let device = printable(&peer.device);
    let peer = peer.endpoint.read()?;
    let text = format!("connected to {address}, where device {device} listens");
    let mut findings = vec![Finding::new("peer", Severity::Ok, text), mtus(&own, &peer)];
    let chosen = own.choose_gids(&peer).map(|(a, b, _)| (a, b));
    let place = |gids: &[EndpointGid], gid| gids.iter().position(|other| *other == gid);
    let chosen_pair =
        chosen.and_then(|(a, b)| Some((place(own.gids(), a)?, place(peer.gids(), b)?)));
    let pairs = pairs(&own, &peer, chosen_pair);
    if pairs.is_empty() {
        findings.push(no_pair(&own, &peer));
    }
    let (mut is_reached, mut reached) = (false, None);
    for pair in pairs {
        let (text, error) = one(&mut wire, &prober, (&own, &peer), pair)?;
        let gids = pair.and_then(|(a, b)| Some((*own.gids().get(a)?, *peer.gids().get(b)?)));
        let is_chosen = pair.is_none() || pair == chosen_pair;
        if error.is_none() {
            is_reached |= is_chosen;
            reached = reached.or(gids);
        }
        findings.push(match error {
            None => Finding::new("probe", Severity::Ok, format!("reached: {text}")),
            Some(error) => {
                // Programs use only the chosen pair.
                let severity = if is_chosen { Severity::Error } else { Severity::Note };
                Finding::new("probe", severity, format!("not reached: {text}: {error}")).cure(
                    "check the route, the VLAN, firewalls (UDP port 4791) and the MTU between these two addresses",
                )
            }
        });
    }
    if let (false, Some((a, b))) = (is_reached, reached) {
        let text = format!("the chosen GIDs do not reach each other, {} and {} do", a.gid, b.gid);
        let cure = "set RDMA_GID_NETWORK at both ends to a network with these addresses";
        findings.push(Finding::new("probe", Severity::Error, text).cure(cure));
    }
    for finding in &mut findings {
        finding.subject = Some(prober.name());
    }
    Ok(Met { own, peer, port: prober.port, is_reached, findings })
}

fn no_pair(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> Finding {
    let (here, there) = (own.link_layer(), peer.link_layer());
    if here != there {
        let text = format!("the port is {here}, the peer's is {there}");
        let cure = "name a device of the same link layer at both ends";
        return Finding::new("probe", Severity::Error, text).cure(cure);
    }
    let text = "no GID of this port has the type and family of one of the peer's";
    let cure = "give the interfaces of both ports addresses of the same kind";
    Finding::new("probe", Severity::Error, text).cure(cure)
}

/// Exchanges offers with the other end.
fn exchange(wire: &mut Wire, prober: &Prober) -> anyhow::Result<(QueuePairEndpoint, Offer)> {
    let (here, there) = (wire.stream().local_addr()?, wire.stream().peer_addr()?);
    let own = prober.offer(here.ip(), there.ip())?;
    wire.send(&Offer { device: prober.name(), endpoint: own.into() })?;
    Ok((own, wire.receive()?))
}

fn mtus(own: &QueuePairEndpoint, peer: &QueuePairEndpoint) -> Finding {
    let (here, there) = (own.mtu(), peer.mtu());
    let text = format!("active MTU: {here} here, {there} there");
    if here == there {
        return Finding::new("peer-mtu", Severity::Ok, text);
    }
    Finding::new("peer-mtu", Severity::Warning, text + "; the smaller one is used")
        .cure("set the same MTU on the interfaces of both hosts and on the switches")
}

/// Returns the GID pairs that can be connected, starting with the chosen one.
fn pairs(own: &QueuePairEndpoint, peer: &QueuePairEndpoint, chosen: Pair) -> Vec<Pair> {
    let is_routed =
        own.link_layer() == LinkLayer::ETHERNET || own.grh_required() || peer.grh_required();
    if own.link_layer() != peer.link_layer() {
        return Vec::new();
    }
    if !is_routed {
        return vec![None];
    }
    // If both hosts have the same address, packets to it do not leave the host, so such a pair is
    // skipped. If both ends use the same port, only pairs of equal GIDs are probed.
    let is_one_port = own.gids() == peer.gids();
    let fits = |a: usize, b: usize| {
        let (a, b) = (*own.gids().get(a)?, *peer.gids().get(b)?);
        let alone =
            |gid| QueuePairEndpoint::new(Qpn::masked(2), Psn::masked(0)).with_endpoint_gid(gid);
        let is_usable = (a.gid == b.gid) == is_one_port;
        (is_usable && alone(a).choose_gids(&alone(b)).is_some()).then_some(())
    };
    let all = (0..own.gids().len()).flat_map(|a| (0..peer.gids().len()).map(move |b| (a, b)));
    let others = all.filter(|&(a, b)| chosen != Some((a, b)) && fits(a, b).is_some());
    chosen.into_iter().chain(others).map(Some).take(MAX_PAIRS).collect()
}

/// Probes one pair. Returns a description with the addresses and counters. The second value is the
/// reason if the peer was not reached.
fn one(
    wire: &mut Wire,
    prober: &Prober,
    (own, peer): (&QueuePairEndpoint, &QueuePairEndpoint),
    pair: Pair,
) -> anyhow::Result<(String, Option<String>)> {
    let mtu = path_mtu(own, peer)?;
    let gids = pair.and_then(|(a, b)| Some((own.gids().get(a)?, peer.gids().get(b)?)));
    let mut text = match gids {
        Some((a, b)) => format!("{} to {} ({}), MTU {mtu}", a.gid, b.gid, a.gid_type),
        None => format!("LID {} to LID {}, MTU {mtu}", own.lid(), peer.lid()),
    };
    let prepared = match prober.prepare(own, pair.map(|(own, _)| own)) {
        Ok(prepared) => prepared,
        Err(error) => return Ok((text, Some(format!("here: {error:#}")))),
    };
    let endpoint = prepared.endpoint().into();
    wire.send(&Try { gid: pair.map(|(_, peer)| peer), endpoint })?;
    let ready = match wire.receive()? {
        Answer::Ready(endpoint) => endpoint.read()?,
        Answer::Refused(reason) => {
            return Ok((text, Some(format!("there: {}", printable(&reason)))));
        }
    };
    let before = prober.counters();
    let connected = prepared.handshake(ready).context("connecting");
    let sent = connected.and_then(|channel| prober.send(channel, mtu));
    wire.send(&Sent { is_done: sent.is_ok() })?;
    let outcome: Outcome = wire.receive()?;
    let counters = prober.changes_since(&before);
    text += &format!(" (here {counters}; there {})", printable(&outcome.counters));
    let there = outcome.error.map(|error| format!("there: {}", printable(&error)));
    Ok((text, sent.err().map(|error| format!("here: {error:#}")).or(there)))
}

/// Serves one peer after another, until the program is killed.
pub(crate) fn listen(address: Option<SocketAddr>, context: Context) -> anyhow::Result<()> {
    let prober = Prober::new(context)?;
    let listener = bind(address)?;
    let local = listener.local_addr()?;
    print(format_args!("listening at {local} with {}; end it with Ctrl-C", prober.name()))?;
    loop {
        let (stream, peer) = match listener.accept() {
            Ok(accepted) => accepted,
            // The peer closed its connection before it was accepted.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error).context("accepting a peer"),
        };
        match serve(stream, &prober) {
            Ok((reached, tried)) => {
                // The listener continues even if standard output is closed.
                let _ = print(format_args!("{peer}: reached by {reached} of {tried} pairs"));
            }
            Err(error) => warn(format_args!("{peer}: {error:#}")),
        }
    }
}

fn bind(address: Option<SocketAddr>) -> anyhow::Result<TcpListener> {
    let (first, bound) = match address {
        Some(address) => (address, TcpListener::bind(address)),
        None => {
            let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, PORT));
            let bound = TcpListener::bind(any).or_else(|error| match error.kind() {
                io::ErrorKind::AddrInUse => Err(error),
                // The host has no IPv6.
                _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)),
            });
            (any, bound)
        }
    };
    bound.with_context(|| {
        format!(
            "--listen {first}: give another address or port, such as --listen 0.0.0.0:{}",
            PORT + 100
        )
    })
}

/// Answers the probes of one peer. Returns the number of successful probes, and the number of all
/// probes.
fn serve(stream: TcpStream, prober: &Prober) -> anyhow::Result<(usize, usize)> {
    let mut wire = Wire::greet(stream)?;
    let (own, _) = exchange(&mut wire, prober)?;
    let (mut reached, mut tried) = (0, 0);
    while tried < MAX_TRIES {
        let Some(request) = wire.receive_or_end::<Try>()? else { break };
        tried += 1;
        let peer = request.endpoint.read()?;
        let connected = prober.prepare(&own, request.gid).and_then(|prepared| {
            let endpoint = prepared.endpoint();
            Ok((endpoint, prepared.handshake(peer)?))
        });
        let (endpoint, channel) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                wire.send(&Answer::Refused(format!("{error:#}")))?;
                continue;
            }
        };
        let before = prober.counters();
        let exchange = || {
            wire.send(&Answer::Ready(endpoint.into()))?;
            Ok(wire.receive::<Sent>()?.is_done)
        };
        let received = prober.receive(channel, path_mtu(&endpoint, &peer)?, exchange)?;
        reached += usize::from(received.is_ok());
        let counters = prober.changes_since(&before);
        wire.send(&Outcome { error: received.err(), counters })?;
    }
    Ok((reached, tried))
}
