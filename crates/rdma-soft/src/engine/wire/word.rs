//! Words through which a process learns how many of its requests another process has executed.

/// The maximum number of connections from one process to another that can have a word.
pub(crate) const WORDS: usize = if cfg!(loom) { 2 } else { 1024 };
/// The number of words that are checked together.
const GROUP: usize = if cfg!(loom) { 2 } else { 64 };
pub(crate) const GROUPS: usize = WORDS / GROUP;

/// The key of a connection's word: the word's index, and a count of the connections that have used it. Never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WordKey(u32);

impl WordKey {
    /// Returns the key that a request carries, or `None` if it carries 0.
    pub(crate) fn of(raw: u32) -> Option<Self> {
        (raw != 0).then_some(Self(raw))
    }

    /// Returns the key of a word for its next user, after `users` earlier ones. After very many users, keys repeat.
    #[expect(clippy::cast_possible_truncation, reason = "a remainder")]
    pub(crate) fn new(index: usize, users: u32) -> Self {
        const LIVES: u32 = u32::MAX / WORDS as u32;
        let index = (index % WORDS) as u32;
        Self((1 + users % LIVES) * WORDS as u32 + index)
    }

    pub(crate) fn raw(self) -> u32 {
        self.0
    }

    pub(crate) fn index(self) -> usize {
        self.0 as usize % WORDS
    }

    pub(crate) fn group(self) -> usize {
        self.index() / GROUP
    }
}
