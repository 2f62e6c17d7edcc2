//! Allocations whose size a program chooses. They are refused if there is not enough memory.

use crate::engine::Refusal;

/// Larger allocations are first compared with the machine's memory.
const MUCH: usize = 64 << 20;

/// Reserved memory for a number of values, not touched yet. This lets an object reserve all of its memory before it
/// uses any.
#[derive(Debug)]
pub(crate) struct Room<T> {
    list: Vec<T>,
    count: usize,
}

impl<T> Room<T> {
    pub(crate) fn new(count: usize) -> Result<Self, Refusal> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or(Refusal::NoRoom)?;
        if bytes > MUCH && bytes as u64 > half_of_memory() {
            return Err(Refusal::NoRoom);
        }
        let mut list = Vec::new();
        list.try_reserve_exact(count).map_err(|_| Refusal::NoRoom)?;
        Ok(Self { list, count })
    }

    /// Reserves memory for `count * each` values.
    pub(crate) fn each(count: usize, each: usize) -> Result<Self, Refusal> {
        Self::new(count.checked_mul(each).ok_or(Refusal::NoRoom)?)
    }

    /// Returns the memory, filled with values.
    pub(crate) fn filled(mut self, value: impl FnMut() -> T) -> Box<[T]> {
        self.list.resize_with(self.count, value);
        self.list.into_boxed_slice()
    }

    /// Returns an empty list with enough capacity for the values.
    pub(crate) fn list(self) -> Vec<T> {
        self.list
    }
}

/// Returns half of the machine's memory in bytes, the limit of a single allocation. The system overcommits: it grants
/// more, but kills the process when it uses that memory. The limit prevents this for queues, which use all of their
/// memory when they are created, so that posting never waits for memory.
fn half_of_memory() -> u64 {
    let system = rustix::system::sysinfo();
    (system.totalram as u64).saturating_mul(system.mem_unit.into()) / 2
}

/// Returns true if at least twice this many bytes of memory are free, so that all of it can be allocated at once. The
/// system would otherwise end this process or another one.
pub(crate) fn has_free_memory(bytes: u64) -> bool {
    if bytes <= MUCH as u64 {
        return true;
    }
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = available.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.is_some_and(|kibibytes| bytes <= kibibytes.saturating_mul(1024) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_allocated_and_filled() {
        assert_eq!(*Room::new(3).unwrap().filled(|| 7), [7, 7, 7]);
        assert_eq!(*Room::each(2, 2).unwrap().filled(|| 7), [7, 7, 7, 7]);
        assert!(Room::<u64>::new(100).unwrap().list().capacity() >= 100);
        assert!(Room::new(0).unwrap().filled(|| 7).is_empty());
        // This is more than `MUCH`, but less than half of any machine's memory. The memory is not touched.
        assert!(Room::<u8>::new(MUCH + 1).unwrap().list().capacity() > MUCH);
    }

    #[test]
    fn too_much_memory_is_refused() {
        let refused = Some(Refusal::NoRoom);
        assert_eq!(Room::<u64>::new(usize::MAX).err(), refused);
        assert_eq!(Room::<u64>::new(usize::MAX / 8).err(), refused);
        assert_eq!(Room::<u8>::each(1 << 40, 1 << 40).err(), refused);
        // The system itself might grant this much.
        let more_than_half = usize::try_from(half_of_memory()).unwrap() + 1;
        assert_eq!(Room::<u8>::new(more_than_half).err(), refused);
    }
}
