use super::*;
use proptest::prelude::*;

fn rules() -> TermRules {
    TermRules::new(10.0, 2.0).expect("usable")
}

#[test]
fn a_leader_stops_before_its_lease_ends_and_steps_down_with_it() {
    let mut term = Term::new(rules(), 100.0);
    assert_eq!(term.authority(100.0), Authority::MayChange);
    assert_eq!(term.authority(107.9), Authority::MayChange);
    assert_eq!(
        term.authority(108.0),
        Authority::MustStop,
        "a clock may be fast"
    );
    let left_s = term.next_change_s(108.0).expect("one more");
    assert!((1.9..2.0).contains(&left_s), "{left_s}");
    term.renewed(105.0, 108.5);
    assert_eq!(term.authority(108.5), Authority::MayChange);
    term.renewed(101.0, 109.0);
    assert_eq!(
        term.authority(112.5),
        Authority::MayChange,
        "an older answer"
    );
    assert_eq!(term.authority(115.0), Authority::MustStepDown);
    assert_eq!(term.next_change_s(115.0), None);
}

#[test]
fn a_term_that_is_over_stays_over() {
    let mut stopped = Term::new(rules(), 100.0);
    stopped.renewed(160.0, 160.0);
    assert_eq!(stopped.authority(160.0), Authority::MustStepDown);
    assert_eq!(stopped.authority(100.0), Authority::MustStepDown);
    let mut lost = Term::new(rules(), 100.0);
    lost.lost();
    lost.renewed(101.0, 101.0);
    assert_eq!(lost.authority(101.0), Authority::MustStepDown);
}

#[test]
fn nobody_is_waited_out_who_has_resigned() {
    for predecessor in [Predecessor::None, Predecessor::Resigned] {
        assert_eq!(may_begin_at_s(&rules(), predecessor, 7.0), 7.0);
    }
    let begins_s = may_begin_at_s(&rules(), Predecessor::Unknown, 7.0);
    assert!(begins_s > 17.0 && begins_s < 17.1, "{begins_s}");
}

#[test]
fn rules_without_time_to_lead_are_refused() {
    for (ttl_s, margin_s) in [
        (10.0, 5.0),
        (10.0, -1.0),
        (0.0, 0.0),
        (f64::NAN, 1.0),
        (9.0, f64::NAN),
    ] {
        assert!(
            TermRules::new(ttl_s, margin_s).is_err(),
            "{ttl_s} {margin_s}"
        );
    }
    assert_eq!(rules().renew_every_s(), 2.0);
}

/// A clock that began at any time and runs at its own rate.
#[derive(Debug, Clone, Copy)]
struct Clock {
    origin_s: f64,
    rate: f64,
}

impl Clock {
    fn at(&self, true_s: f64) -> f64 {
        self.origin_s + self.rate * true_s
    }
}

fn clock() -> impl Strategy<Value = Clock> {
    let rate = 1.0 - CLOCK_RATE_ERROR..1.0 + CLOCK_RATE_ERROR;
    (0.0..1e6f64, rate).prop_map(|(origin_s, rate)| Clock { origin_s, rate })
}

/// One renewal: pause before it is sent, way to the store, way back; true seconds.
type Renewal = (f64, f64, f64);

/// True times: until when the leader may change the PFS, and when a standby wins, for the lease has
/// ended in the store or was revoked at `revoked_s`.
fn run(
    rules: TermRules,
    (old, store): (Clock, Clock),
    renewals: &[Renewal],
    revoked_s: f64,
) -> (f64, f64) {
    let mut lease_ends_s = rules.ttl_s / store.rate;
    let mut answers = vec![(0.0, 0.0)];
    let mut sent_s = 0.0;
    for (pause_s, there_s, back_s) in renewals {
        sent_s += pause_s;
        let arrives_s = sent_s + there_s;
        if arrives_s >= lease_ends_s.min(revoked_s) {
            break;
        }
        lease_ends_s = lease_ends_s.max(arrives_s + rules.ttl_s / store.rate);
        answers.push((sent_s, arrives_s + back_s));
    }
    answers.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut term = Term::new(rules, old.at(0.0));
    let mut may_change_until_s = 0.0;
    for (sent_s, came_s) in answers {
        term.renewed(old.at(sent_s), old.at(came_s));
        if term.authority(old.at(came_s)) == Authority::MayChange {
            let left_s = term.next_change_s(old.at(came_s)).expect("it ends");
            may_change_until_s = came_s + left_s / old.rate;
        }
    }
    (may_change_until_s, lease_ends_s.min(revoked_s))
}

proptest! {
    #[test]
    fn two_leaders_never_change_the_pfs_at_once(
        (old, new, store) in (clock(), clock(), clock()),
        (ttl_s, margin) in (1.0..60.0f64, 0.0..0.4f64),
        renewals in prop::collection::vec((0.0..0.6f64, 0.0..0.6f64, 0.0..3.0f64), 0..20),
        revoked in prop::option::of(0.0..5.0f64),
    ) {
        let rules = TermRules::new(ttl_s, ttl_s * margin).expect("usable");
        let renewals: Vec<Renewal> = renewals.iter().map(|(a, b, c)| (a * ttl_s, b * ttl_s, c * ttl_s)).collect();
        let revoked_s = revoked.map_or(f64::INFINITY, |r| r * ttl_s);
        let (last, won_s) = run(rules, (old, store), &renewals, revoked_s);
        let begins_at = may_begin_at_s(&rules, Predecessor::Unknown, new.at(won_s));
        let begins_s = (begins_at - new.origin_s) / new.rate;
        // What was begun at the last moment has ended, too, if it takes no longer than it may.
        let margin_s = rules.margin_s / (1.0 + CLOCK_RATE_ERROR);
        prop_assert!(last + margin_s <= begins_s + 1e-6, "{} {}", last, begins_s);
        // Without a revocation the leader has stopped before anybody could win.
        prop_assert!(revoked.is_some() || last + margin_s <= won_s + 1e-6, "{} {}", last, won_s);
    }

    #[test]
    fn who_renews_in_time_leads_on(clock in clock(), ttl_s in 1.0..60.0f64, way in 0.0..0.2f64) {
        let rules = TermRules::new(ttl_s, ttl_s / 4.0).expect("usable");
        let mut term = Term::new(rules, clock.at(0.0));
        for round in 1..50 {
            let sent_s = f64::from(round) * rules.renew_every_s();
            prop_assert_eq!(term.authority(clock.at(sent_s)), Authority::MayChange);
            let came_s = sent_s + way * ttl_s;
            prop_assert_eq!(term.authority(clock.at(came_s)), Authority::MayChange);
            term.renewed(clock.at(sent_s), clock.at(came_s));
        }
    }
}
