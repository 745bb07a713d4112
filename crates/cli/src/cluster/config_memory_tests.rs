use super::*;

#[test]
fn a_server_borrows_within_bounds() {
    let sample = include_str!("sample.toml").replace("10.0.0.1", "127.0.0.1");
    let sample = sample.replace("10.1.0.1:7070", "127.0.0.1:7072");
    let with = |dram: &str| read(&sample.replace("dram = \"64GiB\"", dram));
    let cluster = with("dram = \"auto\"").expect("valid");
    let server = &cluster.servers[0];
    let bounds = server.borrows.expect("it borrows");
    assert_eq!((bounds.max_bytes, bounds.max_share), (64 << 30, 0.5));
    let settings = cluster.plan(server, true).expect("settled").settings;
    assert_eq!(settings.lending.expect("it borrows").bounds, bounds);
    assert!(settings.dram_bytes.expect("memory") <= 64 << 30);
    let cluster = with("dram = \"none\"").expect("valid");
    assert_eq!(
        (cluster.servers[0].dram_bytes, cluster.servers[0].borrows),
        (None, None)
    );
    let refused = |key: &str| {
        let text = sample.replace("dram_max_share = 0.5", key);
        read(&text).expect_err("refused").to_string()
    };
    let share = refused("dram_max_share = 1.0\ndram_max_share = 0.0");
    assert!(share.contains("line"), "{share}");
    let share = refused("dram_max_share = 0");
    assert!(
        share.contains("server 1: dram_max_share is 0; it must be more than 0"),
        "{share}"
    );
    let least = sample.replace("dram_min = \"0\"", "dram_min = \"65GiB\"");
    let least = read(&least).expect_err("refused").to_string();
    assert!(
        least.contains("server 1: dram_min (65.0 GiB) is above dram_max (64.0 GiB)"),
        "{least}"
    );
}
