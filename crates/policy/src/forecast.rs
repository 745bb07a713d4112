//! What a period will bring: DWSF is counted, DWPP predicted from the periods before (BBOS, facts
//! about checkpoints: data written per period is steady).
//!
//! The estimator is Holt's linear method (level and trend, smoothed exponentially) with a margin on
//! top, since too high a prediction slows writes a little and too low a one stalls them. Its error,
//! by the tests of this module over 200 seeded series of 60 periods each, the first five left out
//! (mean absolute error of the expectation; share of periods whose data exceeded the prediction
//! with margin):
//!
//! | series | error | exceeded |
//! | --- | --- | --- |
//! | steady: ±5 % | below 4 % | below 5 % |
//! | drifting: grows 2 % a period, ±5 % | below 4 % | below 7 % |
//! | bursty: every fifth period brings thrice as much, ±5 % | below 60 % | below 22 %: the bursts themselves |
//!
//! A burst that comes without warning cannot be foreseen: what then keeps writes from stalling are
//! the thresholds of [`crate::trigger`], not the plan.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Weight of the newest period in the level: half is forgotten with every period.
const LEVEL_WEIGHT: f64 = 0.35;
/// Weight of the newest change in the trend.
const TREND_WEIGHT: f64 = 0.15;
/// Weight of the newest error in the mean error.
const ERROR_WEIGHT: f64 = 0.25;
/// The margin is that many mean errors: of normal errors, one in eighty exceeds 2.5 of them on one
/// side.
const MARGIN_ERRORS: f64 = 2.5;
/// Least margin, as a share of the expectation.
const MARGIN_MIN: f64 = 0.02;
/// After one period its error is not known; taken for this share of it. Data written per period is
/// steady (BBOS), and a margin that asks for more than can be served slows writes from the first
/// byte on.
const FIRST_ERROR: f64 = 0.03;

/// Predicts the next value of a series of bytes per period.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Forecast {
    level_bytes: f64,
    trend_bytes: f64,
    error_bytes: f64,
    periods: u32,
}

impl Forecast {
    /// A period has ended with `bytes` written.
    pub fn observe(&mut self, bytes: u64) {
        let value = bytes as f64;
        if self.periods == 0 {
            self.level_bytes = value;
            self.error_bytes = value * FIRST_ERROR;
        } else {
            let expected = self.level_bytes + self.trend_bytes;
            self.error_bytes += ERROR_WEIGHT * ((value - expected).abs() - self.error_bytes);
            let before = self.level_bytes;
            self.level_bytes = expected + LEVEL_WEIGHT * (value - expected);
            self.trend_bytes += TREND_WEIGHT * ((self.level_bytes - before) - self.trend_bytes);
        }
        self.periods = self.periods.saturating_add(1);
    }

    /// The most likely value; `None` before the first period has ended.
    pub fn expected_bytes(&self) -> Option<u64> {
        // `as` saturates: a negative trend ends at 0.
        (self.periods > 0).then_some((self.level_bytes + self.trend_bytes) as u64)
    }

    /// The value to plan with: the expectation and its margin. `None` before the first period has
    /// ended.
    pub fn planned_bytes(&self) -> Option<u64> {
        let expected = self.expected_bytes()? as f64;
        let margin = (self.error_bytes * MARGIN_ERRORS).max(expected * MARGIN_MIN);
        Some((expected + margin) as u64)
    }

    /// Periods seen.
    pub fn periods(&self) -> u32 {
        self.periods
    }

    /// Whether stored numbers make sense; others are to be thrown away.
    pub fn is_sound(&self) -> bool {
        [self.level_bytes, self.trend_bytes, self.error_bytes]
            .iter()
            .all(|v| v.is_finite())
            && self.error_bytes >= 0.0
    }
}

/// Why a period is refused.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("the period must be a positive number of seconds, not {0}")]
pub struct BadPeriod(pub f64);

/// Counts DWSF and predicts DWPP.
///
/// A period begins with the first byte after the one before has ended, so that a burst is not cut
/// in two where periods and bursts are of one length. Time without bytes belongs to no period: it
/// says nothing about the next burst.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Meter {
    period_s: f64,
    begun_s: Option<f64>,
    dwsf_bytes: u64,
    forecast: Forecast,
}

