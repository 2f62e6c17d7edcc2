//! Captures: the packets that devices record, and the files.

mod file;

use std::path::{Path, PathBuf};
use std::process::Command;

use rdma_proto::wire::Operation::{self, *};
use rdma_proto::wire::Service;
use rdma_soft::{Builder, GidPlace, InstallError, Link, Peers, SoftDevice};
use rdma_sys::{Errno, ibv_qp_type, ibv_wr_opcode as Opcode};
use rdma_types::GidType;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use test_support::program::{is_emulated, this_program};
use test_support::rig::fork::Child;

use self::file::{ETHERNET, INFINIBAND, all, read};
use crate::device::rig::connect::{Knobs, Side, connect_sides, connect_unreliably};
use crate::device::rig::datagram::{self, changed, vector};
use crate::device::rig::post::Wr;
use crate::device::rig::{ALL_ACCESS, Context, Size};

/// A path for this test alone, without a file.
fn place(name: &str) -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("{name}-{}.pcapng", std::process::id()));
    let _ = std::fs::remove_file(&place);
    place
}

fn device(name: &str, link: Link, path: &Path) -> SoftDevice {
    Builder::new(name).link(link).pcap(path).install().unwrap()
}

fn pair(one: &str, other: &str) -> (Side, Side) {
    let [a, b] = [one, other].map(|name| Side::new(name, &Size::default(), 16));
    // Without a timeout nothing is sent again, however long it takes.
    connect_sides(&a, &b, &Knobs { timeout: 0, ..Knobs::default() });
    (a, b)
}

/// A's requests to B, each after the previous one has completed.
fn converse(a: &Side, b: &Side) {
    let source =
        a.pd.register_filled((0..3000).map(|n: u32| (n % 251) as u8).collect(), ALL_ACCESS);
    let sink = b.pd.register(3000, ALL_ACCESS);
    b.qp.post_receive(1, &[sink.sge(0, 64)]);
    a.qp.post(&Wr::send(1, &[source.sge(0, 8)]));
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(1);
    b.qp.post_receive(2, &[]);
    a.qp.post(&Wr::write(2, &[source.sge(0, 3000)], &sink, 0).with_imm(0x1234_u32.to_be()));
    a.send_cq.expect_success(2);
    b.receive_cq.expect_success(2);
    a.qp.post(&Wr::read(3, &[source.sge(0, 2500)], &sink, 0));
    a.send_cq.expect_success(3);
    let word = (sink.address().next_multiple_of(8) - sink.address()) as usize;
    for (wr_id, opcode) in
        [(4, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP), (5, Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD)]
    {
        a.qp.post(&Wr::new(wr_id, opcode, &[source.sge(0, 8)]).atomic(&sink, word, 1, 2));
        a.send_cq.expect_success(wr_id);
    }
}

/// The packets of that conversation, and whether A sends them.
const CONVERSATION: [(Operation, bool); 14] = [
    (SendOnly, true),
    (Acknowledge, false),
    (RdmaWriteFirst, true),
    (RdmaWriteMiddle, true),
    (RdmaWriteLastWithImmediate, true),
    (Acknowledge, false),
    (RdmaReadRequest, true),
    (RdmaReadResponseFirst, false),
    (RdmaReadResponseMiddle, false),
    (RdmaReadResponseLast, false),
    (CompareSwap, true),
    (AtomicAcknowledge, false),
    (FetchAdd, true),
    (AtomicAcknowledge, false),
];

/// Traffic without acknowledgements: a connection, then a datagram.
fn send_unreliably(name: &str) {
    let size = Size { qp_type: ibv_qp_type::IBV_QPT_UC, ..Size::default() };
    let [a, b] = [(); 2].map(|()| Side::new(name, &size, 16));
    connect_unreliably(&a.qp, &a.endpoint(), &b.endpoint(), &Knobs::default());
    connect_unreliably(&b.qp, &b.endpoint(), &a.endpoint(), &Knobs::default());
    let source = a.pd.register_filled(vec![7; 1500], ALL_ACCESS);
    let sink = b.pd.register(1500, ALL_ACCESS);
    b.qp.post_receive(1, &[sink.sge(0, 1500)]);
    a.qp.post(&Wr::send(1, &[source.sge(0, 1500)]).with_imm(1));
    a.send_cq.expect_success(1);
    b.receive_cq.expect_success(1);
    let pair = datagram::Pair::new(name);
    let ah = pair.ah();
    pair.receive(2, 1000);
    pair.expect_sent(&pair.good(&ah, 2, 33).with_imm(9), 2);
}

