use super::*;
use proptest::prelude::*;

fn check(path: &str, application: &str, version: Option<u64>) {
    let id = identify(path.as_bytes());
    assert_eq!(id.application, application, "application of {path}");
    assert_eq!(id.version, version, "version of {path}");
}

#[test]
fn names_that_checkpoint_libraries_write() {
    check("ckpt-000120/rank-3", "ckpt-{version}", Some(120));
    check("run7/ckpt-000120/rank-3", "run7/ckpt-{version}", Some(120));
    check("chk00020", "chk{version}", Some(20));
    check("chk00020/Header", "chk{version}", Some(20));
    check("plt00020/Level_0/Cell_D_00001", "plt{version}", Some(20));
    check(
        "epoch=3-step=1200.ckpt",
        "epoch={n}-step={version}.ckpt",
        Some(1200),
    );
    check("restart.0001.h5", "restart.{version}.h5", Some(1));
    check(
        "global_step1200/mp_rank_00.pt",
        "global_step{version}",
        Some(1200),
    );
    check(
        "iter_0000500/mp_rank_00/model_optim_rng.pt",
        "iter_{version}",
        Some(500),
    );
    check(
        "checkpoint-500/rng_state_3.pth",
        "checkpoint-{version}",
        Some(500),
    );
    check("run7/ckpt_12.npz", "run7/ckpt_{version}.npz", Some(12));
    check("heat_000040.h5", "heat_{version}.h5", Some(40));
    check(
        "dump.10000.lammpstrj",
        "dump.{version}.lammpstrj",
        Some(10000),
    );
    check(
        "checkpoint-500/model-00001-of-00003.safetensors",
        "checkpoint-{version}",
        Some(500),
    );
    check(
        "checkpoint-500/global_step500/mp_rank_00.pt",
        "checkpoint-{version}",
        Some(500),
    );
    check("step=1200-v1.ckpt", "step={version}-v{n}.ckpt", Some(1200));
    check(
        "lightning_logs/version_3/checkpoints/epoch=3-step=1200.ckpt",
        "lightning_logs/version_3/checkpoints/epoch={n}-step={version}.ckpt",
        Some(1200),
    );
    check("TimeStep0010.vtu", "TimeStep{version}.vtu", Some(10));
    check("a/1200steps.ckpt", "a/{version}steps.ckpt", Some(1200));
}

#[test]
fn directories_of_numbers() {
    check("processor3/100/U", "processor{n}/{version}", Some(100));
    check(
        "processor3/0.5/U",
        "processor{n}/{version}",
        Some(500_000_000),
    );
    check(
        "exp/checkpoints/500/state/d/0a1b",
        "exp/checkpoints/{version}",
        Some(500),
    );
    check("ckpt/000040.npz", "ckpt/{version}.npz", Some(40));
    check("out/heat_000040/rank-3", "out/heat_{version}", Some(40));
    check(
        "epoch3/step1200.pt",
        "epoch{n}/step{version}.pt",
        Some(1200),
    );
    check("rank-3/ckpt-5.pt", "rank-{n}/ckpt-{version}.pt", Some(5));
    check("v2/ckpt-7", "v2/ckpt-{version}", Some(7));
    check(
        "20261121/heat_000040.h5",
        "20261121/heat_{version}.h5",
        Some(40),
    );
}

#[test]
fn ambiguous_names_are_decided_as_documented() {
    check("out.00012.000003.bp", "out.{version}.{n}.bp", Some(12));
    check(
        "mesh_64_heat_000040.h5",
        "mesh_{n}_heat_{version}.h5",
        Some(40),
    );
    check("rank_3_000040.h5", "rank_{n}_{version}.h5", Some(40));
    check("step_12_3.pt", "step_{version}_{n}.pt", Some(12));
    check(
        "epoch=3-val_loss=0.25.ckpt",
        "epoch={version}-val_loss={n}.{n}.ckpt",
        Some(3),
    );
    check("epoch3step1200.pt", "epoch{n}step{version}.pt", Some(1200));
    check("time_0.90.vtk", "time_{version}.vtk", Some(900_000_000));
    check("time_1.05.vtk", "time_{version}.vtk", Some(1_050_000_000));
}

#[test]
fn words_of_other_scripts_are_words() {
    check("舟_000040.npz", "舟_{version}.npz", Some(40));
    check("é3.bin", ".", None);
}

#[test]
fn tags_of_interpreters_are_no_versions() {
    let cached = "lib/__pycache__/abc.cpython-311.pyc";
    check(cached, "lib/__pycache__", None);
    check("abc.cpython-311-x86_64-linux-gnu.so", ".", None);
    check("lib.pypy-310/x", "lib.pypy-310", None);
}

