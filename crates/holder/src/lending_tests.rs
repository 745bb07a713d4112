use super::*;

const MIB: u64 = 1 << 20;

/// A machine of 16 GiB that says what it is told to.
struct Told {
    available_mib: AtomicU64,
    is_silent: AtomicU64,
}

impl MemorySource for Told {
    fn look(&self) -> io::Result<MemoryNow> {
        if self.is_silent.load(Ordering::Acquire) > 0 {
            return Err(Errno::EACCES.into());
        }
        Ok(MemoryNow {
            machine_bytes: 16 << 30,
            total_bytes: 16 << 30,
            available_bytes: self.available_mib.load(Ordering::Acquire) * MIB,
            ..MemoryNow::default()
        })
    }
}

fn lab(folder: &Path) -> (Arc<Told>, BorrowedMemory) {
    let told = Arc::new(Told {
        available_mib: AtomicU64::new(14 << 10),
        is_silent: AtomicU64::new(0),
    });
    let paths = (folder.join("dram"), folder.join("lend-orders"));
    let borrowed = BorrowedMemory::new(Lending::default(), told.clone(), 8 << 30, paths);
    (told, borrowed.expect("sensible"))
}

#[test]
fn what_jobs_need_is_lent() {
    let folder = tempfile::tempdir().expect("a folder");
    let (told, borrowed) = lab(folder.path());
    let lent = borrowed.lent_bytes();
    assert!(borrowed.status().is_none(), "nothing was seen yet");
    assert!(!borrowed.look(), "all is idle");
    assert_eq!(lent.load(Ordering::Acquire), 0);
    told.available_mib.store(4 << 10, Ordering::Release);
    assert!(borrowed.look(), "the next look is to be soon");
    let status = borrowed.status().expect("seen");
    assert_eq!(status.why, "jobs");
    assert!(status.borrowed_bytes < 4 << 30, "{status:?}");
    assert_eq!(
        lent.load(Ordering::Acquire),
        (8 << 30) - status.borrowed_bytes
    );
}

#[test]
fn orders_are_kept_and_obeyed_by_who_sees_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, borrowed) = lab(folder.path());
    borrowed.look();
    borrowed.order("job 7", 2 << 30).expect("ordered");
    borrowed.order("\n", 1 << 30).expect("ordered");
    let ceiling = |borrowed: &BorrowedMemory| borrowed.status().expect("seen").ceiling_bytes;
    assert_eq!(ceiling(&borrowed), 5 << 30);
    assert!(
        borrowed
            .order(&"n".repeat(LENDING_NAME_MAX + 1), 1)
            .is_err()
    );
    // The next start goes on with them.
    let (told, borrowed) = lab(folder.path());
    told.is_silent.store(1, Ordering::Release);
    borrowed.look();
    assert_eq!(borrowed.lent_bytes().load(Ordering::Acquire), 3 << 30);
    told.is_silent.store(0, Ordering::Release);
    borrowed.look();
    let orders = borrowed.status().expect("seen").orders;
    let names: Vec<_> = orders.iter().map(|order| &*order.name).collect();
    assert_eq!(names, ["\n", "job 7"]);
    told.is_silent.store(1, Ordering::Release);
    borrowed.order("job 7", 7 << 30).expect("ordered");
    let all_but_the_least = (8 << 30) - CAPACITY_MIN_BYTES;
    assert_eq!(
        borrowed.lent_bytes().load(Ordering::Acquire),
        all_but_the_least
    );
    borrowed.order("job 7", 0).expect("ended");
    assert_eq!(borrowed.status().expect("seen").orders.len(), 1);
}

#[test]
fn an_order_ends_also_where_nothing_is_borrowed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, borrowed) = lab(folder.path());
    for name in ["one", "two"] {
        borrowed.order(name, 1 << 30).expect("ordered");
    }
    let path = folder.path().join("lend-orders");
    for name in ["two", "unknown"] {
        end_order_of_before(&path, name).expect("ended");
    }
    let (_, borrowed) = lab(folder.path());
    borrowed.look();
    assert_eq!(borrowed.status().expect("seen").ordered_bytes, 1 << 30);
}

#[test]
fn damaged_orders_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("lend-orders");
    for text in [
        "",
        "forebay orders\n7",
        "forebay orders\n7 6\n",
        "forebay orders\nx 61\n",
    ] {
        fs::write(&path, text).expect("written");
        let error = orders_of(&path).expect_err("damaged");
        assert!(error.to_string().contains("damaged"), "{text:?}: {error}");
    }
    fs::write(&path, "forebay orders\n7 61\n").expect("written");
    assert_eq!(
        orders_of(&path).expect("whole").iter().next(),
        Some(("a", 7))
    );
}
