//! The command as its users see it: exit codes, one-line errors, and forwarders that come up, are
//! looked at, follow another policy and go down. What needs a mount is tested by tests/run.

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A directory with a state directory and a directory to export; forwarders in it end with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-cli-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("data")).expect("the temporary directory is ours");
        Scratch(path)
    }

    fn tidegate(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(arguments)
            .current_dir(&self.0)
            .env_remove("TIDEGATE_FORWARDERS")
            .env_remove("TIDEGATE_APP")
            .env("TIDEGATE_STATE_DIR", self.0.join("run"))
            .output()
            .expect("the command is built")
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = self.tidegate(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {errors}");
        String::from_utf8(output.stdout).expect("it prints text")
    }

    /// The one line that a refused command says.
    fn refusal(&self, arguments: &[&str]) -> String {
        let output = self.tidegate(arguments);
        let errors = String::from_utf8(output.stderr).expect("it prints text");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.starts_with("tidegate: "), "{errors}");
        errors
    }

    fn signal(&self, index: usize, signal: Signal) {
        let path = self.0.join(format!("run/forwarder.{index}.pid"));
        let text = std::fs::read_to_string(path).expect("it runs");
        let pid = Pid::from_raw(text.trim().parse().expect("a number")).expect("not 0");
        kill_process(pid, signal).expect("it is ours");
    }

    fn config(&self, text: &str) -> PathBuf {
        let path = self.0.join("forwarder.toml");
        std::fs::write(&path, text).expect("the directory is ours");
        path
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

fn shown(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

#[test]
fn forwarders_come_up_are_looked_at_and_go_down() {
    let scratch = Scratch::new();
    let text = scratch.run(&["up", "data", "--forwarders", "2", "--no-mount"]);
    assert_eq!(text.lines().last(), Some("ready"), "{text}");
    for index in 0..2 {
        for what in ["toml", "pid", "sock", "log"] {
            let path = scratch.0.join(format!("run/forwarder.{index}.{what}"));
            assert!(path.exists(), "{}", path.display());
        }
    }
    let again = scratch.refusal(&["up", "data", "--no-mount"]);
    assert!(again.contains("is up in"), "{again}");

    let table = scratch.run(&["stat"]);
    assert_eq!(table.lines().count(), 4, "{table}");
    let seats = "seats: keeper files, by locks, durability process, one_node true";
    assert!(table.contains(seats), "{table}");
    let states: serde_json::Value =
        serde_json::from_str(&scratch.run(&["stat", "--json"])).expect("it is JSON");
    assert_eq!(states.as_array().map(Vec::len), Some(2));
    assert_eq!(states[1]["policy"], "fifo");
    assert_eq!(states[1]["forwarder"], 1);

    check_policies(&scratch);

    scratch.run(&["down"]);
    let log = std::fs::read_to_string(scratch.0.join("run/forwarder.0.log")).expect("it stays");
    assert!(!log.contains("WARN"), "clients went in order: {log}");
    assert!(!scratch.0.join("run/client.toml").exists());
    assert!(!scratch.0.join("run/forwarder.0.sock").exists());
    assert!(!scratch.0.join("run/forwarder.0.pid").exists());
    let nothing = scratch.refusal(&["down"]);
    assert!(nothing.contains("nothing is up"), "{nothing}");
}

#[test]
fn down_ends_no_process_that_a_file_merely_names() {
    let scratch = Scratch::new();
    let run = scratch.0.join("run");
    let mut private = std::fs::DirBuilder::new();
    private.mode(0o700).create(&run).expect("fresh");
    let mut child = Command::new("sleep")
        .args(["60"])
        .arg0("tidegate up mount")
        .spawn()
        .expect("it starts");
    for name in ["up.pid", "mount.pid", "forwarder.0.pid"] {
        std::fs::write(run.join(name), format!("{}\n", child.id())).expect("room");
    }
    let client = "forwarders = [\"unix:/nowhere\"]\n";
    std::fs::write(run.join("client.toml"), client).expect("room");
    scratch.run(&["down"]);
    let ended = child.try_wait().expect("it is ours");
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    assert_eq!(ended, None, "it is no process of Tidegate");
    std::fs::set_permissions(&run, PermissionsExt::from_mode(0o777)).expect("ours");
    let open = scratch.refusal(&["down"]);
    assert!(open.contains("others may use it; `chmod 700"), "{open}");
}

#[test]
fn a_runtime_directory_of_another_user_does_not_count() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped, needs root: a directory of another user");
        return;
    }
    let scratch = Scratch::new();
    let theirs = scratch.0.join("theirs");
    std::fs::create_dir(&theirs).expect("fresh");
    std::os::unix::fs::chown(&theirs, Some(12_345), None).expect("it is root");
    let stat = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("stat")
        .env_remove("TIDEGATE_STATE_DIR")
        .env_remove("TIDEGATE_FORWARDERS")
        .env("XDG_RUNTIME_DIR", &theirs)
        .output()
        .expect("the command is built");
    let said = String::from_utf8_lossy(&stat.stderr);
    assert!(!said.contains("theirs"), "{said}");
}

