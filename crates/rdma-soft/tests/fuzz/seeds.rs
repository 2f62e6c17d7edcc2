//! The seeds of the fuzzer: valid programs, on each device and of each service, and some invalid ones.

use crate::harness::{Element, Send, Setting, Tag};

/// A name, and the input.
pub(crate) type Seed = (String, Vec<u8>);

const SIGNALED: u8 = 2;
const INLINE: u8 = 8;

/// The opcodes of C.
const WRITE: u8 = 0;
const WRITE_WITH_IMM: u8 = 1;
const SEND: u8 = 2;
const SEND_WITH_IMM: u8 = 3;
const READ: u8 = 4;
const COMPARE_SWAP: u8 = 5;
const FETCH_ADD: u8 = 6;
const LOCAL_INVALIDATE: u8 = 7;
const BIND: u8 = 8;
const SEND_WITH_INVALIDATE: u8 = 9;

pub(crate) fn all() -> Vec<Seed> {
    let mut seeds = Vec::new();
    for (device, name) in [(0, "immediate"), (1, "held"), (2, "wire")] {
        for (service, kind) in [(0, "rc"), (2, "uc"), (3, "ud")] {
            for flags in [0, Setting::EXTENDED | Setting::SIGNAL_ALL, Setting::SHARED] {
                let bytes = traffic(device, service, flags);
                seeds.push((format!("{name}-{kind}-{flags}"), bytes));
            }
        }
        seeds.push((format!("{name}-windows"), windows(device)));
        seeds.push((format!("{name}-mistakes"), mistakes(device)));
        seeds.push((format!("{name}-states"), states(device)));
        seeds.push((format!("{name}-late"), late_acknowledgement(device)));
        seeds.push((format!("{name}-never-ready"), never_ready(device)));
        seeds.push((format!("{name}-nowhere"), nowhere(device)));
    }
    seeds
}

struct Program(Vec<u8>);

impl Program {
    fn new(device: u8, service: u8, flags: u8) -> Self {
        let mut bytes = Vec::new();
        let (requests, sges, inline) = (15, 4, 16);
        let (rd_atomic, mtu, retries) = (4, 2, 7 * 8 + 3);
        Setting { device, service, flags, sges, requests, inline, rd_atomic, mtu, retries }
            .write(&mut bytes);
        Self(bytes)
    }

    fn tag(&mut self, tag: Tag, end: u8, more: u8) -> &mut Self {
        self.0.extend([tag as u8, end | more << 1]);
        self
    }

    fn request(&mut self, send: Send, elements: &[Element]) -> &mut Self {
        Send { elements: elements.len() as u8, ..send }.write(&mut self.0);
        elements.iter().for_each(|element| element.write(&mut self.0));
        self
    }

    fn receive(&mut self, tag: Tag, end: u8, elements: &[Element]) -> &mut Self {
        self.tag(tag, end, 0);
        self.0.push(elements.len() as u8);
        elements.iter().for_each(|element| element.write(&mut self.0));
        self
    }
}

fn element(zone: u8, at: u16, length: u16) -> Element {
    Element { key: zone, zone, at, length }
}

fn send(opcode: u8, flags: u8) -> Send {
    Send { opcode, flags, at: 1024, operand: 8, ..Send::default() }
}

/// One request of each opcode that the service has, with receives, polled.
fn traffic(device: u8, service: u8, flags: u8) -> Vec<u8> {
    let mut program = Program::new(device, service, flags);
    let receive = if flags & Setting::SHARED == 0 { Tag::Receive } else { Tag::SharedReceive };
    for n in 0..6 {
        program.receive(receive, 1, &[element(2, n * 200, 100), element(0, n * 200, 100)]);
    }
    let all = match service {
        0 => &[SEND, SEND_WITH_IMM, WRITE, WRITE_WITH_IMM, READ, COMPARE_SWAP, FETCH_ADD][..],
        2 => &[SEND, SEND_WITH_IMM, WRITE, WRITE_WITH_IMM],
        _ => &[SEND, SEND_WITH_IMM],
    };
    let tag = if flags & Setting::EXTENDED == 0 { Tag::Send } else { Tag::Call };
    for (n, &opcode) in all.iter().enumerate() {
        let length = if matches!(opcode, COMPARE_SWAP | FETCH_ADD) { 8 } else { 40 };
        // A list has one more request than its count, a batch exactly its count.
        program.tag(tag, 0, u8::from(flags & Setting::EXTENDED != 0));
        program.request(send(opcode, SIGNALED), &[element(0, 64 * n as u16, length)]);
        program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3).tag(Tag::Poll, 1, 3);
    }
    program.tag(tag, 0, 2 - u8::from(flags & Setting::EXTENDED == 0));
    program.request(send(SEND, INLINE), &[element(4, 0, 30), element(11, 0, 10)]);
    program.request(send(SEND, SIGNALED), &[]);
    program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3).tag(Tag::Poll, 1, 3);
    program.0
}