const UNRELIABLE: [(Service, Operation); 3] = [
    (Service::Uc, SendFirst),
    (Service::Uc, SendLastWithImmediate),
    (Service::Ud, SendOnlyWithImmediate),
];

/// One file contains a conversation of each kind of port, each packet once, as it was sent.
#[test]
fn every_packet_is_in_the_file_once() {
    let path = place("conversations");
    let of_v1 = Builder::new("pcap-v1").gids([GidPlace::Global(GidType::ROCE_V1)]);
    let of_v6 = Builder::new("pcap-v6").gids([GidPlace::LinkLocal(GidType::ROCE_V2)]);
    for builder in [of_v1, of_v6] {
        builder.pcap(&path).install().unwrap();
    }
    device("pcap-roce", Link::Ethernet, &path);
    device("pcap-ib", Link::InfiniBand, &path);
    let begin = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    let names = ["pcap-roce", "pcap-ib", "pcap-v1", "pcap-v6"];
    for name in names {
        let (a, b) = pair(name, name);
        converse(&a, &b);
        send_unreliably(name);
    }
    let count = CONVERSATION.len() + UNRELIABLE.len();
    let packets = read(&path, names.len() * count);
    let mut earlier = begin;
    for (name, packets) in names.iter().zip(packets.chunks(count)) {
        let linktype = if *name == "pcap-ib" { INFINIBAND } else { ETHERNET };
        let (reliable, unreliable) = packets.split_at(CONVERSATION.len());
        for packet in packets {
            assert!(packet.device == *name && packet.sent && packet.linktype == linktype);
            assert!(u128::from(packet.time) >= earlier, "times increase");
            earlier = packet.time.into();
        }
        let found: Vec<_> = reliable.iter().map(|packet| packet.operation()).collect();
        assert_eq!(found, CONVERSATION.map(|(operation, _)| operation), "{name}");
        let found: Vec<_> = unreliable.iter().map(|it| (it.service(), it.operation())).collect();
        assert_eq!(found, UNRELIABLE, "{name}");
        let sent = packets[0].parse();
        assert_eq!(sent.payload, (0..8).collect::<Vec<_>>());
        assert_eq!(packets[4].parse().headers.imm.unwrap().immediate, 0x1234);
        let last = packets[count - 1].parse();
        assert_eq!((last.payload, last.headers.bth.pad_count.get()), (&[0xaa; 33][..], 3));
        let deth = last.headers.deth.unwrap();
        assert_eq!(deth.qkey, datagram::QKEY);
    }
    assert!(earlier <= std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos());
    assert_decoded(&path, &packets);
    std::fs::remove_file(&path).unwrap();
}

/// Checks the output of `tshark` for a file, if it is installed: every packet is recognised, and none is malformed.
fn assert_decoded(path: &Path, packets: &[file::Packet]) {
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.psn",
        "infiniband.invariant.crc",
        "_ws.malformed",
        "_ws.expert",
    ];
    let mut tshark = Command::new("tshark");
    // SoftRoCE has no checksum there either.
    tshark.args(["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]);
    // tshark mistakes short SENDs for RPC over RDMA.
    tshark.args(["--disable-protocol", "rpcordma"]);
    tshark.args(["-n", "-r"]).arg(path).args(["-T", "fields", "-E", "separator=/t"]);
    tshark.args(fields.iter().flat_map(|field| ["-e", field]));
    let Ok(output) = tshark.output() else {
        return test_support::packages::skip_without("tshark", "tshark");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), packets.len());
    for (line, packet) in lines.iter().zip(packets) {
        let parsed = packet.parse();
        let bth = &parsed.headers.bth;
        // In tshark's notation: the checksum with its first byte first.
        let (opcode, psn, icrc) = (bth.opcode.code(), bth.psn.get(), parsed.icrc.swap_bytes());
        assert_eq!(*line, format!("{opcode}\t{psn}\t{icrc:#010x}\t\t"), "{packet:?}");
    }
}

/// Each packet that one file has as sent, the other has as received. If the peer writes no capture, a file contains
/// both.
#[test]
fn both_ends_capture_the_same_packets() {
    let [at_a, at_b, alone] = ["end-a", "end-b", "end-alone"].map(place);
    device("pcap-end-a", Link::Ethernet, &at_a);
    device("pcap-end-b", Link::Ethernet, &at_b);
    device("pcap-end-c", Link::Ethernet, &alone);
    Builder::new("pcap-end-d").install().unwrap();
    for (one, other, files) in [
        ("pcap-end-a", "pcap-end-b", vec![(at_a, true), (at_b, false)]),
        ("pcap-end-c", "pcap-end-d", vec![(alone, true)]),
    ] {
        let (a, b) = pair(one, other);
        converse(&a, &b);
        let found: Vec<_> = files.iter().map(|(path, _)| read(path, CONVERSATION.len())).collect();
        for ((path, is_requester), packets) in files.iter().zip(&found) {
            let directions: Vec<_> =
                packets.iter().map(|it| (it.operation(), it.sent == *is_requester)).collect();
            assert_eq!(directions, CONVERSATION);
            std::fs::remove_file(path).unwrap();
        }
        let frames = |n: usize| found[n].iter().map(|it| &it.frame).collect::<Vec<_>>();
        assert_eq!(frames(0), frames(found.len() - 1));
    }
}

