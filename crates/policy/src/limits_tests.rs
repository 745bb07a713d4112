use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn limit(whose: Whose, capacity: Amount) -> Limit {
    Limit {
        whose,
        capacity: Some(capacity),
        undrained: None,
        rate_bytes_per_s: None,
        beyond: Beyond::Wait,
    }
}

#[test]
fn an_own_limit_goes_before_that_of_each_and_root_has_only_its_own() {
    let user = |id| Whose::One(Owner::User(id));
    let limits = Limits::new(
        &[
            limit(Whose::EachUser, Amount::Share(0.25)),
            limit(user(7), Amount::Bytes(5)),
            limit(Whose::One(Owner::Group(7)), Amount::Bytes(6)),
        ],
        1000,
    );
    let capacity = |owner| limits.of(owner).and_then(|bounds| bounds.capacity_bytes);
    assert_eq!(capacity(Owner::User(8)), Some(250));
    assert_eq!(capacity(Owner::User(7)), Some(5));
    assert_eq!(capacity(Owner::Group(7)), Some(6));
    assert_eq!(capacity(Owner::Group(8)), None);
    assert_eq!(capacity(Owner::User(0)), None);
    let roots = Limits::new(&[limit(user(0), Amount::Bytes(9))], 1000);
    assert!(roots.of(Owner::User(0)).is_some());
    let groups = Limits::new(&[limit(Whose::EachGroup, Amount::Bytes(9))], 1000);
    assert!(groups.of(Owner::Group(8)).is_some());
    assert_eq!(
        (groups.of(Owner::Group(0)), groups.of(Owner::User(8))),
        (None, None)
    );
}

#[test]
fn a_file_keeps_to_the_limits_of_its_user_and_of_its_group() {
    let limits = Limits::new(
        &[
            limit(Whose::One(Owner::User(1)), Amount::Bytes(100)),
            limit(Whose::One(Owner::Group(2)), Amount::Bytes(50)),
        ],
        0,
    );
    let asked = |uid, gid, bytes| {
        let more = Held {
            bytes,
            undrained_bytes: 0,
        };
        limits
            .admit(Owners { uid, gid }, |_| Held::default(), more)
            .map_err(|(owner, excess)| (owner, excess.missing_bytes))
    };
    assert_eq!(asked(1, 2, 50), Ok(()));
    assert_eq!(asked(1, 2, 51), Err((Owner::Group(2), 1)));
    assert_eq!(asked(1, 2, 101), Err((Owner::User(1), 1)));
    assert_eq!(asked(3, 3, u64::MAX), Ok(()));
}

fn bounds() -> impl Strategy<Value = Bounds> {
    let bytes = || proptest::option::of(0..100 * MIB);
    (bytes(), bytes(), any::<bool>()).prop_map(|(capacity_bytes, undrained_bytes, direct)| Bounds {
        capacity_bytes,
        undrained_bytes,
        rate_bytes_per_s: None,
        beyond: if direct { Beyond::Direct } else { Beyond::Wait },
    })
}

fn held() -> impl Strategy<Value = Held> {
    (0..200 * MIB, 0..200 * MIB).prop_map(|(a, b)| Held {
        bytes: a.max(b),
        undrained_bytes: a.min(b),
    })
}

proptest! {
    /// Whoever starts below never gets beyond, whatever is asked for.
    #[test]
    fn what_is_admitted_keeps_to_the_limit(
        bounds in bounds(),
        asked in proptest::collection::vec(held(), 0..40),
    ) {
        let mut now = Held::default();
        for more in asked {
            if bounds.admit(now, more).is_ok() {
                now.bytes += more.bytes;
                now.undrained_bytes += more.undrained_bytes;
            }
            prop_assert!(now.bytes <= bounds.capacity_bytes.unwrap_or(u64::MAX));
            prop_assert!(now.undrained_bytes <= bounds.undrained_bytes.unwrap_or(u64::MAX));
        }
    }

    /// Who asks for nothing is admitted, also where the limit has become smaller than what is
    /// held; who asks for less is admitted where more was.
    #[test]
    fn nothing_is_always_admitted_and_less_where_more_was(
        bounds in bounds(), now in held(), more in held(), less in held(),
    ) {
        prop_assert_eq!(bounds.admit(now, Held::default()), Ok(()));
        let smaller = Held {
            bytes: less.bytes.min(more.bytes),
            undrained_bytes: less.undrained_bytes.min(more.undrained_bytes),
        };
        if bounds.admit(now, more).is_ok() {
            prop_assert_eq!(bounds.admit(now, smaller), Ok(()));
        }
    }

    /// So many bytes freed are enough, and one less is not.
    #[test]
    fn what_is_missing_is_what_has_to_be_freed(
        capacity in 0..100 * MIB, now in held(), more in held(),
    ) {
        let bounds = Bounds {
            capacity_bytes: Some(capacity),
            undrained_bytes: None,
            rate_bytes_per_s: None,
            beyond: Beyond::Wait,
        };
        if let Err(excess) = bounds.admit(now, more) {
            let missing = excess.missing_bytes;
            prop_assert!(missing > 0);
            let freed = |bytes| Held { bytes: now.bytes - bytes, ..now };
            if missing <= now.bytes {
                prop_assert_eq!(bounds.admit(freed(missing), more), Ok(()));
                prop_assert!(bounds.admit(freed(missing - 1), more).is_err());
            }
        }
    }
}

#[test]
fn what_is_left_is_the_least_of_user_and_group() {
    let limits = Limits::new(
        &[
            limit(Whose::EachUser, Amount::Bytes(10)),
            limit(Whose::One(Owner::Group(7)), Amount::Bytes(6)),
        ],
        1000,
    );
    let held = |bytes| {
        move |_: Owner| Held {
            bytes,
            undrained_bytes: 0,
        }
    };
    let left = |uid, gid, bytes| limits.left_bytes(Owners { uid, gid }, held(bytes));
    assert_eq!(left(5, 5, 3), Some(7));
    assert_eq!(left(5, 7, 3), Some(3));
    assert_eq!(left(5, 7, 100), Some(0));
    assert_eq!(left(0, 0, 100), None);
}
