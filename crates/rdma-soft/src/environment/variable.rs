//! Environment variables.

/// A mistake in the value of an environment variable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{variable}` has a mistake: {reason}")]
pub(crate) struct Mistake {
    pub(crate) variable: &'static str,
    /// The wrong word, and the words that are allowed.
    pub(crate) reason: String,
}

/// Returns the value of a variable, unless it is empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?.to_string_lossy().into_owned();
    (!value.is_empty()).then_some(value)
}