/// A program may end after it has seen a message: its peer then has the acknowledgement, and has it before the answer.
#[test]
fn an_acknowledgement_leaves_before_the_answer() {
    const TRIPS: u64 = 100;
    let path = place("behind");
    let device = Builder::new("pcap-behind").force_wire().peers(Peers::SameUser).pcap(&path);
    device.install().unwrap();
    let (a, b) = pair("pcap-behind", "pcap-behind");
    for trip in 0..TRIPS {
        for (one, other) in [(&a, &b), (&b, &a)] {
            other.qp.post_receive(trip, &[]);
            one.qp.post(&Wr::send(trip, &[]));
            other.receive_cq.expect_success(trip);
        }
        a.send_cq.expect_success(trip);
        b.send_cq.expect_success(trip);
    }
    // Each packet is sent and received, and so is its acknowledgement.
    let packets = read(&path, 8 * TRIPS as usize);
    let to_a = |packet: &&file::Packet| {
        packet.sent && packet.parse().headers.bth.destination == a.qp.qpn()
    };
    let of_b: Vec<_> = packets.iter().filter(to_a).map(file::Packet::operation).collect();
    assert!(of_b.chunks(2).all(|both| *both == [Acknowledge, SendOnly]), "{of_b:?}");
    std::fs::remove_file(&path).unwrap();
}

/// A packet to an unknown queue pair was sent nevertheless.
#[test]
fn a_packet_to_an_unknown_queue_pair_is_captured_as_sent() {
    for (name, link) in [("pcap-lost", Link::Ethernet), ("pcap-lost-ib", Link::InfiniBand)] {
        let path = place(name);
        let port = device(name, link, &path);
        let pair = datagram::Pair::new(name);
        let mut nobody = pair.b.endpoint();
        (nobody.gid, nobody.lid) = (changed(&nobody.gid), nobody.lid ^ 1);
        let ah = pair.a.pd.ah(vector(&pair.a.endpoint(), &nobody, true));
        pair.expect_lost(&pair.good(&ah, 1, 100));
        // Nothing leaves a port that is down.
        port.set_port_up(false);
        pair.expect_lost(&pair.good(&ah, 2, 100));
        let packets = read(&path, 1);
        assert_eq!(packets[0].parse().payload, [0xaa; 100]);
        // With the path parameters of the address handle.
        let at = if link == Link::InfiniBand { 8 } else { 14 };
        let way: &[u8] = if at == 8 { &[0x62, 0xca, 0xbc, 0xde] } else { &[0x45, 0x2c] };
        assert_eq!(packets[0].frame[at..at + way.len()], *way);
        std::fs::remove_file(&path).unwrap();
    }
}

