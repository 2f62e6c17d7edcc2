//! Reductions of numbers.

use std::fmt;

use bytemuck::Pod;

use self::sealed::Sealed;

mod sealed {
    #[allow(unnameable_types)] // this seals the trait
    pub trait Sealed {
        /// A number that differs between types, for the check that all ranks reduce the same one.
        const CODE: u8;
        fn sum(self, other: Self) -> Self;
        fn lesser(self, other: Self) -> Self;
        fn greater(self, other: Self) -> Self;
    }
}

/// A number that collectives can reduce: `f32`, `f64`, and the integers from 8 to 64 bits.
pub trait Number: Pod + Send + Sealed {}

macro_rules! numbers {
    ($($code:literal $number:ident $sum:expr;)+) => {$(
        impl Sealed for $number {
            const CODE: u8 = $code;
            fn sum(self, other: Self) -> Self {
                $sum(self, other)
            }
            fn lesser(self, other: Self) -> Self {
                self.min(other)
            }
            fn greater(self, other: Self) -> Self {
                self.max(other)
            }
        }
        impl Number for $number {}
    )+};
}

numbers! {
    1 f32 std::ops::Add::add;
    2 f64 std::ops::Add::add;
    3 u8 Self::wrapping_add;
    4 i8 Self::wrapping_add;
    5 u16 Self::wrapping_add;
    6 i16 Self::wrapping_add;
    7 u32 Self::wrapping_add;
    8 i32 Self::wrapping_add;
    9 u64 Self::wrapping_add;
    10 i64 Self::wrapping_add;
}

/// The way that a collective combines the elements of two ranks.
///
/// The order of the combinations depends only on the collective, the number of ranks, the length of the buffer and the
/// reduction. So repeated runs return the same bits, also for floating-point numbers.
///
/// # Examples
/// ```
/// use rdma_group::Reduction;
///
/// let last = Reduction::Custom(&|_lower: u32, higher| higher); // the element of the highest rank
/// assert_eq!(format!("{last:?} {:?}", Reduction::<f32>::Sum), "Custom Sum");
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub enum Reduction<'f, T> {
    /// The sum. Integers wrap around.
    Sum,
    /// The least element. If one of two floating-point numbers is NaN, the result is the other.
    Min,
    /// The greatest element. If one of two floating-point numbers is NaN, the result is the other.
    Max,
    /// A function, which must be associative. It need not be commutative: its first argument is from lower ranks than
    /// its second. All ranks must pass the same function, which is not checked. If it panics, the group is closed. If it
    /// calls a collective of a subgroup, that call fails.
    Custom(&'f (dyn Fn(T, T) -> T + Sync)),
}

impl<T> Reduction<'_, T> {
    pub(crate) const fn code(&self) -> u8 {
        match self {
            Self::Sum => 1,
            Self::Min => 2,
            Self::Max => 3,
            Self::Custom(_) => 4,
        }
    }

    pub(crate) const fn is_commutative(&self) -> bool {
        !matches!(self, Self::Custom(_))
    }
}

/// Formats the name of the reduction.
impl<T> fmt::Debug for Reduction<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(name_of(self.code()))
    }
}

pub(crate) const fn name_of(code: u8) -> &'static str {
    match code {
        1 => "Sum",
        2 => "Min",
        3 => "Max",
        4 => "Custom",
        _ => "unknown",
    }
}

/// A function that changes elements of this rank. Its arguments are the elements and the bytes of a peer's elements.
pub(crate) type Combine<'f, T> = dyn Fn(&mut [T], &[u8], Side) + Send + Sync + 'f;

/// Whether the peer's elements are from lower or from higher ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Lower,
    Higher,
}

