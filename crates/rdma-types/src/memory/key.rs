//! The keys of registered memory.

use core::fmt;

macro_rules! key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        #[repr(transparent)]
        pub struct $name(u32);

        impl $name {
            /// Creates a key from its number in host order.
            #[inline]
            pub const fn new(key: u32) -> Self {
                Self(key)
            }

            /// Returns the number in host order.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl From<u32> for $name {
            #[inline]
            fn from(key: u32) -> Self {
                Self(key)
            }
        }

        impl From<$name> for u32 {
            #[inline]
            fn from(key: $name) -> Self {
                key.0
            }
        }

        impl PartialEq<u32> for $name {
            #[inline]
            fn eq(&self, other: &u32) -> bool {
                self.0 == *other
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#010x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#010x})"), self.0)
            }
        }
    };
}

key! {
    /// A local key, which names registered memory in the scatter/gather elements of this machine's
    /// own work requests (`ibv_mr.lkey`).
    ///
    /// ```
    /// use rdma_types::Lkey;
    ///
    /// let lkey = Lkey::from(0x1200);
    /// assert_eq!(lkey, 0x1200);
    /// assert_eq!(lkey.to_string(), "0x00001200");
    /// ```
    Lkey
}

key! {
    /// A remote key: a peer that knows the key may use registered memory as the memory's access
    /// flags allow (`ibv_mr.rkey`, `ibv_mw.rkey`).
    ///
    /// ```
    /// use rdma_types::Rkey;
    ///
    /// let rkey = Rkey::from(0x1200);
    /// assert_eq!(rkey, 0x1200);
    /// assert_eq!(format!("{rkey:?}"), "Rkey(0x00001200)");
    /// ```
    Rkey
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_any_32_bits() {
        for number in [0, 1, 0x8000_0000, u32::MAX] {
            assert_eq!(u32::from(Lkey::new(number)), number);
            assert_eq!(Rkey::from(number).get(), number);
            assert_eq!(Rkey::new(number), number);
            assert_ne!(Lkey::new(number), number ^ 1);
        }
    }
}
