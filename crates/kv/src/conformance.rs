//! What every engine must do. Each function takes a way to make an empty store, and panics where
//! the store is wrong.

use crate::{
    Batch, Durability, Error, MAX_BATCH_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES, Part, Store,
};

/// Makes an empty store.
pub type Make<'a> = &'a dyn Fn() -> Box<dyn Store>;

/// How a check ends if no assertion of it fails.
pub type Outcome = Result<(), Error>;

/// One check, with its name.
pub type Check = (&'static str, fn(Make<'_>) -> Outcome);

/// Every check.
pub const CHECKS: &[Check] = &[
    (
        "what_is_put_is_read_until_deleted",
        what_is_put_is_read_until_deleted,
    ),
    (
        "an_empty_value_is_not_an_absent_key",
        an_empty_value_is_not_an_absent_key,
    ),
    (
        "the_last_change_of_a_key_counts",
        the_last_change_of_a_key_counts,
    ),
    (
        "a_failed_expectation_changes_nothing",
        a_failed_expectation_changes_nothing,
    ),
    (
        "expectations_are_judged_before_the_batch",
        expectations_are_judged_before_the_batch,
    ),
    ("an_empty_batch_is_fine", an_empty_batch_is_fine),
    (
        "a_scan_shows_its_prefix_in_order",
        a_scan_shows_its_prefix_in_order,
    ),
    ("a_scan_starts_after_a_key", a_scan_starts_after_a_key),
    (
        "a_scan_lets_its_visitor_change_the_store",
        a_scan_lets_its_visitor_change_the_store,
    ),
    ("limits_are_exact", limits_are_exact),
    ("a_large_batch_is_whole", a_large_batch_is_whole),
    (
        "expectations_lose_no_update_between_threads",
        expectations_lose_no_update_between_threads,
    ),
    ("readers_see_a_batch_whole", readers_see_a_batch_whole),
    (
        "sync_keeps_what_was_committed",
        sync_keeps_what_was_committed,
    ),
];

/// Runs every check.
pub fn check_all(make: Make<'_>) {
    for (name, check) in CHECKS {
        if let Err(error) = check(make) {
            panic!("{name}: {error}");
        }
    }
}

fn put(store: &dyn Store, entries: &[(&[u8], &[u8])]) -> Outcome {
    let mut batch = Batch::new();
    for (key, value) in entries {
        batch.put(*key, *value);
    }
    store.commit(batch, Durability::Buffered)
}

