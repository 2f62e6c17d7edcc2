//! Error messages in `Debug` output. A program prints an error with `Debug` in `unwrap`, in
//! `expect`, and when `main` returns it.

use alloc::string::ToString;
use core::error::Error;
use core::fmt::{Debug, Formatter, Result};

/// Writes the messages of an error and its sources. Writes each message only once, because many
/// messages contain the message of their source.
#[doc(hidden)]
pub fn write_messages(error: &(dyn Error + '_), f: &mut Formatter<'_>) -> Result {
    let mut written = error.to_string();
    f.write_str(&written)?;
    let mut next = error.source();
    while let Some(source) = next {
        let message = source.to_string();
        if !written.contains(&message) {
            write!(f, ": {message}")?;
            written.push_str(&message);
        }
        next = source.source();
    }
    Ok(())
}

/// A named field of an error. A tuple field's name is empty.
#[doc(hidden)]
pub type NamedField<'a> = (&'static str, &'a dyn Debug);

/// Writes an error in the format of `derive(Debug)`.
#[doc(hidden)]
pub fn write_fields(name: &str, fields: &[NamedField<'_>], f: &mut Formatter<'_>) -> Result {
    if fields.iter().any(|(field, _)| field.is_empty()) {
        let mut tuple = f.debug_tuple(name);
        fields.iter().for_each(|(_, value)| {
            tuple.field(value);
        });
        return tuple.finish();
    }
    let mut fields_of = f.debug_struct(name);
    fields.iter().for_each(|(field, value)| {
        fields_of.field(field, value);
    });
    fields_of.finish()
}

/// Implements `Debug` for an error: `{:?}` writes its message and the messages of its sources;
/// `{:#?}` writes its fields.
///
/// All variants and fields have to be listed; the compiler checks that. The macro is for the crates of this workspace.
///
/// ```
/// use core::fmt;
///
/// enum Refused {
///     Busy,
///     Late { by: u32 },
/// }
///
/// impl fmt::Display for Refused {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         match self {
///             Self::Busy => f.write_str("busy"),
///             Self::Late { by } => write!(f, "late by {by} s"),
///         }
///     }
/// }
///
/// impl core::error::Error for Refused {}
///
/// rdma_types::debug_messages!(enum Refused { Busy, Late { by } });
///
/// assert_eq!(format!("{:?}", Refused::Late { by: 3 }), "late by 3 s");
/// assert_eq!(format!("{:#?}", Refused::Busy), "Busy");
/// assert_eq!(format!("{:#?}", Refused::Late { by: 3 }), "Late {\n    by: 3,\n}");
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! debug_messages {
    (struct $name:ident $(< $parameter:ident : $bound:path >)? $( ( $($tuple:ident),+ ) )? $( { $($field:ident),+ } )?) => {
        impl $(< $parameter: $bound >)? ::core::fmt::Debug for $name $(< $parameter >)? {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                if !f.alternate() {
                    return $crate::messages::write_messages(self, f);
                }
                let Self $( ( $($tuple),+ ) )? $( { $($field),+ } )? = self;
                $crate::messages::write_fields(
                    stringify!($name),
                    &[ $( $( ("", $tuple) ),+ )? $( $( (stringify!($field), $field) ),+ )? ],
                    f,
                )
            }
        }
    };
    (enum $name:ident { $( $variant:ident $( ( $($tuple:ident),+ ) )? $( { $($field:ident),+ } )? ),+ $(,)? }) => {
        impl ::core::fmt::Debug for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                if !f.alternate() {
                    return $crate::messages::write_messages(self, f);
                }
                match self {
                    $( Self::$variant $( ( $($tuple),+ ) )? $( { $($field),+ } )? => {
                        $crate::messages::write_fields(
                            stringify!($variant),
                            &[ $( $( ("", $tuple) ),+ )? $( $( (stringify!($field), $field) ),+ )? ],
                            f,
                        )
                    } )+
                }
            }
        }
    };
}
