//! The providers in this process, and the order in which their devices are listed.

#![allow(unsafe_code)]

use std::{
    env, ptr,
    sync::{Mutex, PoisonError},
};

use crate::{load::system, load_error::LoadError, table::Verbs};

/// The environment variable that chooses and orders providers.
const CHOICE_VARIABLE: &str = "RDMA_PROVIDERS";

/// The name of the installed libibverbs.
const SYSTEM: &str = "system";

static REGISTERED: Mutex<Vec<&'static Verbs>> = Mutex::new(Vec::new());

/// A selected provider, available or not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Provider {
    /// The provider's [name](Verbs::name): `system`, or the name of a registered table.
    pub name: &'static str,
    /// The provider's table. For `system`, this may be the reason why the library could not be
    /// loaded. The other providers are not affected.
    pub verbs: Result<&'static Verbs, LoadError>,
}

/// An unknown provider in `RDMA_PROVIDERS`.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "RDMA_PROVIDERS names {name:?}, but the providers of this program are: {}{}",
    .known.join(", "),
    if .name.starts_with("soft") && .known == &[SYSTEM] {
        "; the software devices are added by rdma_soft::install()"
    } else {
        ""
    }
)]
#[non_exhaustive]
pub struct UnknownProvider {
    /// The name in the variable.
    pub name: String,
    /// The names of all known providers.
    pub known: Vec<&'static str>,
}

rdma_types::debug_messages!(struct UnknownProvider { name, known });

/// Adds a provider to this process, for [`providers`].
///
/// The list is global to the process and only grows. Registering the same table again changes
/// nothing. Any thread may call this at any time; results that [`providers`] has already returned
/// do not change. If two tables have the same name, they are selected together.
///
/// # Safety
/// Each function in the table must behave like the libibverbs function after which its field is
/// named. This must hold for the objects that the table itself created, from any thread (SAFETY.md
/// F2), because safe code relies on it.
pub unsafe fn register(verbs: &'static Verbs) {
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    if !registered.iter().any(|known| ptr::eq(*known, verbs)) {
        registered.push(verbs);
    }
}

/// Returns the providers whose devices are listed, in this order: the installed libibverbs
/// (`system`), then the [registered](register) ones in the order of registration.
///
/// The environment variable `RDMA_PROVIDERS`, a list such as `soft,system`, selects and orders them
/// instead; unset and empty are equivalent. libibverbs is not loaded unless it is selected.
///
/// # Errors
/// Returns an error if `RDMA_PROVIDERS` names an unknown provider. If libibverbs cannot be loaded,
/// this function does not fail; the error is in the [`Provider`].
///
/// ```
/// for provider in rdma_sys::providers()? {
///     match provider.verbs {
///         Ok(_) => println!("{}: there", provider.name),
///         Err(error) => println!("{}: {error}", provider.name),
///     }
/// }
/// # Ok::<(), rdma_sys::UnknownProvider>(())
/// ```
pub fn providers() -> Result<Vec<Provider>, UnknownProvider> {
    let registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let choice = env::var_os(CHOICE_VARIABLE).unwrap_or_default();
    let chosen = choose(&choice.to_string_lossy(), &registered)?;
    let provider = |chosen| match chosen {
        Chosen::System => Provider { name: SYSTEM, verbs: system() },
        Chosen::Registered(verbs) => Provider { name: verbs.name, verbs: Ok(verbs) },
    };
    Ok(chosen.into_iter().map(provider).collect())
}

#[derive(Clone, Copy)]
enum Chosen {
    System,
    Registered(&'static Verbs),
}

impl Chosen {
    fn name(self) -> &'static str {
        match self {
            Self::System => SYSTEM,
            Self::Registered(verbs) => verbs.name,
        }
    }
}

/// Returns the providers that the list `choice` names, in its order, each once. Returns all
/// providers if the list is empty.
fn choose(choice: &str, registered: &[&'static Verbs]) -> Result<Vec<Chosen>, UnknownProvider> {
    let mut all = vec![Chosen::System];
    all.extend(registered.iter().map(|verbs| Chosen::Registered(verbs)));

    let mut names: Vec<&str> = Vec::new();
    for name in choice.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(all);
    }
    let mut chosen = Vec::new();
    for name in names {
        let before = chosen.len();
        chosen.extend(all.iter().filter(|provider| provider.name() == name));
        if chosen.len() == before {
            let mut known: Vec<_> = all.iter().map(|provider| provider.name()).collect();
            known.dedup();
            return Err(UnknownProvider { name: name.to_owned(), known });
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn named(name: &'static str) -> Verbs {
        let mut verbs = Verbs::unsupported();
        verbs.name = name;
        verbs
    }

    static SOFT: Verbs = named("soft");
    static OTHER: Verbs = named("other");

    fn names(choice: &str) -> Vec<&'static str> {
        let chosen = choose(choice, &[&SOFT, &OTHER]).unwrap();
        chosen.into_iter().map(Chosen::name).collect()
    }

    #[test]
    fn the_default_is_system_first() {
        assert_eq!(names(""), ["system", "soft", "other"]);
        assert_eq!(names(" , "), ["system", "soft", "other"]);
    }

    #[test]
    fn the_list_chooses_and_orders() {
        assert_eq!(names("soft,system"), ["soft", "system"]);
        assert_eq!(names(" other "), ["other"]);
        assert_eq!(names("soft,soft"), ["soft"]);
    }

    #[test]
    fn an_unknown_name_is_an_error_that_lists_the_known_ones() {
        let error = choose("soft,sytsem", &[&SOFT]).err().unwrap();
        assert_eq!(error.name, "sytsem");
        assert!(error.to_string().ends_with("are: system, soft"), "{error}");
        let error = choose("soft", &[]).err().unwrap();
        assert!(error.to_string().contains("rdma_soft::install()"), "{error}");
    }

    #[test]
    fn registering_twice_is_registering_once() {
        static EXAMPLE: Verbs = named("example");
        // SAFETY: no object comes from this table, because all its functions fail (SAFETY.md F2).
        unsafe { register(&EXAMPLE) };
        // SAFETY: same argument as above.
        unsafe { register(&EXAMPLE) };
        let found = providers().unwrap();
        let examples: Vec<_> = found.iter().filter(|one| one.name == "example").collect();
        assert_eq!(examples.len(), 1);
        assert!(ptr::eq(*examples[0].verbs.as_ref().unwrap(), &raw const EXAMPLE));
    }
}
