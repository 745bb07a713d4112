//! Random operations on the tree alone, over a real directory and a store in memory, against a
//! reference; an outsider changes the PFS between them. What the server does with bytes is done
//! here by the test: an object is what [`world::World`] holds of it.
//!
//! `FOREBAY_SEED` repeats a run; `FOREBAY_MODEL_SEEDS` and `FOREBAY_MODEL_STEPS` make longer
//! campaigns.

#[path = "model/compare.rs"]
mod compare;
#[path = "model/drain.rs"]
mod drain;
#[path = "model/outsider.rs"]
mod outsider;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/world.rs"]
mod world;

use rand::Rng;
use world::World;

/// Seeds of a run of `cargo test`.
const SEEDS: u64 = 12;
/// Operations per seed.
const STEPS: u64 = 300;
/// The whole tree is compared every so many operations.
const COMPARE_EVERY: u64 = 10;

fn step(world: &mut World) {
    match world.rng.random_range(0..100) {
        0..=11 => world.create(),
        12..=13 => world.unnamed(),
        14..=27 => world.write(),
        28..=29 => world.truncate(),
        30..=32 => world.stage_in(),
        33..=35 => world.set_perm(),
        36..=39 => world.xattr(),
        40..=43 => world.mkdir(),
        44..=45 => world.rmdir(),
        46..=50 => world.link(),
        51..=56 => world.unlink(),
        57..=66 => world.rename(),
        67..=74 => world.drain_one(),
        75..=77 => world.begin_drain(),
        78..=80 => world.end_drain(),
        81..=85 => world.evict(),
        86..=97 => world.outsider(),
        _ => world.restart(),
    }
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Says how to repeat a run that fails.
struct Told(u64);

impl Drop for Told {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("to repeat: FOREBAY_SEED={} FOREBAY_MODEL_SEEDS=1", self.0);
        }
    }
}

#[test]
fn the_tree_behaves_like_the_reference() {
    let first = from_env("FOREBAY_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    let seeds = from_env("FOREBAY_MODEL_SEEDS").unwrap_or(SEEDS);
    let steps = from_env("FOREBAY_MODEL_STEPS").unwrap_or(STEPS);
    for seed in first..first + seeds {
        let _told = Told(seed);
        let mut world = World::new(seed);
        for n in 1..=steps {
            step(&mut world);
            if n % COMPARE_EVERY == 0 {
                world.compare();
            }
        }
        world.drain_all();
        world.compare();
    }
}

#[test]
fn a_copy_that_has_just_got_its_name_is_not_taken_for_the_older_version() {
    let mut world = World::new(1);
    let root = world.dir("");
    let file = world.create_at(&root, world::cred().gid, "f");
    assert!(world.begin(&file));
    let pending = world.pending.take().expect("begun");
    let placed = world.ns.place(&pending.demotion, pending.copy());
    assert_eq!(
        placed.expect("placed"),
        forebay_namespace::Placed::Published
    );
    // Somebody had what it has replaced open when a rename asked for this.
    world
        .ns
        .part_from_older(&file)
        .expect("nothing to part from");
    assert!(world.on_pfs("f").exists(), "the only copy on the PFS");
    let confirmed = world.ns.confirm(&[(&pending.demotion, &pending.sums)]);
    assert!(
        confirmed
            .into_iter()
            .all(|one| one.is_ok_and(|one| one.current))
    );
    world.compare();
}

#[test]
fn a_conflict_takes_no_name_of_a_file_that_is_only_in_the_burst_buffer() {
    let mut world = World::new(1);
    let (root, gid) = (world.dir(""), world::cred().gid);
    let file = world.create_at(&root, gid, "f");
    let now = forebay_types::TimeSpec::now().sec;
    for second in now..now + 5 {
        world.create_at(&root, gid, &format!("f.forebay-conflict-{second}"));
    }
    let theirs = reference::Facts::new(b"an outsider's".to_vec(), 0o644);
    world.outsider_puts("f", &theirs.content);
    world.reference.hidden.insert("f".to_string(), theirs);
    assert!(world.begin(&file));
    world.end_drain();
    world.compare();
}
