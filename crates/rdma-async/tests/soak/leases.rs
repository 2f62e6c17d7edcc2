//! Memory that is lent and asked for, given back and taken back, in time and late.

use std::time::Duration;

use rdma_async::{
    Connection, Descriptor, EndedLease, Lease, LeaseEnd, LeaseError, Region, RemoteRegion,
    ReserveError, TransportError,
};
use rdma_mem::{AccessFlags, CommonMemory, RegionMemory};
use tokio::time::{sleep, timeout};

use crate::common::HANG;
use crate::{PATIENCE, Worker, cause};

/// The longest time of a lease.
const LONGEST: Duration = Duration::from_millis(50);
/// What another thread registers, in bytes.
const LARGE: u64 = (1 << 20) + 1;
/// So many leases, and as much borrowed memory, are kept for later at most.
const KEPT: usize = 4;

pub(crate) const ALL: AccessFlags = AccessFlags::new().with_remote_read().with_remote_write();

/// What is kept for a later operation, beyond the connection that it is of.
#[derive(Default)]
pub(crate) struct Kept {
    leases: Vec<Lease>,
    borrowed: Vec<RemoteRegion>,
}

/// How many regions have come back, and how.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Back {
    given: u64,
    returned: u64,
    late: u64,
    revoked: u64,
    closed: u64,
    /// Of `reserve` and `reserve_for`.
    opened: u64,
    /// Of which parts were lent.
    parted: u64,
}

impl Back {
    pub(crate) const fn add(&mut self, other: Self) {
        self.given += other.given;
        self.returned += other.returned;
        self.late += other.late;
        self.revoked += other.revoked;
        self.closed += other.closed;
        self.opened += other.opened;
        self.parted += other.parted;
    }

    /// There were some that ended in time, and some that did not. On a slow machine most are late, and of the others not each
    /// kind need be there.
    pub(crate) const fn is_mixed(self) -> bool {
        let Self { given, returned, late, revoked, closed, opened, parted } = self;
        late > 0 && given + returned + revoked + closed > 0 && opened > 0 && parted > 0
    }
}

/// What a lease has come to, if that ends the connection.
fn over(error: LeaseError) -> Result<(), TransportError> {
    match error {
        LeaseError::Closed(_) => Err(TransportError::WouldBlock),
        // It has ended there, or is one too many.
        LeaseError::Denied(_) => Ok(()),
        error => panic!("{error}"),
    }
}

impl Worker {
    fn length(&mut self) -> usize {
        let length = if self.chance.below(200) == 0 { LARGE } else { 1 + self.chance.below(6000) };
        usize::try_from(length).unwrap()
    }

    /// How long a lease is, which may be shorter than what is done with it.
    fn time(&mut self) -> Duration {
        match self.chance.below(4) {
            0 => Duration::from_micros(self.chance.below(3000)),
            _ => LONGEST,
        }
    }

    /// Asks for memory, uses it, and gives it to the other end's program, or not.
    pub(crate) async fn ask(
        &mut self,
        by: &Connection,
        of: &Connection,
    ) -> Result<(), TransportError> {
        let (length, time) = (self.length(), self.time());
        match by.borrow(length, ALL, time).await {
            Err(error) => return over(error),
            Ok(asked) => self.borrow(by, asked).await?,
        }
        // There is something if it was given, and in time.
        match timeout(Duration::from_millis(1), of.receive_region()).await {
            Ok(Ok(region)) => {
                self.back.given += 1;
                drop(self.expect_exclusive(region).await);
            }
            Ok(Err(error)) => return over(error),
            Err(_) => {}
        }
        Ok(())
    }

    /// Lends memory, has it taken and used, and has it back.
    pub(crate) async fn lend(
        &mut self,
        lender: &Connection,
        borrower: &Connection,
    ) -> Result<(), TransportError> {
        let length = self.length();
        let region = Region::allocate(&self.pd, length).unwrap();
        let mut lease = match lender.lend(region, ALL, self.time()).await {
            Ok(lease) => lease,
            Err(refused) => return over(refused.error),
        };
        let taken = tokio::select! {
            taken = borrower.receive_lease() => taken,
            // It was over before it was taken.
            ended = timeout(HANG, &mut lease) => {
                self.note_back(ended.unwrap().unwrap()).await;
                return Ok(());
            }
        };
        match self.chance.below(8) {
            0 => lease.revoke(),
            1 => {
                drop(lease);
                return match taken {
                    Ok(lent) => self.borrow(borrower, lent).await,
                    Err(error) => over(error),
                };
            }
            2 if self.kept.leases.len() < KEPT => {
                self.kept.leases.push(lease);
                return taken.map(drop).or_else(over);
            }
            3 if self.chance.below(8) == 0 => {
                let ends = if self.chance.below(2) == 0 { lender } else { borrower };
                ends.close()?;
            }
            _ => {}
        }
        let used = match taken {
            Ok(lent) => self.borrow(borrower, lent).await,
            Err(error) => over(error),
        };
        self.expect_ended(lease).await;
        used
    }