/// Changes the policy, and looks at it in each way.
fn check_policies(scratch: &Scratch) {
    scratch.run(&[
        "policy",
        "set",
        "window",
        "window_ms=250",
        "--state-dir",
        "run",
    ]);
    let address = format!("unix:{}", shown(&scratch.0.join("run/forwarder.0.sock")));
    // One address is enough to hear of all forwarders.
    let policies = scratch.run(&["policy", "get", "--forwarders", &address]);
    let lines: Vec<&str> = policies.lines().collect();
    assert!(lines.len() == 2 && lines[1].starts_with("forwarder 1: window "));
    let policy = lines[0];
    // What was set, and what else is in force, as `policy set` takes it.
    let options = policy.strip_prefix("forwarder 0: window ").expect(policy);
    let options: Vec<&str> = options.split_whitespace().collect();
    for option in [
        "window_ms=250",
        "order=rotated",
        "rotation_seed=0",
        "merge=false",
    ] {
        assert!(options.contains(&option), "{policy}");
    }
    let again = [&["policy", "set", "window"], &options[..]].concat();
    assert_eq!(scratch.run(&again).lines().next(), Some(policy));
    let policies: serde_json::Value =
        serde_json::from_str(&scratch.run(&["policy", "--json"])).expect("it is JSON");
    assert_eq!(policies[0]["policy"], "window");
    assert_eq!(policies[1]["policy"], "window");
    assert_eq!(policies[1]["options"]["window_ms"], 250);
    let refused = scratch.refusal(&["policy", "set", "best"]);
    assert!(
        refused.contains("\"best\"") && refused.contains("fifo"),
        "{refused}"
    );
    let refused = scratch.refusal(&["policy", "set", "window", "width_ms=250"]);
    assert!(
        refused.contains("\"width_ms\"") && refused.contains("window_ms"),
        "{refused}"
    );
    let refused = scratch.refusal(&["policy", "set", "sjf", "cost_file="]);
    assert!(refused.contains("name of a file"), "{refused}");
    let output = scratch.tidegate(&["policy", "set", "sjf", "cost_file=/nowhere/a.cost"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("there is no /nowhere/a.cost"), "{errors}");
    assert!(
        scratch
            .run(&["policy", "list"])
            .lines()
            .any(|line| line == "round-robin")
    );
}

/// What a command does whose output nobody reads, or that has no room: its exit code and errors.
fn unread(arguments: &[&str], output: impl Into<std::process::Stdio>) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let done = command.args(arguments).stdout(output).output();
    let done = done.expect("the command is built");
    let errors = String::from_utf8(done.stderr).expect("it prints text");
    (done.status.code(), errors)
}

