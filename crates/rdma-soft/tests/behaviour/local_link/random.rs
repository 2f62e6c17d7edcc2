//! Random requests to the memory of another process, compared with a model that executes them one after another. Some
//! requests are executed without packets, and grants are revoked meanwhile.

use std::ops::Range;

use rdma_sys::{ibv_wc_opcode as Done, ibv_wc_status as Status, ibv_wr_opcode as Opcode};
use test_support::rig::ALL_ACCESS;
use test_support::rig::post::Wr;

use crate::local_link::hostile::Random;
use crate::local_link::mapped::Pair;
use crate::two_processes::near::{MAPPED, PATIENT};
use crate::two_processes::peer::{LENGTH, sum};

const BATCHES: u32 = 300;
/// The maximum number of requests in a batch.
const MOST: usize = 16;

const ATOMICS: [Opcode; 2] =
    [Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, Opcode::IBV_WR_ATOMIC_CMP_AND_SWP];

/// The memory of both processes.
struct Model {
    near: Vec<u8>,
    far: Vec<u8>,
    /// The parts of the far memory that READs and atomics of this batch have fetched.
    fetched: Vec<Range<usize>>,
    /// Whether the receive requests of the other process name its memory by the address that requests use.
    has_receives: bool,
}

fn at(memory: &mut [u8], from: usize, length: usize) -> &mut [u8] {
    &mut memory[from..from + length]
}

impl Model {
    /// Returns true if a request that changes this part must have a fence. Without one, an earlier READ may see the change
    /// (IBTA volume 1, section 10.8.3.3, table of the order of work requests).
    fn needs_fence(&self, part: &Range<usize>) -> bool {
        self.fetched.iter().any(|fetched| fetched.start < part.end && part.start < fetched.end)
    }

    /// Executes an atomic, and returns the word that the memory has then.
    fn update(&mut self, from: usize, to: usize, new: impl FnOnce(u64) -> u64) {
        let word = at(&mut self.far, to, 8);
        let old = u64::from_ne_bytes((&*word).try_into().unwrap());
        word.copy_from_slice(&new(old).to_ne_bytes());
        at(&mut self.near, from, 8).copy_from_slice(&old.to_ne_bytes());
    }

    fn write(&mut self, from: usize, to: usize, length: usize) {
        at(&mut self.far, to, length).copy_from_slice(&self.near[from..from + length]);
    }
}

fn below(random: &mut Random, limit: usize) -> usize {
    random.below(limit as u64) as usize
}

/// Returns a random length up to `most`, often a short one.
fn length(random: &mut Random, most: usize) -> usize {
    let most = [8, 64, 1100, most][below(random, 4)];
    below(random, most + 1)
}

/// The kind, the length and the immediate data of the completion of a receive request.
type Received = (u32, u32, u32);

/// Returns a random request at this place of the local memory, after the model has executed it. If it consumes a receive
/// request, also returns the completion of the receive request.
fn request(
    random: &mut Random,
    pair: &Pair,
    model: &mut Model,
    from: usize,
    most: usize,
) -> (Wr, Option<Received>) {
    let (memory, (address, key)) = (&pair.near.memory, pair.near.remote);
    let length = length(random, most);
    let to = below(random, LENGTH - length + 1);
    let word = below(random, LENGTH / 8) * 8;
    let to_send = |opcode| Wr::new(0, opcode, &[memory.sge(from, length)]);
    let there = |opcode| to_send(opcode).remote(address + to as u64, key);
    let atomic = |opcode, operand, swap| {
        let wr = Wr::new(0, opcode, &[memory.sge(from, 8)]);
        wr.atomic_at(address + word as u64, key, operand, swap)
    };
    let (wr, part, receives) = match below(random, 8) {
        0..=2 => {
            model.write(from, to, length);
            (there(Opcode::IBV_WR_RDMA_WRITE), to..to + length, None)
        }
        3..=4 => {
            at(&mut model.near, from, length).copy_from_slice(&model.far[to..to + length]);
            model.fetched.push(to..to + length);
            return (there(Opcode::IBV_WR_RDMA_READ), None);
        }
        5 => {
            let add = random.next();
            model.update(from, word, |old| old.wrapping_add(add));
            (atomic(Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, add, 0), word..word + 8, None)
        }
        6 => {
            let current = *model.far[word..].first_chunk().unwrap();
            let expected = u64::from_ne_bytes(current) ^ u64::from(below(random, 3) == 0);
            let swap = random.next();
            model.update(from, word, |old| if old == expected { swap } else { old });
            (atomic(Opcode::IBV_WR_ATOMIC_CMP_AND_SWP, expected, swap), word..word + 8, None)
        }
        // Only long ones are executed without most of their packets.
        7 if below(random, 4) > 0 || !model.has_receives => {
            let length = most - below(random, most / 4);
            let to = below(random, LENGTH - length + 1);
            model.write(from, to, length);
            let imm = random.next() as u32;
            let wr = Wr::new(0, Opcode::IBV_WR_RDMA_WRITE_WITH_IMM, &[memory.sge(from, length)]);
            let received = (Done::IBV_WC_RECV_RDMA_WITH_IMM.0, length as u32, imm);
            let wr = wr.remote(address + to as u64, key).with_imm(imm);
            (wr, to..to + length, Some(received))
        }
        // The receive requests are at the start of the memory.
        _ => {
            model.write(from, 0, length);
            let received = (Done::IBV_WC_RECV.0, length as u32, 0);
            (to_send(Opcode::IBV_WR_SEND), 0..length, Some(received))
        }
    };
    let is_atomic = ATOMICS.contains(&wr.wr.opcode);
    let wr = if model.needs_fence(&part) { wr.fenced() } else { wr };
    if is_atomic {
        model.fetched.push(part);
    }
    (wr, receives)
}