/// The keys a scan shows, up to `limit` of them.
pub fn keys(
    store: &dyn Store,
    prefix: &[u8],
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<Vec<u8>>, Error> {
    let mut keys = Vec::new();
    store.scan(prefix, after, &mut |key, _| {
        keys.push(key.to_vec());
        keys.len() < limit
    })?;
    Ok(keys)
}

fn what_is_put_is_read_until_deleted(make: Make<'_>) -> Outcome {
    let store = make();
    assert_eq!(store.get(b"key")?, None);
    put(&*store, &[(b"key", b"one"), (b"kez", b"other")])?;
    assert_eq!(store.get(b"key")?.as_deref(), Some(&b"one"[..]));
    put(&*store, &[(b"key", b"two")])?;
    assert_eq!(store.get(b"key")?.as_deref(), Some(&b"two"[..]));
    let mut batch = Batch::new();
    batch.delete("key").delete("was never there");
    store.commit(batch, Durability::Buffered)?;
    assert_eq!(store.get(b"key")?, None);
    assert_eq!(store.get(b"kez")?.as_deref(), Some(&b"other"[..]));
    Ok(())
}

fn an_empty_value_is_not_an_absent_key(make: Make<'_>) -> Outcome {
    let store = make();
    put(&*store, &[(b"key", b"")])?;
    assert_eq!(store.get(b"key")?, Some(Vec::new()));
    let mut batch = Batch::new();
    batch.expect(b"key", None);
    assert!(matches!(
        store.commit(batch, Durability::Buffered),
        Err(Error::Conflict)
    ));
    let mut batch = Batch::new();
    batch.expect(b"key", Some(b""));
    store.commit(batch, Durability::Buffered)
}

fn the_last_change_of_a_key_counts(make: Make<'_>) -> Outcome {
    let store = make();
    let mut batch = Batch::new();
    batch
        .put("a", "1")
        .delete("a")
        .put("b", "1")
        .put("b", "2")
        .delete("c")
        .put("c", "1")
        .put("d", "1")
        .delete("d");
    store.commit(batch, Durability::Buffered)?;
    assert_eq!(store.get(b"a")?, None);
    assert_eq!(store.get(b"b")?.as_deref(), Some(&b"2"[..]));
    assert_eq!(store.get(b"c")?.as_deref(), Some(&b"1"[..]));
    assert_eq!(keys(&*store, b"", None, usize::MAX)?, [b"b", b"c"]);
    Ok(())
}

fn a_failed_expectation_changes_nothing(make: Make<'_>) -> Outcome {
    let store = make();
    put(&*store, &[(b"here", b"value")])?;
    let cases: [(&[u8], Option<&[u8]>); 4] = [
        (b"here", None),
        (b"here", Some(b"other")),
        (b"here", Some(b"valu")),
        (b"gone", Some(b"value")),
    ];
    for (key, expected) in cases {
        let mut batch = Batch::new();
        batch
            .expect(b"here", Some(b"value"))
            .put("new", "x")
            .delete("here")
            .expect(key, expected);
        assert!(matches!(
            store.commit(batch, Durability::Synced),
            Err(Error::Conflict)
        ));
        assert_eq!(store.get(b"new")?, None);
        assert_eq!(store.get(b"here")?.as_deref(), Some(&b"value"[..]));
    }
    Ok(())
}

fn expectations_are_judged_before_the_batch(make: Make<'_>) -> Outcome {
    let store = make();
    let mut batch = Batch::new();
    batch.put("key", "1").expect(b"key", None);
    store.commit(batch, Durability::Buffered)?;
    let mut batch = Batch::new();
    batch
        .delete("key")
        .put("moved", "1")
        .expect(b"key", Some(b"1"))
        .expect(b"moved", None);
    store.commit(batch, Durability::Buffered)?;
    assert_eq!(keys(&*store, b"", None, usize::MAX)?, [b"moved"]);
    Ok(())
}

fn an_empty_batch_is_fine(make: Make<'_>) -> Outcome {
    let store = make();
    store.commit(Batch::new(), Durability::Buffered)?;
    store.commit(Batch::new(), Durability::Synced)?;
    assert!(keys(&*store, b"", None, usize::MAX)?.is_empty());
    Ok(())
}

fn a_scan_shows_its_prefix_in_order(make: Make<'_>) -> Outcome {
    let store = make();
    let all: [&[u8]; 8] = [
        b"\x00",
        b"a",
        b"a\x00",
        b"a\xff",
        b"a\xff\xff",
        b"b",
        b"\xff",
        b"\xff\xff",
    ];
    for key in all.iter().rev() {
        put(&*store, &[(key, key)])?;
    }
    assert_eq!(keys(&*store, b"", None, usize::MAX)?, all);
    assert_eq!(keys(&*store, b"a", None, usize::MAX)?, all[1..5]);
    assert_eq!(keys(&*store, b"a\xff", None, usize::MAX)?, all[3..5]);
    assert_eq!(keys(&*store, b"\xff", None, usize::MAX)?, all[6..]);
    assert!(keys(&*store, b"ab", None, usize::MAX)?.is_empty());
    assert_eq!(
        keys(&*store, b"a", None, 2)?,
        all[1..3],
        "it stops when told to"
    );
    store.scan(b"a", None, &mut |key, value| {
        assert_eq!(key, value);
        true
    })
}

fn a_scan_starts_after_a_key(make: Make<'_>) -> Outcome {
    let store = make();
    put(
        &*store,
        &[
            (b"a", b""),
            (b"b1", b""),
            (b"b2", b""),
            (b"b3", b""),
            (b"c", b""),
        ],
    )?;
    let after = |after: &[u8]| keys(&*store, b"b", Some(after), usize::MAX);
    assert_eq!(after(b"b1")?, [b"b2", b"b3"]);
    assert_eq!(
        after(b"b1\x00")?,
        [b"b2", b"b3"],
        "the key named need not exist"
    );
    assert_eq!(after(b"b")?, [b"b1", b"b2", b"b3"]);
    assert_eq!(
        after(b"")?,
        [b"b1", b"b2", b"b3"],
        "before the prefix: all of it"
    );
    assert_eq!(after(b"a")?, [b"b1", b"b2", b"b3"]);
    assert!(after(b"b3")?.is_empty());
    assert!(after(b"c")?.is_empty(), "past the prefix: nothing");
    assert!(after(b"d")?.is_empty());
    put(&*store, &[(b"b", b"")])?;
    assert_eq!(after(b"b")?, [b"b1", b"b2", b"b3"], "strictly after");
    Ok(())
}

fn a_scan_lets_its_visitor_change_the_store(make: Make<'_>) -> Outcome {
    const ENTRIES: u32 = 1000;
    let store = make();
    for number in 0..ENTRIES {
        put(&*store, &[(format!("k/{number:04}").as_bytes(), b"value")])?;
    }
    let mut seen = Vec::new();
    let mut failure = None;
    store.scan(b"k/", None, &mut |key, _| {
        seen.push(key.to_vec());
        let mut batch = Batch::new();
        batch.delete(key);
        failure = failure
            .take()
            .or(store.commit(batch, Durability::Buffered).err());
        true
    })?;
    assert!(failure.is_none(), "{failure:?}");
    let all: Vec<_> = (0..ENTRIES)
        .map(|number| format!("k/{number:04}").into_bytes())
        .collect();
    assert_eq!(
        seen, all,
        "each key once, in order, although it vanished when it was seen"
    );
    assert!(keys(&*store, b"", None, usize::MAX)?.is_empty());
    Ok(())
}

fn limits_are_exact(make: Make<'_>) -> Outcome {
    let store = make();
    let (key, value) = (vec![b'k'; MAX_KEY_BYTES], vec![b'v'; MAX_VALUE_BYTES]);
    put(&*store, &[(&key, &value)])?;
    assert_eq!(store.get(&key)?.as_deref(), Some(&value[..]));

    let (long_key, long_value) = (
        vec![b'k'; MAX_KEY_BYTES + 1],
        vec![b'v'; MAX_VALUE_BYTES + 1],
    );
    let part = |result: Outcome| match result {
        Err(Error::TooLarge {
            part,
            len_bytes,
            limit_bytes,
        }) if len_bytes > limit_bytes => Some(part),
        _ => None,
    };
    assert_eq!(
        part(put(&*store, &[(b"other", b""), (&long_key, b"")])),
        Some(Part::Key)
    );
    assert_eq!(
        part(put(&*store, &[(b"other", b""), (b"key", &long_value)])),
        Some(Part::Value)
    );
    assert_eq!(part(store.get(&long_key).map(drop)), Some(Part::Key));
    assert!(matches!(store.get(b""), Err(Error::EmptyKey)));
    assert!(matches!(
        put(&*store, &[(b"other", b""), (b"", b"")]),
        Err(Error::EmptyKey)
    ));

    let mut batch = Batch::new();
    batch.put("other", "");
    for number in 0..=MAX_BATCH_BYTES / MAX_VALUE_BYTES {
        batch.put(format!("large/{number}"), value.clone());
    }
    assert_eq!(
        part(store.commit(batch, Durability::Buffered)),
        Some(Part::Batch)
    );
    assert_eq!(
        keys(&*store, b"", None, usize::MAX)?,
        [key],
        "what was refused changed nothing"
    );
    Ok(())
}

fn a_large_batch_is_whole(make: Make<'_>) -> Outcome {
    const ENTRIES: usize = 4000;
    let store = make();
    let mut batch = Batch::new();
    for number in (0..ENTRIES).rev() {
        batch.put(format!("k/{number:04}"), vec![b'v'; 1000]);
    }
    store.commit(batch, Durability::Synced)?;
    let all: Vec<_> = (0..ENTRIES)
        .map(|number| format!("k/{number:04}").into_bytes())
        .collect();
    assert_eq!(keys(&*store, b"k/", None, usize::MAX)?, all);
    Ok(())
}

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_be_bytes)
}