#[test]
fn a_reader_that_goes_away_is_no_error_and_a_full_disk_is_one() {
    for arguments in [
        &["policy", "list"][..],
        &["policy", "list", "--json"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().expect("room");
        drop(reader);
        assert_eq!(
            unread(arguments, writer),
            (Some(0), String::new()),
            "{arguments:?}"
        );
    }
    let full = std::fs::File::options().write(true).open("/dev/full");
    let (code, errors) = unread(&["policy", "list"], full.expect("it is there"));
    assert_eq!(code, Some(1), "{errors}");
    assert!(
        errors.starts_with("tidegate: standard output: No space left"),
        "{errors}"
    );
    assert_eq!(errors.lines().count(), 1, "{errors}");
}

#[test]
fn settings_are_checked_beside_the_forwarder_that_serves() {
    let scratch = Scratch::new();
    let asked = ["serve", "--config", "forwarder.toml", "--check-config"];
    let with = |more: &str| {
        scratch.config(&format!(
            "export = \"data\"\nlisten = \"unix:{}/socket\"\n{more}",
            shown(&scratch.0)
        ));
    };
    with("");
    let said = scratch.run(&asked);
    assert!(said.contains("right; export data, listen unix:"), "{said}");
    // Nothing was made, not even the hidden folder.
    let made = std::fs::read_dir(scratch.0.join("data")).expect("it is ours");
    assert_eq!(made.count(), 0);
    scratch.run(&["up", "data", "--no-mount", "--forwarders", "1"]);
    scratch.run(&asked);
    scratch.run(&["down"]);
    for (wrong, named) in [
        ("polcy = 1\n", "polcy"),
        ("secret_file = \"missing\"\n", "missing"),
        ("[scheduler]\npolicy = \"best\"\n", "best"),
    ] {
        with(wrong);
        let said = scratch.refusal(&asked);
        assert!(said.contains(named), "{said}");
    }
    with("");
    std::fs::remove_dir_all(scratch.0.join("data")).expect("it is ours");
    assert!(scratch.refusal(&asked).contains("data: No such file"));
    std::fs::write(scratch.0.join("data"), "").expect("it is ours");
    assert!(scratch.refusal(&asked).contains("not a directory"));
}

#[test]
fn a_directory_that_is_served_already_is_refused() {
    let scratch = Scratch::new();
    scratch.run(&["up", "data", "--forwarders", "2", "--no-mount"]);
    let other = ["--forwarders", "2", "--no-mount", "--state-dir", "other"];
    let refused = scratch.refusal(&[&["up", "data"], &other[..]].concat());
    assert!(
        refused.contains("data is already served by other forwarders, which are yours; "),
        "{refused}"
    );
    let left = std::fs::read_dir(scratch.0.join("other")).expect("its logs stay");
    let left: Vec<_> = left.map(|entry| entry.expect("readable").path()).collect();
    let gone = |kind: &str| left.iter().all(|path| !shown(path).ends_with(kind));
    assert!(
        gone(".pid") && gone(".sock") && gone("client.toml"),
        "{left:?}"
    );
    // The first ones serve on, and leave the directory to the next when they go.
    let table = scratch.run(&["stat"]);
    assert_eq!(table.matches(" fifo ").count(), 2, "{table}");
    scratch.run(&["down"]);
    scratch.run(&[&["up", "data"], &other[..]].concat());
    scratch.run(&["down", "--state-dir", "other"]);
}

#[test]
fn a_forwarder_that_does_not_answer_delays_no_other() {
    let scratch = Scratch::new();
    scratch.run(&["up", "data", "--forwarders", "3", "--no-mount"]);
    for index in 1..3 {
        scratch.signal(index, Signal::STOP);
    }
    let start = Instant::now();
    let table = scratch.run(&["stat"]);
    let states: serde_json::Value =
        serde_json::from_str(&scratch.run(&["stat", "--json"])).expect("it is JSON");
    let policies = scratch.run(&["policy", "get"]);
    let output = scratch.tidegate(&["policy", "set", "window"]);
    assert!(
        start.elapsed() < Duration::from_secs(20),
        "{:?}",
        start.elapsed()
    );
    for text in [&table, &policies] {
        assert_eq!(text.matches("may be stopped").count(), 2, "{text}");
        assert!(
            text.contains("fifo") && text.contains("no answer"),
            "{text}"
        );
    }
    assert_eq!(states[0]["policy"], "fifo");
    let error = states[2]["error"].as_str().expect("it says why");
    assert!(
        error.contains("no answer") && states[2]["forwarder"] == 2,
        "{states}"
    );
    let (said, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(said.contains("forwarder 0: window"), "{said}");
    assert!(
        errors.contains("forwarder 1 (") && errors.lines().count() == 1,
        "{errors}"
    );
    for index in 1..3 {
        scratch.signal(index, Signal::CONT);
    }
    scratch.run(&["policy", "set", "window"]);
    assert_eq!(scratch.run(&["policy"]).matches(": window ").count(), 3);
}

#[test]
fn a_mount_covers_no_files_and_no_mount() {
    let scratch = Scratch::new();
    std::fs::create_dir_all(scratch.0.join("full/of")).expect("ours");
    let refused = scratch.refusal(&["mount", "full"]);
    assert!(refused.contains("full: not empty"), "{refused}");
    let refused = scratch.refusal(&["up", "data", "--mount", "full"]);
    assert!(refused.contains("full: not empty"), "{refused}");
    let missing = scratch.refusal(&["mount", "missing"]);
    assert!(missing.contains("missing: it does not exist"), "{missing}");
    // Without FUSE here, the second half is for other machines.
    let up = scratch.tidegate(&["up", "data", "--forwarders", "1"]);
    if !up.status.success() {
        println!("SKIP: {}", String::from_utf8_lossy(&up.stderr));
        return;
    }
    let refused = scratch.refusal(&["mount", "run/mnt"]);
    assert!(refused.contains("already mounted"), "{refused}");
    let other = ["up", "data", "--mount", "run/mnt", "--state-dir", "other"];
    let refused = scratch.refusal(&other);
    assert!(refused.contains("already mounted"), "{refused}");
    std::fs::create_dir(scratch.0.join("second")).expect("ours");
    scratch.run(&["mount", "second"]);
    std::fs::write(scratch.0.join("data/seen"), "bytes").expect("ours");
    let seen = std::fs::read_to_string(scratch.0.join("second/seen"));
    assert_eq!(seen.expect("it is mounted"), "bytes");
    scratch.run(&["umount", "second"]);
    scratch.run(&["down"]);
}

#[test]
fn a_program_is_shown_by_the_name_that_run_gave_it() {
    let scratch = Scratch::new();
    let up = scratch.tidegate(&["up", "data", "--forwarders", "2"]);
    if !up.status.success() {
        println!("SKIP: {}", String::from_utf8_lossy(&up.stderr));
        return;
    }
    let program = [
        "--no-shortcut",
        "--",
        "sh",
        "-c",
        "echo bytes > $TIDEGATE_MOUNT/$$",
    ];
    let quiet = scratch.tidegate(&[&["run", "--app", "climate"], &program[..]].concat());
    assert!(
        quiet.status.success() && quiet.stderr.is_empty(),
        "{quiet:?}"
    );
    let told = scratch.tidegate(&[&["run", "--verbose"], &program[..]].concat());
    let said = String::from_utf8(told.stderr).expect("it prints text");
    let made_up = said.strip_prefix("tidegate: application ").expect(&said);
    let (made_up, place) = made_up.split_once(", files in ").expect(&said);
    assert!(
        made_up.starts_with("run-") && place.ends_with("run/mnt\n"),
        "{said}"
    );
    let table = scratch.run(&["stat"]);
    for name in ["climate", made_up] {
        let row = table.lines().find(|line| line.starts_with(name));
        let cells: Vec<_> = row.expect(&table).split_whitespace().collect();
        // The user comes first.
        assert_eq!(cells[2..6], ["0", "0", "1", "6"], "{table}");
    }
    let states = scratch.run(&["stat", "--json"]);
    assert!(states.contains("\"name\":\"climate\""), "{states}");
    // Forwarders know the names too, so addresses are enough.
    let address = |index: u32| {
        let socket = scratch.0.join(format!("run/forwarder.{index}.sock"));
        format!("unix:{}", shown(&socket))
    };
    let addresses = format!("{},{}", address(0), address(1));
    let table = scratch.run(&["stat", "--forwarders", &addresses]);
    assert!(table.contains("climate"), "{table}");
    scratch.run(&["down"]);
}

#[test]
fn without_forwarders_commands_say_what_to_do() {
    let scratch = Scratch::new();
    for arguments in [
        &["run", "--", "true"][..],
        &["stat"],
        &["policy"],
        &["policy", "set", "fifo"],
    ] {
        let line = scratch.refusal(arguments);
        assert!(line.contains("tidegate up DIR"), "{line}");
    }
    let line = scratch.refusal(&["run", "--state-dir", "nowhere", "--", "true"]);
    assert!(line.contains("/nowhere"), "{line}");
    let line = scratch.refusal(&["stat", "--forwarders", "unix:/no/such/socket"]);
    assert!(
        line.contains("/no/such/socket") && line.contains("tidegate up DIR"),
        "{line}"
    );
    let line = scratch.refusal(&["stat", "--forwarders", "elsewhere"]);
    assert!(line.contains("unix:PATH"), "{line}");
}

#[test]
fn wrong_usage_is_one_line() {
    let scratch = Scratch::new();
    assert!(
        scratch
            .refusal(&["no-such-command"])
            .contains("no-such-command")
    );
    assert!(
        scratch
            .refusal(&["up", "data", "--no-such-option"])
            .contains("no-such-option")
    );
    assert!(scratch.refusal(&[]).contains("--help"));
    assert!(scratch.refusal(&["up"]).contains("DIR"));
    assert!(scratch.refusal(&["up", "missing"]).contains("missing"));
    let policy = scratch.refusal(&["up", "data", "--policy", "best"]);
    assert!(
        policy.contains("--policy") && policy.contains("fifo"),
        "{policy}"
    );
    let inside = scratch.refusal(&["up", "data", "--mount", "data/mnt"]);
    assert!(inside.contains("--mount"), "{inside}");
    assert!(scratch.run(&["--help"]).contains("up"));
}

#[test]
fn wrong_configurations_are_one_line() {
    let scratch = Scratch::new();
    let socket = scratch.0.join("socket");
    let good = format!(
        "export = \"data\"\nlisten = [\"unix:{}\"]\n",
        socket.display()
    );
    let serve = |text: &str| {
        let path = scratch.config(text);
        scratch.refusal(&["serve", "--config", shown(&path)])
    };
    let line = serve(&format!("{good}no_such_key = 1\n"));
    assert!(
        line.contains("forwarder.toml:3: unknown key \"no_such_key\""),
        "{line}"
    );
    let line = serve(&good.replace("data", "nowhere"));
    assert!(line.contains("nowhere"), "{line}");
    let line = serve(&format!("wrong = [\n{good}"));
    assert!(line.contains("forwarder.toml:"), "{line}");
    let line = scratch.refusal(&["serve", "--config", "absent.toml"]);
    assert!(line.contains("absent.toml"), "{line}");
    let line = scratch.refusal(&["serve"]);
    assert!(line.contains("\"export\" is missing"), "{line}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a free port");
    let port = taken.local_addr().expect("it is bound").port();
    let line = serve(&format!(
        "export = \"data\"\ninsecure = true\nlisten = [\"tcp:127.0.0.1:{port}\"]\n"
    ));
    assert!(
        line.contains(&port.to_string()) && line.contains("another"),
        "{line}"
    );
}
