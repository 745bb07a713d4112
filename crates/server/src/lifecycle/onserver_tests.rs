use forebay_kv::Location;
use forebay_testkit::{StoreKind, StoreServer};

use super::*;
use crate::base::settings::{Settings, StoreSetting};
use crate::lifecycle::statefolder::{open_store, store_of};

/// State folders that are started on one server.
struct Site {
    server: StoreServer,
    folders: tempfile::TempDir,
}

impl Site {
    fn new() -> Site {
        Site {
            server: StoreServer::start(StoreKind::Redis),
            folders: tempfile::tempdir().expect("tempdir"),
        }
    }

    fn settings(&self, folder: &str, store: StoreSetting) -> Settings {
        let state = self.folders.path().join(folder);
        std::fs::create_dir_all(&state).expect("mkdir");
        let mut settings = Settings::new("/".into(), None, state);
        settings.server = 1;
        settings.store = store;
        settings
    }

    fn wanted(&self, cluster: &str, options: &str) -> ServerStore {
        let location = Location::parse_for(cluster, &self.server.url(options));
        ServerStore {
            location: location.expect("a store"),
            cluster: cluster.into(),
            take_over: false,
            standby: false,
        }
    }

    /// Opens the store, and gives what was told.
    fn open(&self, folder: &str, wanted: ServerStore) -> Result<(Box<dyn Store>, String), String> {
        let settings = self.settings(folder, StoreSetting::Server(wanted));
        let told = std::cell::RefCell::new(String::new());
        let tell = |line: &str| told.borrow_mut().push_str(line);
        let opened = open_store(&settings, Told::of(&tell)).map_err(|error| error.to_string());
        opened.map(|store| (store, told.borrow().clone()))
    }
}

fn put(store: &dyn Store, value: &str) {
    let mut batch = Batch::new();
    batch.put("key", value);
    store.commit(batch, Durability::Buffered).expect("a commit");
}

#[test]
fn another_folder_takes_the_records_over_and_the_old_one_is_out_of_date() {
    let site = Site::new();
    let wanted = || site.wanted("bb0", "");
    let (store, told) = site.open("a", wanted()).expect("new");
    assert_eq!(told, "");
    put(&*store, "a");
    drop(store);
    let (store, told) = site.open("a", wanted()).expect("again");
    assert_eq!(
        (told.as_str(), store.get(b"key").expect("read")),
        ("", Some(b"a".to_vec()))
    );
    drop(store);
    let (store, told) = site.open("b", wanted()).expect("a take-over");
    assert!(
        told.starts_with("takes over the records of cluster bb0 in redis://"),
        "{told}"
    );
    assert_eq!(store.get(b"key").expect("read"), Some(b"a".to_vec()));
    drop(store);
    let refused = site.open("a", wanted()).err().expect("out of date");
    assert!(
        refused.contains("were taken over by server 1 of bb0 on "),
        "{refused}"
    );
    assert!(!refused.contains('\n'), "{refused}");
    let back = ServerStore {
        take_over: true,
        ..wanted()
    };
    drop(site.open("a", back).expect("by order"));
    let refused = site.open("b", wanted()).err().expect("out of date");
    assert!(refused.contains("with a new state folder"), "{refused}");
    drop(site.open("a", wanted()).expect("its own"));
}

#[test]
fn a_folder_keeps_to_its_store() {
    let site = Site::new();
    let wanted = || site.wanted("bb0", "");
    drop(site.open("a", wanted()).expect("new"));
    let refused = |folder: &str, store: StoreSetting, part: &str| {
        let settings = site.settings(folder, store);
        let error = open_store(&settings, Told::of(&|_| ())).err().expect(part);
        let line = error.to_string();
        assert!(line.contains(part) && !line.contains('\n'), "{line}");
    };
    refused(
        "a",
        StoreSetting::Embedded,
        "has its records in redis://127.0.0.1:",
    );
    let elsewhere = site.wanted("bb0", "prefix=other");
    refused(
        "a",
        StoreSetting::Server(elsewhere),
        "?prefix=bb0 of cluster bb0, not in ",
    );
    drop(
        open_store(
            &site.settings("e", StoreSetting::Embedded),
            Told::of(&|_| ()),
        )
        .expect("embedded"),
    );
    refused(
        "e",
        StoreSetting::Server(wanted()),
        "has its records in itself (embedded)",
    );
    // The folder itself says where to look.
    let state = |folder: &str| site.folders.path().join(folder);
    assert_eq!(
        store_of(&state("e")).expect("there"),
        StoreSetting::Embedded
    );
    assert_eq!(
        store_of(&state("a")).expect("there"),
        StoreSetting::Server(wanted())
    );
    std::fs::create_dir(state("n")).expect("mkdir");
    assert!(matches!(
        store_of(&state("n")),
        Err(StartError::NoInstance(_))
    ));
}

