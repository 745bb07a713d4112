//! What the kernel reads and writes by itself.

use super::*;

fn file() -> Option<Arc<File>> {
    Some(Arc::new(tempfile::tempfile().expect("file")))
}

/// A file that the kernel has by itself, and what the next run hands over of it.
fn kernels(next: impl FnOnce(Option<Arc<File>>) -> Option<Arc<File>>) -> (Lab, Handle) {
    let mut lab = Lab::new();
    let closed = lab.open(OLD);
    let first = file();
    lab.server.lock().hands_over = first.clone();
    lab.lasting.accept_descriptors(true);
    let kernels = lab.open(BORN);
    lab.next_file = next(first);
    lab.restart(names(), true, |lab| {
        let release = Request::Release { handle: closed };
        assert_eq!(lab.ask(release), Ok(Response::Done));
    });
    (lab, kernels)
}

#[test]
fn what_the_kernel_has_by_itself_is_had_again_where_it_is_the_same_file() {
    let (lab, kernels) = kernels(|first| first);
    assert_eq!(lab.write(kernels), Ok(Response::Moved(1)));
    lab.look(DIR, "born").expect("there");
    assert_eq!(lab.lasting.generation_of(BORN), 1);
}

#[test]
fn what_is_another_file_than_the_kernel_has_by_itself_is_not_had_again() {
    for next in [file(), None] {
        let (lab, kernels) = kernels(|_| next);
        assert_eq!(lab.write(kernels), Err(Errno::ESTALE));
        // To the kernel it is another file from here on.
        lab.look(DIR, "born").expect("there");
        lab.look(DIR, "old").expect("there");
        let generations = [BORN, OLD].map(|ino| lab.lasting.generation_of(ino));
        assert_eq!(generations, [lab.lasting.generation(), 1]);
    }
}