/// Returns the function that applies a reduction to all elements.
pub(crate) fn combine<'f, T: Number>(reduction: Reduction<'f, T>) -> Box<Combine<'f, T>> {
    fn each<T: Pod>(own: &mut [T], bytes: &[u8], side: Side, f: impl Fn(T, T) -> T) {
        let received = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned);
        for (own, received) in own.iter_mut().zip(received) {
            *own = match side {
                Side::Lower => f(received, *own),
                Side::Higher => f(*own, received),
            };
        }
    }
    match reduction {
        Reduction::Sum => Box::new(|own, bytes, side| each(own, bytes, side, T::sum)),
        Reduction::Min => Box::new(|own, bytes, side| each(own, bytes, side, T::lesser)),
        Reduction::Max => Box::new(|own, bytes, side| each(own, bytes, side, T::greater)),
        Reduction::Custom(f) => Box::new(move |own, bytes, side| each(own, bytes, side, f)),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    /// Combines elements of a lower rank with those of a higher one, on each of both ranks.
    fn combined<T: Number>(reduction: Reduction<'_, T>, lower: &[T], higher: &[T]) -> [Vec<T>; 2] {
        let combine = combine(reduction);
        let [mut on_lower, mut on_higher] = [lower.to_vec(), higher.to_vec()];
        combine(&mut on_lower, bytemuck::cast_slice(higher), Side::Higher);
        combine(&mut on_higher, bytemuck::cast_slice(lower), Side::Lower);
        [on_lower, on_higher]
    }

    /// Checks a row: two numbers, their sum, the least one, and the greatest one. `bits` distinguishes zeros.
    fn check<T: Number + Debug, B: PartialEq + Debug>(rows: &[[T; 5]], bits: impl Fn(&T) -> B) {
        let column = |at: usize| rows.iter().map(|row| row[at]).collect::<Vec<_>>();
        let bits = |values: &[T]| values.iter().map(&bits).collect::<Vec<_>>();
        let [one, other] = [0, 1].map(column);
        let reductions = [Reduction::Sum, Reduction::Min, Reduction::Max];
        for (reduction, expected) in reductions.into_iter().zip([2, 3, 4].map(column)) {
            for [lower, higher] in [[&one, &other], [&other, &one]] {
                for found in combined(reduction, lower, higher) {
                    assert_eq!(bits(&found), bits(&expected), "{reduction:?} of {rows:?}");
                }
            }
        }
        let first = combined(Reduction::Custom(&|lower, _| lower), &one, &other);
        let last = combined(Reduction::Custom(&|_, higher| higher), &one, &other);
        for (first, last) in first.iter().zip(&last) {
            assert_eq!((bits(first), bits(last)), (bits(&one), bits(&other)));
        }
    }

    macro_rules! check_integers {
        ($($number:ident)+) => {$({
            let [least, greatest] = [$number::MIN, $number::MAX];
            let rows = [
                [1, 2, 3, 1, 2],
                [0, 7, 7, 0, 7],
                // The sums wrap around.
                [greatest, 1, least, 1, greatest],
                [greatest, greatest, greatest.wrapping_mul(2), greatest, greatest],
                [least, greatest, least.wrapping_add(greatest), least, greatest],
                [least, least, least.wrapping_mul(2), least, least],
            ];
            check::<$number, _>(&rows, |number| *number);
        })+};
    }

    macro_rules! check_floats {
        ($($number:ident)+) => {$({
            let [nan, infinite, greatest] = [$number::NAN, $number::INFINITY, $number::MAX];
            let rows = [
                [1.5, -2.0, -0.5, -2.0, 1.5],
                [greatest, greatest, infinite, greatest, greatest],
                [infinite, -infinite, nan, -infinite, infinite],
                // The least and the greatest of NaN and a number is the number.
                [nan, 1.0, nan, 1.0, 1.0],
                [nan, -infinite, nan, -infinite, -infinite],
                [nan, nan, nan, nan, nan],
            ];
            // NaN has several representations.
            check::<$number, _>(&rows, |number| (!number.is_nan()).then(|| number.to_bits()));
        })+};
    }

    #[test]
    fn all_numbers_are_reduced_as_documented_in_both_orders() {
        check_integers! { u8 i8 u16 i16 u32 i32 u64 i64 }
        check_floats! { f32 f64 }
    }
}
