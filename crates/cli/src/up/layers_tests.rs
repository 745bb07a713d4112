use std::time::Duration;

use super::super::values::{
    Count, Dram, DramSize, Folder, Fraction, PolicyName, Span, Switch, carried, parse_ssd,
};
use super::*;

const FILE: &str = r#"
pfs = "/scratch"
dram = "4GiB"
ssd = ["/nvme0:1TB", "/nvme1"]
durability = "pfs"
policy = "maxbw"
passthrough = false
wait_for_space = "5s"

[demotion]
idle_after = 2
start = "40%"
dirty_cap = 0.9
verify = "media"

[[rule]]
path = "/scratch-only/**"
durability = "memory"
"#;

fn file(text: &str) -> ConfigFile {
    ConfigFile {
        path: "bb.toml".into(),
        text: text.into(),
    }
}

fn read(text: &str) -> Result<Given, String> {
    let file = file(text);
    let read = Layers::of_file(&file).and_then(Layers::read);
    read.map_err(|failure| failure.message)
}

/// Lays variables over what is there; what looks like a setting and is none.
fn put(layers: &mut Layers, pairs: &[(&str, &str)]) -> Vec<String> {
    layers.put_environment(pairs.iter().map(|(k, v)| (k.into(), v.into())))
}

fn read_environment(pairs: &[(&str, &str)]) -> Result<Given, String> {
    let mut layers = Layers::default();
    put(&mut layers, pairs);
    layers.read().map_err(|failure| failure.message)
}