#[test]
fn a_store_of_another_cluster_or_version_or_without_its_records_is_refused() {
    let site = Site::new();
    let named = |cluster: &str| site.wanted(cluster, "prefix=shared");
    drop(site.open("a", named("bb0")).expect("new"));
    let refused = site.open("b", named("bb1")).err().expect("another's");
    assert!(
        refused.contains("has the records of the cluster bb0; give bb1 a store"),
        "{refused}"
    );
    // With the names of the clusters there are two stores.
    drop(site.open("c", site.wanted("bb1", "")).expect("its own"));
    let open = |options: &str| {
        let location = Location::parse_for("-", &site.server.url(options)).expect("a store");
        location.open(&Options::default()).expect("opens")
    };
    let set = |store: &dyn Store, version: &str| {
        let bytes = store.get(OWNER).expect("read").expect("there");
        let owner: Owner = postcard::from_bytes(&bytes).expect("an owner");
        let owner = Owner {
            version: version.into(),
            ..owner
        };
        let mut batch = Batch::new();
        batch.put(OWNER, postcard::to_stdvec(&owner).expect("encoded"));
        store.commit(batch, Durability::Synced).expect("a commit");
    };
    set(&*open("prefix=bb1"), "99");
    let refused = site
        .open("c", site.wanted("bb1", ""))
        .err()
        .expect("a version");
    assert!(refused.contains("holds records of version 99"), "{refused}");
    let store = open("prefix=shared");
    let mut batch = Batch::new();
    batch.delete(OWNER);
    store.commit(batch, Durability::Synced).expect("a commit");
    drop(store);
    let refused = site.open("a", named("bb0")).err().expect("emptied");
    assert!(refused.contains("has none of the records"), "{refused}");
    let store = open("prefix=foreign");
    put(&*store, "foreign");
    drop(store);
    let refused = site
        .open("d", site.wanted("bb0", "prefix=foreign"))
        .err()
        .expect("foreign");
    assert!(refused.contains("records of version unknown"), "{refused}");
}

#[test]
fn a_first_start_that_was_cut_short_is_gone_on_with() {
    let site = Site::new();
    let wanted = || site.wanted("bb0", "");
    drop(site.open("a", wanted()).expect("new"));
    let owner = |folder: &str| {
        let note = StoreNote::read(&site.folders.path().join(folder)).expect("read");
        note.expect("a note").folder
    };
    // Before the store names the folder.
    let state = site.folders.path().join("b");
    std::fs::create_dir(&state).expect("mkdir");
    let mut note = StoreNote::new(wanted().location, "bb0".into()).expect("drawn");
    note.standing = Standing::Taking(Some(owner("a")));
    note.write(&state).expect("written");
    drop(site.open("b", wanted()).expect("goes on"));
    // After that.
    note.standing = Standing::Taking(Some(owner("a")));
    note.write(&state).expect("written");
    assert!(matches!(store_of(&state), Err(StartError::NoInstance(_))));
    let (_, told) = site.open("b", wanted()).expect("goes on");
    assert_eq!((told, owner("b")), (String::new(), note.folder.clone()));
    // Another one has come between.
    drop(site.open("c", wanted()).expect("takes over"));
    note.standing = Standing::Taking(Some("another".into()));
    note.write(&state).expect("written");
    assert!(site.open("b", wanted()).is_err());
}

#[test]
fn a_holder_that_has_died_on_the_same_folder_is_not_waited_for() {
    let site = Site::new();
    let (store, _) = site.open("a", site.wanted("bb0", "")).expect("new");
    put(&*store, "a");
    let begun = Instant::now();
    // The first is as good as dead: who opens has the lock of the folder.
    let (again, told) = site.open("a", site.wanted("bb0", "")).expect("again");
    assert!(begun.elapsed() < Options::default().lease / 2, "{told}");
    put(&*again, "b");
    let mut late = Batch::new();
    late.put("key", "late");
    let lost = store.commit(late, Durability::Buffered);
    assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
}
