//! Programs that wait for one thing at a time, like those of perftest: for their own request, for a message, for a word
//! of memory.

use test_support::rig::Cq;
use test_support::rig::post::Wr;

use super::{Ends, Work};

/// The number of round trips. It is smaller than that of programs with several operations in
/// flight, because each trip may wait for long.
const ROUND_TRIPS: u64 = 1_000;
const ROUND_WAKES: u64 = 1_000;

/// The event that a program waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    /// Like `ib_send_lat`: its own SEND, then a message.
    Sends,
    /// A message while its own SEND is in flight. A barrier of two processes with a completion at each end does no less.
    CrossingSends,
    /// Like [`Sends`](Self::Sends), on an unreliable connection.
    UnreliableSends,
    /// Like `ib_write_lat`: its own WRITE, then a word that the peer writes.
    Writes,
    /// A READ of that many bytes from a process that sleeps.
    Reads(u16),
}

impl Ends {
    pub(crate) fn measure_latencies(&self) {
        let trips = |time: std::time::Duration| time.as_secs_f64() * 1e6 / (2 * ROUND_TRIPS) as f64;
        let works = [Waits::UnreliableSends, Waits::Sends, Waits::Writes].map(Work::Waits);
        let [unreliable, reliable, writes] = self.medians(works).map(trips);
        println!("half a round trip of 8 bytes       us   ratio");
        println!("ib_send_lat, UC              {unreliable:>8.2}");
        println!("ib_send_lat, RC              {reliable:>8.2}   {:.2}", reliable / unreliable);
        println!("ib_write_lat, RC             {writes:>8.2}   {:.2}", writes / unreliable);
        let reads = |time: std::time::Duration| time.as_secs_f64() * 1e6 / ROUND_WAKES as f64;
        let [short, long] = self.medians([8, 4096].map(Waits::Reads).map(Work::Waits)).map(reads);
        println!("READ of 8 bytes, the peer sleeps       {short:>8.2}");
        println!("READ of 4 KiB, the peer sleeps         {long:>8.2}");
    }

    pub(crate) fn measure_crossing(&self) {
        let [time] = self.medians([Work::Waits(Waits::CrossingSends)]);
        let each = time.as_secs_f64() * 1e6 / ROUND_TRIPS as f64;
        println!("two SENDs that cross, us     {each:>8.2}");
    }

    pub(crate) fn wait_for(&self, waits: Waits, first: bool) {
        match waits {
            Waits::Sends | Waits::UnreliableSends => self.send_and_wait(waits, first),
            Waits::CrossingSends => self.send_across(),
            Waits::Writes => self.write_and_wait(first),
            Waits::Reads(length) if first => self.read_and_wait(length.into()),
            // The other process reads, and this one sleeps.
            Waits::Reads(_) => self.meet(),
        }
    }

    fn send_and_wait(&self, waits: Waits, first: bool) {
        let (memory, side) = match waits {
            Waits::Sends => (&self.memory, &self.side),
            _ => (&self.unreliable.0, &self.unreliable.1),
        };
        let sge = [memory.sge(0, 8)];
        let send = Wr::send(0, &sge);
        (0..16).for_each(|n| side.qp.post_receive(n, &sge));
        self.meet();
        for trip in 0..ROUND_TRIPS {
            if first || trip > 0 {
                side.qp.post(&send);
                one(&side.send_cq);
            }
            one(&side.receive_cq);
            if trip + 16 < ROUND_TRIPS {
                side.qp.post_receive(0, &sge);
            }
        }
        if !first {
            side.qp.post(&send);
            one(&side.send_cq);
        }
        self.meet();
    }

    fn send_across(&self) {
        let side = &self.side;
        let sge = [self.memory.sge(0, 8)];
        let send = Wr::send(0, &sge);
        (0..16).for_each(|n| side.qp.post_receive(n, &sge));
        self.meet();
        for trip in 0..ROUND_TRIPS {
            side.qp.post(&send);
            one(&side.receive_cq);
            one(&side.send_cq);
            if trip + 16 < ROUND_TRIPS {
                side.qp.post_receive(0, &sge);
            }
        }
        self.meet();
    }

    /// The peer writes to the first word of the memory, and this end sends the second one.
    fn write_and_wait(&self, first: bool) {
        let (address, key) = self.remote;
        let sge = [self.memory.sge(8, 8)];
        let write = |trip: u64| {
            self.memory.copy_in(8, &trip.to_ne_bytes());
            self.side.qp.post(&Wr::write(0, &sge, &self.memory, 0).remote(address, key));
            one(&self.side.send_cq);
        };
        self.memory.copy_in(0, &[0; 8]);
        self.meet();
        for trip in 1..=ROUND_TRIPS {
            if first {
                write(trip);
            }
            while self.memory.word(0) != trip {
                std::hint::spin_loop();
            }
            if !first {
                write(trip);
            }
        }
        self.meet();
    }

    fn read_and_wait(&self, length: usize) {
        let (address, key) = self.remote;
        let sge = [self.memory.sge(0, length)];
        for _ in 0..ROUND_WAKES {
            self.side.qp.post(&Wr::read(0, &sge, &self.memory, 0).remote(address, key));
            one(&self.side.send_cq);
        }
        self.meet();
    }
}

/// Polls until there is one completion.
pub(crate) fn one(cq: &Cq) {
    loop {
        if let Some(wc) = cq.try_poll::<1>().unwrap().first() {
            assert_eq!(wc.status, rdma_sys::ibv_wc_status::IBV_WC_SUCCESS);
            return;
        }
    }
}
