//! The shapes that several numbers share.

/// A C enum as an integer: every value is legal, the known ones have a name and a text.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $name:ident($raw:ty), $noun:literal {
            $( $(#[$doc:meta])* $known:ident = $value:expr, $text:literal; )+
        }
    ) => {
        $(#[$meta])*
        ///
        /// An open set: a value without a constant here is kept as it is, so that what a newer
        /// kernel or provider reports is data.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            $( $(#[$doc])* pub const $known: Self = Self($value); )+

            /// The value with this number, known or not.
            #[inline]
            pub const fn from_raw(raw: $raw) -> Self {
                Self(raw)
            }

            /// The number that C uses.
            #[inline]
            pub const fn raw(self) -> $raw {
                self.0
            }

            /// The name of the constant; `None` if this value has none here.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$known => Some(stringify!($known)), )+
                    _ => None,
                }
            }

            /// The text of `Display` as C wants it; `None` if this value has no constant here.
            pub const fn c_text(self) -> Option<&'static core::ffi::CStr> {
                let text = match self {
                    $( Self::$known => concat!($text, "\0"), )+
                    _ => return None,
                };
                match core::ffi::CStr::from_bytes_with_nul(text.as_bytes()) {
                    Ok(text) => Some(text),
                    Err(_) => None,
                }
            }
        }

        impl From<$raw> for $name {
            #[inline]
            fn from(raw: $raw) -> Self {
                Self(raw)
            }
        }

        impl From<$name> for $raw {
            #[inline]
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self {
                    $( Self::$known => f.pad($text), )+
                    Self(raw) => write!(f, concat!("unknown ", $noun, " {}"), raw),
                }
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => write!(f, concat!(stringify!($name), "::{}"), name),
                    None => write!(f, concat!(stringify!($name), "({})"), self.0),
                }
            }
        }
    };
}

/// The conversions of a code: a small integer of which only `$min..=$max` are legal. The type itself
/// is written by hand, with its constructors, beside a private `u8`.
macro_rules! code {
    ($name:ident, $noun:literal, $min:literal..=$max:literal) => {
        impl $name {
            /// The value with this code, or `None` if the specification defines no such code.
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                if matches!(code, $min..=$max) { Some(Self(code)) } else { None }
            }

            /// The code, as `struct ibv_qp_attr` carries it.
            #[inline]
            pub const fn code(self) -> u8 {
                self.0
            }
        }

        impl TryFrom<u8> for $name {
            type Error = $crate::error::OutOfRangeError;

            /// As [`from_code`](Self::from_code).
            #[inline]
            fn try_from(code: u8) -> Result<Self, Self::Error> {
                let error = $crate::error::OutOfRangeError::new($noun, code as u32, $min, $max);
                Self::from_code(code).ok_or(error)
            }
        }

        impl From<$name> for u8 {
            #[inline]
            fn from(value: $name) -> Self {
                value.0
            }
        }
    };
}

/// The constructors and conversions of a 24-bit number, beside a private `u32`.
macro_rules! number24 {
    ($name:ident, $noun:literal) => {
        impl $name {
            /// The greatest one, `0xff_ffff`.
            pub const MAX: Self = Self(0xff_ffff);

            /// The number, or `None` if it needs more than 24 bits.
            #[inline]
            pub const fn new(number: u32) -> Option<Self> {
                if number <= Self::MAX.0 { Some(Self(number)) } else { None }
            }

            /// The low 24 bits; the upper 8 are dropped. For words of a packet whose upper byte means
            /// something else, and for random numbers.
            #[inline]
            pub const fn masked(word: u32) -> Self {
                Self(word & Self::MAX.0)
            }

            /// The number, at most `0xff_ffff`.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl TryFrom<u32> for $name {
            type Error = $crate::error::OutOfRangeError;

            /// As [`new`](Self::new).
            #[inline]
            fn try_from(number: u32) -> Result<Self, Self::Error> {
                let error = $crate::error::OutOfRangeError::new($noun, number, 0, Self::MAX.0);
                Self::new(number).ok_or(error)
            }
        }

        impl From<$name> for u32 {
            #[inline]
            fn from(value: $name) -> Self {
                value.0
            }
        }

        impl core::fmt::Display for $name {
            /// In hex, as packet traces and the kernel's logs have it.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                write!(f, concat!(stringify!($name), "({:#08x})"), self.0)
            }
        }
    };
}

/// Flags of C: every bit is kept, those with a name are shown by it.
macro_rules! open_flags {
    (
        $(#[$meta:meta])*
        $name:ident($raw:ty) {
            $( $(#[$doc:ident $($text:tt)*])* $known:ident = $value:expr; )+
        }
    ) => {
        bitflags::bitflags! {
            $(#[$meta])*
            ///
            /// Bits without a name here are kept.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
            #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
            #[cfg_attr(feature = "serde", serde(transparent))]
            #[repr(transparent)]
            pub struct $name: $raw {
                $( $(#[$doc $($text)*])* const $known = $value; )+
                const _ = !0;
            }
        }

        $crate::macros::flags_display!($name);
    };
}

/// How flags are shown.
macro_rules! flags_display {
    ($name:ident) => {
        impl core::fmt::Display for $name {
            /// The names, joined by ` | `, and unnamed bits in hex; `none` if there are none.
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                if self.is_empty() {
                    f.write_str("none")
                } else {
                    bitflags::parser::to_writer(self, f)
                }
            }
        }
    };
}

pub(crate) use {code, flags_display, number24, open_enum, open_flags};
