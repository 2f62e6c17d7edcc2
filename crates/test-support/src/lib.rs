//! What the tests of this workspace share: allocation counter, fault hooks.
