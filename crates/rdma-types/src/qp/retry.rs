//! Retry limits of a reliable connection.

use core::fmt;

use crate::macros::code;

/// The number of times that a requester retransmits if no acknowledgement arrives within the
/// [`AckTimeout`](crate::AckTimeout) (`ibv_qp_attr.retry_cnt`, 3 bits). After the last retry, the
/// request fails with [`WcStatus::RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR).
///
/// # Examples
///
/// ```
/// use rdma_types::MaxAckRetries;
///
/// assert_eq!(MaxAckRetries::limited(3).unwrap().retries(), 3);
/// assert_eq!(MaxAckRetries::limited(8), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u8", into = "u8"))]
pub struct MaxAckRetries(u8);

code!(MaxAckRetries, "number of ack retries", 0..=7);

impl MaxAckRetries {
    /// Returns a limit of `retries` (`0..=7`), or `None` for more. Unlike in [`MaxRnrRetries`], 7
    /// is an ordinary number here.
    #[inline]
    pub const fn limited(retries: u8) -> Option<Self> {
        Self::from_code(retries)
    }

    /// Returns the number of retries.
    #[inline]
    pub const fn retries(self) -> u8 {
        self.0
    }
}

/// Returns the maximum, seven.
impl Default for MaxAckRetries {
    fn default() -> Self {
        Self(7)
    }
}

/// The number of times that a requester retries after a "receiver not ready" (RNR) response
/// (`ibv_qp_attr.rnr_retry`, 3 bits). The response means that the peer had no receive posted.
/// Before each retry, the requester waits for the peer's [`MinRnrTimer`](crate::MinRnrTimer). After
/// the last retry, the request fails with
/// [`WcStatus::RNR_RETRY_EXC_ERR`](crate::WcStatus::RNR_RETRY_EXC_ERR).
///
/// Code 7 means unlimited.
///
/// # Examples
///
/// ```
/// use rdma_types::MaxRnrRetries;
///
/// assert_eq!(MaxRnrRetries::limited(6).unwrap().retries(), Some(6));
/// assert_eq!(MaxRnrRetries::limited(7), None);
/// assert_eq!(MaxRnrRetries::unlimited().code(), 7);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(try_from = "u8", into = "u8"))]
pub struct MaxRnrRetries(u8);

code!(MaxRnrRetries, "RNR retry code", 0..=7);

impl MaxRnrRetries {
    /// Returns a limit of `retries` (`0..=6`), or `None` for more.
    #[inline]
    pub const fn limited(retries: u8) -> Option<Self> {
        if retries <= 6 { Some(Self(retries)) } else { None }
    }

    /// Returns the unlimited value: the requester retries until the receiver is ready.
    #[inline]
    pub const fn unlimited() -> Self {
        Self(7)
    }

    /// Returns the number of retries, or `None` if it is unlimited.
    #[inline]
    pub const fn retries(self) -> Option<u8> {
        if self.0 == 7 { None } else { Some(self.0) }
    }
}

/// Returns the unlimited value, which rdma-core's programs use by default. Six retries, the highest
/// finite number, take only 4 ms with the default [timer](crate::MinRnrTimer).
impl Default for MaxRnrRetries {
    fn default() -> Self {
        Self::unlimited()
    }
}

impl fmt::Debug for MaxRnrRetries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.retries() {
            Some(retries) => write!(f, "MaxRnrRetries({retries})"),
            None => f.write_str("MaxRnrRetries(unlimited)"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString;

    use super::*;

    #[test]
    fn seven_is_a_number_for_acks_and_no_limit_for_rnr() {
        assert_eq!(MaxAckRetries::from_code(7).unwrap().retries(), 7);
        assert_eq!(MaxRnrRetries::from_code(7), Some(MaxRnrRetries::unlimited()));
        assert_eq!(MaxRnrRetries::unlimited().retries(), None);
    }

    #[test]
    fn illegal_codes_are_refused() {
        assert_eq!((MaxAckRetries::limited(8), MaxRnrRetries::limited(7)), (None, None));
        assert_eq!((MaxAckRetries::from_code(8), MaxRnrRetries::from_code(8)), (None, None));
        let error = MaxRnrRetries::try_from(8).unwrap_err().to_string();
        assert_eq!(error, "RNR retry code 8 is out of range: 0 to 7 are allowed");
    }

    #[test]
    fn a_lost_peer_is_noticed_and_one_that_is_not_ready_is_awaited_by_default() {
        assert_eq!(MaxAckRetries::default().code(), 7);
        assert_eq!(MaxRnrRetries::default().retries(), None);
        assert_eq!(format!("{:?}", MaxRnrRetries::unlimited()), "MaxRnrRetries(unlimited)");
    }
}
