//! Options that an operator sets for all queue pairs of a process.

use std::env::{self, VarError};
use std::str::FromStr;

use crate::error::Error;

/// Parses the value of an environment variable; `None` if the variable is unset or empty.
pub(crate) fn parse<T: FromStr>(
    variable: &'static str,
    expected: &'static str,
) -> Result<Option<T>, Error> {
    value_of(variable, env::var(variable), expected)
}

fn value_of<T: FromStr>(
    variable: &'static str,
    value: Result<String, VarError>,
    expected: &'static str,
) -> Result<Option<T>, Error> {
    let text = match value {
        Ok(text) if text.is_empty() => return Ok(None),
        Err(VarError::NotPresent) => return Ok(None),
        Ok(text) => text,
        Err(VarError::NotUnicode(text)) => text.to_string_lossy().into_owned(),
    };
    text.trim().parse().map(Some).map_err(|_| Error::Environment {
        variable,
        value: text,
        expected,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_none_of_its_type_is_named_with_what_is_expected() {
        let value = |text: &str| value_of::<u8>("RDMA_X", Ok(text.to_owned()), "a number to 255");
        assert_eq!(value(" 7 ").unwrap(), Some(7));
        assert_eq!(value("").unwrap(), None);
        assert_eq!(value_of::<u8>("RDMA_X", Err(VarError::NotPresent), "").unwrap(), None);
        let error = value("256").unwrap_err().to_string();
        assert!(
            error.contains("RDMA_X") && error.contains("256") && error.contains("a number to 255")
        );
    }
}
