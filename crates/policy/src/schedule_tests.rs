use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

fn config() -> ScheduleConfig {
    ScheduleConfig {
        turn_s: 2.0,
        linger_s: 0.1,
        linger_flushing_s: 0.05,
        linger_closed_s: 0.02,
        max_wait_s: 10.0,
        limits: [2, 2, 1, 1],
    }
}

fn scheduler() -> Scheduler<u32> {
    Scheduler::new(config()).expect("valid")
}

#[test]
fn checkpoints_do_not_interleave() {
    let mut s = scheduler();
    for i in 0..4 {
        s.enqueue(1, Class::Checkpoint, i, 0.0);
        s.enqueue(2, Class::Checkpoint, 10 + i, 0.0);
    }
    let mut order = Vec::new();
    for step in 0..8 {
        let now_s = f64::from(step) * 0.2;
        while let Some(started) = s.start(now_s) {
            order.push(started.application);
            s.finish(started.application, started.class, now_s);
        }
    }
    assert_eq!(order, [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn a_turn_ends_in_time_when_others_wait() {
    let mut s = scheduler();
    s.enqueue(1, Class::Checkpoint, 0, 0.0);
    assert_eq!(s.start(0.0).map(|g| g.application), Some(1));
    s.enqueue(1, Class::Checkpoint, 1, 0.0);
    s.enqueue(2, Class::Checkpoint, 2, 1.0);
    assert_eq!(s.start(1.0).map(|g| g.application), Some(1));
    s.enqueue(1, Class::Checkpoint, 3, 2.0);
    assert_eq!(
        s.start(2.5),
        None,
        "the turn is used up, but two are under way"
    );
    s.finish(1, Class::Checkpoint, 2.6);
    s.finish(1, Class::Checkpoint, 2.7);
    assert_eq!(s.start(2.7).map(|g| g.application), Some(2));
    assert_eq!(s.turn(), Some(2));
}

#[test]
fn a_turn_lingers_between_requests() {
    let mut s = scheduler();
    s.enqueue(1, Class::Checkpoint, 0, 0.0);
    s.start(0.0).expect("starts");
    s.enqueue(2, Class::Checkpoint, 1, 0.0);
    s.finish(1, Class::Checkpoint, 0.5);
    assert_eq!(s.start(0.55), None, "application 1 may be about to go on");
    assert_eq!(s.next_s(), Some(0.6));
    assert_eq!(s.start(0.6).map(|g| g.application), Some(2));
}

#[test]
fn a_close_shortens_the_turn() {
    let mut s = scheduler();
    s.enqueue(1, Class::Checkpoint, 0, 0.0);
    s.start(0.0).expect("starts");
    s.enqueue(2, Class::Checkpoint, 1, 0.0);
    s.finish(1, Class::Checkpoint, 1.0);
    s.end_turn(2, TurnEnd::Closed, 1.0);
    assert_eq!(s.start(1.05), None, "that was another's file");
    s.end_turn(1, TurnEnd::Closed, 1.0);
    assert_eq!(s.start(1.01), None, "the next file may come");
    assert_eq!(s.start(1.02).map(|g| g.application), Some(2));
}

#[test]
fn a_flush_shortens_the_turn_until_more_is_written() {
    let mut s = scheduler();
    s.enqueue(1, Class::Checkpoint, 0, 0.0);
    s.start(0.0).expect("starts");
    s.enqueue(2, Class::Checkpoint, 1, 0.0);
    s.finish(1, Class::Checkpoint, 1.0);
    s.end_turn(1, TurnEnd::Flushing, 1.0);
    assert_eq!(s.next_s(), Some(1.05));
    s.enqueue(1, Class::Checkpoint, 2, 1.04);
    assert_eq!(s.start(1.04).map(|g| g.application), Some(1));
    s.finish(1, Class::Checkpoint, 1.05);
    assert_eq!(s.start(1.14), None, "it is writing again");
    assert_eq!(s.start(1.16).map(|g| g.application), Some(2));
}

#[test]
fn who_was_silent_for_a_moment_goes_on_next() {
    let mut s = scheduler();
    for (application, at_s) in [(1, 0.0), (2, 0.0), (3, 0.0), (4, 0.0)] {
        s.enqueue(application, Class::Checkpoint, 0, at_s);
    }
    let mut serve = |now_s: f64| {
        let application = s.start(now_s).map(|g| g.application)?;
        s.finish(application, Class::Checkpoint, now_s + 0.01);
        Some((application, s.clone()))
    };
    assert_eq!(serve(0.0).map(|g| g.0), Some(1));
    // Both are kept from their processor for longer than a turn lingers.
    assert_eq!(serve(0.2).map(|g| g.0), Some(2));
    let (third, mut s) = serve(0.4).expect("a turn");
    assert_eq!(third, 3);
    s.enqueue(1, Class::Checkpoint, 1, 0.41);
    s.enqueue(3, Class::Checkpoint, 1, 0.42);
    let mut order = Vec::new();
    while let Some(started) = s.start(0.45) {
        order.push(started.application);
        s.finish(started.application, Class::Checkpoint, 0.45);
        s.end_turn(started.application, TurnEnd::Closed, 0.45);
    }
    assert_eq!(order, [3], "it has its turn still");
    assert_eq!(s.start(0.5).map(|g| g.application), Some(1), "before 4");
    s.finish(1, Class::Checkpoint, 0.5);
    s.end_turn(1, TurnEnd::Closed, 0.5);
    s.enqueue(5, Class::Checkpoint, 0, 1.5);
    assert_eq!(s.start(1.5).map(|g| g.application), Some(4));
    s.finish(4, Class::Checkpoint, 1.6);
    s.end_turn(4, TurnEnd::Closed, 1.6);
    // The first of these does not come back soon enough to go before 5.
    s.enqueue(2, Class::Checkpoint, 1, 10.5);
    assert_eq!(s.start(10.5).map(|g| g.application), Some(5));
}

#[test]
fn a_lapsed_turn_is_not_a_longer_one() {
    let mut s = scheduler();
    s.enqueue(1, Class::Checkpoint, 0, 0.0);
    s.enqueue(2, Class::Checkpoint, 0, 0.0);
    s.start(0.0).expect("starts");
    s.finish(1, Class::Checkpoint, 1.5);
    assert_eq!(s.start(1.7).map(|g| g.application), Some(2));
    s.enqueue(1, Class::Checkpoint, 1, 1.8);
    s.enqueue(3, Class::Checkpoint, 0, 1.8);
    s.finish(2, Class::Checkpoint, 1.8);
    s.end_turn(2, TurnEnd::Closed, 1.8);
    assert_eq!(s.start(1.9).map(|g| g.application), Some(1));
    s.finish(1, Class::Checkpoint, 2.3);
    s.enqueue(1, Class::Checkpoint, 2, 2.3);
    assert_eq!(
        s.start(2.3).map(|g| g.application),
        Some(3),
        "2 s are used up"
    );
}

#[test]
fn alone_nobody_waits_for_anything_but_the_limit() {
    let mut s = scheduler();
    for i in 0..3 {
        s.enqueue(7, Class::Checkpoint, i, f64::from(i) * 100.0);
    }
    assert!(s.start(200.0).is_some() && s.start(200.0).is_some());
    s.finish(7, Class::Checkpoint, 200.0);
    assert!(s.start(200.0).is_some());
    assert_eq!(s.next_s(), None);
}

#[test]
fn restarts_go_first_and_classes_have_limits() {
    let mut s = scheduler();
    for (i, class) in Class::ALL.iter().rev().enumerate() {
        for k in 0..3 {
            s.enqueue(k, *class, i as u32, 0.0);
        }
    }
    let mut order = Vec::new();
    while let Some(started) = s.start(0.0) {
        order.push(started.class);
    }
    use Class::{Checkpoint, Demotion, Restart, Staging};
    // One application has the turn, and one request of it waits.
    assert_eq!(order, [Restart, Restart, Checkpoint, Demotion, Staging]);
    assert_eq!(s.waiting(), 12 - 5);
}

#[test]
fn bad_configurations_are_refused() {
    let bad = |change: fn(&mut ScheduleConfig)| {
        let mut c = config();
        change(&mut c);
        Scheduler::<u32>::new(c).map(|_| ()).unwrap_err()
    };
    assert!(matches!(
        bad(|c| c.turn_s = 0.0),
        ScheduleError::NotPositive { name: "turn", .. }
    ));
    assert!(matches!(
        bad(|c| c.linger_s = f64::NAN),
        ScheduleError::NotPositive { .. }
    ));
    assert!(matches!(
        bad(|c| c.max_wait_s = 1.0),
        ScheduleError::WaitBelowTurn { .. }
    ));
    assert_eq!(
        bad(|c| c.limits[3] = 0),
        ScheduleError::NoneMayRun(Class::Staging)
    );
    assert_eq!(ScheduleConfig::default().check(), Ok(()));
}

#[derive(Debug, Clone)]
enum Event {
    Enqueue(u64, Class),
    Finish(usize),
    Pass(f64),
}

fn event() -> impl Strategy<Value = Event> {
    let class = prop_oneof![
        3 => Just(Class::Checkpoint),
        1 => Just(Class::Restart),
        1 => Just(Class::Demotion),
        1 => Just(Class::Staging),
    ];
    prop_oneof![
        3 => (0u64..4, class).prop_map(|(a, c)| Event::Enqueue(a, c)),
        2 => any::<usize>().prop_map(Event::Finish),
        1 => (0.0..3.0f64).prop_map(Event::Pass),
    ]
}

proptest! {
    /// Started once, in the order of the application's queue; never beyond the bound; no two
    /// applications side by side unless somebody is overdue; limits hold for those that are not
    /// overdue.
    #[test]
    fn what_must_always_hold(events in proptest::collection::vec(event(), 1..200)) {
        let mut s = Scheduler::new(config()).expect("valid");
        let mut now_s = 0.0;
        let mut ticket = 0u32;
        let mut since: BTreeMap<u32, (u64, Class, f64)> = BTreeMap::new();
        let mut running: Vec<Started<u32>> = Vec::new();
        let mut any_overdue = false;
        for e in events {
            match e {
                Event::Enqueue(application, class) => {
                    s.enqueue(application, class, ticket, now_s);
                    since.insert(ticket, (application, class, now_s));
                    ticket += 1;
                }
                Event::Finish(i) if !running.is_empty() => {
                    let done = running.swap_remove(i % running.len());
                    s.finish(done.application, done.class, now_s);
                }
                Event::Finish(_) => {}
                Event::Pass(gap_s) => now_s += gap_s,
            }
            while let Some(started) = s.start(now_s) {
                let (application, class, since_s) = since.remove(&started.ticket).expect("once");
                prop_assert_eq!((application, class), (started.application, started.class));
                let earlier = since.iter().any(|(t, w)| *t < started.ticket && w.0 == application && w.1 == class);
                prop_assert!(!earlier, "out of order");
                let overdue = now_s >= since_s + 10.0;
                any_overdue |= overdue;
                let others = running.iter().any(|r| r.class == Class::Checkpoint && r.application != application);
                prop_assert!(any_overdue || class != Class::Checkpoint || !others, "interleaved");
                running.push(started);
                let beside = running.iter().filter(|r| r.class == class).count();
                prop_assert!(any_overdue || beside <= config().limits[class as usize] as usize);
            }
            for (_, _, since_s) in since.values() {
                prop_assert!(now_s < since_s + 10.0, "waited beyond the bound");
            }
            prop_assert_eq!(s.waiting(), since.len());
        }
        // With everything that runs done again and again, everything starts.
        for _ in 0..ticket + 1 {
            for done in running.drain(..) {
                s.finish(done.application, done.class, now_s);
            }
            now_s += 0.2;
            while let Some(started) = s.start(now_s) {
                since.remove(&started.ticket);
                running.push(started);
            }
        }
        prop_assert!(since.is_empty(), "starved: {:?}", since);
    }
}

#[test]
fn whose_turn_has_passed_holds_it_no_more() {
    let mut s = scheduler();
    assert_eq!(s.holder(0.0), None);
    s.enqueue(1, Class::Checkpoint, 0, 0.0);
    s.start(0.0).expect("starts");
    s.enqueue(2, Class::Checkpoint, 1, 0.0);
    assert_eq!(
        (s.holder(5.0), s.waiting_of(Class::Checkpoint)),
        (Some(1), 1)
    );
    s.finish(1, Class::Checkpoint, 5.0);
    assert_eq!(s.holder(5.05), Some(1), "it may go on");
    assert_eq!(s.start(5.2).map(|g| g.application), Some(2));
    s.finish(2, Class::Checkpoint, 6.0);
    assert_eq!((s.holder(6.5), s.turn()), (None, Some(2)));
}