#[test]
fn names_that_simulation_codes_write() {
    check(
        "run/snapdir_012/snapshot_012.3.hdf5",
        "run/snapdir_{version}/snapshot_{version}.{n}.hdf5",
        Some(12),
    );
    check(
        "output_00012/amr_00012.out00003",
        "output_{version}/amr_{version}.out{n}",
        Some(12),
    );
    check("turb0.f00012", "turb0.f{version}", Some(12));
    check("app/ckpt.0007.f000", "app/ckpt.{version}.f{n}", Some(7));
    check("sedov_hdf5_chk_0012", "sedov_hdf5_chk_{version}", Some(12));
    check(
        "RESTART/20261121.060000.coupler.res",
        "RESTART/{version}.coupler.res",
        Some(20_261_121_060_000),
    );
    check("out.bp/data.3", "out.bp", None);
    check("ckpt_5.bp/data.3", "ckpt_{version}.bp", Some(5));
    check("restart.1200.3", "restart.{version}.{n}", Some(1200));
    check(
        "model.ckpt-12.data-00003-of-00008",
        "model.ckpt-{version}.data-{n}-of-{n}",
        Some(12),
    );
}

#[test]
fn dates_are_one_number() {
    let wrf = "wrfrst_d01_{version}";
    check(
        "wrfrst_d01_2026-11-21_00:00:00",
        wrf,
        Some(20_261_121_000_000),
    );
    check(
        "wrfrst_d01_2026-11-21_06:30:05",
        wrf,
        Some(20_261_121_063_005),
    );
    check(
        "c.cam.r.0005-01-01-21600.nc",
        "c.cam.r.{version}.nc",
        Some(50_101_060_000),
    );
    check(
        "rst_20261121T0600Z.nc",
        "rst_{version}.nc",
        Some(20_261_121_060_000),
    );
    check(
        "restart_2026-11-21/rank-0",
        "restart_{version}",
        Some(20_261_121_000_000),
    );
    // Not a month.
    check("out_2026-13-21.nc", "out_{version}-{n}-{n}.nc", Some(2026));
}

#[test]
fn names_without_a_version() {
    for name in [
        "notes",
        "weights.h5",
        "song.mp3",
        "model_fp16.bin",
        "float32.raw",
        "tool-x86_64.bin",
        "sum.sha256",
        "layer12.pt",
        "layer_12.pt",
        "archive.7z",
        "mesh3d.bin",
        "t5-base.bin",
        "__0_0.distcp",
        "rank-3",
        "run7",
        "ckpt-9a8b7c",
        "model-00001-of-00003.safetensors",
        "ckpt_99999999999999999999999.pt",
        "job_12345.log",
        "",
    ] {
        check(name, ".", None);
        check(
            &format!("user1/run7/{name}"),
            if name.is_empty() {
                "user1"
            } else {
                "user1/run7"
            },
            None,
        );
    }
    check("out/rank-3/data", "out/rank-{n}", None);
    check("user1/run7/deep/below/notes", "user1/run7", None);
}

/// `count` names of `len` of these letters, the same in every run.
fn random_names(letters: &[u8], len: usize, count: usize) -> Vec<String> {
    let mut state = 88_172_645_463_325_252u64;
    let mut letter = || {
        // xorshift
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(letters[(state >> 20) as usize % letters.len()])
    };
    (0..count)
        .map(|_| (0..len).map(|_| letter()).collect())
        .collect()
}

#[test]
fn names_that_nobody_thought_of_make_few_applications() {
    const COUNT: usize = 20_000;
    let alphanumeric = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let python = b"0123456789abcdefghijklmnopqrstuvwxyz_";
    let hex = b"0123456789abcdef";
    let mktemp = random_names(alphanumeric, 10, COUNT);
    let tempfile = random_names(python, 8, COUNT);
    let objects = random_names(hex, 40, COUNT);
    let paths: [Vec<String>; 3] = [
        mktemp.iter().map(|n| format!("u/tmp/tmp.{n}")).collect(),
        tempfile.iter().map(|n| format!("u/tmp/tmp{n}")).collect(),
        objects
            .iter()
            .map(|n| format!("u/project/.git/objects/{}/{}", &n[..2], &n[2..]))
            .collect(),
    ];
    for paths in paths {
        let applications: std::collections::HashSet<String> = paths
            .iter()
            .map(|path| identify(path.as_bytes()).application)
            .collect();
        let found = applications.len();
        assert!(
            found * 50 < COUNT,
            "{found}, such as {:?}",
            applications.iter().take(8)
        );
    }
}

