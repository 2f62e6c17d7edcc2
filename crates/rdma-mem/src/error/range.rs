//! Ranges that are not within their region.

/// A range that is invalid for a region.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// The range is not entirely within the region.
    #[error("{length} bytes at offset {offset} are not within a region of {region} bytes")]
    OutOfBounds {
        /// The offset of the range in the region, in bytes.
        offset: usize,
        /// The length, in bytes.
        length: usize,
        /// The length of the region, in bytes.
        region: usize,
    },
    /// The address of the range is misaligned.
    #[error("offset {offset} is not a multiple of {align}")]
    Misaligned {
        /// The offset of the range in the region, in bytes.
        offset: usize,
        /// The required alignment: `offset` must be a multiple of it.
        align: usize,
    },
    /// The length of the range does not fit in the 32-bit length of an element.
    #[error("{length} bytes exceed the limit of an element, 4294967295 bytes")]
    TooLong {
        /// The length of the range, in bytes.
        length: usize,
    },
}

rdma_types::debug_messages!(enum RangeError {
    OutOfBounds { offset, length, region }, Misaligned { offset, align }, TooLong { length },
});

/// Checks that `length` bytes at `offset` are within `region` bytes.
#[inline]
pub(crate) fn check(offset: usize, length: usize, region: usize) -> Result<(), RangeError> {
    match offset.checked_add(length) {
        Some(end) if end <= region => Ok(()),
        _ => Err(RangeError::OutOfBounds { offset, length, region }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_within_and_overflow_is_not() {
        assert_eq!(check(0, 8, 8), Ok(()));
        assert_eq!(check(8, 0, 8), Ok(()));
        for (offset, length) in [(8, 1), (9, 0), (usize::MAX, 1), (1, usize::MAX)] {
            let error = RangeError::OutOfBounds { offset, length, region: 8 };
            assert_eq!(check(offset, length, 8), Err(error));
        }
    }
}