fn increment(store: &dyn Store, key: &[u8], durability: Durability) -> Outcome {
    loop {
        let held = store.get(key)?;
        let mut batch = Batch::new();
        batch
            .expect(key, held.as_deref())
            .put(key, (number(held) + 1).to_be_bytes());
        match store.commit(batch, durability) {
            Err(Error::Conflict) => std::thread::yield_now(),
            other => return other,
        }
    }
}

fn expectations_lose_no_update_between_threads(make: Make<'_>) -> Outcome {
    const THREADS: u64 = 4;
    const INCREMENTS: u64 = 200;
    let store = make();
    let run = |durability| {
        for _ in 0..INCREMENTS {
            increment(&*store, b"counter", durability)?;
        }
        Ok::<(), Error>(())
    };
    std::thread::scope(|scope| {
        let buffered = (1..THREADS).map(|_| scope.spawn(|| run(Durability::Buffered)));
        let workers: Vec<_> = buffered
            .chain([scope.spawn(|| run(Durability::Synced))])
            .collect();
        for worker in workers {
            let result = worker
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            assert!(result.is_ok(), "{result:?}");
        }
    });
    assert_eq!(number(store.get(b"counter")?), THREADS * INCREMENTS);
    Ok(())
}

fn readers_see_a_batch_whole(make: Make<'_>) -> Outcome {
    const BATCHES: u64 = 3000;
    let store = make();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for count in 1..=BATCHES {
                let count = count.to_be_bytes();
                put(&*store, &[(b"first", &count), (b"second", &count)])?;
            }
            Ok::<(), Error>(())
        });
        while !writer.is_finished() {
            // Whichever is read later must be no older, in either order.
            for (early, late) in [
                (b"first".as_slice(), b"second".as_slice()),
                (b"second", b"first"),
            ] {
                let early = number(store.get(early)?);
                assert!(
                    number(store.get(late)?) >= early,
                    "a batch was seen in part"
                );
            }
        }
        writer
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn sync_keeps_what_was_committed(make: Make<'_>) -> Outcome {
    let store = make();
    store.sync()?;
    put(&*store, &[(b"key", b"value")])?;
    store.sync()?;
    assert_eq!(store.get(b"key")?.as_deref(), Some(&b"value"[..]));
    Ok(())
}