/// Windows are bound, used, and unbound.
fn windows(device: u8) -> Vec<u8> {
    let mut program = Program::new(device, 0, Setting::WINDOWS);
    let bind = Send { key: 2, zone: 2, at: 0, operand: 512, number: 2 | 4, ..send(BIND, SIGNALED) };
    program.tag(Tag::Bind, 1, SIGNALED).request(bind, &[]);
    // For type 2, `number` is both the key and the rights.
    program.tag(Tag::Send, 1, 0).request(Send { other: 2, number: 9, ..bind }, &[]);
    program.tag(Tag::Pass, 1, 9);
    for (key, zone) in [(8, 2), (9, 8)] {
        let write = Send { key, zone, at: 16, ..send(WRITE, SIGNALED) };
        program.tag(Tag::Send, 0, 0).request(write, &[element(0, 0, 64)]);
        program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3);
    }
    program
        .tag(Tag::Send, 1, 0)
        .request(Send { number: 9, ..send(LOCAL_INVALIDATE, SIGNALED) }, &[]);
    program.receive(Tag::Receive, 1, &[]);
    program.tag(Tag::Pass, 1, 9);
    program
        .tag(Tag::Send, 0, 0)
        .request(Send { number: 9, ..send(SEND_WITH_INVALIDATE, SIGNALED) }, &[]);
    program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3).tag(Tag::Poll, 1, 3);
    program.0
}

/// Wrong keys, addresses, lengths, rights and counts; the queue pairs are connected again after each.
fn mistakes(device: u8) -> Vec<u8> {
    let mut program = Program::new(device, 0, 0);
    let wrong = [
        element(3, 0, 8),
        element(4, 0, 8),
        element(1, 2040, 64),
        element(1, 0, 8),
        element(7, 0, 8),
        // Four bytes too many.
        element(0, 2044, 8),
        Element { key: 13, ..element(0, 0, 8) },
        element(11, 0, 8),
        element(5, 2040, 0xffff),
        element(0, 0, 0xfffd),
    ];
    for wrong in wrong {
        program.receive(Tag::Receive, 1, &[wrong]);
        for opcode in [SEND, WRITE, READ] {
            program.tag(Tag::Send, 0, 1);
            program.request(send(opcode, SIGNALED), &[wrong]);
            program.request(send(SEND, 0), &[]);
            program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3).tag(Tag::Poll, 1, 3);
            program.tag(Tag::Modify, 0, 6);
        }
        let Element { key, zone, .. } = wrong;
        let remote = Send { key, zone, at: 2044, ..send(WRITE, SIGNALED) };
        program.tag(Tag::Send, 0, 0).request(remote, &[element(0, 0, 8)]);
        program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3);
        program.tag(Tag::Modify, 0, 6);
    }
    // The maximum of inline data, and one byte more.
    for length in [64, 65] {
        let inline = send(WRITE, SIGNALED | INLINE);
        program.tag(Tag::Send, 0, 0).request(inline, &[element(0, 0, length)]);
    }
    for elements in 0xfc..=0xff {
        program.tag(Tag::Send, 0, 0);
        Send { elements, ..send(SEND, SIGNALED) }.write(&mut program.0);
        Send { elements, ..send(SEND, SIGNALED | INLINE) }.write(&mut program.0);
        program.tag(Tag::Receive, 0, 0).0.push(elements);
    }
    program.0
}

/// Posts in each state.
fn states(device: u8) -> Vec<u8> {
    let mut program = Program::new(device, 0, Setting::PATIENT);
    for state in [0, 1, 2, 4, 5, 5 + 8, 5 + 24, 6] {
        for _ in 0..2 {
            program.receive(Tag::Receive, 0, &[element(0, 0, 64)]);
            program.tag(Tag::Send, 0, 0).request(send(SEND, SIGNALED), &[element(0, 0, 64)]);
        }
        program.tag(Tag::Pass, 0, 20).tag(Tag::Poll, 0, 3);
        program.tag(Tag::Modify, 0, state);
    }
    program.0
}

/// The acknowledgement of a request arrives in the next life of its queue pair, while another request waits for an
/// answer.
fn late_acknowledgement(device: u8) -> Vec<u8> {
    let mut program = Program::new(device, 0, 0);
    program.tag(Tag::Send, 0, 0).request(send(WRITE, 0), &[]);
    program.tag(Tag::Modify, 0, 5 + 24).tag(Tag::Send, 0, 0);
    program.request(Send { key: 12, ..send(WRITE, SIGNALED) }, &[element(0, 0, 8)]);
    program.0
}

/// A READ in the error state, on a queue pair that was never ready to send.
fn never_ready(device: u8) -> Vec<u8> {
    let mut program = Program::new(device, 0, Setting::EXTENDED | Setting::APART);
    program.tag(Tag::Modify, 0, 5 + 8).tag(Tag::Modify, 0, 0);
    program.tag(Tag::Call, 0, 1).request(send(READ, SIGNALED), &[element(0, 0, 8)]);
    program.0
}

/// Datagrams without an address, in both forms, and one with an address of another domain.
fn nowhere(device: u8) -> Vec<u8> {
    let mut program = Program::new(device, 3, Setting::EXTENDED);
    for other in [2, 0x10, 1] {
        for tag in [Tag::Call, Tag::Send] {
            program.tag(tag, 0, u8::from(tag as u8 == Tag::Call as u8));
            program.request(Send { other, ..send(SEND, SIGNALED) }, &[element(0, 0, 8)]);
        }
    }
    program.0
}
