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

/// Returns the value of a variable that is 0 or 1, or `None` if it is empty.
///
/// # Errors
/// Fails for any other value.
#[cfg(not(loom))]
pub(crate) fn flag(name: &'static str) -> Result<Option<bool>, Mistake> {
    match variable(name).as_deref() {
        None => Ok(None),
        Some("0") => Ok(Some(false)),
        Some("1") => Ok(Some(true)),
        Some(other) => {
            let reason = format!("`{other}` is neither 0 nor 1");
            Err(Mistake { variable: name, reason })
        }
    }
}
