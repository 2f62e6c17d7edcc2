#![allow(clippy::unwrap_used)] // A failing helper fails its test.

use std::net::IpAddr;
use std::sync::{OnceLock, Weak};

use rdma_proto::Burst;
use rdma_proto::wire::{Bth, Headers, IpHeader, Opcode, Operation, Reth, Service, UdpHeader};
use rdma_types::{Psn, Qpn};
use rustix::event::epoll::EventData;

use super::coalesced::CoalescedBurst;
use super::open::Open;
use super::outgoing::Outgoing;
use super::packet::{Flow, NoPacket, Reader, write};
use super::*;
use crate::address::{Address, Path};
use crate::engine::wire::Carrier as _;
use crate::engine::wire::letter::Letter;
use crate::fabric::random::Seed;
use crate::limits::Limits;
use crate::link::Link;
use crate::link::driver::Token;
use crate::schedule::Schedule;

#[test]
fn an_interface_name_denotes_its_addresses() {
    let addresses = address::named("lo").unwrap();
    let loopback = |ip: &str| LocalAddress { ip: ip.parse().unwrap(), ..addresses[0] };
    assert!(addresses.contains(&loopback("127.0.0.1")));
    // All of 127.0.0.0/8 is accepted without being listed.
    assert_eq!(address::named("127.9.8.7").unwrap(), [loopback("127.9.8.7")]);
}

/// The address is one for documentation, so this host does not have it.
#[test]
fn an_address_that_the_kernel_does_not_use_yet_is_bound() {
    let ip = "2001:db8::1".parse().unwrap();
    let own = LocalAddress { ip, scope: 0, interface: 1, mtu: 1500 };
    match Socket::bind(&own) {
        Err(Errno::AFNOSUPPORT) => println!("skipped: this kernel has no IPv6"),
        bound => drop(bound.unwrap()),
    }
}

#[test]
fn the_mtu_of_packets_follows_that_of_their_interface() {
    let mtu =
        |mtu| mtu_of(&LocalAddress { ip: [127, 0, 0, 1].into(), scope: 0, interface: 1, mtu });
    assert_eq!([1500, 4200, 9000].map(mtu), [Mtu::MTU1024, Mtu::MTU4096, Mtu::MTU4096].map(Some));
    assert_eq!(
        [1104, 1103, 336, 335].map(mtu),
        [Some(Mtu::MTU1024), Some(Mtu::MTU512), Some(Mtu::MTU256), None]
    );
}

/// A process that exits waits until its letters are written.
#[test]
fn a_letter_waits_until_it_is_written() {
    static SUBNET: Subnet = Subnet::new();
    static DEVICE: OnceLock<Device> = OnceLock::new();
    SUBNET.serve_by_polls_alone();
    let (limits, schedule, link) = (Limits::default(), Schedule::Immediate, Link::Ethernet);
    let make =
        || Device::new(&SUBNET, "d".into(), link, Vec::new(), limits, schedule, &Seed::new(1));
    let device = DEVICE.get_or_init(make);
    let own = address::named("127.4.7.91").unwrap().remove(0);
    let token = Token::of(EventData::new_u64(0));
    let open = Open::new(Driver::of(&SUBNET).unwrap(), Socket::bind(&own).unwrap(), token);
    let outgoing = Outgoing::new(device, own.ip, Arc::new(open), None);
    let [local, remote] = [[127, 4, 7, 91], [127, 4, 7, 92]].map(|ip| {
        let gid = Gid::from_ipv4(ip.into());
        Address::Gid(GidEntry { gid, kind: GidType::ROCE_V2 })
    });
    let burst = Burst::single(headers(Operation::SendOnly, 0), 0);
    let buffer = outgoing.buffer(Weak::<Outgoing>::new()).unwrap();
    Arc::clone(&outgoing).send(Letter::new(Path { local, remote }, burst, None, buffer));
    assert!(outgoing.has_letters());
    SUBNET.run_queue.run();
    assert!(!outgoing.has_letters());
}

/// Returns the packets of a capture: source, destination, and the payload of the UDP datagram.
fn captured(name: &str) -> Vec<(Flow, Vec<u8>)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../rdma-proto/tests/vectors/");
    let file = std::fs::read(format!("{folder}{name}")).unwrap();
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while let Some((record, behind)) = rest.split_at_checked(16) {
        let length = u32::from_le_bytes(record[8..12].try_into().unwrap()) as usize;
        let (frame, behind) = behind.split_at(length);
        rest = behind;
        let Ok((ip, datagram)) = IpHeader::parse(&frame[14..]) else { continue };
        let Some((udp, packet)) = datagram.split_first_chunk() else { continue };
        let udp = UdpHeader::parse(udp);
        if udp.destination_port != UdpHeader::ROCE_V2_PORT {
            continue;
        }
        let (from, to) = match ip {
            IpHeader::V4(ip) => (IpAddr::V4(ip.source), IpAddr::V4(ip.destination)),
            IpHeader::V6(ip) => (IpAddr::V6(ip.source), IpAddr::V6(ip.destination)),
            _ => continue,
        };
        packets.push((Flow { from, from_port: udp.source_port, to }, packet.to_vec()));
    }
    packets
}

