use super::*;
use proptest::prelude::*;

const PERIOD_S: f64 = 2.0;
const TOTAL: f64 = 1000.0;

fn work(bytes: u64) -> Work {
    Work {
        bytes,
        most_bytes_per_s: f64::INFINITY,
    }
}

fn lender() -> RateLender {
    RateLender::new(PERIOD_S, 1 << 32, -2.0 * PERIOD_S)
}

#[test]
fn a_share_moves_when_its_holder_has_let_go() {
    let mut lender = lender();
    let [a, b] = [HolderId(1), HolderId(2)];
    let first = lender.report(a, work(100), 0, TOTAL, 0.0);
    assert_eq!(first.bytes_per_s, 1000.0);
    let none = lender.report(b, work(100), 0, TOTAL, 0.1);
    assert_eq!(none.bytes_per_s, 0.0, "the other has all");
    let lowered = lender.report(a, work(100), first.number, TOTAL, 0.2);
    assert_eq!(lowered.bytes_per_s, 500.0);
    let none = lender.report(b, work(100), none.number, TOTAL, 0.3);
    assert_eq!(
        none.bytes_per_s, 0.0,
        "the lower share may not have arrived"
    );
    lender.report(a, work(100), lowered.number, TOTAL, 0.4);
    let half = lender.report(b, work(100), none.number, TOTAL, 0.5);
    assert_eq!(half.bytes_per_s, 500.0);
    assert_eq!(lender.lent_bytes_per_s(0.5), 1000.0);
}

#[test]
fn two_lost_answers_do_not_make_a_share_be_taken_for_returned() {
    let mut lender = lender();
    let [a, b] = [HolderId(1), HolderId(2)];
    let all = lender.report(a, work(100), 0, TOTAL, 0.0);
    lender.report(b, work(100), 0, TOTAL, 0.1);
    for lost_at_s in [0.2, 0.3, 0.4] {
        lender.report(a, work(100), all.number, TOTAL, lost_at_s);
    }
    assert_eq!(lender.report(b, work(100), 0, TOTAL, 0.5).bytes_per_s, 0.0);
    assert_eq!(lender.lent_bytes_per_s(0.5), 1000.0);
}

#[test]
fn the_share_of_who_is_silent_lapses() {
    let mut lender = lender();
    let [a, b] = [HolderId(1), HolderId(2)];
    lender.report(a, work(100), 0, TOTAL, 0.0);
    let late = lender.report(b, work(100), 0, TOTAL, 1.9);
    assert_eq!(late.bytes_per_s, 0.0);
    let all = lender.report(b, work(100), late.number, TOTAL, 2.1);
    assert_eq!(all.bytes_per_s, 1000.0);
}

#[test]
fn what_a_former_lender_has_lent_lapses_first() {
    let mut lender = RateLender::new(PERIOD_S, 1 << 32, 10.0);
    let a = HolderId(1);
    assert_eq!(lender.report(a, work(1), 7, TOTAL, 11.9).bytes_per_s, 0.0);
    assert_eq!(
        lender.report(a, work(1), 7, TOTAL, 12.1).bytes_per_s,
        1000.0
    );
}

#[test]
fn a_late_answer_changes_nothing() {
    let mut borrower = RateBorrower::default();
    let share = |number, bytes_per_s| RateShare {
        number,
        bytes_per_s,
        for_s: PERIOD_S,
    };
    borrower.answered(share(5, 10.0), 1.0);
    borrower.answered(share(4, 99.0), 1.5);
    assert_eq!((borrower.number(), borrower.bytes_per_s(2.9)), (5, 10.0));
    assert_eq!(borrower.bytes_per_s(3.0), 0.0, "since it asked");
}

/// A report of a holder: who, its bytes, and how long the report and its answer are under way;
/// `None`: lost.
type Report = (u16, u64, Option<f64>, Option<f64>);

#[derive(Debug, Clone, Copy)]
enum Message {
    Report { work: Work, has: u64, asked_s: f64 },
    Answer { share: RateShare, asked_s: f64 },
}

