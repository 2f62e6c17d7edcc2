//! The connections of all ranks with rank 0, on which failures are reported.
//!
//! A rank that detects a failure reports it to rank 0 before it closes its connections. Rank 0 decides which rank is the
//! cause, and notifies all. No thread serves these connections: each rank checks them while it waits in a collective.
//! A rank that closes the group also notifies its peers, because rank 0 may not decide.
//!
//! Ranks that make different calls may wait for each other without a message between them. So a rank that waits for long
//! sends its call to rank 0, which compares it with those of other ranks.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::link::{Kind, Link, wait_for};
use super::table::Table;
use crate::call::Call;

/// The reason that a group is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The rank that is the cause.
    pub(crate) rank: usize,
    /// The error of that rank; empty if it has died or left.
    pub(crate) error: String,
}

impl Notice {
    /// The maximum length of an error in bytes. Longer ones are cut.
    const MOST: usize = 400;

    pub(crate) const fn lost(rank: usize) -> Self {
        Self { rank, error: String::new() }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = (self.rank as u64).to_le_bytes().to_vec();
        bytes.extend(self.error.bytes().take(Self::MOST));
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (rank, error) = bytes.split_first_chunk()?;
        let rank = usize::try_from(u64::from_le_bytes(*rank)).ok()?;
        let error = &error[..error.len().min(Self::MOST)];
        Some(Self { rank, error: String::from_utf8_lossy(error).into_owned() })
    }
}

/// The time that a rank waits for the decision of rank 0, which may be outside the collective.
const DECISION: Duration = Duration::from_secs(2);

/// The connections of this rank: rank 0 has one with each rank, the others have one with rank 0.
pub(crate) struct Star {
    rank: usize,
    links: Vec<Option<Link>>,
    /// The reason that the group is closed, once it is known here.
    notice: Option<Notice>,
    /// On rank 0: the last call in which each rank has waited for long.
    waiting: BTreeMap<usize, Call>,
    /// The time that this rank waits for the decision of rank 0.
    pub(crate) decision: Duration,
}

impl Star {
    pub(crate) const fn new(rank: usize, links: Vec<Option<Link>>) -> Self {
        Self { rank, links, notice: None, waiting: BTreeMap::new(), decision: DECISION }
    }

    /// Returns the connections, for an exchange of values. Rank 0 has one for each rank, the others have only one.
    #[cfg(feature = "serde")]
    pub(crate) fn into_links(self) -> Vec<Option<Link>> {
        self.links
    }

    /// Sends the table to all ranks. A rank that cannot receive it is lost.
    pub(super) fn send_table(&mut self, table: &Table, until: Instant) {
        let bytes = table.to_bytes();
        let send = |(rank, link): (usize, &mut Option<Link>)| {
            link.as_mut()?.send(Kind::Table, &bytes, until).err().map(|_| rank)
        };
        // A rank that gets a notice before the table cannot join.
        let lost: Vec<_> = self.links.iter_mut().enumerate().filter_map(send).collect();
        if let Some(first) = lost.first() {
            self.close(Notice::lost(*first));
        }
    }

    /// Processes what has arrived. Returns the reason if the group is closed.
    pub(crate) fn check(&mut self) -> Option<Notice> {
        if self.notice.is_none() {
            let mut reports = self.reports();
            if !reports.is_empty() {
                // Before a rank reports another one, that rank may have reported a third one and left. Its report has
                // been sent earlier, so now it has arrived.
                reports.extend(self.reports());
                let notice = cause(&reports);
                self.close(notice);
            }
        }
        self.notice.clone()
    }

    /// Returns the notices that have arrived, by the ranks that sent them. The end of a connection without a goodbye is
    /// the notice of a lost rank.
    fn reports(&mut self) -> Vec<(usize, Notice)> {
        let (mut reports, mut waiting) = (Vec::new(), Vec::new());
        for (rank, place) in self.links.iter_mut().enumerate() {
            let Some(link) = place else { continue };
            let received = loop {
                match link.poll_receive() {
                    Ok(Some((Kind::Waiting, bytes))) => waiting.push((rank, bytes)),
                    other => break other,
                }
            };
            match received {
                Ok(None) => continue,
                Ok(Some((Kind::Goodbye, _))) => {}
                Ok(Some((Kind::Notice, bytes))) => {
                    reports.extend(Notice::from_bytes(&bytes).map(|notice| (rank, notice)));
                    continue;
                }
                Ok(Some(_)) | Err(_) => reports.push((rank, Notice::lost(rank))),
            }
            *place = None;
        }
        for (rank, bytes) in waiting {
            let difference = Call::split(&bytes).and_then(|(call, _)| self.compare(rank, call));
            reports.extend(difference.map(|notice| (rank, notice)));
        }
        reports
    }

