//! The result of one check.

use serde::Serialize;

/// The severity of a finding, in ascending order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Severity {
    Ok,
    /// The finding concerns only speed or taste.
    Note,
    /// Too few facts are known to decide.
    Unknown,
    /// Some programs will fail or be slow.
    Warning,
    /// Programs will fail.
    Error,
}

impl Severity {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Unknown => "unknown",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }

    /// Returns the exit status of a run in which this is the worst severity.
    pub(crate) const fn exit_status(self) -> u8 {
        match self {
            Self::Ok | Self::Note | Self::Unknown => 0,
            Self::Warning => 3,
            Self::Error => 4,
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// A stable name, such as `memlock`.
    pub(crate) check: &'static str,
    pub(crate) severity: Severity,
    /// The device that the finding concerns, such as `mlx5_0`, or its port, such as `mlx5_0/1`.
    pub(crate) subject: Option<String>,
    /// The result as text, including values.
    pub(crate) text: String,
    /// The advice to the user about the finding.
    pub(crate) cure: Option<String>,
}

impl Finding {
    pub(crate) fn new(check: &'static str, severity: Severity, text: impl Into<String>) -> Self {
        Self { check, severity, subject: None, text: text.into(), cure: None }
    }

    pub(crate) fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    pub(crate) fn cure(mut self, cure: impl Into<String>) -> Self {
        self.cure = Some(cure.into());
        self
    }
}