proptest! {
    #[test]
    fn never_more_than_there_is_whatever_is_lost_or_late(
        reports in prop::collection::vec(
            (0u16..4, 0u64..1000, prop::option::weighted(0.8, 0.0..1.5f64), prop::option::weighted(0.8, 0.0..1.5f64)),
            1..120,
        ),
        pause_s in 0.01..1.0f64,
        rates in prop::array::uniform4(1.0 - CLOCK_RATE_ERROR..1.0 + CLOCK_RATE_ERROR),
    ) {
        let reports: Vec<Report> = reports;
        let mut lender = lender();
        let mut holders = [RateBorrower::default(); 4];
        let clock = |id: u16, true_s: f64| true_s * rates[usize::from(id)];
        let mut way: Vec<(f64, u16, Message)> = Vec::new();
        for (round, (id, bytes, there_s, back_s)) in reports.into_iter().enumerate() {
            let now_s = round as f64 * pause_s;
            let asked_s = clock(id, now_s);
            let has = holders[usize::from(id)].number();
            if let Some(there_s) = there_s {
                way.push((now_s + there_s, id, Message::Report { work: work(bytes), has, asked_s }));
            }
            let until_s = now_s + pause_s;
            loop {
                way.sort_by(|a, b| b.0.total_cmp(&a.0));
                let Some((at_s, id, message)) = way.last().copied().filter(|m| m.0 <= until_s) else {
                    break;
                };
                way.pop();
                match message {
                    Message::Report { work, has, asked_s } => {
                        let share = lender.report(HolderId(id), work, has, TOTAL, at_s);
                        prop_assert!(lender.lent_bytes_per_s(at_s) <= TOTAL * (1.0 + 1e-9));
                        let back_s = back_s.map_or(f64::INFINITY, |s| s);
                        if back_s.is_finite() {
                            way.push((at_s + back_s, id, Message::Answer { share, asked_s }));
                        }
                    }
                    Message::Answer { share, asked_s } => holders[usize::from(id)].answered(share, asked_s),
                }
                let used: f64 = (0..4).map(|id| holders[usize::from(id)].bytes_per_s(clock(id, at_s))).sum();
                prop_assert!(used <= TOTAL * (1.0 + 1e-9), "{} of {}", used, TOTAL);
            }
        }
    }

    #[test]
    fn who_gets_work_gets_its_share_within_a_period_and_a_report(
        busy in prop::collection::vec((1u64..1000, any::<bool>()), 1..5),
        new in 1u64..1000,
    ) {
        let mut lender = lender();
        let mut holders = vec![RateBorrower::default(); busy.len() + 1];
        let every_s = PERIOD_S / 4.0;
        let newcomer = busy.len();
        let mut run = |holders: &mut Vec<RateBorrower>, at: usize, bytes: u64, now_s: f64| {
            let share = lender.report(HolderId(at as u16), work(bytes), holders[at].number(), TOTAL, now_s);
            holders[at].answered(share, now_s);
        };
        // Some are there from the start, and some of these die when the newcomer has work.
        for round in 0..8 {
            for (at, (bytes, _)) in busy.iter().enumerate() {
                run(&mut holders, at, *bytes, f64::from(round) * every_s + at as f64 * 0.01);
            }
        }
        let began_s = 8.0 * every_s;
        for round in 0..6 {
            let now_s = began_s + f64::from(round) * every_s;
            for (at, (bytes, dies)) in busy.iter().enumerate() {
                if !dies {
                    run(&mut holders, at, *bytes, now_s + at as f64 * 0.01);
                }
            }
            run(&mut holders, newcomer, new, now_s + 0.1);
        }
        let end_s = began_s + 5.0 * every_s + 0.1;
        let alive: Vec<Work> = busy.iter().filter(|b| !b.1).map(|b| work(b.0)).chain([work(new)]).collect();
        let fair = *shares(TOTAL, &alive).last().expect("the newcomer");
        let has = holders[newcomer].bytes_per_s(end_s);
        prop_assert!((has - fair).abs() <= 1e-6 * TOTAL, "{} of {}", has, fair);
    }
}
