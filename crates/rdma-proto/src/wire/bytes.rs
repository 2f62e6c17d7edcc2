//! Consecutive fields in network order.

use rdma_types::{Psn, Qpn, Rkey};

/// Reads fields from the front. Fields past the end are read as zeros. That never happens, because
/// headers are arrays with exactly the right size, so the length is not checked again.
pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().unwrap_or((&[0; N], &[]));
        self.0 = rest;
        *field
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.array())
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    #[inline]
    pub(crate) fn u24(&mut self) -> u32 {
        let [high, middle, low] = self.array();
        u32::from_be_bytes([0, high, middle, low])
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    /// Returns the next `len` bytes, or as many as there are.
    #[inline]
    pub(crate) fn slice(&mut self, len: usize) -> &'a [u8] {
        let (field, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        field
    }

    /// Returns the bytes that were not read yet.
    #[inline]
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.0)
    }

    #[inline]
    pub(crate) fn qpn(&mut self) -> Qpn {
        Qpn::masked(self.u24())
    }

    #[inline]
    pub(crate) fn psn(&mut self) -> Psn {
        Psn::masked(self.u24())
    }

    #[inline]
    pub(crate) fn rkey(&mut self) -> Rkey {
        Rkey::new(self.u32())
    }
}

/// Writes fields from the front. A field that does not fit is dropped, which never happens with the
/// header arrays.
pub(crate) struct Writer<'a>(&'a mut [u8]);

impl<'a> Writer<'a> {
    #[inline]
    pub(crate) fn new(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self, field: [u8; N]) -> &mut Self {
        if let Some((place, rest)) = core::mem::take(&mut self.0).split_first_chunk_mut() {
            *place = field;
            self.0 = rest;
        }
        self
    }

    /// Writes the first `len` bytes of the field, or the field and zeros up to `len` bytes.
    #[inline]
    pub(crate) fn padded(&mut self, field: &[u8], len: usize) -> &mut Self {
        let end = len.min(self.0.len());
        let (place, rest) = core::mem::take(&mut self.0).split_at_mut(end);
        let (start, pad) = place.split_at_mut(field.len().min(end));
        start.copy_from_slice(field.split_at(start.len()).0);
        pad.fill(0);
        self.0 = rest;
        self
    }

    /// Returns the number of bytes that have not been written yet.
    #[inline]
    pub(crate) fn room(&self) -> usize {
        self.0.len()
    }

    #[inline]
    pub(crate) fn u8(&mut self, field: u8) -> &mut Self {
        self.array(field.to_be_bytes())
    }

    #[inline]
    pub(crate) fn u16(&mut self, field: u16) -> &mut Self {
        self.array(field.to_be_bytes())
    }

    /// Writes the lower 24 bits.
    #[inline]
    pub(crate) fn u24(&mut self, field: u32) -> &mut Self {
        let [_, bytes @ ..] = field.to_be_bytes();
        self.array(bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self, field: u32) -> &mut Self {
        self.array(field.to_be_bytes())
    }

    #[inline]
    pub(crate) fn u64(&mut self, field: u64) -> &mut Self {
        self.array(field.to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_stop_at_the_end() {
        let mut reader = Reader::new(&[1, 2, 3]);
        assert_eq!((reader.u16(), reader.u16(), reader.u64()), (0x0102, 0, 0));
        let mut bytes = [0; 3];
        Writer::new(&mut bytes).u16(0x0102).u16(0x0304).u8(5);
        assert_eq!(bytes, [1, 2, 0]);
        Writer::new(&mut bytes).padded(&[7], 2).padded(&[8, 9], 5);
        assert_eq!(bytes, [7, 0, 8]);
        let mut reader = Reader::new(&bytes);
        assert_eq!(
            (reader.slice(2), reader.slice(2), reader.slice(2)),
            (&[7, 0][..], &[8][..], &[][..])
        );
    }
}
