//! `tidegate calibrate` as its users see it: a file that the scheduler and a forwarder take, a
//! directory left as it was, and what is refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tidegate_sched::CostModel;
use tidegate_server::config::{Config, Source};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let name = format!("tidegate-calibrate-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("data")).expect("the temporary directory is ours");
        Folder(path)
    }

    fn calibrate(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .arg("calibrate")
            .args(arguments)
            .current_dir(&self.0)
            .output()
            .expect("the command is built")
    }

    fn refusal(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.calibrate(arguments);
        let errors = String::from_utf8(output.stderr).expect("it prints text");
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        errors
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn entries(path: &Path) -> usize {
    std::fs::read_dir(path).expect("it is ours").count()
}

#[test]
fn a_second_gives_a_model_that_a_forwarder_takes() {
    let folder = Folder::new("good");
    let arguments = ["data", "--size", "8MiB", "--seconds", "1"];
    let output = folder.calibrate(&[&arguments[..], &["--output", "data.cost"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    let page = String::from_utf8(output.stdout).expect("it prints text");
    for part in [
        "write_sequential",
        "Throughput stops growing at",
        "written: data.cost",
    ] {
        assert!(page.contains(part), "{page}");
    }
    assert_eq!(
        (entries(&folder.0.join("data")), entries(&folder.0)),
        (0, 2)
    );
    let path = folder.0.join("data.cost");
    let text = std::fs::read_to_string(&path).expect("it was written");
    assert!(text.starts_with("# What accesses cost on /"), "{text}");
    let model = CostModel::parse(&text).expect("it is a cost model");
    let settings = format!(
        "export = \"/tmp\"\nlisten = [\"unix:/tmp/x\"]\n[scheduler]\ncost_file = \"{}\"\n",
        path.display()
    );
    let source = Source::parse(&settings, "x").expect("it is TOML");
    let config = Config::from_source(source).expect("it is valid");
    assert_eq!(config.scheduler.cost, model);
    // Again over the same file, which is a cost model; as JSON.
    let json = folder.calibrate(&[&arguments[..], &["--output", "data.cost", "--json"]].concat());
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    assert!(value["model"]["read_random_base_ns"].is_u64(), "{value}");
    assert!(
        value["points"]
            .as_array()
            .is_some_and(|points| points.len() >= 8)
    );
    assert!(value["depth"]["read"].as_u64() >= Some(1));
}

#[test]
fn a_model_of_the_device_is_compared_with_it() {
    let folder = Folder::new("compared");
    let arguments = ["data", "--size", "4MiB", "--seconds", "1"];
    let with = |more: &[&str]| folder.calibrate(&[&arguments[..], more].concat());
    let compared = with(&["--compare"]);
    let page = String::from_utf8(compared.stdout).expect("it prints text");
    let last = page.lines().last().expect("it has lines");
    let all_within = last == "Within 20 %: 48 of 48.";
    assert!(last.starts_with("Within 20 %: "), "{page}");
    assert_eq!(
        compared.status.code(),
        Some(i32::from(!all_within)),
        "{page}"
    );
    // Its section is one that a forwarder takes.
    let section = page.split("\n\n").next().expect("it begins with the model");
    let settings = format!("export = \"/tmp\"\nlisten = [\"unix:/tmp/x\"]\n{section}");
    let source = Source::parse(&settings, "x").expect("it is TOML");
    Config::from_source(source).expect("it is valid");

    let json = with(&["--compare", "--tolerance", "30", "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&json.stdout).expect("it is JSON");
    let pairs = value["compared"].as_array().expect("it has a list");
    assert_eq!(pairs.len(), 48);
    for one in pairs {
        assert!(one["accesses"].as_u64() >= Some(20), "{one}");
        let number = |name: &str| one[name].as_f64().expect("it is a number");
        let off = number("model_per_second") / number("per_second") - 1.0;
        assert_eq!(one["within"], off.abs() <= 0.3, "{one}");
    }
    let all_within = pairs.iter().all(|one| one["within"] == true);
    assert_eq!(json.status.code(), Some(i32::from(!all_within)));
    assert_eq!(value["tolerance_percent"], 30.0);

    // Single accesses are as fast as those that are measured without a model of the device.
    let plain = with(&["--json"]);
    let plain: serde_json::Value = serde_json::from_slice(&plain.stdout).expect("it is JSON");
    let points = plain["points"].as_array().expect("it has a list");
    let mut logs = Vec::new();
    for one in pairs
        .iter()
        .filter(|one| one["depth"] == 1 && one["bytes"] == 4096)
    {
        let is_same = |point: &&serde_json::Value| {
            ["access", "bytes"]
                .iter()
                .all(|name| point[name] == one[name])
                && point["route"] == value["route"]
        };
        let point = points.iter().find(is_same).expect("the same access");
        let ns = point["ns"].as_f64().expect("it is a number");
        logs.push((one["per_second"].as_f64().expect("it is a number") * ns / 1e9).ln());
    }
    assert_eq!(logs.len(), 4);
    let mean = (logs.iter().sum::<f64>() / 4.0).exp();
    assert!((0.1..10.0).contains(&mean), "{mean}: {logs:?}");

    let fitted = with(&["--device", "--json"]);
    assert_eq!(fitted.status.code(), Some(0));
    let fitted: serde_json::Value = serde_json::from_slice(&fitted.stdout).expect("it is JSON");
    assert!(fitted["tolerance_percent"].is_null(), "{fitted}");
    assert_eq!(fitted["compared"].as_array().map(Vec::len), Some(0));
    assert_eq!(entries(&folder.0.join("data")), 0);
}

#[test]
fn what_makes_no_sense_is_refused_at_once() {
    let folder = Folder::new("bad");
    std::fs::write(folder.0.join("mine"), "not a model").expect("it is ours");
    let error = folder.refusal(2, &["data", "--output", "mine"]);
    assert!(
        error.contains("mine is there and is no cost model"),
        "{error}"
    );
    let error = folder.refusal(2, &["data", "--output", "none/x"]);
    assert!(
        error.contains("none/x: its directory is not there"),
        "{error}"
    );
    assert!(folder.refusal(2, &["mine"]).contains("is not a directory"));
    assert!(folder.refusal(2, &["none"]).contains("No such file"));
    assert!(folder.refusal(2, &["/proc"]).contains("cannot be made"));
    assert!(
        folder
            .refusal(2, &["data", "--size", "4KiB"])
            .contains("1MiB")
    );
    assert!(
        folder
            .refusal(2, &["data", "--compare", "--tolerance", "x"])
            .contains("percent")
    );
    let error = folder.refusal(1, &["data", "--size", "1024TiB"]);
    assert!(error.contains("smaller --size"), "{error}");
    assert_eq!(entries(&folder.0), 2);
}
