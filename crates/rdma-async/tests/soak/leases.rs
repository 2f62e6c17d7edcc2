//! Memory that is lent and borrowed, returned and revoked, in time and late.

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
/// A number of bytes that another thread registers.
const LARGE: u64 = (1 << 20) + 1;
/// The most leases, and the most borrowed regions, that are kept for later.
const KEPT: usize = 4;

pub(crate) const ALL: AccessFlags = AccessFlags::new().with_remote_read().with_remote_write();

/// Leases and regions for a later operation, possibly after their connection has ended.
#[derive(Default)]
pub(crate) struct Kept {
    leases: Vec<Lease>,
    borrowed: Vec<RemoteRegion>,
}

/// The number of regions that were returned, by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Back {
    given: u64,
    returned: u64,
    late: u64,
    revoked: u64,
    closed: u64,
    /// From `reserve` and `reserve_for`.
    opened: u64,
    /// Regions whose parts were lent.
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

    /// Returns true if some leases ended in time and some did not. On a slow machine most are late, and the others may
    /// not include every kind.
    pub(crate) const fn is_mixed(self) -> bool {
        let Self { given, returned, late, revoked, closed, opened, parted } = self;
        late > 0 && given + returned + revoked + closed > 0 && opened > 0 && parted > 0
    }
}

/// The result of a lease operation, if it ends the connection.
fn over(error: LeaseError) -> Result<(), TransportError> {
    match error {
        LeaseError::Closed(_) => Err(TransportError::WouldBlock),
        // The lease has ended there, or there are too many.
        LeaseError::Denied(_) => Ok(()),
        error => panic!("{error}"),
    }
}

impl Worker {
    fn length(&mut self) -> usize {
        let length = if self.chance.below(200) == 0 { LARGE } else { 1 + self.chance.below(6000) };
        usize::try_from(length).unwrap()
    }

    /// The time of a lease, which may be shorter than its use.
    fn time(&mut self) -> Duration {
        match self.chance.below(4) {
            0 => Duration::from_micros(self.chance.below(3000)),
            _ => LONGEST,
        }
    }

    /// Borrows memory, uses it, and may hand it over to the other end's program.
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
        // A region arrives if it was handed over, and in time.
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

    /// Lends memory, lets it be received and used, and awaits its return.
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
            // It ended before it was received.
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

    /// Opens memory to the other end until that end has written or the time is over; perhaps again.
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
            // The bind may wait for a send that has no receive.
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

    /// Lends two overlapping parts of one memory. The memory is returned when both leases have ended.
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
            // They may have ended already.
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

    /// Checks that a lease ends, whatever happened to its connection, and returns the memory.
    async fn expect_ended(&mut self, lease: Lease) {
        match timeout(HANG, lease).await {
            Ok(ended) => self.note_back(ended.unwrap()).await,
            Err(_) => panic!("a lease does not end"),
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

    /// Checks that no one else writes to the memory, though many try.
    async fn expect_exclusive(&mut self, mut region: Region) -> Region {
        let byte = self.chance.next().to_le_bytes()[0];
        region.fill(byte);
        tokio::task::yield_now().await;
        assert!(region.iter().all(|&found| found == byte), "a peer still reaches the memory");
        region
    }

    /// Uses borrowed memory, and returns it in one of the ways.
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
            // Dropped receives may occupy all slots.
            match timeout(PATIENCE, done).await.unwrap_or(Err(TransportError::WouldBlock)) {
                Err(TransportError::LeaseOver { .. }) => {}
                outcome => {
                    assert!(outcome.is_err() || !is_over, "it was posted after its time");
                    outcome?;
                }
            }
        }
        match self.chance.below(8) {
            0..4 => drop(lent),
            4..6 => lent.hand_over(),
            6 if self.kept.borrowed.len() < KEPT => self.kept.borrowed.push(lent),
            // A peer that ignores its clock.
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

    /// Uses kept memory late, drops it, or awaits it.
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
