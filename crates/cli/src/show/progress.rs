//! Progress on standard error: a bar on a terminal, a line every few seconds elsewhere.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use forebay_types::format_size;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::meter::Meter;
use super::text;
use crate::out;

/// Time between lines where there is no terminal: a log of an hour's drain stays readable.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// One movement of bytes, as it is shown.
pub struct Progress {
    label: &'static str,
    begun: Instant,
    meter: Meter,
    bar: Option<ProgressBar>,
    last_line: Instant,
}

/// How far something has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// Bytes done.
    pub done: u64,
    /// Bytes in all; may grow.
    pub total: u64,
    /// What else there is to say, such as `12 of 40 files`.
    pub detail: String,
}

impl Progress {
    /// Nothing is shown until the first [`Progress::show`].
    pub fn new(label: &'static str) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar =
                ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:24}] {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.set_prefix(label);
            bar
        });
        let now = Instant::now();
        Progress {
            label,
            begun: now,
            meter: Meter::default(),
            bar,
            last_line: now,
        }
    }

    /// Shows how far it is now.
    pub fn show(&mut self, amount: &Amount) {
        self.meter
            .observe(self.begun.elapsed().as_secs_f64(), amount.done);
        let line = describe(amount, &self.meter);
        match &self.bar {
            Some(bar) => {
                bar.set_length(amount.total);
                bar.set_position(amount.done.min(amount.total));
                bar.set_message(line);
            }
            None if self.last_line.elapsed() >= LINE_EVERY => {
                self.last_line = Instant::now();
                out::complain(&format!("{}: {line}", self.label));
            }
            None => {}
        }
    }

    /// Prints a line that stays, above the bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| out::complain(line)),
            None => out::complain(line),
        }
    }

    /// Takes the bar away.
    pub fn finish(self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// `1.2 GiB of 4.0 GiB (30 %), 12 of 40 files, 110.0 MiB/s, 25 s left`.
fn describe(amount: &Amount, meter: &Meter) -> String {
    let mut line = format!(
        "{} of {} ({})",
        format_size(amount.done),
        format_size(amount.total),
        text::percent(amount.done, amount.total)
    );
    if !amount.detail.is_empty() {
        line.push_str(", ");
        line.push_str(&amount.detail);
    }
    if let Some(rate) = meter.rate() {
        line.push_str(&format!(", {}", text::rate(rate)));
    }
    match meter.eta_s(amount.total.saturating_sub(amount.done)) {
        Some(0.0) | None => {}
        Some(seconds) => line.push_str(&format!(", {} left", text::eta(seconds))),
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_much_how_fast_how_long() {
        let mut meter = Meter::default();
        let mut amount = Amount {
            done: 0,
            total: 4 << 20,
            detail: "1 of 4 files".into(),
        };
        meter.observe(0.0, 0);
        assert_eq!(
            describe(&amount, &meter),
            "0 B of 4.0 MiB (0 %), 1 of 4 files"
        );
        meter.observe(1.0, 1 << 20);
        amount.done = 1 << 20;
        assert_eq!(
            describe(&amount, &meter),
            "1.0 MiB of 4.0 MiB (25 %), 1 of 4 files, 1.0 MiB/s, 3 s left"
        );
    }
}
