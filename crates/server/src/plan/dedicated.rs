//! The policy `dedicated`: each application owns a share of the space for as long as it runs, and
//! shares nothing.

pub(crate) mod shares;

use forebay_policy::share::{ShareError, Shares};
use forebay_types::format_size;
use parking_lot::Mutex;

use crate::base::settings::Settings;

/// Shares there are unless a size is configured.
const SHARES_DEFAULT: u64 = 8;

/// Shares, made when the policy is first in force.
pub struct Dedicated {
    shares: Mutex<Option<Shares>>,
    share_bytes: Option<u64>,
}

impl Dedicated {
    /// None given away.
    pub fn new(settings: &Settings) -> Dedicated {
        Dedicated {
            shares: Mutex::new(None),
            share_bytes: settings.engine.share_bytes,
        }
    }

    /// Refuses a share that does not fit.
    pub fn check(&self, capacity_bytes: u64) -> Result<(), String> {
        let Some(share_bytes) = self.share_bytes else {
            return Ok(());
        };
        match Shares::new(capacity_bytes, share_bytes) {
            Ok(_) => Ok(()),
            Err(ShareError::ExceedsCapacity { .. }) => Err(format!(
                "{} for one application is more than the {} of all tiers together; choose less, or leave it out for \
                 an eighth of them",
                format_size(share_bytes),
                format_size(capacity_bytes)
            )),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// What one application has in the burst buffer.
#[derive(Clone, Copy, Default)]
struct Held {
    bytes: u64,
    dirty_bytes: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_does_not_fit_is_told_as_people_write_it() {
        let mut settings = Settings::new("/p".into(), None, "/s".into());
        settings.engine.share_bytes = Some(64 << 30);
        let dedicated = Dedicated::new(&settings);
        assert_eq!(dedicated.check(64 << 30), Ok(()));
        let why = dedicated.check(1 << 30).unwrap_err();
        assert!(
            why.starts_with("64.0 GiB for one application is more than the 1.0 GiB"),
            "{why}"
        );
    }
}