    /// Sends the call in which this rank waits for long to rank 0, or compares it there.
    pub(crate) fn waits(&mut self, call: Call) {
        if self.rank == 0 {
            if let Some(difference) = self.compare(0, call) {
                self.close(difference);
            }
        } else if let Some(link) = self.links.iter_mut().flatten().next() {
            link.offer(Kind::Waiting, &call.to_bytes());
        }
    }

    /// Compares the call of a rank with those of the others. Returns the first difference. Calls with the same number in
    /// the same group must be equal.
    fn compare(&mut self, rank: usize, call: Call) -> Option<Notice> {
        let differs = |other: &Call| {
            (other.group, other.generation) == (call.group, call.generation) && *other != call
        };
        let other = self.waiting.iter().find(|(_, other)| differs(other));
        let difference = other.map(|(other, theirs)| Notice {
            rank,
            error: format!("it called {call}, but rank {other} called {theirs}"),
        });
        self.waiting.insert(rank, call);
        difference
    }

    /// Returns true if that rank is rank 0, and has left without an error.
    pub(crate) fn has_left(&self, rank: usize) -> bool {
        rank == 0 && self.rank != 0 && self.links.iter().all(Option::is_none)
    }

    /// Closes the group: sends the reason to all other ends.
    fn close(&mut self, notice: Notice) {
        self.send(&notice);
        self.notice = Some(notice);
    }

    fn send(&mut self, notice: &Notice) {
        let bytes = notice.to_bytes();
        for link in self.links.iter_mut().flatten() {
            // A socket without room belongs to a rank that has many notices already.
            let _ = link.send(Kind::Notice, &bytes, Instant::now());
        }
    }

    /// Returns true if rank 0 has not decided yet, and has not left.
    pub(crate) fn is_undecided(&mut self) -> bool {
        self.check().is_none() && self.links.iter().any(Option::is_some)
    }

    /// Waits until something arrives, at most for this time.
    pub(crate) fn wait(&self, limit: Duration) {
        let links = self.links.iter().flatten();
        let files: Vec<_> = links.map(|link| link.awaited(PollFlags::IN)).collect();
        // The caller checks after an error, too.
        let _ = wait_for(&files, Instant::now() + limit);
    }

    /// Returns the reason that the group is closed, once it is known here.
    pub(crate) const fn notice(&self) -> Option<&Notice> {
        self.notice.as_ref()
    }

    /// Reports a failure. Returns true if rank 0 decides on the reason, which the caller then awaits.
    pub(crate) fn report(&mut self, failure: &Notice) -> bool {
        if self.check().is_some() {
            return false;
        }
        if self.rank == 0 || failure.rank == self.rank {
            self.close(failure.clone());
            return false;
        }
        self.send(failure);
        true
    }

    /// Returns the reason that the group is closed. That is this failure if rank 0 has left, or has not decided because
    /// it is not in a collective.
    pub(crate) fn reason(&mut self, failure: Notice) -> Notice {
        self.notice.get_or_insert(failure).clone()
    }

    /// Notifies the other ends that this rank leaves without an error.
    pub(crate) fn leave(&mut self) {
        if self.notice.is_none() {
            for link in self.links.iter_mut().flatten() {
                let _ = link.send(Kind::Goodbye, &[], Instant::now());
            }
        }
    }
}

/// Returns the first cause of these notices. A rank that has sent a notice is the cause only if its notice names the
/// rank itself.
pub(crate) fn cause(reports: &[(usize, Notice)]) -> Notice {
    let by = |rank: usize| reports.iter().find(|(sender, _)| *sender == rank);
    let causes = reports.iter().filter_map(|(_, notice)| match by(notice.rank) {
        None => Some(notice),
        Some((sender, sent)) => (sent.rank == *sender).then_some(sent),
    });
    let first = causes.chain(reports.iter().map(|(_, notice)| notice)).next();
    first.cloned().unwrap_or_else(|| Notice::lost(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_rank_that_has_reported_no_other() {
        let error = Notice { rank: 5, error: "mismatch".to_owned() };
        let lost = Notice::lost;
        assert_eq!(cause(&[(4, lost(3)), (3, lost(2))]), lost(2));
        assert_eq!(cause(&[(4, lost(3)), (2, lost(2)), (3, lost(2))]), lost(2));
        assert_eq!(cause(&[(4, lost(5)), (5, error.clone())]), error);
        assert_eq!(cause(&[(1, lost(2)), (2, lost(1))]), lost(2));
    }

    #[test]
    fn a_notice_arrives_with_its_error() {
        let notice = Notice { rank: 7, error: "a mismatch".to_owned() };
        assert_eq!(Notice::from_bytes(&notice.to_bytes()), Some(notice));
        assert_eq!(Notice::from_bytes(&[1; 7]), None);
        let long = Notice { rank: 7, error: "x".repeat(1000) };
        assert_eq!(long.to_bytes().len(), 8 + Notice::MOST);
        let longer = [&7_u64.to_le_bytes()[..], &[b'x'; 1000]].concat();
        assert_eq!(Notice::from_bytes(&longer).unwrap().error.len(), Notice::MOST);
    }
}