#[test]
fn a_source_tree_is_no_hundred_applications() {
    let mut applications = std::collections::HashSet::new();
    for dir in 0..30u8 {
        for part in ["", "/core", "/core/detail", "/tests", "/include/linux"] {
            for file in ["Makefile", "main.c", "sha256.c", "x86_64.S", "README"] {
                let letter = char::from(b'a' + dir % 26);
                let path = format!("me/src/linux/{letter}{letter}{dir}x{part}/{file}");
                applications.insert(identify(path.as_bytes()).application);
            }
        }
    }
    assert_eq!(applications.len(), 1, "{applications:?}");
}

#[test]
fn different_top_directories_are_different_applications() {
    let one = identify(b"user1/run7/ckpt-3/rank-0");
    let other = identify(b"user2/run7/ckpt-3/rank-0");
    assert_ne!(one.application, other.application);
    assert_eq!(one.file_series, "user{n}/run{n}/ckpt-{n}/rank-{n}");
}

#[test]
fn padded_and_labelled_numbers_count_beside_letters_about_digits() {
    check("h2o_000040.xyz", "h2o_{version}.xyz", Some(40));
    check("co2flux_step40.nc", "co2flux_step{version}.nc", Some(40));
    check("tmpk3j_9", ".", None);
}

#[test]
fn bytes_that_are_not_text_are_escaped() {
    assert_eq!(
        identify(b"a\xff/ckpt-3").application,
        "a\\xff/ckpt-{version}"
    );
    assert_eq!(
        identify("é/ckpt-3".as_bytes()).application,
        "é/ckpt-{version}"
    );
}

#[test]
fn long_paths_are_cut_and_stay_distinct() {
    let deep = |last: &str| format!("{}{last}/ckpt-3", "d1r/".repeat(2000));
    let one = identify(deep("a").as_bytes());
    let other = identify(deep("b").as_bytes());
    assert!(one.application.len() <= MAX_SERIES_BYTES);
    assert_ne!(one.application, other.application);
    assert_eq!(one.version, Some(3));
}

proptest! {
    #[test]
    fn any_bytes_are_identified_within_bounds(path in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let id = identify(&path);
        prop_assert!(id.application.len() <= MAX_SERIES_BYTES && !id.application.is_empty());
        prop_assert!(id.file_series.len() <= MAX_SERIES_BYTES);
        prop_assert_eq!(&id, &identify(&path));
    }

    #[test]
    fn paths_of_likely_tokens_are_identified(path in "((ckpt|step|t|v|rank|of|x86_64|T|Z|[0-9]{1,21}|2026-11-21|[-_./=:]){0,40})") {
        let id = identify(path.as_bytes());
        prop_assert_eq!(id.version.is_some(), id.application.contains("{version}"));
        prop_assert!(!id.file_series.bytes().any(|b| b.is_ascii_digit()) || id.file_series.contains('~'));
    }

    #[test]
    fn all_versions_and_writers_of_a_run_are_one_application(
        keyword in prop::sample::select(vec!["ckpt-", "chk", "step_", "iter_", "checkpoint-", "plt", "global_step", "epoch="]),
        writer in prop::sample::select(vec!["rank-", "mp_rank_", "part", "shard_"]),
        run in 0u32..1000, v in any::<u32>(), w in any::<u32>(), r in 0u32..5000, q in 0u32..5000,
    ) {
        for (form, other) in [
            (format!("run{run}/{keyword}{v:06}/{writer}{r}.bin"), format!("run{run}/{keyword}{w:06}/{writer}{q}.bin")),
            (format!("run{run}/{keyword}{v}_{writer}{r}.bin"), format!("run{run}/{keyword}{w}_{writer}{q}.bin")),
            (format!("run{run}/{writer}{r}_{keyword}{v}.bin"), format!("run{run}/{writer}{q}_{keyword}{w}.bin")),
        ] {
            let (a, b) = (identify(form.as_bytes()), identify(other.as_bytes()));
            prop_assert_eq!(a.application, b.application);
            prop_assert_eq!(a.file_series, b.file_series);
            prop_assert_eq!(a.version, Some(u64::from(v)));
            prop_assert_eq!(b.version, Some(u64::from(w)));
        }
    }

    #[test]
    fn later_dates_are_greater_versions(a in 0u64..2_000_000_000, b in 0u64..2_000_000_000) {
        let name = |s: u64| {
            let (days, sod) = (s / 86_400, s % 86_400);
            let (year, month, day) = (1970 + days / 372, 1 + days / 31 % 12, 1 + days % 31);
            format!("wrfrst_d01_{year:04}-{month:02}-{day:02}_{:02}:{:02}:{:02}", sod / 3600, sod / 60 % 60, sod % 60)
        };
        let version = |s| identify(name(s).as_bytes()).version;
        prop_assert_eq!(a.cmp(&b), version(a).cmp(&version(b)));
    }
}
