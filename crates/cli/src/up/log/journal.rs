//! The journal of systemd, where standard error goes there: lines with a level and fields, to be
//! looked for with `journalctl`.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Subscriber};
use tracing_journald::{Priority, PriorityMappings};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::Log;
use super::limit::Kind;

/// systemd names in it the device and inode of the stream that it gave.
const STREAM: &str = "JOURNAL_STREAM";

/// Whether standard error goes to the journal. It may have been led elsewhere since.
pub(super) fn is_stderr() -> bool {
    let named = std::env::var(STREAM).unwrap_or_default();
    is_stream(&named, io::stderr())
}

fn is_stream(named: &str, fd: impl AsFd) -> bool {
    let Some((device, inode)) = named.split_once(':') else {
        return false;
    };
    rustix::fs::fstat(fd)
        .is_ok_and(|stat| device.parse() == Ok(stat.st_dev) && inode.parse() == Ok(stat.st_ino))
}

/// Hands lines to the journal, as many as the log admits.
pub(super) struct Journal {
    layer: tracing_journald::Layer,
    log: Log,
}

impl Journal {
    /// Each line names the state folder, and the mount where there is one.
    ///
    /// # Errors
    /// No journal answers.
    pub(super) fn open(log: Log, state: &Path, mount: Option<&Path>) -> io::Result<Journal> {
        let levels = PriorityMappings {
            info: Priority::Informational,
            debug: Priority::Debug,
            ..PriorityMappings::new()
        };
        let places = [("FOREBAY_STATE", Some(state)), ("FOREBAY_MOUNT", mount)];
        let places = places
            .into_iter()
            .filter_map(|(name, path)| Some((name, path?.as_os_str().as_encoded_bytes())));
        let layer = tracing_journald::layer()?
            .with_syslog_identifier("forebay".into())
            .with_priority_mappings(levels)
            .with_custom_fields(places);
        Ok(Journal { layer, log })
    }
}

impl<S> Layer<S> for Journal
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        self.layer.on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        self.layer.on_record(id, values, context);
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let kind = Kind::of(event.metadata());
        let admitted = kind.is_none_or(|kind| {
            let mut text = Message(String::new());
            event.record(&mut text);
            self.log.inner().admits(kind, text.0.as_bytes())
        });
        if admitted {
            self.layer.on_event(event, context);
        }
    }
}

/// The text of a line.
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_known_by_its_device_and_inode() {
        let file = tempfile::tempfile().expect("a file");
        let stat = rustix::fs::fstat(&file).expect("stat");
        let named = format!("{}:{}", stat.st_dev, stat.st_ino);
        assert!(is_stream(&named, &file));
        let other = tempfile::tempfile().expect("a file");
        assert!(!is_stream(&named, &other), "led elsewhere");
        for wrong in ["", "1", ":", "x:y"] {
            assert!(!is_stream(wrong, &file), "{wrong}");
        }
    }
}
