//! Two ways to carry the frames of a stream: SENDs to receives, and WRITEs with immediate data to a ring of the peer. In
//! both, the bytes are copied to a frame, and from the place where they arrive, as by `rdma-async`.

use test_support::rig::post::Wr;

use super::{BYTES, Ends, Work, completed, speed};

/// The number of frames that may be in flight.
const CREDIT: usize = 16;
/// Each message of the reader returns credit for this many frames.
const RETURNED: usize = 4;

#[derive(Clone, Copy)]
pub(crate) struct Frames {
    pub(crate) length: usize,
    pub(crate) to_ring: bool,
}

impl Frames {
    const fn count(self) -> usize {
        BYTES / self.length
    }

    /// Returns where a frame begins, in the memory of either process.
    const fn place(self, number: usize) -> usize {
        number % CREDIT * self.length
    }
}

impl Ends {
    pub(crate) fn measure_frames(&self) {
        self.get_grant();
        println!("frames of a stream               GB/s   ratio");
        for length in [16 << 10, 32 << 10, 64 << 10] {
            let works = [false, true].map(|to_ring| Work::Frames(Frames { length, to_ring }));
            let [sends, ring] = self.medians(works).map(speed);
            println!("SENDs of {:>4} KiB             {sends:>8.2}", length >> 10);
            println!("WRITEs to a ring             {ring:>8.2}   {:.2}", ring / sends);
        }
    }

    pub(crate) fn write_frames(&self, frames: Frames) {
        let (qp, (ring, key)) = (&self.side.qp, self.mapped_remote);
        let (bytes, messages) = (vec![7; frames.length], frames.count() / RETURNED);
        // For the messages of the reader, which return credit.
        let mut receives = CREDIT.min(messages);
        (0..receives).for_each(|_| qp.post_receive(0, &[]));
        self.meet();
        let (mut written, mut sent, mut returned) = (0, 0, 0);
        while returned < frames.count() {
            if written < frames.count() && written - returned.min(sent) < CREDIT {
                let place = frames.place(written);
                self.memory.copy_in(place, &bytes);
                let sge = [self.memory.sge(place, frames.length)];
                let write = || Wr::write(0, &sge, &self.memory, 0).with_imm(0);
                qp.post(&match frames.to_ring {
                    true => write().remote(ring + place as u64, key),
                    false => Wr::send(0, &sge),
                });
                written += 1;
            }
            sent += completed(&self.side.send_cq);
            for _ in 0..completed(&self.side.receive_cq) {
                returned += RETURNED;
                if receives < messages {
                    qp.post_receive(0, &[]);
                    receives += 1;
                }
            }
        }
        while sent < frames.count() {
            sent += completed(&self.side.send_cq);
        }
        self.meet();
    }

    pub(crate) fn read_frames(&self, frames: Frames) {
        let (qp, mut bytes) = (&self.side.qp, vec![0; frames.length]);
        let memory = if frames.to_ring { &self.mapped } else { &self.memory };
        let post = |number| match frames.to_ring {
            true => qp.post_receive(0, &[]),
            false => qp.post_receive(0, &[memory.sge(frames.place(number), frames.length)]),
        };
        (0..CREDIT).for_each(post);
        self.meet();
        let (mut read, mut sent) = (0, 0);
        while read < frames.count() || sent < frames.count() / RETURNED {
            for _ in 0..completed(&self.side.receive_cq) {
                memory.copy_out(frames.place(read), &mut bytes);
                if read + CREDIT < frames.count() {
                    post(read + CREDIT);
                }
                read += 1;
                if read % RETURNED == 0 {
                    qp.post(&Wr::send(0, &[]));
                }
            }
            sent += completed(&self.side.send_cq);
        }
        self.poll_until_met();
    }
}
