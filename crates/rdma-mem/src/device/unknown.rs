//! Errors in finding a device.

use rdma_sys::{LoadError, UnknownProvider};

use crate::error::verb::VerbError;

/// The reason that a provider's devices are missing from the list.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// libibverbs could not be loaded.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// `RDMA_PROVIDERS` names an unknown provider.
    #[error(transparent)]
    UnknownProvider(#[from] UnknownProvider),
    /// The provider exists, but a verb failed.
    #[error("provider `{provider}`: {source}")]
    Verb {
        /// The provider's name.
        provider: &'static str,
        /// The error of the verb.
        source: VerbError,
    },
}

rdma_types::debug_messages!(enum ListError {
    Load(it), UnknownProvider(it), Verb { provider, source },
});

/// No device has the requested name.
#[derive(Clone, thiserror::Error)]
#[error("no RDMA device is named `{name}`{}", self.explain())]
#[non_exhaustive]
pub struct UnknownDevice {
    /// The requested name.
    pub name: String,
    /// The names of the devices that exist.
    pub known: Vec<String>,
    /// The errors of providers whose devices may be missing from the list.
    pub errors: Vec<ListError>,
}

rdma_types::debug_messages!(struct UnknownDevice { name, known, errors });

impl UnknownDevice {
    fn explain(&self) -> String {
        let mut text = match self.known.as_slice() {
            [] => "; no RDMA device was found".to_owned(),
            known => format!("; available: {}", known.join(", ")),
        };
        if self.name.starts_with("soft") && !self.known.iter().any(|name| name.starts_with("soft"))
        {
            text += "; software devices are listed after rdma_soft::install(), or with the \
                feature `soft` of the crate `rdma`, unless RDMA_PROVIDERS excludes them";
        }
        for error in &self.errors {
            text += &format!("; {error}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(name: &str, known: &[&str]) -> UnknownDevice {
        let known = known.iter().copied().map(str::to_owned).collect();
        UnknownDevice { name: name.to_owned(), known, errors: Vec::new() }
    }

    #[test]
    fn the_message_lists_the_names_that_exist() {
        let text = unknown("mlx5_9", &["mlx5_0", "soft0"]).to_string();
        assert_eq!(text, "no RDMA device is named `mlx5_9`; available: mlx5_0, soft0");
        assert_eq!(
            unknown("x", &[]).to_string(),
            "no RDMA device is named `x`; no RDMA device was found"
        );
    }

    #[test]
    fn the_message_hints_at_install_where_it_helps() {
        assert!(unknown("soft0", &["mlx5_0"]).to_string().contains("rdma_soft::install()"));
        assert!(!unknown("soft7", &["soft0"]).to_string().contains("install"));
        assert!(!unknown("mlx5_0", &[]).to_string().contains("install"));
    }
}
