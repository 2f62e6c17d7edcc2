//! The way in which the program sees the files of the devices.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, anyhow};

use crate::tree::{Device, FOLDER, NODES};
use crate::{library, namespace, tree};

/// The environment variable with the folder to which `rdma-soft-files` redirects paths.
const FOLDER_VARIABLE: &str = "RDMA_DROPIN_FILES";

#[derive(Debug)]
pub(crate) enum Files {
    /// In a mount namespace.
    Namespace,
    /// The library of `rdma-soft-files` redirects their paths to a folder.
    Redirected { folder: PathBuf, library: PathBuf, why: String },
    /// Not at all.
    NotShown { why: String },
}

impl Files {
    /// Enters the namespace, if there is one.
    pub(crate) fn enter(&self) -> Result<()> {
        match self {
            Self::Namespace => namespace::enter().map_err(use_no_namespace),
            _ => Ok(()),
        }
    }

    /// Creates the files, and returns a line that describes what was done.
    pub(crate) fn show(&self, devices: &[Device]) -> Result<String> {
        Ok(match self {
            Self::Namespace => {
                namespace::show(devices).map_err(use_no_namespace)?;
                format!(
                    "{FOLDER} and {NODES} describe these devices, in the program's own mount namespace"
                )
            }
            Self::Redirected { folder, why, .. } => {
                let shown = folder.display();
                tree::write_all(devices, folder)
                    .with_context(|| format!("the files cannot be written to {shown}"))?;
                let library = library::FILES_NAME;
                format!(
                    "{FOLDER} and {NODES} describe these devices, because {library} redirects their paths to \
                    {shown} ({why})"
                )
            }
            Self::NotShown { why } => format!(
                "{FOLDER} does not describe them ({why}); middleware such as UCX and Mooncake may not find them"
            ),
        })
    }

    /// Returns the library that redirects paths.
    pub(crate) fn library(&self) -> Option<&Path> {
        match self {
            Self::Redirected { library, .. } => Some(library),
            _ => None,
        }
    }

    /// Sets the variable for the library that redirects paths.
    pub(crate) fn redirect(&self, command: &mut Command) {
        if let Self::Redirected { folder, .. } = self {
            command.env(FOLDER_VARIABLE, folder);
        }
    }
}

fn use_no_namespace(why: String) -> anyhow::Error {
    anyhow!("{why}; use --no-namespace")
}
