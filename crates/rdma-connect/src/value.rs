//! Values of any structure in memory, encoded with serde.

mod bounded;

use std::marker::PhantomData;

use serde::Serialize;
use serde::de::{DeserializeOwned, DeserializeSeed};

use self::bounded::{Bounded, Bounds};

/// Encodes values of any structure into bytes, for example the bytes of a buffer or a region, and decodes them.
///
/// Values are encoded in the format of the `postcard` crate. An encoded value depends neither on byte order nor on
/// memory layout, and it needs no length because it marks its own end. Both sides must use the same type, because the
/// bytes do not identify it. Plain old data needs no encoding: see [`OwnedArray`](rdma_mem::OwnedArray).
///
/// # Examples
/// ```
/// use rdma_connect::ValueExt;
///
/// #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
/// struct Order {
///     item: String,
///     counts: Vec<u32>,
/// }
///
/// let mut bytes = [0; 4096];
/// let order = Order { item: "apples".into(), counts: vec![1, 2, 300] };
/// let length = bytes.put_value(&order)?;
/// assert_eq!(length, 12);
/// assert_eq!(bytes.value::<Order>()?, order);
/// # Ok::<(), rdma_connect::ValueError>(())
/// ```
pub trait ValueExt {
    /// Encodes the value at the beginning of the bytes. Returns the number of bytes written.
    ///
    /// # Errors
    /// [`ValueError::TooLong`] if there are too few bytes; [`ValueError::NotWritten`] if the format cannot represent
    /// the value. After either error, the contents of the bytes are unspecified.
    fn put_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<usize, ValueError>;

    /// Reads the value that starts at the first byte, and ignores the bytes after it.
    ///
    /// The bytes need not be trusted: time and memory are bounded by a multiple of their number, unless the type's
    /// `Deserialize` itself needs more. A value can be at most 128 levels deep, where each element, field and `Some`
    /// adds a level. It can have at most 4,096 of these parts, plus 16 per byte. A value beyond these limits can be
    /// written, but not read.
    ///
    /// # Errors
    /// [`ValueError::Malformed`] if the bytes are not a value of this type, or the value exceeds these limits.
    fn value<T: DeserializeOwned>(&self) -> Result<T, ValueError>;
}

/// An error from writing or reading a value.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The value needs more bytes than are available.
    #[error("the value needs more than the {room} bytes available")]
    TooLong {
        /// The number of bytes available.
        room: usize,
    },
    /// The format cannot represent the value.
    #[error("the value cannot be written in this form: {0}")]
    NotWritten(String),
    /// The bytes are not a value of the requested type.
    #[error("the bytes are not a value of this type: {0}")]
    Malformed(String),
}

rdma_types::debug_messages!(enum ValueError { TooLong { room }, NotWritten(it), Malformed(it) });

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
        let bounds = Bounds::of(self.len());
        let value = Bounded { inner: PhantomData::<T>, bounds: &bounds };
        let value = value.deserialize(&mut postcard::Deserializer::from_bytes(self));
        value.map_err(|error| {
            ValueError::Malformed(bounds.beyond().map_or_else(|| error.to_string(), str::to_owned))
        })
    }
}

/// Encodes a value, for a message.
///
/// # Errors
/// [`ValueError::NotWritten`] if the format cannot represent the value.
pub fn to_bytes<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, ValueError> {
    postcard::to_stdvec(value).map_err(|error| ValueError::NotWritten(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;

    type Nested = BTreeMap<String, Vec<Option<(u64, f32)>>>;

    #[test]
    fn a_value_is_read_back_and_later_bytes_are_ignored() {
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

    /// Nothing is allocated for elements that the bytes announce but do not contain.
    #[test]
    fn untrusted_bytes_cannot_exceed_the_bounds() {
        let endless = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert!(endless.value::<Vec<u64>>().is_err() && endless.value::<String>().is_err());
        assert!([2].value::<bool>().is_err());
        let unit = endless.value::<Vec<()>>().unwrap_err();
        assert!(unit.to_string().contains("more parts"), "{unit}");
        let map = endless.value::<HashMap<u64, [u64; 32]>>().unwrap_err();
        assert!(!map.to_string().contains("parts"), "{map}");
        let list = [1; 1 << 20].value::<List>().unwrap_err();
        assert!(list.to_string().contains("deep"), "{list}");
    }

    #[test]
    fn values_within_the_bounds_are_read() {
        let mut bytes = [0; 4096];
        let units = vec![(); 4000];
        bytes.put_value(&units).unwrap();
        assert_eq!(bytes.value::<Vec<()>>().unwrap(), units);
        let deepest = |depth| (0..depth).fold(List::End, |list, _| List::More(Box::new(list)));
        bytes.put_value(&deepest(127)).unwrap();
        assert_eq!(bytes.value::<List>().unwrap(), deepest(127));
        bytes.put_value(&deepest(128)).unwrap();
        bytes.value::<List>().unwrap_err();
        let all = [
            All::Unit,
            All::Newtype(Newtype(Some(None))),
            All::Tuple(-1, 'x', 1 << 100),
            All::Struct { map: [(Some(()), 0.5)].into(), text: "text".into() },
        ];
        bytes.put_value(&all).unwrap();
        assert_eq!(bytes.value::<[All; 4]>().unwrap(), all);
    }

    /// A type that contains itself.
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    enum List {
        End,
        More(Box<Self>),
    }

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Newtype(Option<Option<bool>>);

    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    enum All {
        Unit,
        Newtype(Newtype),
        Tuple(i64, char, u128),
        Struct { map: BTreeMap<Option<()>, f64>, text: String },
    }
}
