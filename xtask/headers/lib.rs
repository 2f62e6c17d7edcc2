//! Only a manifest that pins a source of headers; see `Cargo.toml`.