/// The packets have arbitrary IPv4 identifications. A socket does not report them, so the reader has to find them.
#[test]
fn packets_of_the_kernel_are_accepted_and_changed_ones_are_not() {
    let (mut reader, mut count) = (Reader::default(), 0);
    for name in ["rxe.pcap", "big.pcap", "loss.pcap", "v6.pcap"] {
        for (way, packet) in captured(name) {
            let (headers, payload) = reader.read(&way, 0, &packet).unwrap();
            count += 1;
            if way.from.is_ipv6() {
                // IPv6 has no identification, so writing the packet gives the same bytes.
                let mut again = Vec::new();
                write(&way, 0, &headers, payload, &mut again).unwrap();
                assert_eq!(again, packet);
            }
            let mut changed = packet;
            let last = changed.len() - 5;
            changed[last] ^= 1;
            assert!(reader.read(&way, 0, &changed).is_err());
        }
    }
    assert!(count > 800, "{count}");
}

#[test]
fn written_packets_are_read_with_the_index_of_their_segment() {
    let way = Flow { from: [127, 0, 0, 1].into(), from_port: 4791, to: [127, 0, 0, 2].into() };
    let headers = middle(7);
    for index in [0, 1, 63] {
        let mut packet = Vec::new();
        write(&way, index, &headers, &[9; 1024], &mut packet).unwrap();
        let mut reader = Reader::default();
        assert_eq!(reader.read(&way, index, &packet), Ok((headers, &[9; 1024][..])));
        // The same packet from another address.
        let other = Flow { from: [127, 0, 0, 3].into(), ..way };
        assert_eq!(reader.read(&other, index, &packet), Err(NoPacket::Damaged));
    }
}

fn headers(operation: Operation, psn: u32) -> Headers {
    let opcode = Opcode::new(Service::Rc, operation).unwrap();
    Headers::new(Bth::new(opcode, Qpn::masked(5), Psn::masked(psn)))
}

fn middle(psn: u32) -> Headers {
    headers(Operation::SendMiddle, psn)
}

/// Asserts that a run takes the first `together` packets, and splits into the same packets again.
#[track_caller]
fn assert_run(packets: &[(Headers, usize)], together: usize) {
    let (first, behind) = packets.split_first().unwrap();
    let mut run = CoalescedBurst::of(first.0, first.1);
    let count = 1 + behind.iter().take_while(|(next, length)| run.extend(next, *length)).count();
    assert_eq!(count, together);
    let payload = vec![0; run.burst.length as usize];
    let made: Vec<_> =
        run.burst.packets(&payload).map(|(headers, payload)| (headers, payload.len())).collect();
    assert_eq!(made, packets[..count]);
}

#[test]
fn packets_of_a_message_are_one_run() {
    let last = headers(Operation::SendLast, 9);
    let first = headers(Operation::SendFirst, 7);
    assert_run(&[(first, 256), (middle(8), 256), (last, 100)], 3);
    assert_run(&[(first, 256), (middle(8), 256), (last, 256)], 3);
    assert_run(&[(middle(7), 256), (middle(8), 256), (middle(9), 256)], 3);
    let mut asks = last;
    asks.bth.ack_request = true;
    assert_run(&[(middle(8), 256), (asks, 256), (middle(10), 256)], 2);
}

#[test]
fn unrelated_packets_are_not_coalesced() {
    let first = headers(Operation::SendFirst, 7);
    let elsewhere =
        Headers { bth: Bth { destination: Qpn::masked(6), ..middle(8).bth }, ..middle(8) };
    let mut limited = middle(8);
    limited.bth.p_key = 0x7fff;
    for (next, length) in [
        (middle(9), 256),
        (middle(7), 256),
        (first, 256),
        (headers(Operation::RdmaWriteMiddle, 8), 256),
        (headers(Operation::SendOnly, 8), 256),
        (elsewhere, 256),
        (limited, 256),
        (middle(8), 257),
        (middle(8), 0),
    ] {
        assert_run(&[(first, 256), (next, length)], 1);
    }
    // A short packet ends the run, whatever its headers are.
    assert_run(&[(first, 256), (middle(8), 252), (middle(9), 252)], 2);
    // The first packet of a WRITE has a header that later ones lack.
    let reth = Reth { va: 0, rkey: 0.into(), length: 512 };
    let write = Headers { reth: Some(reth), ..headers(Operation::RdmaWriteFirst, 7) };
    assert_run(&[(write, 256), (headers(Operation::RdmaWriteLast, 8), 256)], 1);
    assert_eq!(Burst::single(write, 256).segments, 1);
}
