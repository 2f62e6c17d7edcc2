//! Macros for the number types of this crate.

/// Defines a C enum as an integer: every value is legal, and known values have a name and a text.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        $name:ident($raw:ty), $noun:literal {
            $( $(#[$doc:meta])* $known:ident = $value:expr, $text:literal; )+
        }
    ) => {
        $(#[$meta])*
        ///
        /// The set is open: a value without a constant here is kept unchanged, for example a value
        /// that a newer kernel or provider reports.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        #[cfg_attr(feature = "serde", serde(transparent))]
        #[repr(transparent)]
        pub struct $name($raw);

        impl $name {
            $( $(#[$doc])* pub const $known: Self = Self($value); )+

            /// Creates the value with this number, known or not.
            #[inline]
            pub const fn from_raw(raw: $raw) -> Self {
                Self(raw)
            }

            /// Returns the number that C uses.
            #[inline]
            pub const fn raw(self) -> $raw {
                self.0
            }

            /// Returns the name of the constant, or `None` if this value has none here.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $( Self::$known => Some(stringify!($known)), )+
                    _ => None,
                }
            }

            /// Returns the text that `Display` writes, as a C string, or `None` if this value has
            /// no constant here.
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

/// Implements the conversions for a code, a small integer that allows only `$min..=$max`. The type
/// itself, with its constructors and a private `u8`, is written by hand.
macro_rules! code {
    ($name:ident, $noun:literal, $min:literal..=$max:literal) => {
        impl $name {
            /// Returns the value with this code, or `None` if the specification does not define it.
            #[inline]
            pub const fn from_code(code: u8) -> Option<Self> {
                if matches!(code, $min..=$max) { Some(Self(code)) } else { None }
            }

            /// Returns the code, as `struct ibv_qp_attr` represents it.
            #[inline]
            pub const fn code(self) -> u8 {
                self.0
            }
        }

        impl TryFrom<u8> for $name {
            type Error = $crate::error::OutOfRangeError;

            /// Equivalent to [`from_code`](Self::from_code).
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

/// Implements the constructors and conversions for a 24-bit number with a private `u32`.
macro_rules! number24 {
    ($name:ident, $noun:literal) => {
        impl $name {
            /// The maximum value, `0xff_ffff`.
            pub const MAX: Self = Self(0xff_ffff);

            /// Creates the number, or returns `None` if it needs more than 24 bits.
            #[inline]
            pub const fn new(number: u32) -> Option<Self> {
                if number <= Self::MAX.0 { Some(Self(number)) } else { None }
            }

            /// Creates the number from the low 24 bits, and drops the upper 8. Use this for words
            /// in packets whose upper byte has another meaning, and for random numbers.
            #[inline]
            pub const fn masked(word: u32) -> Self {
                Self(word & Self::MAX.0)
            }

            /// Returns the number, at most `0xff_ffff`.
            #[inline]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl TryFrom<u32> for $name {
            type Error = $crate::error::OutOfRangeError;

            /// Equivalent to [`new`](Self::new).
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
            /// Writes the number in hex, as packet traces and the kernel's logs do.
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

/// Defines C flags: every bit is kept, and known bits are displayed by name.
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

/// Implements `Display` for flags.
macro_rules! flags_display {
    ($name:ident) => {
        impl core::fmt::Display for $name {
            /// Writes the names, joined with ` | `, and unnamed bits in hex; `none` if no bit is
            /// set.
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
