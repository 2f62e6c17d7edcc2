//! The execution of an input from its beginning to its end.

use arbitrary::Unstructured;
use test_support::fuzz::number;
use test_support::rig::until;

use super::input::{self, Packet, Post, Setting, Tag};
use super::packet::{self, Piece};
use super::world::World;

/// A stranger's access to a device.
pub(crate) trait Way {
    /// Sends bytes as they are.
    fn send(&mut self, world: &World, bytes: Vec<u8>);

    /// Sends packets of one message.
    fn send_packets(
        &mut self,
        world: &World,
        packet: &Packet,
        pieces: &[Piece],
        input: &mut Unstructured<'_>,
    );

    /// Sends a valid packet.
    fn send_mark(&mut self, mark: &Piece);

    /// Runs an action specific to the link.
    fn special(&mut self, world: &World, what: u8, input: &mut Unstructured<'_>);

    /// Ensures that later data arrives. Returns true if earlier data may be lost.
    fn renew(&mut self) -> bool;

    /// Reads everything that the device has sent.
    fn drain(&mut self, take: &mut dyn FnMut(&[u8]));
}

/// The number of steps between waits for the device, limited by the space of a socket.
const STEPS: u32 = 16;
/// The number of attempts: a mark may be lost if the device's socket buffer is full.
const AGAIN: u32 = 10_000;

pub(crate) fn run(world: &mut World, way: &mut impl Way, bytes: &[u8]) {
    let mut input = Unstructured::new(bytes);
    let setting = Setting::read(&mut input);
    world.prepare(&setting);
    let mut steps = 0;
    while !input.is_empty() {
        step(world, way, &setting, &mut input);
        pump(world, way);
        steps += 1;
        if steps % STEPS == 0 {
            settle(world, way);
        }
    }
    settle(world, way);
    world.end_requests();
    settle(world, way);
    world.check();
}

fn step(world: &mut World, way: &mut impl Way, setting: &Setting, input: &mut Unstructured<'_>) {
    let (tag, more) = Tag::read(input);
    match tag {
        Tag::Raw => way.send(world, input::bytes(input)),
        Tag::Packet | Tag::Run => {
            let packet = Packet::read(input);
            let (count, last) = match tag {
                Tag::Run => (1 + more % 32, number(input)),
                _ => (1, 0),
            };
            let pieces = packet::pieces(world, &packet, count, last);
            way.send_packets(world, &packet, &pieces, input);
        }
        Tag::Post => world.send(more, &Post::read(input)),
        Tag::Receive => world.receive(more),
        Tag::Modify => modify(world, setting, more),
        Tag::Poll => (0..more % 32).for_each(|_| pump(world, way)),
        Tag::Special => way.special(world, more, input),
    }
}

fn modify(world: &mut World, setting: &Setting, more: u8) {
    world.poll();
    let victim = more % 4;
    match more >> 2 & 3 {
        0 => world.victim(victim).end(),
        1 => world.victim(victim).reset(),
        _ => {
            world.victim(victim).reset();
            world.connect(victim, setting);
        }
    }
}

fn pump(world: &mut World, way: &mut impl Way) {
    world.poll();
    let memory = &world.memory;
    way.drain(&mut |packet| memory.check_sent(packet));
}

/// Returns when everything sent is processed.
fn settle(world: &mut World, way: &mut impl Way) {
    world.marks += 1;
    way.renew();
    way.send_mark(&packet::mark(world));
    let mut rounds = 0_u32;
    until("the processing of everything sent", || {
        pump(world, way);
        rounds += 1;
        if way.renew() || rounds.is_multiple_of(AGAIN) {
            way.send_mark(&packet::mark(world));
        }
        world.has_mark()
    });
}