/// Posts a batch of requests, and returns when all have completed.
fn batch(random: &mut Random, pair: &mut Pair, model: &mut Model) {
    let limit = [3, MOST][below(random, 2)];
    let count = 1 + below(random, limit);
    // Each request has its own part of the local memory.
    let part = LENGTH / count / 8 * 8;
    model.fetched.clear();
    let mut wrs = Vec::new();
    let (mut received, mut signaled) = (Vec::new(), 0);
    for n in 0..count {
        let (wr, receives) = request(random, pair, model, n * part, part);
        received.extend(receives);
        let is_signaled = n + 1 == count || below(random, 3) > 0;
        signaled += u32::from(is_signaled);
        wrs.push(if is_signaled { wr } else { wr.unsignaled() });
    }
    // The process sets the rights at any time during the batch, is not running when the batch is posted, or posts its
    // receive requests after that.
    let event = below(random, 8);
    if event != 2 {
        pair.near.peer.receive_all(received.len());
    }
    match event {
        0 => pair.near.peer.begin_permit(ALL_ACCESS),
        1 => pair.near.peer.stop(),
        _ => {}
    }
    match below(random, 2) {
        0 => pair.near.side.qp.try_post_list(&wrs).unwrap(),
        _ => wrs.iter().for_each(|wr| pair.near.side.qp.post(wr)),
    }
    match event {
        1 => pair.near.peer.go_on(),
        2 => pair.near.peer.receive_all(received.len()),
        _ => {}
    }
    for _ in 0..signaled {
        assert_eq!(pair.near.side.send_cq.next().status, Status::IBV_WC_SUCCESS);
    }
    if event == 0 {
        pair.near.peer.finish();
    }
    for expected in received {
        assert_eq!(pair.near.peer.completion(), expected);
    }
}

/// `RDMA_TEST_SEED` selects the requests.
#[test]
fn random_requests_have_the_effect_of_the_model() {
    const IOVA: u64 = 0x1234_5000_0000;
    for (name, iova) in [("random-own", String::new()), ("random-iova", IOVA.to_string())] {
        let mapped = format!("{ALL_ACCESS} {LENGTH} {iova}");
        let mut pair = Pair::with(name, &PATIENT, &[(MAPPED, &mapped)]);
        let (near, far) = (vec![0; LENGTH], vec![0; LENGTH]);
        let mut model = Model { near, far, fetched: Vec::new(), has_receives: iova.is_empty() };
        let mut random = Random::of_environment();
        for batch_number in 0..BATCHES {
            // The bytes of each batch differ from those before.
            model.near.chunks_mut(8).for_each(|chunk| {
                let bytes = random.next().to_ne_bytes();
                chunk.copy_from_slice(&bytes[..chunk.len()]);
            });
            pair.near.memory.copy_in(0, &model.near);
            batch(&mut random, &mut pair, &mut model);
            assert!(pair.near.memory.bytes() == model.near, "batch {batch_number} of {name}, here");
            assert_eq!(
                pair.near.peer.sum(0, LENGTH),
                sum(&model.far),
                "batch {batch_number} of {name}"
            );
        }
        let mapped = pair.mapped_requests();
        assert!(mapped > u64::from(BATCHES), "only {mapped} requests without packets");
        pair.near.peer.end();
    }
}
