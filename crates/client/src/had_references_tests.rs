//! For how long an id is known, and whose references go with it.

use super::*;
use crate::Client;

#[test]
fn a_directory_that_somebody_stands_in_is_found_again_and_given_back_at_the_end() {
    let mut lab = Lab::new();
    lab.restart(names(), true, |_| ());
    lab.asked();
    assert!(lab.look(DIR, "born").is_ok());
    assert!(lab.look(DIR, "old").is_ok());
    let lookups = lab.asked();
    let above = lookups.iter().filter(|request| match request {
        Request::Lookup { link, .. } => link.parent == Ino::ROOT,
        _ => false,
    });
    assert_eq!(above.count(), 1, "once");
    let own = [DIR, OLD].map(|ino| lab.lasting.forgotten(ino, 1));
    assert_eq!(own, [Some(lab.lasting.generation()), None]);
    assert_eq!(lab.asked(), [], "whoever drops others drops it with them");
}

#[test]
fn an_id_is_known_until_all_that_answers_have_given_by_it_is_dropped() {
    let mut lab = Lab::new();
    lab.restart(names(), true, |_| ());
    let look = Request::Getattr {
        ino: DIR,
        handle: None,
    };
    // Each session has given it once; what the client has of its own is kept as long.
    assert!(lab.look(DIR, "old").is_ok());
    assert!(lab.look(Ino::ROOT, "dir").is_ok());
    lab.asked();
    assert_eq!(lab.lasting.forgotten(DIR, 1), None);
    assert_eq!(lab.ask(look.clone()), Ok(Response::Done));
    let Lab {
        lasting, server, ..
    } = lab;
    let client = Client::new(Arc::new(lasting));
    client.give_back(DIR);
    let asked = std::mem::take(&mut server.lock().asked);
    assert_eq!(asked, [look, Request::Forget(vec![(DIR, 2)])]);
    assert_eq!(client.getattr(DIR, None), Err(Errno::ESTALE));
}

#[test]
fn a_kernel_that_has_a_file_open_hears_nothing_from_before_it_was_written() {
    let lab = Lab::new();
    let is_outdated = || match lab.look(DIR, "old") {
        Ok(Response::Attr(shown)) => shown.outdated,
        other => panic!("{other:?}"),
    };
    lab.server.lock().away = 1;
    assert!(is_outdated(), "nobody has it open");
    let handle = lab.open(OLD);
    lab.server.lock().away = 2;
    lab.server.lock().asked.clear();
    assert!(!is_outdated());
    let asked = lab.server.lock().asked.clone();
    let given_back = asked
        .iter()
        .filter(|request| **request == Request::Forget(vec![(OLD, 1)]));
    assert_eq!(given_back.count(), 2, "{asked:?}");
    drop(lab.ask(Request::Release { handle }));
    lab.server.lock().away = 1;
    assert!(is_outdated());
}
