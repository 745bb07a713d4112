//! `cargo bench -p bench-twin`: a month of 1,000 to 16,000 applications. Time per application grows
//! with the logarithm of their number, so that the whole is n log n; throughput is printed in
//! applications per second.
#![allow(missing_docs)]

use bench_twin::Interval;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use forebay_twin::sim::{Options, run};

fn applications(c: &mut Criterion) {
    let mut group = c.benchmark_group("month");
    group.sample_size(10);
    for n in [1_000u32, 2_000, 4_000, 8_000, 16_000] {
        let scenario = bench_twin::scenario(n, 30, Interval::Day).expect("the scenario is valid");
        group.throughput(Throughput::Elements(u64::from(n)));
        group.bench_with_input(BenchmarkId::from_parameter(n), &scenario, |b, scenario| {
            b.iter(|| run(scenario, Options::default()).outcome.checkpoints);
        });
    }
    group.finish();
}

criterion_group!(benches, applications);
criterion_main!(benches);
