//! Scenarios of any size for the benchmarks of the twin.

use forebay_twin::scenario::{Scenario, ScenarioError};

/// How often an application writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interval {
    /// 10 GB a day.
    Day,
    /// 10 GB an hour.
    Hour,
}

impl Interval {
    /// Its length in seconds.
    pub fn seconds(self) -> u32 {
        match self {
            Self::Day => 86_400,
            Self::Hour => 3_600,
        }
    }
}

/// `applications` that each write a checkpoint every `interval` for `days`, at random times,
/// against a burst buffer and a PFS that grow with them, so that every size is equally loaded.
/// Failures are real: each application fails about once a month.
pub fn scenario(
    applications: u32,
    days: u32,
    interval: Interval,
) -> Result<Scenario, ScenarioError> {
    let n = f64::from(applications);
    let seconds = interval.seconds();
    // Together they write 0.25 Bwmax.
    let rate = |share: f64| n * 10e9 / f64::from(seconds) * share;
    let text = format!(
        "duration = \"{days}d\"\n[bb]\ncapacity = {:.0}\nbw_max = {:.0}\nbw_min = {:.0}\nbr_max = {:.0}\nbr_min = {:.0}\n\
         [plan]\nperiod = {seconds}\ndwpp = \"predicted\"\n[failures]\nmode = \"process\"\n\
         [[application]]\ncount = {applications}\ncheckpoint = \"10GB\"\ninterval = {seconds}\njitter = 0.2\nversions = 3\n\
         mtbf = {{ exponential = \"30d\" }}\n",
        n * 5e9,
        rate(4.0),
        rate(3.0),
        rate(2.0),
        rate(0.1),
    );
    Scenario::parse(&text, &[])
}
