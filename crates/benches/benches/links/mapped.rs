//! Requests on memory of the other process that this one has mapped, beside copies within this process.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use rdma_soft::SoftDevice;
use test_support::rig::connect::{Side, pair};
use test_support::rig::post::Wr;
use test_support::rig::{ALL_ACCESS, MW_BIND, Mr};

use super::latency::one;
use super::{BYTES, Ends, LARGEST, Work, speed};

const ROUND_TRIPS: u64 = 100_000;
const ROUND_WRITES: u64 = 200_000;
/// Requests use local memory that begins at a page, like that of `rdma-mem`. A copy is slower if its destination is up
/// to 64 bytes further into its page than its source.
pub(crate) const PAGE: usize = 4096;

/// The work of a round.
#[derive(Clone, Copy)]
pub(crate) enum Mapped {
    /// Copies of that many bytes, without a device.
    Copies(u32),
    Writes(u32),
    Reads(u32),
    /// Many short WRITEs in flight: to memory of this process, and to that of the other one.
    NearRate,
    Rate,
    /// A word there and back: between two threads, and between the processes.
    Lines,
    Trips,
}

impl Mapped {
    pub(crate) fn to_number(self) -> u64 {
        let (kind, length) = match self {
            Self::Copies(length) => (0, length),
            Self::Writes(length) => (1, length),
            Self::Reads(length) => (2, length),
            Self::NearRate => (3, 0),
            Self::Rate => (4, 0),
            Self::Lines => (5, 0),
            Self::Trips => (6, 0),
        };
        kind << 32 | u64::from(length)
    }

    pub(crate) fn from_number(number: u64) -> Self {
        let length = (number & 0xffff_ffff) as u32;
        match number >> 32 {
            0 => Self::Copies(length),
            1 => Self::Writes(length),
            2 => Self::Reads(length),
            3 => Self::NearRate,
            4 => Self::Rate,
            5 => Self::Lines,
            _ => Self::Trips,
        }
    }
}

/// The memory that the other process maps.
pub(crate) fn memory(side: &Side) -> Mr {
    let memory = side.pd.register_file(2 * LARGEST, ALL_ACCESS & !MW_BIND);
    memory.fill(1);
    memory
}

impl Ends {
    pub(crate) fn measure_mapped(&self) {
        self.get_grant();
        println!("mapped memory                    GB/s   ratio");
        for length in [4 << 10, 64 << 10, 1 << 20] {
            let works = [Mapped::Copies(length), Mapped::Writes(length), Mapped::Reads(length)];
            let [raw, writes, reads] = self.medians(works.map(Work::Mapped)).map(speed);
            println!("copies of {:>4} KiB            {raw:>8.2}", length >> 10);
            println!("WRITEs                       {writes:>8.2}   {:.2}", writes / raw);
            println!("READs                        {reads:>8.2}   {:.2}", reads / raw);
        }
        let rate = |time: Duration| ROUND_WRITES as f64 / time.as_secs_f64() / 1e6;
        let works = [Mapped::NearRate, Mapped::Rate].map(Work::Mapped);
        let [near, far] = self.medians(works).map(rate);
        println!("WRITEs of 8 bytes, 64 in flight   M/s   ratio");
        println!("within a process             {near:>8.2}");
        println!("between processes            {far:>8.2}   {:.2}", far / near);
        let trips = |time: Duration| time.as_secs_f64() * 1e9 / (2 * ROUND_TRIPS) as f64;
        let works = [Mapped::Lines, Mapped::Trips].map(Work::Mapped);
        let [raw, own] = self.medians(works).map(trips);
        println!("a word seen in memory, half        ns   more");
        println!("stores of two threads        {raw:>8.0}");
        println!("WRITEs of 8 bytes            {own:>8.0}   {:.0}", own - raw);
    }

    /// Writes until this process has mapped the memory.
    pub(crate) fn get_grant(&self) {
        let mapped = || SoftDevice::find("soft0").unwrap().counters().mapped_requests;
        while mapped() == 0 {
            self.post_mapped(Mapped::Writes(8), 0);
            one(&self.side.send_cq);
        }
    }