    /// Opens memory to the other end, until that has written, or the time is over; perhaps again.
    pub(crate) async fn open(
        &mut self,
        owner: &Connection,
        peer: &Connection,
    ) -> Result<(), TransportError> {
        let length = self.length();
        let mut region = Region::allocate(&self.pd, length).unwrap();
        for _ in 0..=self.chance.below(2) {
            let (time, buffer) = (self.time(), self.pool.allocate(length.min(256)).unwrap());
            let write = async |descriptor: Descriptor| {
                let Some(to) = descriptor.remote(Duration::ZERO) else { return Ok(()) };
                let to = to.slice(0..buffer.len()).unwrap();
                peer.write(buffer, to).await.map(drop).map_err(cause)
            };
            // The bind may be behind a send that has no receive.
            let opened = if self.chance.below(3) == 0 {
                timeout(PATIENCE, region.reserve(ALL, time, write)).await
            } else {
                timeout(PATIENCE, region.reserve_for(owner, ALL, time, write)).await
            };
            match opened {
                Ok(Ok(reserved)) => {
                    self.back.opened += 1;
                    region = self.expect_exclusive(reserved.region).await;
                    reserved.value.unwrap_or(Ok(()))?;
                }
                Ok(Err(ReserveError::NotOpened { .. })) | Err(_) => {
                    return Err(TransportError::WouldBlock);
                }
                Ok(Err(error)) => panic!("{error}"),
            }
        }
        Ok(())
    }

    /// Lends two parts of one memory, which lie over each other, and has the memory when both have ended.
    pub(crate) async fn lend_parts(
        &mut self,
        lender: &Connection,
        borrower: &Connection,
    ) -> Result<(), TransportError> {
        let length = self.length();
        let memory = CommonMemory::new(RegionMemory::allocate(length).unwrap());
        let mut leases = Vec::new();
        for range in [0..length, length / 2..length] {
            match lender.lend_part(&memory, range, ALL, self.time()).await {
                Ok(lease) => leases.push(lease),
                Err(error) => return over(error),
            }
        }
        for _ in 0..leases.len() {
            // They may be over already.
            match timeout(LONGEST, borrower.receive_lease()).await {
                Ok(Ok(lent)) => self.borrow(borrower, lent).await?,
                Ok(Err(error)) => return over(error),
                Err(_) => {}
            }
        }
        for lease in leases {
            drop(timeout(HANG, lease).await.unwrap().unwrap());
        }
        assert_eq!(memory.try_into_memory().unwrap().len(), length);
        self.back.parted += 1;
        Ok(())
    }

    /// A lease ends, whatever has become of its connection, and the memory is there.
    async fn expect_ended(&mut self, lease: Lease) {
        match timeout(HANG, lease).await {
            Ok(ended) => self.note_back(ended.unwrap()).await,
            Err(_) => panic!("a lease that does not end"),
        }
    }

    async fn note_back(&mut self, ended: EndedLease) {
        *match ended.end {
            LeaseEnd::Returned => &mut self.back.returned,
            LeaseEnd::TimeOver => &mut self.back.late,
            LeaseEnd::Revoked => &mut self.back.revoked,
            LeaseEnd::Disconnected | LeaseEnd::BorrowerFailed => &mut self.back.closed,
            other => panic!("{other}"),
        } += 1;
        drop(self.expect_exclusive(ended.region).await);
    }

    /// Nobody else writes there, though many are about to.
    async fn expect_exclusive(&mut self, mut region: Region) -> Region {
        let byte = self.chance.next().to_le_bytes()[0];
        region.fill(byte);
        tokio::task::yield_now().await;
        assert!(region.iter().all(|&found| found == byte), "memory that a peer still reaches");
        region
    }

    /// Uses memory of the peer's, and gives it back in one of the ways.
    async fn borrow(&mut self, by: &Connection, lent: RemoteRegion) -> Result<(), TransportError> {
        for _ in 0..self.chance.below(3) {
            let length = lent.len().min(256);
            let part = lent.slice(0..length).unwrap();
            let buffer = self.pool.allocate(length).unwrap();
            let is_over = lent.remaining().is_zero();
            let done = async {
                match self.chance.below(4) {
                    0 => drop(part.write(buffer).await.map_err(cause)?),
                    1 => drop(part.read(buffer).await.map_err(cause)?),
                    2 => drop(part.write(buffer).post().await.map_err(cause)?),
                    _ => drop(part.write(buffer).try_post().map_err(cause)?),
                }
                Ok(())
            };
            // Receives that were dropped may have taken all slots.
            match timeout(PATIENCE, done).await.unwrap_or(Err(TransportError::WouldBlock)) {
                Err(TransportError::LeaseOver { .. }) => {}
                outcome => {
                    assert!(outcome.is_err() || !is_over, "it was posted behind its time");
                    outcome?;
                }
            }
        }
        match self.chance.below(8) {
            0..4 => drop(lent),
            4..6 => lent.hand_over(),
            6 if self.kept.borrowed.len() < KEPT => self.kept.borrowed.push(lent),
            // A peer that does not look at its clock.
            _ if self.chance.below(8) == 0 => {
                sleep(lent.remaining() + Duration::from_millis(1)).await;
                let late =
                    by.write(self.pool.allocate(1).unwrap(), lent.remote().slice(0..1).unwrap());
                timeout(PATIENCE, late)
                    .await
                    .map_or(Ok(()), |done| done.map(drop).map_err(cause))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// What was kept is used late, or dropped, or awaited.
    pub(crate) async fn use_kept(&mut self) {
        if let Some(lent) = self.kept.borrowed.pop() {
            let buffer = self.pool.allocate(lent.len().min(8)).unwrap();
            let write = lent.slice(0..buffer.len()).unwrap().write(buffer);
            // Its connection may have ended long ago.
            let _ = timeout(PATIENCE, write).await;
        }
        if let Some(lease) = self.kept.leases.pop() {
            if self.chance.below(2) == 0 {
                lease.revoke();
            }
            self.expect_ended(lease).await;
        }
    }
}
