//! Collects the events of `tracing` in a test.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Level, Metadata, Subscriber};

/// An event, or the opening of a span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The name of the span, or `None` for an event.
    pub span: Option<&'static str>,
    /// The level of the event or span.
    pub level: Level,
    /// The target of the event or span.
    pub target: &'static str,
    /// The names of the fields, with their values as text.
    pub fields: Vec<(&'static str, String)>,
}

impl Event {
    fn of(metadata: &Metadata<'static>, span: Option<&'static str>) -> Self {
        let (level, target) = (*metadata.level(), metadata.target());
        Self { span, level, target, fields: Vec::new() }
    }

    /// Returns the value of the field with this name.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|field| field.0 == name).map(|field| field.1.as_str())
    }
}

impl Visit for Event {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.push((field.name(), format!("{value:?}")));
    }
}

/// A subscriber that calls a function for each event and each opened span, on the thread that emits
/// the event or opens the span.
#[derive(Debug)]
pub struct Hears<F>(pub F);

impl<F: Fn(Event) + 'static> Subscriber for Hears<F> {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, attributes: &Attributes<'_>) -> Id {
        let metadata = attributes.metadata();
        let mut opened = Event::of(metadata, Some(metadata.name()));
        attributes.record(&mut opened);
        (self.0)(opened);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut heard = Event::of(event.metadata(), None);
        event.record(&mut heard);
        (self.0)(heard);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Calls `work` on this thread. Returns its result, and the number of matching events that it
/// emitted.
pub fn count<T>(
    which: impl Fn(&Event) -> bool + Send + Sync + 'static,
    work: impl FnOnce() -> T,
) -> (T, u32) {
    let count = Arc::new(AtomicU32::new(0));
    let heard = Arc::clone(&count);
    let hears = Hears(move |event| {
        heard.fetch_add(which(&event).into(), Ordering::Relaxed);
    });
    let made = tracing::subscriber::with_default(hears, work);
    (made, count.load(Ordering::Relaxed))
}