    fn post_mapped(&self, mapped: Mapped, from: usize) {
        let (address, key) = self.mapped_remote;
        let (Mapped::Writes(length) | Mapped::Reads(length)) = mapped else { return };
        let begin = PAGE - usize::try_from(self.memory.address()).unwrap() % PAGE;
        let sge = [self.memory.sge(begin + from, length as usize)];
        let wr = match mapped {
            Mapped::Reads(_) => Wr::read(0, &sge, &self.memory, 0),
            _ => Wr::write(0, &sge, &self.memory, 0),
        };
        self.side.qp.post(&wr.remote(address + from as u64, key));
    }

    pub(crate) fn run_mapped(&self, mapped: Mapped, first: bool) {
        match mapped {
            Mapped::Trips => self.mapped_trips(first),
            // The other process takes no part.
            _ if !first => self.meet(),
            Mapped::Copies(length) => {
                self.copy(length as usize);
                self.meet();
            }
            Mapped::Writes(length) | Mapped::Reads(length) => {
                for n in 0..BYTES / length as usize {
                    self.post_mapped(mapped, n * length as usize % LARGEST);
                    one(&self.side.send_cq);
                }
                self.meet();
            }
            Mapped::NearRate => {
                let (a, b) = pair("soft0");
                let [own, remote] = [&a, &b].map(|side| side.pd.register(8, ALL_ACCESS).mapped());
                self.write_many(&a, &own, (remote.address(), remote.key()));
                self.meet();
            }
            Mapped::Rate => {
                self.write_many(&self.side, &self.memory, self.mapped_remote);
                self.meet();
            }
            Mapped::Lines => {
                exchange();
                self.meet();
            }
        }
    }

    fn copy(&self, length: usize) {
        let bytes = vec![3; LARGEST];
        for from in (0..BYTES / length).map(|n| n * length % LARGEST) {
            self.mapped.copy_in(from, &bytes[from..from + length]);
        }
    }

    fn write_many(&self, side: &Side, memory: &Mr, (address, key): (u64, u32)) {
        let sge = [memory.sge(0, 8)];
        let post = || side.qp.post(&Wr::write(0, &sge, memory, 0).remote(address, key));
        let (mut posted, mut done) = (0, 0);
        while done < ROUND_WRITES {
            while posted < ROUND_WRITES && posted - done < 64 {
                post();
                posted += 1;
            }
            done += side.send_cq.try_poll::<16>().unwrap().len() as u64;
        }
    }

    /// The peer writes to the first word of the memory that it has mapped.
    fn mapped_trips(&self, first: bool) {
        if !first {
            self.get_grant();
        }
        let (address, key) = self.mapped_remote;
        let sge = [self.memory.sge(8, 8)];
        let write = |trip: u64| {
            self.memory.copy_in(8, &trip.to_ne_bytes());
            self.side.qp.post(&Wr::write(0, &sge, &self.memory, 0).remote(address, key));
            one(&self.side.send_cq);
        };
        self.mapped.copy_in(0, &[0; 8]);
        self.meet();
        for trip in 1..=ROUND_TRIPS {
            if first {
                write(trip);
            }
            while self.mapped.word(0) != trip {
                spin_loop();
            }
            if !first {
                write(trip);
            }
        }
        self.meet();
    }
}

/// A word that shares no cache line with others.
#[repr(align(128))]
pub(crate) struct Line(pub(crate) AtomicU64);

/// Two threads store a word by turns, and each waits for the other's.
fn exchange() {
    let lines = [const { Line(AtomicU64::new(0)) }; 2];
    let [near, far] = &lines;
    let wait = |line: &Line, trip| {
        while line.0.load(Ordering::Acquire) != trip {
            spin_loop();
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for trip in 1..=ROUND_TRIPS {
                wait(near, trip);
                far.0.store(trip, Ordering::Release);
            }
        });
        for trip in 1..=ROUND_TRIPS {
            near.0.store(trip, Ordering::Release);
            wait(far, trip);
        }
    });
}
