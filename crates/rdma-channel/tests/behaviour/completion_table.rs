//! The completion table: completions for requests that are not in flight release nothing, and the results of unsignaled
//! requests are found without completions.

mod lies;
mod unsignaled;
