//! Values of any structure in memory, by serde.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Values of any structure, written into bytes, such as those of a buffer or a region, and read back from them.
///
/// The form is that of the crate `postcard`: it depends neither on the machine's byte order nor on the layout of the value, and says
/// where it ends. Both sides must have the same type, since nothing of it is among the bytes. A value of plain old data needs
/// none of this: see [`OwnedArray`](rdma_mem::OwnedArray).
///
/// # Examples
/// ```
/// use rdma_async::{Region, ValueExt};
///
/// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// struct Order {
///     item: String,
///     counts: Vec<u32>,
/// }
///
/// # rdma_soft::install();
/// # let pd = rdma_mem::open_device("soft0")?.allocate_pd()?;
/// let mut region = Region::allocate(&pd, 4096)?;
/// let order = Order { item: "apples".into(), counts: vec![1, 2, 300] };
/// let length = region.put_value(&order)?;
/// assert_eq!(length, 12);
/// assert_eq!(region.value::<Order>()?, order);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ValueExt {
    /// Writes the value at the beginning. How many bytes it takes.
    ///
    /// # Errors
    /// [`ValueError::TooLong`] if there is no room for it; [`ValueError::NotWritten`] if it is none that can be written so. What
    /// is in the bytes then is of no use.
    fn put_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<usize, ValueError>;

    /// The value that begins with the first byte. What is behind it does not matter.
    ///
    /// The bytes may be anybody's: a value takes no more memory than some times their number, if its type has no other way to
    /// grow.
    ///
    /// # Errors
    /// [`ValueError::Malformed`] if the bytes are no such value.
    fn value<T: DeserializeOwned>(&self) -> Result<T, ValueError>;
}

/// Why a value was not written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// There are not so many bytes.
    #[error("the value takes more than the {room} bytes that there are")]
    TooLong {
        /// How many there are.
        room: usize,
    },
    /// It cannot be written in this form.
    #[error("the value cannot be written in this form: {0}")]
    NotWritten(String),
    /// The bytes are no such value.
    #[error("the bytes are no such value: {0}")]
    Malformed(String),
}

impl ValueExt for [u8] {
    fn put_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<usize, ValueError> {
        let room = self.len();
        match postcard::to_slice(value, self) {
            Ok(written) => Ok(written.len()),
            Err(postcard::Error::SerializeBufferFull) => Err(ValueError::TooLong { room }),
            Err(error) => Err(ValueError::NotWritten(error.to_string())),
        }
    }

    fn value<T: DeserializeOwned>(&self) -> Result<T, ValueError> {
        postcard::from_bytes(self).map_err(|error| ValueError::Malformed(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Nested = BTreeMap<String, Vec<Option<(u64, f32)>>>;

    #[test]
    fn what_is_written_is_read_and_not_what_is_behind_it() {
        let value: Nested =
            [("a".into(), vec![None, Some((1 << 40, 0.5))]), (String::new(), vec![])].into();
        let mut bytes = [0xff; 64];
        let length = bytes.put_value(&value).unwrap();
        assert!(length < 64 && bytes[length..].iter().all(|&byte| byte == 0xff));
        assert_eq!(bytes.value::<Nested>().unwrap(), value);
        assert_eq!(bytes[..length].value::<Nested>().unwrap(), value);
        let cut = bytes[..length - 1].value::<Nested>().unwrap_err();
        assert!(matches!(cut, ValueError::Malformed(_)), "{cut}");
        let full = bytes[..length - 1].put_value(&value).unwrap_err();
        assert!(matches!(full, ValueError::TooLong { room } if room == length - 1), "{full}");
    }

    /// Bytes that announce more than there is take no memory for it.
    #[test]
    fn bytes_of_anybody_are_bounded() {
        let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(endless.value::<Vec<u64>>().is_err() && endless.value::<String>().is_err());
        assert!([2].value::<bool>().is_err());
    }
}
