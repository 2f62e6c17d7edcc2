//! Values whose unused bit patterns store nothing else.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;

/// A `T` without its niches.
///
/// If `E` has a niche, `Result<(), E>` encodes success in that niche. If a function that is not inlined may have
/// written the error, the result is in memory. Every successful post then stores the success there and loads it again.
/// With a separate discriminant, the success stays in a register.
#[derive(Clone, Copy)]
pub(crate) struct WithoutNiche<T: Copy>(MaybeUninit<T>);

impl<T: Copy> WithoutNiche<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(MaybeUninit::new(value))
    }

    pub(crate) const fn get(&self) -> &T {
        // SAFETY: SAFETY.md F19: only `new` creates a value of this type, and it initialises it.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T: Copy + fmt::Debug> fmt::Debug for WithoutNiche<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<T: Copy + PartialEq> PartialEq for WithoutNiche<T> {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl<T: Copy + Eq> Eq for WithoutNiche<T> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_value_and_leaves_no_room_in_it() {
        let value = WithoutNiche::new(Some(true));
        assert_eq!((*value.get(), format!("{value:?}")), (Some(true), "Some(true)".to_owned()));
        assert_ne!(value, WithoutNiche::new(None));
        assert!(size_of::<Option<WithoutNiche<bool>>>() > size_of::<bool>());
    }
}