impl Meter {
    /// Nothing known yet.
    pub fn new(period_s: f64) -> Result<Self, BadPeriod> {
        if !(period_s.is_finite() && period_s > 0.0) {
            return Err(BadPeriod(period_s));
        }
        Ok(Self {
            period_s,
            begun_s: None,
            dwsf_bytes: 0,
            forecast: Forecast::default(),
        })
    }

    /// `bytes` were written into the burst buffer.
    pub fn on_write(&mut self, bytes: u64, now_s: f64) {
        self.advance(now_s);
        if bytes > 0 {
            self.begun_s.get_or_insert(now_s);
            self.dwsf_bytes = self.dwsf_bytes.saturating_add(bytes);
        }
    }

    /// Ends the period if it is over.
    pub fn advance(&mut self, now_s: f64) {
        let Some(begun_s) = self.begun_s else {
            return;
        };
        if now_s < begun_s {
            // A clock that was set back would make this period longer than any.
            self.begun_s = Some(now_s);
        } else if now_s - begun_s >= self.period_s {
            self.forecast.observe(self.dwsf_bytes);
            self.dwsf_bytes = 0;
            self.begun_s = None;
        }
    }

    /// DWSF: bytes written so far in this period; 0 between two.
    pub fn dwsf_bytes(&mut self, now_s: f64) -> u64 {
        self.advance(now_s);
        self.dwsf_bytes
    }

    /// DWPP: what this period is planned to bring, at least what it has brought already. `None` in
    /// the first period, of which nothing is known.
    pub fn dwpp_bytes(&mut self, now_s: f64) -> Option<u64> {
        self.advance(now_s);
        Some(self.forecast.planned_bytes()?.max(self.dwsf_bytes))
    }

    /// The prediction behind it.
    pub fn forecast(&self) -> &Forecast {
        &self.forecast
    }

    /// Length of a period.
    pub fn period_s(&self) -> f64 {
        self.period_s
    }

    /// Begin of the period under way.
    pub fn begun_s(&self) -> Option<f64> {
        self.begun_s
    }
}

/// Applications remembered by a [`Learner`]; the one whose period began longest ago is forgotten
/// first.
pub const MAX_LEARNED_APPLICATIONS: usize = 4096;

/// What is learned about one application.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Learned {
    meter: Meter,
    written_s: f64,
}

/// Meters for the whole burst buffer and for each application. `K` names applications. Serialise it
/// to let it survive a restart; times must then be of a clock that does, such as seconds
/// since 1970.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Serialize + Ord",
    deserialize = "K: Deserialize<'de> + Ord"
))]
pub struct Learner<K: Ord> {
    whole: Meter,
    applications: BTreeMap<K, Learned>,
}

impl<K: Ord + Clone> Learner<K> {
    /// Nothing known yet.
    pub fn new(period_s: f64) -> Result<Self, BadPeriod> {
        Ok(Self {
            whole: Meter::new(period_s)?,
            applications: BTreeMap::new(),
        })
    }

    /// Continues with what was stored, unless it is damaged or of periods of another length: then
    /// anew.
    pub fn restored(stored: Option<Self>, period_s: f64) -> Result<Self, BadPeriod> {
        let fresh = Self::new(period_s)?;
        let fits = |m: &Meter| m.period_s == period_s && m.forecast.is_sound();
        Ok(match stored {
            Some(stored)
                if fits(&stored.whole) && stored.applications.values().all(|a| fits(&a.meter)) =>
            {
                stored
            }
            _ => fresh,
        })
    }

    /// An application wrote `bytes` into the burst buffer.
    pub fn on_write(&mut self, application: &K, bytes: u64, now_s: f64) {
        self.whole.on_write(bytes, now_s);
        if let Some(learned) = self.applications.get_mut(application) {
            learned.meter.on_write(bytes, now_s);
            learned.written_s = now_s;
            return;
        }
        if self.applications.len() >= MAX_LEARNED_APPLICATIONS {
            let oldest = self
                .applications
                .iter()
                .min_by(|a, b| a.1.written_s.total_cmp(&b.1.written_s));
            if let Some(oldest) = oldest.map(|(k, _)| k.clone()) {
                self.applications.remove(&oldest);
            }
        }
        let mut meter = Meter {
            begun_s: None,
            dwsf_bytes: 0,
            forecast: Forecast::default(),
            ..self.whole
        };
        meter.on_write(bytes, now_s);
        let learned = Learned {
            meter,
            written_s: now_s,
        };
        self.applications.insert(application.clone(), learned);
    }

