//! `tidegate trace` as its users see it: forwarders that record, summaries, and imports.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_client::{Client, Context, Options, app_id};

/// A directory with a state directory and a directory to export; forwarders in it end with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-trace-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("data")).expect("the temporary directory is ours");
        Scratch(path)
    }

    fn tidegate(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .current_dir(&self.0)
            .env_remove("TIDEGATE_FORWARDERS")
            .env("TIDEGATE_STATE_DIR", self.0.join("run"))
            .output()
            .expect("the command is built")
    }

    /// What a command prints, and what it warns of.
    fn run(&self, arguments: &[&str]) -> (String, String) {
        let output = self.tidegate(arguments);
        let text = |bytes| String::from_utf8(bytes).expect("it prints text");
        let (out, errors) = (text(output.stdout), text(output.stderr));
        assert!(output.status.success(), "{arguments:?}: {errors}");
        (out, errors)
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.run(arguments).0).expect("it is JSON")
    }

    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.tidegate(arguments);
        let errors = String::from_utf8(output.stderr).expect("it prints text");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        errors
    }

    fn put(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).expect("the directory is ours");
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.0.join("run/client.toml").exists() {
            self.tidegate(&["down"]);
        }
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Writes 64 times 64 KiB as the application `climate`, and reads them back.
fn work(run: &Path) {
    let address = |index| {
        format!(
            "unix:{}",
            run.join(format!("forwarder.{index}.sock")).display()
        )
    };
    let client = Client::connect(Options::new([address(0), address(1)])).expect("they listen");
    let context = Context {
        app: app_id("climate"),
        ..Context::default()
    };
    let root = client.root().handle;
    let file = client.create(&context, root, b"file", 0o644, true);
    let file = file.expect("a new name").handle;
    for at in 0..64u64 {
        let bytes = vec![at as u8; 65_536];
        assert_eq!(client.write(&context, file, at * 65_536, bytes), Ok(65_536));
    }
    for at in 0..64u64 {
        let data = client.read(&context, file, at * 65_536, 65_536);
        assert_eq!(data.expect("it was written").len, 65_536);
    }
}

#[test]
fn what_forwarders_recorded_is_summarised() {
    let scratch = Scratch::new();
    let arguments = [
        "up",
        "data",
        "--forwarders",
        "2",
        "--no-mount",
        "--trace",
        "traces//",
    ];
    let (text, _) = scratch.run(&arguments);
    assert!(text.contains("tidegate trace summarise"), "{text}");
    assert!(!text.contains("//") && !text.contains("traces/"), "{text}");
    work(&scratch.0.join("run"));
    let (table, _) = scratch.run(&["stat"]);
    let heading = table.lines().next().unwrap_or_default();
    assert!(heading.ends_with("recorded  dropped"), "{table}");
    let states = scratch.json(&["stat", "--json"]);
    let recorded = |index: usize| {
        let trace = &states[index]["trace"];
        trace["recorded"].as_u64().unwrap_or(0) + trace["buffered"].as_u64().unwrap_or(0)
    };
    assert_eq!(recorded(0) + recorded(1), 128, "{states}");
    let forwarder = ["trace", "summarise", "traces/forwarder.0.trace"];
    let (_, warning) = scratch.run(&forwarder);
    assert!(warning.contains("the trace has no end"), "{warning}");
    scratch.run(&["down"]);

    check_summary(&scratch);
    // A second set would go on in the same files.
    let refused = scratch.refusal(&arguments);
    assert!(refused.contains("of an earlier set"), "{refused}");
    let summary = scratch.json(&[&["trace", "summarise", "--json"], &BOTH[..]].concat());
    assert_eq!(summary["recordings"], 2);
    // A cut file is read as far as it goes.
    let path = scratch.0.join(BOTH[0]);
    let bytes = std::fs::read(&path).expect("it is there");
    std::fs::write(&path, &bytes[..96 * 20 + 7]).expect("it is ours");
    let (text, warning) = scratch.run(&forwarder);
    assert!(text.starts_with("19 requests"), "{text}");
    assert!(
        warning.contains("cut short amid a record, at byte 1927"),
        "{warning}"
    );
    scratch.put("file", "no folder");
    let refused = scratch.refusal(&["up", "data", "--no-mount", "--trace", "file"]);
    assert!(refused.contains("--trace"), "{refused}");
}

const BOTH: [&str; 2] = ["traces/forwarder.0.trace", "traces/forwarder.1.trace"];