/// The error states the file, the reason, and the remedy.
#[test]
fn an_unwritable_capture_file_is_reported() {
    let nowhere = place("nowhere").join("a.pcapng");
    let [pipe, read_pipe] = ["pipe", "read-pipe"].map(place);
    for path in [&pipe, &read_pipe] {
        mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    let _reader = rustix::fs::open(&read_pipe, flags, Mode::empty()).unwrap();
    for (path, reason) in [
        (nowhere.as_path(), "No such file or directory"),
        (Path::new(env!("CARGO_TARGET_TMPDIR")), "Is a directory"),
        (Path::new("/dev/full"), "No space left on device"),
        (&pipe, "it is a pipe"),
        (&read_pipe, "it is a pipe"),
    ] {
        let error = Builder::new("pcap-refused").pcap(path).install().unwrap_err();
        assert!(matches!(&error, InstallError::NoCapture { path: told, .. } if told == path));
        let text = error.to_string();
        for word in [reason, path.to_str().unwrap(), "RDMA_SOFT_PCAP", "Builder::pcap"] {
            assert!(text.contains(word), "{text}");
        }
    }
    [pipe, read_pipe].iter().for_each(|path| std::fs::remove_file(path).unwrap());
    assert!(SoftDevice::find("pcap-refused").is_none());
    // A name that is taken creates no file.
    Builder::new("pcap-taken").install().unwrap();
    let path = place("taken");
    assert!(Builder::new("pcap-taken").pcap(&path).install().is_err());
    assert!(!path.exists());
}

/// The variable that selects a child's actions besides its traffic.
const SCENE: &str = "RDMA_SOFT_TEST_SCENE";

/// A process whose environment names that file: the usual devices, and a conversation.
#[test]
#[ignore = "started by other tests"]
fn child() {
    rdma_soft::install();
    let (a, b) = pair("soft0", "soft0");
    converse(&a, &b);
    if std::env::var_os(SCENE).is_some_and(|scene| scene == "fork") {
        Child::fork(|| converse(&a, &b)).join();
        converse(&a, &b);
    }
}

fn arguments(command: &mut Command) -> &mut Command {
    command.args(["--exact", "device::captures::child", "--ignored", "--test-threads=1"])
}

/// Returns its standard error output.
#[track_caller]
fn run(command: &mut Command, path: &Path) -> String {
    let output = command.env("RDMA_SOFT_PCAP", path).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_environment_names_a_file() {
    let path = place("environment");
    run(arguments(&mut this_program()), &path);
    let packets = read(&path, CONVERSATION.len());
    assert!(packets.iter().all(|packet| packet.device == "soft0" && packet.sent));
    let found: Vec<_> = packets.iter().map(|packet| packet.operation()).collect();
    assert_eq!(found, CONVERSATION.map(|(operation, _)| operation));
    // Each process overwrites the file.
    run(arguments(&mut this_program()), &path);
    read(&path, CONVERSATION.len());
    std::fs::remove_file(&path).unwrap();
    // With a pattern each process has a separate file.
    let folder = place("processes");
    std::fs::create_dir(&folder).unwrap();
    for _ in 0..2 {
        run(arguments(&mut this_program()), &folder.join("%p"));
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A process that cannot open the usual devices.
#[test]
#[ignore = "started by other tests"]
fn refused_child() {
    rdma_soft::install();
    for name in ["soft0", "softib0"] {
        assert_eq!(Context::try_open(name).err(), Some(Errno::EIO));
    }
    // A device whose program names another file is unaffected.
    let path = place("refused");
    device("pcap-child", Link::Ethernet, &path);
    Context::open("pcap-child");
    std::fs::remove_file(&path).unwrap();
}

/// An impossible capture is reported at the first use, with or without a subscriber.
#[track_caller]
fn expect_refused(path: &Path, reason: &str) {
    let mut child = this_program();
    child.args(["--exact", "device::captures::refused_child", "--ignored", "--test-threads=1"]);
    let said = run(&mut child, path);
    for name in ["soft0", "softib0"] {
        let line =
            format!("rdma-soft: `{name}` is not opened: the capture file `{}`", path.display());
        let line = said.lines().find(|said| said.starts_with(&line)).expect(&said);
        assert!(line.contains(reason) && line.contains("RDMA_SOFT_PCAP"), "{line}");
    }
}

#[test]
fn without_the_capture_of_the_environment_devices_do_not_open() {
    expect_refused(&place("no-folder").join("a.pcapng"), "No such file or directory (os error 2)");
}

/// The child's traffic does not belong to the parent's capture.
#[test]
fn a_forked_child_writes_nothing() {
    if is_emulated() {
        return; // a child of several threads may hang there
    }
    let path = place("forked");
    run(arguments(&mut this_program()).env(SCENE, "fork"), &path);
    read(&path, 2 * CONVERSATION.len());
    std::fs::remove_file(&path).unwrap();
}

/// Another process does not write into a file that is being written.
#[test]
fn a_file_has_one_process() {
    let path = place("mine");
    device("pcap-mine", Link::Ethernet, &path);
    expect_refused(&path, "another process writes to it");
    let (a, b) = pair("pcap-mine", "pcap-mine");
    converse(&a, &b);
    read(&path, CONVERSATION.len());
    std::fs::remove_file(&path).unwrap();
}

/// The file may not grow beyond 4 KiB: it ends with a whole packet, and the conversation continues.
#[test]
fn a_full_disk_ends_only_the_capture() {
    let path = place("full");
    let program = this_program();
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -f 8 && trap '' XFSZ && exec \"$@\"", "sh"]);
    shell.arg(program.get_program()).args(program.get_args());
    run(arguments(&mut shell), &path);
    let found = all(&std::fs::read(&path).unwrap());
    let found: Vec<_> = found.iter().map(|packet| packet.operation()).collect();
    let whole = CONVERSATION.map(|(operation, _)| operation);
    assert!(!found.is_empty() && found.len() < whole.len(), "{found:?}");
    assert!(whole.starts_with(&found), "{found:?}");
    std::fs::remove_file(&path).unwrap();
}
