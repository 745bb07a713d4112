//! Families with a label that names somebody: not shown where names are hidden.

use forebay_wire::control::{ApplicationStatus, LimitStatus};

use super::{Figure, Kind, Ms, Text};
use crate::owners::kind_of;

/// A family with a sample for each entry that has a value.
fn sample_each<T>(
    text: &mut Text,
    (name, kind, help): (&str, Kind, &str),
    entries: &[T],
    value: impl Fn(&T) -> Option<Figure>,
    labels: impl Fn(&T) -> Vec<(&'static str, String)>,
) {
    let mut family = text.family(name, kind, help);
    for entry in entries {
        if let Some(value) = value(entry) {
            let labels = labels(entry);
            let labels: Vec<_> = labels.iter().map(|(n, v)| (*n, v.as_str())).collect();
            family.sample(&labels, value);
        }
    }
}

pub(super) fn applications(text: &mut Text, applications: &[ApplicationStatus]) {
    type Of = fn(&ApplicationStatus) -> Option<Figure>;
    let families: [(&str, &str, Of); 6] = [
        ("forebay_application_version", "Newest version seen.", |a| {
            a.version.map(Into::into)
        }),
        (
            "forebay_application_resident_bytes",
            "In the burst buffer.",
            |a| Some(a.resident_bytes.into()),
        ),
        (
            "forebay_application_undrained_bytes",
            "Of those, not yet on the PFS.",
            |a| Some(a.dirty_bytes.into()),
        ),
        (
            "forebay_application_period_written_bytes",
            "Written in this period.",
            |a| Some(a.dwsf_bytes.into()),
        ),
        (
            "forebay_application_period_expected_bytes",
            "Expected per period.",
            |a| a.dwpp_bytes.map(Into::into),
        ),
        (
            "forebay_application_mtbf_seconds",
            "Mean time between failures; before the first restart that was counted, what is assumed.",
            |a| a.mtbf_ms.map(|ms| Ms(ms).into()),
        ),
    ];
    for (name, help, of) in families {
        let labels = |a: &ApplicationStatus| vec![("application", a.name.clone())];
        sample_each(text, (name, Kind::Gauge, help), applications, of, labels);
    }
}

pub(super) fn limits(text: &mut Text, limits: &[LimitStatus]) {
    type Of = fn(&LimitStatus) -> Option<Figure>;
    let families: [(&str, Kind, &str, Of); 7] = [
        (
            "forebay_owner_held_bytes",
            Kind::Gauge,
            "Occupied or set aside by files of a user or group with a limit.",
            |l| Some(l.used_bytes.into()),
        ),
        (
            "forebay_owner_held_limit_bytes",
            Kind::Gauge,
            "What that may be, where `capacity` limits it.",
            |l| l.capacity_bytes.map(Into::into),
        ),
        (
            "forebay_owner_undrained_bytes",
            Kind::Gauge,
            "Of what is held, not yet on the PFS.",
            |l| Some(l.dirty_bytes.into()),
        ),
        (
            "forebay_owner_undrained_limit_bytes",
            Kind::Gauge,
            "What that may be, where `undrained` limits it.",
            |l| l.undrained_bytes.map(Into::into),
        ),
        (
            "forebay_owner_write_rate_limit_bytes_per_second",
            Kind::Gauge,
            "How fast its files may be written, where `rate` limits that.",
            |l| l.rate_bytes_per_s.map(Into::into),
        ),
        (
            "forebay_owner_written_bytes",
            Kind::Counter,
            "Written under that limit.",
            |l| l.rate_bytes_per_s.map(|_| l.written_bytes.into()),
        ),
        (
            "forebay_owner_write_pause_seconds",
            Kind::Counter,
            "For how long writes were held back by it, the sum of all.",
            |l| l.rate_bytes_per_s.map(|_| Ms(l.paused_ms).into()),
        ),
    ];
    let labels = |limit: &LimitStatus| {
        let kind = kind_of(limit);
        vec![
            ("kind", kind.name().to_owned()),
            ("owner", kind.name_of(limit.id)),
        ]
    };
    for (name, kind, help, of) in families {
        sample_each(text, (name, kind, help), limits, of, labels);
    }
}