fn check_summary(scratch: &Scratch) {
    let command = |more: &[&'static str]| [&["trace", "summarise"], &BOTH[..], more].concat();
    let (text, warning) = scratch.run(&command(&["--app", "climate"]));
    assert_eq!(warning, "");
    assert!(text.starts_with("128 requests in 2 traces, "), "{text}");
    let rows = text.lines().filter(|line| line.starts_with("climate "));
    assert_eq!(rows.count(), 3, "{text}");
    let summary = scratch.json(&command(&["--json"]));
    let total = &summary["total"];
    assert_eq!(total["requests"], 128);
    assert_eq!(
        (&total["read_bytes"], &total["write_bytes"]),
        (&(4 << 20).into(), &(4 << 20).into())
    );
    assert_eq!(
        (&total["files"], &total["clients"], &total["forwarders"]),
        (&1.into(), &1.into(), &2.into())
    );
    assert_eq!(total["operations"], 128);
    assert_eq!(total["size"]["max"], 65_536);
    assert_eq!(total["service_ns"]["requests"], 128);
    assert!(total["sequential"].as_f64() > Some(0.9), "{total}");
    // A folder stands for the traces in it.
    let folder = ["trace", "summarise", "traces/", "--json"];
    assert_eq!(scratch.json(&folder), summary);
    let refused = scratch.refusal(&["trace", "summarise", "data/"]);
    assert!(
        refused.contains("data: there is no file in it whose name ends with .trace"),
        "{refused}"
    );
    let applications = summary["applications"].as_array().expect("a list");
    assert_eq!(applications.len(), 1);
    assert_eq!(
        applications[0]["app"],
        format!("{:016x}", app_id("climate"))
    );
    assert_eq!(applications[0]["name"], serde_json::Value::Null);
}

const DXT: &str = "\
# darshan log version: 3.41
# exe: /apps/bin/ior -a POSIX
# start_time: 1700000000
# DXT, file_id: 77, file_name: /scratch/out
# DXT, rank: 0, hostname: node1
# DXT, write_count: 2, read_count: 0
 X_POSIX       0  write        0               0            4096      1.0000      1.2500
 X_POSIX       0  write        1            4096            4096      2.0000      2.2500
# DXT, file_id: 77, file_name: /scratch/out
# DXT, rank: 0, hostname: node1
# DXT, write_count: 1, read_count: 0
 X_MPIIO       0  write        0               0            8192      1.0000      2.2500
";

#[test]
fn a_darshan_log_becomes_a_trace() {
    let scratch = Scratch::new();
    scratch.put("job.txt", DXT);
    let (text, _) = scratch.run(&["trace", "import", "job.txt"]);
    let expected = "job.trace: 0 reads of 0 bytes and 2 writes of 8192 bytes by ior (DXT_POSIX)\n";
    assert_eq!(text, expected);
    let again = scratch.refusal(&["trace", "import", "job.txt"]);
    assert!(again.contains("--output"), "{again}");
    let of_mpiio = [
        "trace", "import", "job.txt", "--module", "mpiio", "--app", "climate",
    ];
    let more = ["--output", "mpiio.trace", "--json"];
    let imported = scratch.json(&[&of_mpiio[..], &more].concat());
    assert_eq!(
        (&imported["writes"], &imported["bytes_written"]),
        (&1.into(), &8192.into())
    );
    let summary = scratch.json(&["trace", "summarise", "job.trace", "mpiio.trace", "--json"]);
    let names = summary["applications"].as_array().expect("a list");
    let mut names: Vec<_> = names.iter().map(|app| app["name"].to_string()).collect();
    names.sort();
    assert_eq!(names, ["\"climate\"", "\"ior\""]);
    assert_eq!(summary["total"]["wait_ns"], serde_json::Value::Null);
    assert_eq!(summary["zero_wall_ns"], 1_700_000_000_000_000_000u64);

    let (counters, _) = DXT.split_once("# DXT").expect("it has some");
    scratch.put("counters.txt", counters);
    let refused = scratch.refusal(&["trace", "import", "counters.txt"]);
    assert!(refused.contains("DXT_ENABLE_IO_TRACE"), "{refused}");
    assert!(!scratch.0.join("counters.trace").exists());
    for file in ["job.txt", "none.trace"] {
        let refused = scratch.refusal(&["trace", "summarise", file]);
        assert!(refused.contains(file), "{refused}");
    }
    assert!(
        scratch
            .refusal(&["trace", "summarise", "job.txt"])
            .contains("trace import")
    );
}
