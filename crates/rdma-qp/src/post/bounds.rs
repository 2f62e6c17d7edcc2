//! The length of a request and its limit, which every checked post compares.

use rdma_mem::RemoteMemoryRegion;
use rdma_types::QpType;

/// The lengths of a request's elements and of the peer's memory, in bytes.
///
/// Every checked post compares the two. A request that always needs further checks, such as a bind or a datagram, is
/// encoded so that it fails this comparison. Other requests therefore do not pay for these checks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// The length, plus [`TO`] for a datagram.
    bytes: u64,
    remote: u64,
}

/// Marks a send with a destination. The bit is set in the length, which never reaches this value.
const TO: u64 = 1 << 63;

impl Bounds {
    /// The bounds of a request that always needs further checks.
    pub(crate) const DOUBTFUL: Self = Self { bytes: u64::MAX, remote: 0 };

    /// Returns the bounds of a request that names no memory of the peer.
    #[inline]
    pub(crate) const fn of(bytes: u64) -> Self {
        Self { bytes, remote: u64::MAX }
    }

    /// Returns the same bounds, but with the length of `remote` as the limit.
    #[inline]
    pub(crate) const fn within(self, remote: RemoteMemoryRegion) -> Self {
        Self { remote: remote.length() as u64, ..self }
    }

    /// Returns the bounds of a send with a destination, which needs further checks.
    #[inline]
    pub(crate) const fn with_destination(self) -> Self {
        Self { bytes: self.bytes | TO, remote: 0 }
    }

    /// Returns the bounds without the mark set by [`with_destination`](Self::with_destination).
    pub(crate) const fn without_destination(self) -> Self {
        Self::of(self.bytes & !TO)
    }

    /// Returns true if a send was marked by [`with_destination`](Self::with_destination). Meaningless for other
    /// requests.
    #[inline]
    pub(crate) const fn has_destination(self) -> bool {
        self.bytes & TO != 0
    }

    /// Returns the length of the elements.
    pub(crate) const fn bytes(self) -> u64 {
        self.bytes & !TO
    }

    /// Returns the encoded length of the elements, and the length of the peer's memory. If the first is greater than
    /// the second, the request needs further checks.
    #[inline]
    pub(crate) const fn parts(self) -> (u64, u64) {
        (self.bytes, self.remote)
    }
}

/// Returns a limit that checks two things in one comparison. If a request has fewer elements than this limit, it does
/// not have too many, and its queue pair supports all kinds of requests. The limit is 0 except for RC on a device with
/// all operations.
pub(crate) const fn usual_sge(qp_type: QpType, has_all: bool, max_send_sge: u32) -> u32 {
    match qp_type {
        QpType::RC if has_all => max_send_sge.saturating_add(1),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(bounds: Bounds) -> bool {
        let (bytes, remote) = bounds.parts();
        bytes <= remote
    }

    #[test]
    fn requests_that_fit_need_no_further_checks() {
        let remote = RemoteMemoryRegion::new(0x1000, 8, 1);
        assert!(fit(Bounds::of(9)) && fit(Bounds::of(8).within(remote)));
        assert!(!fit(Bounds::of(9).within(remote)));
        assert!(!fit(Bounds::DOUBTFUL) && !fit(Bounds::of(0).with_destination()));
    }

    #[test]
    fn only_reliable_connections_with_all_operations_have_usual_requests() {
        assert_eq!(usual_sge(QpType::RC, true, 4), 5);
        assert_eq!(usual_sge(QpType::RC, false, 4), 0);
        assert_eq!([QpType::UC, QpType::UD].map(|qp_type| usual_sge(qp_type, true, 4)), [0, 0]);
    }

    #[test]
    fn a_destination_changes_no_number_of_bytes() {
        let sent = Bounds::of(5).with_destination();
        assert!(sent.has_destination() && !Bounds::of(5).has_destination());
        assert_eq!((sent.bytes(), sent.without_destination().parts()), (5, (5, u64::MAX)));
    }
}
