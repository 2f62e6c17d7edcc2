//! Consecutive fields in network order.

use super::error::FrameError;

/// Reads fields from the front of a frame.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes that were not read.
    pub(super) const fn remaining(&self) -> usize {
        self.0.len()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (field, rest) = self.0.split_first_chunk().ok_or(FrameError::Truncated)?;
        self.0 = rest;
        Ok(*field)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        self.array().map(u8::from_be_bytes)
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        self.array().map(u64::from_be_bytes)
    }
}

/// Writes fields from the front. A field that does not fit is dropped, which never happens with the
/// array of a header.
pub(super) struct Writer<'a>(&'a mut [u8]);

impl<'a> Writer<'a> {
    pub(super) const fn new(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the number of bytes that were not written.
    pub(super) const fn remaining(&self) -> usize {
        self.0.len()
    }

    fn array<const N: usize>(&mut self, field: [u8; N]) -> &mut Self {
        if let Some((place, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut() {
            *place = field;
            self.0 = rest;
        }
        self
    }

    pub(super) fn u8(&mut self, field: u8) -> &mut Self {
        self.array(field.to_be_bytes())
    }

    pub(super) fn u16(&mut self, field: u16) -> &mut Self {
        self.array(field.to_be_bytes())
    }

    pub(super) fn u32(&mut self, field: u32) -> &mut Self {
        self.array(field.to_be_bytes())
    }

    pub(super) fn u64(&mut self, field: u64) -> &mut Self {
        self.array(field.to_be_bytes())
    }
}
