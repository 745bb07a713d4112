//! When a bandwidth has been measured: one number says nothing about how far the next will be from
//! it.

/// Tries that must agree.
const AGREEING: usize = 3;
/// They agree if they lie within this share of their median.
const AGREEMENT: f64 = 0.15;
/// After so many tries it is over.
const TRIES_MAX: usize = 9;
/// Where no [`AGREEING`] tries agree, the middle half of all must lie within this share of their
/// median.
const SPREAD_MAX: f64 = 0.5;

/// What tries of one measurement say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Measure again.
    Again,
    /// The rate, and how far tries lie apart, as a share of it.
    Settled {
        /// Median.
        rate: f64,
        /// Width of what it is the median of, as a share of it.
        spread: f64,
    },
    /// There is no such rate.
    Unsettled {
        /// Lowest try.
        low: f64,
        /// Highest try.
        high: f64,
    },
}

/// Judges the rates of all tries, in their order. The first tries of a device or a file system are
/// often its slowest or its fastest, so the last ones count where they agree.
pub fn judge(rates: &[f64]) -> Verdict {
    let Some(last) = rates.len().checked_sub(AGREEING) else {
        return Verdict::Again;
    };
    let (rate, spread) = middle(&rates[last..], 0);
    if spread <= AGREEMENT {
        return Verdict::Settled { rate, spread };
    }
    if rates.len() < TRIES_MAX {
        return Verdict::Again;
    }
    let (rate, spread) = middle(rates, rates.len() / 4);
    match spread <= SPREAD_MAX {
        true => Verdict::Settled { rate, spread },
        false => Verdict::Unsettled {
            low: rates.iter().copied().fold(f64::INFINITY, f64::min),
            high: rates.iter().copied().fold(0.0, f64::max),
        },
    }
}

/// Median, and the width without so many at both ends as a share of it.
fn middle(rates: &[f64], without: usize) -> (f64, f64) {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rate = sorted[sorted.len() / 2];
    let width = sorted[sorted.len() - 1 - without] - sorted[without];
    (rate, if rate > 0.0 { width / rate } else { 0.0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goes on until there is a verdict; how many tries that took.
    fn run(rates: impl IntoIterator<Item = f64>) -> (usize, Verdict) {
        let mut seen = Vec::new();
        for rate in rates {
            seen.push(rate);
            match judge(&seen) {
                Verdict::Again => {}
                verdict => return (seen.len(), verdict),
            }
        }
        (seen.len(), Verdict::Again)
    }

    #[test]
    fn tries_go_on_until_three_in_a_row_agree() {
        let (tries, verdict) = run([100.0, 104.0, 98.0]);
        assert_eq!(tries, 3);
        assert_eq!(
            verdict,
            Verdict::Settled {
                rate: 100.0,
                spread: 0.06
            }
        );
        // Two that are alike by chance, before the device is what it will be.
        let (tries, verdict) = run([449.0, 449.0, 2300.0, 2310.0, 2290.0, 449.0]);
        assert_eq!(tries, 5);
        assert!(
            matches!(verdict, Verdict::Settled { rate: 2300.0, .. }),
            "{verdict:?}"
        );
    }

    #[test]
    fn what_does_not_settle_has_its_spread_stated_or_is_refused() {
        let (tries, verdict) = run((0..).map(|at| 100.0 + 20.0 * f64::from(at % 3)));
        assert_eq!(tries, TRIES_MAX);
        assert!(
            matches!(verdict, Verdict::Settled { rate: 120.0, spread } if spread > AGREEMENT),
            "{verdict:?}"
        );
        let (tries, verdict) = run((0..).map(|at| if at % 2 == 0 { 449.0 } else { 2300.0 }));
        assert_eq!(tries, TRIES_MAX);
        let refused = Verdict::Unsettled {
            low: 449.0,
            high: 2300.0,
        };
        assert_eq!(verdict, refused);
        assert_eq!(
            judge(&[0.0; 3]),
            Verdict::Settled {
                rate: 0.0,
                spread: 0.0
            }
        );
    }
}
