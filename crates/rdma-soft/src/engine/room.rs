//! Memory whose size a program chooses: refused, where there is not enough of it.

use crate::engine::Refusal;

/// Takes what is more only if the machine has as much memory.
const MUCH: usize = 64 << 20;

/// A list of that many values.
pub(crate) fn boxed<T>(count: usize, value: impl FnMut() -> T) -> Result<Box<[T]>, Refusal> {
    let mut list = reserved(count)?;
    list.resize_with(count, value);
    Ok(list.into_boxed_slice())
}

/// An empty list with room for that many values.
pub(crate) fn reserved<T>(count: usize) -> Result<Vec<T>, Refusal> {
    let bytes = count.checked_mul(size_of::<T>()).ok_or(Refusal::NoRoom)?;
    if bytes > MUCH && bytes as u64 > half_of_memory() {
        return Err(Refusal::NoRoom);
    }
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Refusal::NoRoom)?;
    Ok(list)
}

/// Half of what the machine has, in bytes. The system promises more memory than there is, and kills
/// whoever then uses it, as making a queue does.
fn half_of_memory() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(system.mem_unit.into()) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_given_and_filled() {
        assert_eq!(*boxed(3, || 7).unwrap(), [7, 7, 7]);
        assert!(reserved::<u64>(100).unwrap().capacity() >= 100);
        assert!(boxed(0, || 7).unwrap().is_empty());
    }

    #[test]
    fn what_is_too_much_is_refused_and_not_touched() {
        let refused = Some(Refusal::NoRoom);
        assert_eq!(boxed(usize::MAX, || 7_u64).err(), refused);
        assert_eq!(boxed(usize::MAX / 8, || 7_u64).err(), refused);
        // The system alone might promise this much.
        let more_than_half = usize::try_from(half_of_memory()).unwrap() + 1;
        assert_eq!(boxed(more_than_half, || -> u8 { panic!("filled") }).err(), refused);
    }
}