    /// The same with those applications only that bring most in a period, as long as `fits` takes
    /// them: what is kept where there is room for so much.
    pub fn worthiest(&self, mut fits: impl FnMut(&K) -> bool) -> Self {
        let brings = |learned: &Learned| {
            let meter = &learned.meter;
            let expected = meter.forecast.expected_bytes().unwrap_or(0);
            expected.max(meter.dwsf_bytes)
        };
        let mut all: Vec<_> = self.applications.iter().collect();
        all.sort_by_key(|(_, learned)| std::cmp::Reverse(brings(learned)));
        let kept = all.into_iter().take_while(|(name, _)| fits(name));
        Self {
            whole: self.whole,
            applications: kept.map(|(name, l)| (name.clone(), *l)).collect(),
        }
    }

    /// All applications together.
    pub fn whole(&mut self) -> &mut Meter {
        &mut self.whole
    }

    /// One of them, if it has written anything.
    pub fn application(&mut self, application: &K) -> Option<&mut Meter> {
        Some(&mut self.applications.get_mut(application)?.meter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A small generator of reproducible noise, -1 to 1.
    struct Noise(u64);

    impl Noise {
        fn next(&mut self) -> f64 {
            self.0 = self
                .0
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1u64 << 52) as f64 - 1.0
        }
    }

    /// Mean absolute error of the expectation and share of periods above the plan.
    fn judge(series: impl Fn(usize) -> f64) -> (f64, f64) {
        let (mut error, mut exceeded, mut count) = (0.0, 0.0, 0.0);
        for seed in 1..=200 {
            let mut noise = Noise(seed);
            let mut forecast = Forecast::default();
            for period in 0..60 {
                let value = series(period) * (1.0 + 0.05 * noise.next());
                if period >= 5 {
                    let expected = forecast.expected_bytes().expect("known") as f64;
                    let planned = forecast.planned_bytes().expect("known") as f64;
                    error += (value - expected).abs() / value;
                    exceeded += f64::from(u8::from(value > planned));
                    count += 1.0;
                }
                forecast.observe(value as u64);
            }
        }
        (error / count, exceeded / count)
    }

    #[test]
    fn errors_are_as_documented() {
        let (error, exceeded) = judge(|_| 4e12);
        assert!(error < 0.04 && exceeded < 0.05, "steady {error} {exceeded}");
        let (error, exceeded) = judge(|p| 1e12 * 1.02f64.powi(p as i32));
        assert!(
            error < 0.04 && exceeded < 0.07,
            "drifting {error} {exceeded}"
        );
        let (error, exceeded) = judge(|p| if p % 5 == 4 { 3e12 } else { 1e12 });
        assert!(error < 0.60 && exceeded < 0.22, "bursty {error} {exceeded}");
    }

    #[test]
    fn a_step_is_followed_within_four_periods() {
        let mut forecast = Forecast::default();
        (0..10).for_each(|_| forecast.observe(1000));
        (0..4).for_each(|_| forecast.observe(2000));
        assert!(forecast.planned_bytes().expect("known") >= 2000);
    }

    #[test]
    fn those_that_bring_most_are_kept() {
        let mut learner = Learner::<u32>::new(100.0).expect("valid");
        for application in 0..10 {
            learner.on_write(&application, u64::from(application) * 1000, 0.0);
        }
        // In its first period of two: what it brought before counts, too.
        learner.on_write(&3, 1_000_000, 1.0);
        learner.on_write(&3, 1, 200.0);
        let mut left = 3;
        let kept = learner.worthiest(|_| {
            left -= 1;
            left >= 0
        });
        let names: Vec<_> = kept.applications.keys().copied().collect();
        assert_eq!(names, [3, 8, 9]);
        assert_eq!(kept.whole, learner.whole);
    }

    #[test]
    fn periods_begin_with_a_byte() {
        let mut meter = Meter::new(100.0).expect("valid");
        assert_eq!(meter.dwpp_bytes(0.0), None);
        meter.on_write(10, 50.0);
        meter.on_write(10, 149.0);
        assert_eq!(
            (meter.dwsf_bytes(149.0), meter.dwpp_bytes(149.0)),
            (20, None)
        );
        assert_eq!(meter.dwsf_bytes(150.0), 0);
        assert_eq!(meter.dwpp_bytes(150.0), Some(21));
        meter.on_write(40, 1000.0);
        assert_eq!(meter.dwpp_bytes(1000.0), Some(40), "at least what came");
        assert_eq!(meter.forecast().periods(), 1, "idle time is no period");
    }

    #[test]
    fn bad_periods_are_refused() {
        for period_s in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Meter::new(period_s).is_err());
            assert!(Learner::<u64>::new(period_s).is_err());
        }
    }

    #[test]
    fn applications_are_counted_apart_and_bounded() {
        let mut learner = Learner::new(10.0).expect("valid");
        for app in 0..MAX_LEARNED_APPLICATIONS as u64 + 10 {
            learner.on_write(&app, 1, app as f64 * 1e-3);
        }
        assert!(
            learner.application(&0).is_none(),
            "the oldest was forgotten"
        );
        let newest = MAX_LEARNED_APPLICATIONS as u64 + 9;
        assert_eq!(
            learner.application(&newest).expect("known").dwsf_bytes(5.0),
            1
        );
        assert_eq!(learner.whole().dwsf_bytes(5.0), newest + 1);
    }

    #[test]
    fn what_was_learned_survives_and_damage_does_not() {
        let mut learner = Learner::new(10.0).expect("valid");
        for period in 0..5 {
            learner.on_write(&"a".to_string(), 1000, f64::from(period) * 11.0);
        }
        let text = serde_json::to_string(&learner).expect("serialises");
        let stored: Learner<String> = serde_json::from_str(&text).expect("parses");
        let mut restored = Learner::restored(Some(stored.clone()), 10.0).expect("valid");
        assert_eq!(restored, learner);
        assert_eq!(
            restored.whole().dwpp_bytes(44.5),
            learner.whole().dwpp_bytes(44.5)
        );
        let mut other = Learner::restored(Some(stored.clone()), 20.0).expect("valid");
        assert_eq!(other.whole().dwpp_bytes(44.5), None);
        let mut damaged = stored;
        damaged.whole.forecast.level_bytes = f64::NAN;
        let mut anew = Learner::restored(Some(damaged), 10.0).expect("valid");
        assert_eq!(anew.whole().dwpp_bytes(44.5), None);
    }

    proptest! {
        #[test]
        fn dwpp_is_never_below_dwsf(steps in proptest::collection::vec((0u64..1u64 << 50, -5.0f64..40.0), 0..100)) {
            let mut meter = Meter::new(10.0).expect("valid");
            let mut now_s: f64 = 0.0;
            for (bytes, gap_s) in steps {
                now_s += gap_s;
                meter.on_write(bytes, now_s);
                let dwsf = meter.dwsf_bytes(now_s);
                prop_assert!(meter.dwpp_bytes(now_s).is_none_or(|dwpp| dwpp >= dwsf));
                prop_assert!(meter.forecast().is_sound());
            }
        }

        #[test]
        fn the_whole_is_the_sum_within_one_period(writes in proptest::collection::vec((0u8..5, 0u64..1000), 1..50)) {
            let mut learner = Learner::new(1e6).expect("valid");
            for (i, (app, bytes)) in writes.iter().enumerate() {
                learner.on_write(app, *bytes, i as f64);
            }
            let end_s = writes.len() as f64;
            let apart: u64 = (0..5u8).filter_map(|a| learner.application(&a).map(|m| m.dwsf_bytes(end_s))).sum();
            prop_assert_eq!(apart, learner.whole().dwsf_bytes(end_s));
        }
    }
}
