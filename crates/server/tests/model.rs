//! Random operations against a reference model, with an outsider who changes the PFS between them.
//!
//! `FOREBAY_SEED` repeats a run, `FOREBAY_MODEL_SEEDS` and `FOREBAY_MODEL_STEPS` make longer
//! campaigns, `FOREBAY_MODEL_TRACE` prints every operation. What the threads of the server do in
//! between is not repeated by a seed, so a rare failure may take several tries.

#[path = "model/clients.rs"]
mod clients;
mod common;
#[path = "model/compare.rs"]
mod compare;
#[path = "model/files.rs"]
mod files;
#[path = "model/names.rs"]
mod names;
#[path = "model/outsider.rs"]
mod outsider;
#[path = "model/reference.rs"]
mod reference;
#[path = "model/world.rs"]
mod world;

use rand::Rng;
use world::World;

/// Seeds of a run of `cargo test`.
const SEEDS: u64 = 8;
/// Operations per seed.
const STEPS: u64 = 250;
/// The whole tree is compared every so many operations.
const COMPARE_EVERY: u64 = 50;

fn step(world: &mut World) {
    world.next_turn();
    match world.rng.random_range(0..100) {
        0..=10 => world.create(),
        11..=13 => world.unnamed(),
        14..=23 => world.open_any(),
        24..=47 => world.use_any(),
        48..=51 => world.truncate(),
        52..=57 => world.mkdir(),
        58..=59 => world.symlink(),
        60..=62 => world.link(),
        63..=67 => world.unlink(),
        68..=70 => world.rmdir(),
        71..=79 => world.rename(),
        80..=83 => world.set_attr(),
        84..=86 => world.xattr(),
        87..=88 => world.readdir(),
        89..=92 => world.movement(),
        93..=94 => world.wait_drained(),
        95..=97 => world.outsider(),
        98 => world.leave(),
        _ => world.restart(),
    }
    world.forget_some();
}

fn run(seed: u64, clients: usize, steps: u64) {
    let mut world = World::new(seed, clients);
    for n in 1..=steps {
        step(&mut world);
        if n % COMPARE_EVERY == 0 {
            world.compare_all();
        }
    }
    world.finish();
}

fn run_seeds(clients: usize) {
    let first = common::base_seed();
    let seeds = common::from_env("FOREBAY_MODEL_SEEDS").unwrap_or(SEEDS);
    let steps = common::from_env("FOREBAY_MODEL_STEPS").unwrap_or(STEPS);
    eprintln!("FOREBAY_SEED={first} FOREBAY_MODEL_SEEDS={seeds} FOREBAY_MODEL_STEPS={steps}");
    for seed in first..first + seeds {
        run(seed, clients, steps);
    }
}

#[test]
fn behaves_like_the_model() {
    run_seeds(1);
}

/// A drained file in memory, with a copy that an fsync has left on flash, is cut: the copy goes.
#[test]
fn behaves_like_the_model_where_a_copy_is_left_by_a_change() {
    run(3_215_216_330, 1, 250);
}

#[test]
fn behaves_like_the_model_with_two_clients() {
    run_seeds(2);
}

#[test]
fn behaves_like_the_model_with_three_clients() {
    run_seeds(3);
}
