//! Attribute structs that can list their fields by name.

use std::fmt::LowerHex;

/// Defines a struct of attributes. Each field has a type, a format, and an expression for its
/// value: `field: Type => format = value`. The list in parentheses declares the parameters of
/// `from_raw`, which the expressions use.
macro_rules! attributes {
    (
        $(#[$meta:meta])*
        $name:ident($($raw:ident: $Raw:ty),+) {
            $( $(#[$doc:meta])* $field:ident: $type:ty => $show:ident = $value:expr, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $( $(#[$doc])* pub $field: $type, )+
        }

        impl $name {
            pub(crate) fn from_raw($($raw: $Raw),+) -> Self {
                Self { $( $field: $value, )+ }
            }

            /// Returns each field's name and its value as text, in order, for programs that print
            /// all of them.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> + use<> {
                [$( (stringify!($field), $crate::device::fields::$show(&self.$field)), )+].into_iter()
            }
        }
    };
}
pub(crate) use attributes;

pub(crate) fn text<T: ToString>(value: &T) -> String {
    value.to_string()
}

pub(crate) fn hex<T: LowerHex>(value: &T) -> String {
    format!("{value:#x}")
}

pub(crate) fn or_unknown<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or_else(|| "unknown".to_owned(), T::to_string)
}
