//! Values in whose unused bit patterns nothing else is kept.
#![allow(unsafe_code)]

use std::fmt;
use std::mem::MaybeUninit;

/// A `T` without its niches.
///
/// A `Result<(), E>` whose `E` has a niche says there that all is well. Then it is in memory wherever a
/// function out of line may have written the error, and each post that succeeds stores that it did and
/// loads it again. With a word of its own it stays in a register.
#[derive(Clone, Copy)]
pub(crate) struct WithoutNiche<T: Copy>(MaybeUninit<T>);

impl<T: Copy> WithoutNiche<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(MaybeUninit::new(value))
    }

    pub(crate) const fn get(&self) -> &T {
        // SAFETY: SAFETY.md F19: `new` is the only way to make one.
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