#[test]
fn files_parse() {
    let given = read(FILE).expect("valid");
    assert_eq!(given.dram, Some(Dram(DramSize::Fixed(4 << 30))));
    assert_eq!(given.ssd.expect("ssd").len(), 2);
    let demotion = given.demotion;
    assert_eq!(demotion.idle_after, Some(Span(Duration::from_secs(2))));
    assert_eq!(demotion.start, Some(Fraction(0.4)));
    assert_eq!(demotion.dirty_cap, Some(Fraction(0.9)));
    assert_eq!(given.rules[0].path, "/scratch-only/**");
    assert_eq!(given.wait_for_space, Some(Span(Duration::from_secs(5))));
    assert_eq!(given.passthrough, Some(Switch(false)));
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_its_line() {
    let error = |text: &str| {
        let error = read(text).unwrap_err();
        let (path, rest) = error.split_once(": ").expect("path");
        assert_eq!(path, "bb.toml");
        rest.to_string()
    };
    let unknown = error("pfs = \"/a\"\ndarm = \"1G\"\n");
    assert!(
        unknown.starts_with("line 2: unknown field `darm`, did you mean `dram`? expected one of"),
        "{unknown}"
    );
    let slip = error("psf = \"/a\"\n");
    assert!(slip.contains("`psf`, did you mean `pfs`?"), "{slip}");
    let unlike = error("pfs = \"/a\"\nquux = \"1G\"\n");
    assert!(
        unlike.starts_with("line 2: unknown field `quux`, expected one of"),
        "{unlike}"
    );
    let section = error("[demotion]\nidle = true\nidel_after = 1\n");
    assert!(
        section.starts_with("line 3: unknown field `idel_after`, did you mean `idle_after`?"),
        "{section}"
    );
    let value = error("\n\ndram = \"4 apples\"\n");
    assert!(
        value.starts_with("line 3: '4 apples' has no known unit"),
        "{value}"
    );
    let kind = error("dram = [1]\n");
    assert!(
        kind.starts_with("line 1: ") && kind.contains("a size such as"),
        "{kind}"
    );
    let truth = error("dram = true\n");
    assert!(truth.contains("a size such as"), "{truth}");
    let policy = error("policy = \"best\"\n");
    assert!(policy.contains("bbos, maxbw, maxeff"), "{policy}");
    assert!(error("pfs = \n").starts_with("line 1: "));
    assert!(error("[[rule]]\ndurability = \"pfs\"\n").contains("path"));
    let in_list = error("ssd = [\n\"/a\",\n\":4G\",\n]\n");
    assert!(in_list.starts_with("line 3: "), "{in_list}");
}

#[test]
fn the_command_line_wins_over_the_environment_over_the_file() {
    let file = file(FILE);
    let mut layers = Layers::of_file(&file).expect("valid");
    let unknown = put(
        &mut layers,
        &[
            ("FOREBAY_DRAM", "2GiB"),
            ("FOREBAY_POLICY", "maxeff"),
            ("FOREBAY_DEMOTION_START", "30%"),
            ("FOREBAY_DEMOTION_IDLE", "off"),
            ("FOREBAY_SCRUB_ENABLED", "no"),
            ("FOREBAY_ENGINE_KEEP_EVERY", "3"),
            ("FOREBAY_SSD", "/a,/b:1T"),
            ("FOREBAY_LOG", "debug"),
            ("FOREBAY_STATE", ""),
            ("FOREBAY_DARM", "1"),
            ("HOME", "/root"),
        ],
    );
    layers.put("dram", "--dram".into(), OsStr::new("1GiB"));
    let given: Given = layers.read().expect("valid");
    assert_eq!(given.dram, Some(Dram(DramSize::Fixed(1 << 30))));
    assert_eq!(given.policy, Some(PolicyName("maxeff".into())));
    assert_eq!(given.durability.map(|r| r.0.name()), Some("pfs"));
    assert_eq!(given.demotion.start, Some(Fraction(0.3)));
    assert_eq!(given.demotion.idle, Some(Switch(false)));
    assert_eq!(given.demotion.dirty_cap, Some(Fraction(0.9)));
    assert_eq!(given.scrub.enabled, Some(Switch(false)));
    assert_eq!(given.engine.keep_every, Some(Count(3)));
    assert_eq!(given.ssd.expect("ssd")[1].0.capacity_bytes, Some(1 << 40));
    assert_eq!(given.state, None);
    assert_eq!(unknown, ["FOREBAY_DARM"]);
    assert_eq!(
        variable_like("FOREBAY_DARM").as_deref(),
        Some("FOREBAY_DRAM")
    );
    assert_eq!(variable_like("FOREBAY_QUUX"), None);
}

#[test]
fn what_is_wrong_is_said_of_the_layer_that_it_is_from() {
    let wrong = read_environment(&[("FOREBAY_POLICY", "bbos"), ("FOREBAY_DRAM", "much")]);
    let said = wrong.unwrap_err();
    assert!(
        said.starts_with("environment variable FOREBAY_DRAM: 'much'"),
        "{said}"
    );
    let file = file(FILE);
    let mut layers = Layers::of_file(&file).expect("valid");
    put(&mut layers, &[("FOREBAY_DEMOTION_START", "much")]);
    layers.put("pfs", "--pfs".into(), OsStr::new("/p"));
    let said = layers.read::<Given>().unwrap_err().message;
    assert!(
        said.starts_with("environment variable FOREBAY_DEMOTION_START: 'much'"),
        "{said}"
    );
    let mut layers = Layers::of_file(&file).expect("valid");
    layers.put("ssd", "--ssd".into(), OsStr::new("/a,:4G"));
    let said = layers.read::<Given>().unwrap_err().message;
    assert!(said.starts_with("--ssd: names no directory"), "{said}");
}

#[test]
fn names_of_folders_need_not_be_text() {
    let name = OsStr::from_bytes(b"/\xff");
    let sized = OsStr::from_bytes(b"/\xff:4G");
    let mut layers = Layers::default();
    layers.put("pfs", "--pfs".into(), name);
    layers.put("ssd", "--ssd".into(), sized);
    let given: Given = layers.read().expect("valid");
    assert_eq!(given.pfs, Some(Folder(name.into())));
    let ssd = given.ssd.expect("ssd")[0].0.clone();
    assert_eq!(Ok(ssd), parse_ssd(sized));
    let mut layers = Layers::default();
    layers.put("dram", "--dram".into(), name);
    let said = layers.read::<Given>().unwrap_err().message;
    assert_eq!(said, "--dram: is not UTF-8");
    assert_eq!(carried(OsStr::new("/plain")), "/plain");
}

#[test]
fn paths_in_a_file_count_from_its_folder() {
    let folder = tempfile::tempdir().expect("tempdir");
    let path = folder.path().join("bb.toml");
    std::fs::write(
        &path,
        "pfs = \"data\"\nmount = \"/bb\"\nssd = [\"nvme:1G\"]\n",
    )
    .expect("write");
    let file = ConfigFile::read(&path).expect("there");
    let given: Given = Layers::of_file(&file)
        .and_then(Layers::read)
        .expect("valid");
    assert_eq!(given.pfs, Some(Folder(folder.path().join("data"))));
    assert_eq!(given.mount, Some(Folder("/bb".into())));
    assert_eq!(given.ssd.expect("ssd")[0].0.dir, folder.path().join("nvme"));
    assert!(ConfigFile::read(&folder.path().join("none")).is_err());
}
