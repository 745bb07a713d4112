//! What is open and has no name any more.

use super::*;

#[test]
fn what_is_open_and_has_lost_its_name_is_asked_for_by_the_life_that_had_it() {
    let mut lab = Lab::new();
    let (old, born) = (lab.open(OLD), lab.open(BORN));
    let unlink = Request::Unlink {
        link: Link {
            parent: DIR,
            name: b"born".to_vec(),
        },
        cred: WHO,
    };
    lab.ask(unlink).expect("unlink");
    // The other one another node has unlinked.
    let gone = || {
        let mut names = names();
        names.retain(|(_, name), _| *name == "dir");
        names
    };
    for _ in 0..2 {
        let life = lab.runs.2.lock().last().copied().expect("a life");
        lab.restart_with(gone(), true, Some((BORN, life)), |_| ());
        let asked = lab.asked();
        let asked = asked.into_iter().filter_map(|request| match request {
            Request::FindNameless { ino, life } => Some((ino, life)),
            _ => None,
        });
        assert!(asked.eq([(BORN, life)]), "only what there was is answered");
        assert_eq!(lab.write(born), Ok(Response::Moved(1)));
        assert_eq!(lab.write(old), Err(Errno::ESTALE));
        assert_eq!(lab.lasting.generation_of(BORN), 1);
    }
    lab.restart_with(gone(), false, None, |_| ());
    assert_eq!(lab.write(born), Err(Errno::ESTALE));
}

#[test]
fn what_has_no_name_is_tried_again_before_the_client_has_come_back() {
    let mut lab = Lab::new();
    let born = lab.open(BORN);
    let mut gone = names();
    gone.retain(|(_, name), _| *name == "dir");
    let life = lab.runs.2.lock().last().copied().expect("a life");
    lab.restart_failing(gone, true, Some((BORN, life)), [2, 2], |_| ());
    let asked = lab.asked();
    let at = |is_it: &dyn Fn(&Request) -> bool| asked.iter().position(is_it);
    let opened = at(&|request| matches!(request, Request::Open { ino: BORN, .. }));
    let back = at(&|request| matches!(request, Request::MayReclaim { done: true, .. }));
    assert!(opened.is_some() && opened < back, "{asked:?}");
    assert_eq!(lab.write(born), Ok(Response::Moved(1)));
}

#[test]
fn what_has_its_name_is_opened_later_and_the_client_does_not_wait_for_it() {
    let mut lab = Lab::new();
    let born = lab.open(BORN);
    lab.restart_failing(names(), true, None, [0, 1], |_| ());
    let opens = |asked: Vec<Request>| asked.iter().any(|one| matches!(one, Request::Open { .. }));
    assert!(!opens(lab.asked()));
    assert_eq!(lab.write(born), Ok(Response::Moved(1)));
    assert!(opens(lab.asked()));
}

#[test]
fn what_is_open_without_a_name_is_found_where_the_way_to_it_is_closed_by_now() {
    let mut lab = Lab::new();
    let born = lab.open(BORN);
    let closed = HashMap::from([((Ino::ROOT, "dir"), (CLOSED, 1))]);
    let life = lab.runs.2.lock().last().copied().expect("a life");
    lab.restart_with(closed, true, Some((BORN, life)), |_| ());
    assert_eq!(lab.write(born), Ok(Response::Moved(1)));
}

#[test]
fn who_does_not_hear_that_all_is_had_again_has_it_in_the_next_run_by_the_newer_life() {
    let lab = Lab::new();
    let born = lab.open(BORN);
    lab.server.lock().gone = true;
    let ends = Arc::new(Mutex::new(Run {
        may_reclaim: true,
        names: names(),
        ends_at_done: true,
        ..Run::default()
    }));
    *lab.runs.0.lock() = Some(ends.clone());
    lab.runs.1.lock().pop().expect("a session")();
    let begun = std::time::Instant::now();
    let wait = || {
        assert!(begun.elapsed() < Duration::from_secs(30), "it takes long");
        std::thread::yield_now();
    };
    while !ends.lock().gone {
        wait();
    }
    // The server did hear of it, and awaits the newer life only.
    let newer = lab.runs.2.lock()[1];
    let run = Arc::new(Mutex::new(Run {
        may_reclaim: true,
        only: Some(newer),
        nameless: Some((BORN, newer)),
        first: 100,
        next: 100,
        ..Run::default()
    }));
    *lab.runs.0.lock() = Some(run.clone());
    while run.lock().next == 100 {
        wait();
    }
    assert_eq!(lab.write(born), Ok(Response::Moved(1)));
}
