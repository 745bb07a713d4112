use super::*;
use crate::row::Row;

fn report() -> Report {
    Report {
        nodes: Vec::new(),
        title: "Bars <and> lines".into(),
        rows: vec![
            Row::default()
                .with("policy", "bbos")
                .with("dwpp_s", 1.3)
                .with("mean_throughput_bytes_per_s", 3.56e9)
                .with("mean_wait_s", 1.25)
                .with("version_aware", true),
            Row::default()
                .with("policy", "a,b")
                .with("dwpp_s", 1.9)
                .with("mean_throughput_bytes_per_s", 3e9)
                .with("mean_wait_s", 0.0)
                .with("version_aware", false),
        ],
        figures: vec![
            Figure::lines(
                "lines",
                "Lines & points",
                "DWPP / S",
                "s",
                vec![("one".into(), vec![(1.0, 2.0), (2.0, 3.0)])],
            ),
            Figure::bars(
                "bars",
                "Bars",
                "policy",
                "GB/s",
                vec!["a".into(), "b".into()],
                vec![("x".into(), vec![1.0, 0.0]), ("y".into(), vec![2.0, 3.5])],
            ),
        ],
        notes: vec!["a note".into()],
    }
}

#[test]
fn rows_as_text_json_and_csv() {
    let report = report();
    assert_eq!(
        table(&report),
        "policy  DWPP/S  mean throughput  mean wait, s  version aware\n\
         bbos       1.3       3.560 GB/s          1.25  yes\n\
         a,b        1.9       3.000 GB/s          0.00  no\n"
    );
    let value: serde_json::Value = serde_json::from_str(&json(&report)).unwrap();
    assert_eq!(value["rows"][0]["mean_throughput_bytes_per_s"], 3.56e9);
    assert_eq!(value["rows"][1]["version_aware"], false);
    assert!(csv(&report).ends_with("\"a,b\",1.9,3000000000.0,0.0,false\n"));
    assert!(list(&report).contains("mean wait, s     1.25\n"));
}

#[test]
fn figures_are_whole_files() {
    let files = files(&report()).unwrap();
    let names: Vec<&str> = files.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "rows.json",
            "rows.csv",
            "report.html",
            "lines.svg",
            "lines.png",
            "bars.svg",
            "bars.png"
        ]
    );
    let get = |name: &str| &files.iter().find(|f| f.name == name).unwrap().content;
    let svg = String::from_utf8(get("lines.svg").clone()).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert!(svg.contains("Lines &amp; points"));
    let html = String::from_utf8(get("report.html").clone()).unwrap();
    assert!(html.contains("Bars &lt;and&gt; lines") && html.matches("<svg ").count() == 2);
    // Nothing is fetched from elsewhere.
    assert!(!html.contains("src=") && !html.contains("href="));
    for name in ["lines.png", "bars.png"] {
        let picture = tiny_skia::Pixmap::decode_png(get(name)).unwrap();
        assert_eq!((picture.width(), picture.height()), (1600, 960));
        let blue = picture
            .pixels()
            .iter()
            .filter(|p| (p.red(), p.green(), p.blue()) == (0x00, 0x72, 0xb2));
        assert!(blue.count() > 500, "{name}: the first series is not drawn");
        let ink = picture
            .pixels()
            .iter()
            .filter(|p| p.red() < 0x40 && p.green() < 0x40 && p.blue() < 0x40);
        assert!(ink.count() > 1000, "{name}: there is no text");
    }
}

#[test]
fn empty_figures_are_drawn_too() {
    let figure = Figure::lines("none", "", "", "", Vec::new());
    assert!(figure_svg(&figure).contains("</svg>"));
    assert!(figure_png(&figure).is_ok());
}

#[test]
fn what_is_the_same_in_all_rows_of_a_wide_table_stands_below() {
    let row = |capacity: f64, seed: u64| {
        let row = Row::default()
            .with("policy", "bbos")
            .with("capacity_bytes", capacity)
            .with("a_name_that_is_a_good_deal_longer_than_it_has_to_be", 1)
            .with("mean_throughput_with_another_long_name_bytes_per_s", 3e9);
        row.with("a_third_name_of_a_column_that_takes_much_room_seed", seed)
    };
    let report = Report {
        rows: vec![row(1e12, 1), row(2e12, 2)],
        ..report()
    };
    let text = table(&report);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].contains("capacity  a third name"), "{text}");
    assert!(lines[1].contains("1000.0 GB"), "{text}");
    assert_eq!(
        lines[4],
        "in all rows: policy bbos; a name that is a good deal longer than it has to be 1; \
         mean throughput with another long name 3.000 GB/s"
    );
    assert!(lines.iter().take(4).all(|line| line.len() < 140), "{text}");
    let mut wide = report;
    for row in &mut wide.rows {
        for seed in 0..30 {
            row.0.push((format!("value_{seed}").into(), "same".into()));
        }
    }
    let text = table(&wide);
    assert!(text.lines().all(|line| line.len() <= 140), "{text}");
    assert_eq!(text.matches("same").count(), 30, "{text}");
}
