//! The sizes of the pipeline.

use std::ops::RangeInclusive;

use super::Error;

/// The maximum amount of data in flight: `depth` chunks of `chunk` bytes.
///
/// ```
/// use copy_file::Settings;
///
/// assert_eq!(Settings::new(4096, 8)?.registered_bytes(), 32768);
/// assert!(Settings::new(4096, 0).unwrap_err().to_string().contains("1 to 4096"));
/// # Ok::<(), copy_file::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    chunk: usize,
    depth: usize,
}

impl Settings {
    /// The allowed sizes of a chunk, in bytes. The smallest has enough space for the trailer, and
    /// the largest is below the maximum length of an RDMA message, 2 GiB.
    pub const CHUNK: RangeInclusive<usize> = 64..=1 << 30;
    /// The allowed numbers of chunks in flight. The queues of common devices have space for the
    /// largest.
    pub const DEPTH: RangeInclusive<usize> = 1..=4096;
    /// The maximum number of bytes that a side registers. It is limited because registered memory
    /// cannot be swapped out.
    pub const MAX_REGISTERED: usize = 1 << 30;

    /// Creates settings if the sizes are allowed.
    ///
    /// # Errors
    /// Returns [`Error::Settings`], which states the allowed range.
    pub fn new(chunk: usize, depth: usize) -> Result<Self, Error> {
        in_range("chunk", chunk, &Self::CHUNK, "bytes")?;
        in_range("depth", depth, &Self::DEPTH, "chunks")?;
        let registered = chunk.saturating_mul(depth);
        if registered > Self::MAX_REGISTERED {
            return Err(Error::Settings(format!(
                "--chunk {chunk} times --depth {depth} is {registered} bytes of registered memory \
                 on each side; at most {} are allowed",
                Self::MAX_REGISTERED
            )));
        }
        Ok(Self { chunk, depth })
    }

    /// Returns the size of a chunk, in bytes.
    #[must_use]
    pub const fn chunk(self) -> usize {
        self.chunk
    }

    /// Returns the maximum number of chunks in flight.
    #[must_use]
    pub const fn depth(self) -> usize {
        self.depth
    }

    /// Returns the number of bytes that each side registers.
    #[must_use]
    pub const fn registered_bytes(self) -> usize {
        self.chunk * self.depth
    }
}

impl Default for Settings {
    /// Returns 8 chunks of 256 KiB. With these sizes, a slot is still in its core's cache when it
    /// is used again.
    fn default() -> Self {
        Self { chunk: 256 << 10, depth: 8 }
    }
}

fn in_range(
    name: &str,
    value: usize,
    allowed: &RangeInclusive<usize>,
    unit: &str,
) -> Result<(), Error> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let (least, most) = (allowed.start(), allowed.end());
    Err(Error::Settings(format!(
        "--{name} {value} is not allowed: it must be {least} to {most} {unit}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_outside_the_ranges_are_refused_with_the_allowed_range() {
        for (chunk, depth, says) in [
            (0, 1, "--chunk 0 is not allowed: it must be 64 to 1073741824 bytes"),
            (63, 1, "--chunk 63"),
            ((1 << 30) + 1, 1, "64 to 1073741824"),
            (64, 0, "--depth 0 is not allowed: it must be 1 to 4096 chunks"),
            (64, 4097, "--depth 4097"),
            (1 << 20, 1025, "is 1074790400 bytes of registered memory"),
        ] {
            let error = Settings::new(chunk, depth).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        for (chunk, depth) in [(64, 1), (1 << 30, 1), (1 << 18, 4096)] {
            assert_eq!(Settings::new(chunk, depth).unwrap().registered_bytes(), chunk * depth);
        }
        let Settings { chunk, depth } = Settings::default();
        assert!(Settings::new(chunk, depth).is_ok());
    }
}
