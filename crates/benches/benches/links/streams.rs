//! Requests in one direction, beside the bytes of a socket, and copies through a ring.

use std::hint::spin_loop;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use rustix::net::{RecvFlags, SendFlags, recv, send};
use test_support::rig::post::Wr;

use super::mapped::Line;
use super::{BYTES, CHUNK, Ends, LARGEST, QUEUE, Work, completed, speed, spin};

impl Ends {
    pub(crate) fn measure_writes(&self) {
        self.measure_each("WRITE", &[CHUNK, LARGEST], Work::Writes, ("socket", Work::RawBytes));
    }

    pub(crate) fn measure_sends(&self) {
        let copies = ("ring copies", Work::RingCopies);
        self.measure_each("SEND", &[8 << 10, CHUNK, LARGEST], Work::Sends, copies);
    }

    /// Measures requests of each length. Between processes, they alternate with other work in chunks of 64 KiB.
    fn measure_each(
        &self,
        opcode: &str,
        lengths: &[usize],
        work: fn(usize) -> Work,
        (reference, raw): (&str, Work),
    ) {
        println!("one direction                    GB/s   ratio");
        for &length in lengths {
            let request = format!("{opcode} of {:>4} KiB on", length >> 10);
            if self.datagrams.is_some() {
                let [own] = self.medians([work(length)]).map(speed);
                println!("{:<29}{own:>8.2}", format!("{request} UDP"));
                continue;
            }
            let [raw, own] = self.medians([raw, work(length)]).map(speed);
            println!("{:<29}{raw:>8.2}", format!("{reference}, 64 KiB"));
            println!("{:<29}{own:>8.2}   {:.2}", format!("{request} soft0"), own / raw);
        }
    }

    pub(crate) fn send_chunks(&self) {
        let chunk = vec![7; CHUNK];
        for _ in 0..BYTES / CHUNK {
            spin(|| send(&self.socket, &chunk, SendFlags::DONTWAIT));
        }
        assert_eq!(spin(|| recv(&self.socket, &mut [0], RecvFlags::DONTWAIT).map(|got| got.0)), 1);
    }

    pub(crate) fn take_chunks(&self) {
        let mut chunk = vec![0; CHUNK];
        for _ in 0..BYTES / CHUNK {
            spin(|| recv(&self.socket, &mut chunk, RecvFlags::DONTWAIT).map(|got| got.0));
        }
        send(&self.socket, &[1], SendFlags::empty()).unwrap();
    }

    pub(crate) fn write_all(&self, length: usize) {
        let (address, key) = self.remote;
        self.stream(length, |from, length| {
            let sge = [self.memory.sge(from, length)];
            let wr = Wr::write(0, &sge, &self.memory, 0);
            self.side.qp.post(&wr.remote(address + from as u64, key));
        });
    }

    pub(crate) fn send_all(&self, length: usize) {
        self.meet();
        self.stream(length, |from, length| {
            self.side.qp.post(&Wr::send(0, &[self.memory.sge(from, length)]));
        });
    }

    /// Keeps requests of 1 MiB in total in flight, but at least two requests, and at most as many as fit the queue.
    fn stream(&self, length: usize, post: impl Fn(usize, usize)) {
        let (all, most) = (BYTES / length, (LARGEST / length).clamp(2, QUEUE));
        let (mut posted, mut done) = (0, 0);
        while done < all {
            while posted < all && posted - done < most {
                post(if length == LARGEST { 0 } else { posted % most * length }, length);
                posted += 1;
            }
            done += completed(&self.side.send_cq);
        }
        self.meet();
    }

    /// Receives what [`send_all`](Self::send_all) sends.
    pub(crate) fn receive_all(&self, length: usize) {
        let (all, slots) = (BYTES / length, LARGEST / length);
        let post = |n: usize| {
            let sge = [self.memory.sge(n % slots * length, length)];
            self.side.qp.post_receive(n as u64, &sge);
        };
        // Receives are posted before anything is sent.
        (0..QUEUE).for_each(post);
        self.meet();
        let mut received = 0;
        while received < all {
            for _ in 0..completed(&self.side.receive_cq) {
                received += 1;
                if received + QUEUE <= all {
                    post(received);
                }
            }
        }
        self.poll_until_met();
    }
}

/// Bytes that begin at a page. A copy is slower if its destination is a little further into its page than its source.
#[derive(Clone, PartialEq)]
#[repr(align(4096))]
struct Chunk([u8; CHUNK]);

/// A thread copies bytes to a ring that is as long as that of the device, and another thread copies them from it.
pub(crate) fn copy_through_ring() {
    let chunks = |byte, bytes| vec![Chunk([byte; CHUNK]); bytes / CHUNK];
    let ring: Vec<_> = chunks(0, 512 << 10).into_iter().map(Mutex::new).collect();
    let (source, mut sink) = (chunks(7, LARGEST), chunks(0, LARGEST));
    let count = source.len();
    let [written, taken] = &[const { Line(AtomicU64::new(0)) }; 2];
    let wait = |line: &Line, least| {
        while line.0.load(Ordering::Acquire) < least as u64 {
            spin_loop();
        }
    };
    // One thread at a time has the lock of a chunk, so no lock is contended.
    let slot = |n: usize| ring[n % ring.len()].lock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..BYTES / CHUNK {
                wait(written, n + 1);
                sink[n % count].0.copy_from_slice(&slot(n).0);
                taken.0.store(n as u64 + 1, Ordering::Release);
            }
        });
        for n in 0..BYTES / CHUNK {
            wait(taken, (n + 1).saturating_sub(ring.len()));
            slot(n).0.copy_from_slice(&source[n % count].0);
            written.0.store(n as u64 + 1, Ordering::Release);
        }
    });
    assert!(sink == source);
}
