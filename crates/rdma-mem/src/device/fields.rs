//! Attributes that know the names of their fields.

use std::fmt::LowerHex;

/// A struct of attributes, and how each of them is shown: `field: Type => how`.
macro_rules! attributes {
    (
        $(#[$meta:meta])*
        $name:ident {
            $( $(#[$doc:meta])* $field:ident: $type:ty => $show:ident, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name {
            $( $(#[$doc])* pub $field: $type, )+
        }

        impl $name {
            /// Each field's name, and its value as text, in order: for programs that show them all.
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
