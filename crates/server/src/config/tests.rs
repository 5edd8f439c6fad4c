//! What a configuration may say, and what is said to mistakes.

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    let source = Source::parse(text, "f.toml").map_err(|error| error.to_string())?;
    Config::from_source(source).map_err(|error| error.to_string())
}

fn refusal(text: &str) -> String {
    parse(text).expect_err("must be refused")
}

const GOOD: &str = "export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n";

#[test]
fn a_small_file_gets_the_defaults() {
    let config = parse(GOOD).expect("it is valid");
    assert_eq!(
        config.layout(),
        Layout {
            seats: 1,
            stripe: 1 << 20
        }
    );
    assert!(config.fail_over && config.device.is_none());
    assert_eq!(config.scheduler.policy, "fifo");
    assert_eq!(config.scheduler.depth, config.threads);
    assert!((1..=8).contains(&config.reactors));
}

#[test]
fn unknown_keys_are_refused_by_name_and_line() {
    let error = refusal(&format!("{GOOD}strip = 4096\n"));
    assert!(error.starts_with(
        "f.toml:3: unknown key \"strip\" in the first section; did you mean stripe? known: export"
    ));
    let error = refusal(&format!("{GOOD}[log]\nlevel = \"info\"\ncolour = 1\n"));
    assert_eq!(
        error,
        "f.toml:5: unknown key \"colour\" in [log]; known: level, format"
    );
    let error = refusal(&format!("{GOOD}[schedule]\npolicy = \"fifo\"\n"));
    assert!(
        error.starts_with(
            "f.toml:3: unknown section [schedule]; did you mean [scheduler]? known: [ownership]"
        ),
        "{error}"
    );
    let error = refusal(&format!(
        "{GOOD}[scheduler]\npolicy = \"fifo\"\nquantums = 3\n"
    ));
    assert!(
        error.starts_with("f.toml:5: unknown key \"quantums\" in [scheduler]"),
        "{error}"
    );
}

#[test]
fn wrong_values_say_what_where_and_what_to_do() {
    let cases = [
        (
            "stripe = 5000\n",
            "f.toml:3: stripe = 5000 must be a power of two of at least 4096",
        ),
        (
            "seats = 0\n",
            "f.toml:3: seats = 0 must be a number from 1 to",
        ),
        (
            "threads = \"many\"\n",
            "f.toml:3: threads = \"many\" must be a number",
        ),
        (
            "forwarder = 4\nseats = 4\n",
            "f.toml:3: forwarder = 4 must be below seats = 4",
        ),
        (
            "pipelining = \"both\"\n",
            "f.toml:3: pipelining = \"both\" must be one of none, serial, parallel",
        ),
        (
            "fail_over = 1\n",
            "f.toml:3: fail_over must be true or false",
        ),
        (
            "[device]\nmodel = \"tape\"\n",
            "f.toml:4: there is no device model \"tape\"",
        ),
        (
            "[scheduler]\npolicy = \"best\"\n",
            "f.toml:4: there is no policy \"best\"",
        ),
        (
            "[device]\nmodel = \"ideal\"\nrpm = 9\n",
            "f.toml:5: unknown key \"rpm\" in [device]",
        ),
        (
            "[device]\nmodel = \"ideal\"\ndepth = 0\n",
            "f.toml:5: depth = 0 is outside of",
        ),
        (
            "[emulation]\nmessage_jitter_us = -1\n",
            "f.toml:4: message_jitter_us = -1 must be a number from 0 to 10000000",
        ),
        (
            "[log]\nlevel = \"loud\"\n",
            "f.toml:4: level = \"loud\" must be one of error",
        ),
    ];
    for (text, expected) in cases {
        let error = refusal(&format!("{GOOD}{text}"));
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
    let error = refusal("export = \"/tmp\"\nlisten = [\"http:x\"]\n");
    assert!(
        error.starts_with("f.toml:2: address \"http:x\" must be unix:"),
        "{error}"
    );
    let error = refusal("export = \"/tmp\"\nlisten = [\"tcp:0.0.0.0:7\"]\n");
    assert!(error.contains("secret_file"), "{error}");
    assert!(refusal("export = [").starts_with("f.toml:1: "));
    assert!(refusal("").contains("\"export\" is missing"));
}

#[test]
fn reactors_are_as_many_as_cores_let_seem_right() {
    for wrong in ["0", "65"] {
        let error = refusal(&format!("{GOOD}reactors = {wrong}\n"));
        let expected = format!("f.toml:3: reactors = {wrong} must be a number from 1 to 64");
        assert!(error.starts_with(&expected), "{error}");
    }
    assert_eq!(parse(&format!("{GOOD}reactors = 3\n")).unwrap().reactors, 3);
    let by_cores = [1, 7, 8, 16, 31, 32, 256].map(keys::reactors_of);
    assert_eq!(by_cores, [1, 1, 2, 4, 7, 8, 8]);
}

#[test]
fn wrong_values_of_a_policy_say_so_too() {
    let cases = [
        (
            "[scheduler]\npolicy = \"aioli\"\nquantum_bytes = -5\n",
            "f.toml:5: quantum_bytes = -5 must not be negative",
        ),
        (
            "[scheduler]\npolicy = \"aioli\"\nquantum_bytes = \"64 miles\"\n",
            "f.toml:5: quantum_bytes must be a whole number",
        ),
        (
            "[scheduler]\npolicy = \"aioli\"\nprediction = \"recorded\"\n",
            "f.toml:5: prediction = \"recorded\" needs trace_files = [\"FILE\"] where the",
        ),
        (
            "[scheduler]\ncost_file = \"/dev/null\"\n",
            "f.toml:4: cost_file /dev/null: cannot be read: is not a file",
        ),
    ];
    for (text, expected) in cases {
        let error = refusal(&format!("{GOOD}{text}"));
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn bytes_of_a_policy_may_have_a_unit() {
    let text = format!("{GOOD}[scheduler]\npolicy = \"mlf\"\nquantum_bytes = \"64 KiB\"\n");
    let table = parse(&text).expect("it is valid").scheduler.table;
    let quantum = table.iter().find(|(name, _)| *name == "quantum_bytes");
    assert_eq!(quantum.expect("it is set").1, &65_536.into());
}

#[test]
fn a_trace_needs_a_file() {
    let cases = [
        (
            "[trace]\nbuffer_records = 10\n",
            "f.toml:3: \"file\" is missing: name the file to record into",
        ),
        (
            "[trace]\nfile = \"\"\n",
            "f.toml:4: file is empty: name the file to record into",
        ),
        (
            "[trace]\nfile = \"/t\"\nbuffer_records = 0\n",
            "f.toml:5: buffer_records = 0 must be a number from 1 to 16777216",
        ),
        (
            "[trace]\nfile = \"/t\"\nsize = 9\n",
            "f.toml:5: unknown key \"size\" in [trace]; known: file, buffer_records",
        ),
    ];
    for (text, expected) in cases {
        let error = refusal(&format!("{GOOD}{text}"));
        assert_eq!(error, expected);
    }
    let config = parse(&format!("{GOOD}[trace]\nfile = \"/t\"\n")).expect("it is valid");
    let expected = TraceOptions {
        file: "/t".into(),
        buffer_records: 65_536,
    };
    assert_eq!(config.trace, Some(expected));
    assert_eq!(parse(GOOD).expect("it is valid").trace, None);
}

#[test]
fn a_cost_model_is_read_from_its_file() {
    let path = std::env::temp_dir().join(format!("tidegate-cost-{}", std::process::id()));
    let mut model = tidegate_sched::CostModel::default();
    model.read_random.base_ns = 77;
    let line = format!("cost_file = \"{}\"\n", path.display());
    let text = format!("{GOOD}[scheduler]\n{line}");
    let error = refusal(&text);
    assert!(error.starts_with("f.toml:4: cost_file /"), "{error}");
    assert!(error.contains("cannot be read: No such file"), "{error}");
    std::fs::write(&path, "# mine\nspeed = 1\n").expect("it is ours");
    let error = refusal(&text);
    assert!(
        error.contains(": line 2: a cost model has no \"speed\";"),
        "{error}"
    );
    std::fs::write(&path, model.to_string()).expect("it is ours");
    let mut options = parse(&text).expect("it is valid").scheduler;
    assert!(options.estimate && options.cost == model);
    // A change of policy keeps model and choice unless it names others.
    options.estimate = false;
    let changed = scheduler_options("policy = \"sjf\"\n", &options, None).expect("it is valid");
    assert_eq!((changed.cost, changed.estimate), (model, false));
    model.read_random.base_ns = 78;
    std::fs::write(&path, model.to_string()).expect("it is ours");
    let changed = format!("policy = \"sjf\"\n{line}cost_estimate = true\n");
    let changed = scheduler_options(&changed, &options, None).expect("it is valid");
    assert_eq!((changed.cost, changed.estimate), (model, true));
    std::fs::remove_file(&path).expect("it is ours");
}

#[test]
fn what_earlier_runs_foretell_is_read_from_their_traces() {
    use tidegate_trace::{Header, Origin, Record, Writer};
    let path = std::env::temp_dir().join(format!("tidegate-foretold-{}", std::process::id()));
    let line = format!("trace_files = [\"{}\"]\n", path.display());
    let scheduler = "[scheduler]\npolicy = \"aioli\"\nprediction = \"recorded\"\n";
    let text = format!("forwarder = 1\nseats = 2\n{GOOD}{scheduler}{line}");
    let refused = |expected: &str| {
        let error = refusal(&text);
        let place = format!("f.toml:8: trace_files: {}", path.display());
        assert!(
            error.starts_with(&place) && error.contains(expected),
            "{error}"
        );
    };
    refused("cannot be read: No such file");
    std::fs::write(&path, "").expect("it is ours");
    refused("the file is empty");
    std::fs::write(&path, [7; 4096]).expect("it is ours");
    refused("not a trace");
    let trace = |origin, forwarders: &[u16]| {
        let header = Header {
            origin,
            ..Header::default()
        };
        let mut writer = Writer::new(Vec::new(), &header).expect("memory takes it");
        for (at, forwarder) in (0..).zip(forwarders) {
            let record = Record {
                forwarder: Some(*forwarder),
                offset: at * 4096,
                len: 4096,
                arrival_ns: 1_000_000 * (5 + at),
                ..Record::default()
            };
            writer.record(&record).expect("memory takes it");
        }
        writer.finish().expect("memory takes it")
    };
    std::fs::write(&path, trace(Origin::Darshan, &[1])).expect("it is ours");
    refused("was imported from a Darshan log");
    let mut damaged = trace(Origin::Forwarder, &[1, 1, 1]);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    std::fs::write(&path, damaged).expect("it is ours");
    refused("the trace is damaged at byte ");
    // All forwarders of a set can name the same files, though one has served nothing.
    std::fs::write(&path, trace(Origin::Forwarder, &[0, 0])).expect("it is ours");
    let options = parse(&text).expect("it is valid").scheduler;
    assert!(options.prediction.is_some(), "nothing is foretold");

    std::fs::write(&path, trace(Origin::Forwarder, &[1, 1, 0])).expect("it is ours");
    let options = parse(&text).expect("it is valid").scheduler;
    let foretold = options.prediction.clone().expect("it was read");
    assert_eq!(foretold.len(), (2, 1));
    // A change of policy keeps it, and can name no other.
    let set = "policy = \"aioli\"\nprediction = \"recorded\"\n";
    let changed = scheduler_options(set, &options, None).expect("it is valid");
    assert_eq!(changed.prediction, Some(foretold));
    let error = scheduler_options(&format!("{set}{line}"), &options, None);
    let error = error.expect_err("must be refused").to_string();
    assert!(
        error.contains("trace_files are read when a forwarder starts"),
        "{error}"
    );
    let none = tidegate_sched::Options::default();
    let error = scheduler_options(set, &none, None).expect_err("must be refused");
    assert!(error.to_string().contains("needs trace_files"), "{error}");
    std::fs::remove_file(&path).expect("it is ours");
}

#[test]
fn windows_on_solid_state_devices_are_250_ms_wide_unless_said_otherwise() {
    let with = |window_ms: u64| {
        let mut options = tidegate_sched::Options::for_policy("window");
        options.table.set("window_ms", window_ms);
        options.table
    };
    let unset = tidegate_sched::PolicyOptions::default();
    for (device, policy, expected) in [
        ("ssd-sata", "policy = \"window\"\n", with(250)),
        ("ssd-pcie", "policy = \"window\"\n", with(250)),
        (
            "ssd-pcie",
            "policy = \"window\"\nwindow_ms = 700\n",
            with(700),
        ),
        ("ssd-pcie", "policy = \"fifo\"\n", unset.clone()),
        ("hdd-7200", "policy = \"window\"\n", unset),
    ] {
        // At the start, and as a change at run time of a forwarder that began with another.
        let device = format!("{GOOD}[device]\nmodel = \"{device}\"\n");
        let config = parse(&format!("{device}[scheduler]\n{policy}")).expect("it is valid");
        assert_eq!(config.scheduler.table, expected, "{device}{policy}");
        let config = parse(&device).expect("it is valid");
        let now = &config.scheduler;
        let changed = scheduler_options(policy, now, config.window_ms).expect("it is valid");
        assert_eq!(changed.table, expected, "{device}{policy}");
    }
}

#[test]
fn sizes_are_numbers_or_text() {
    assert_eq!(parse_bytes("64 KiB"), Some(65536));
    assert_eq!(parse_bytes("1M"), Some(1 << 20));
    assert_eq!(parse_bytes("12"), Some(12));
    assert_eq!(parse_bytes("1.5M"), None);
    assert_eq!(parse_bytes(""), None);
    let config = parse(&format!("{GOOD}stripe = \"64 KiB\"\n")).expect("it is valid");
    assert_eq!(config.stripe, 65536);
}

fn ownership_of(text: &str) -> Result<Ownership, String> {
    parse(&format!("{GOOD}{text}")).map(|config| config.ownership)
}

#[test]
fn the_back_end_decides_unless_the_file_does() {
    let none = ownership_of("").expect("it is valid");
    assert_eq!(
        (none.one_node, none.durability, none.ttl_ms, none.probe_s),
        (false, None, 8000, 60)
    );
    let text = "[ownership]\none_node = true\ndurability = \"node\"\nttl_ms = 500\nprobe_s = 0\n";
    let all = ownership_of(text).expect("it is valid");
    let node = Some(Durability::Node);
    assert_eq!(
        (all.one_node, all.durability, all.ttl_ms, all.probe_s),
        (true, node, 500, 0)
    );
}

#[test]
fn etcd_is_used_where_it_is_asked_for_and_said_to_be() {
    let section = "[ownership.etcd]\nendpoints = [\"http://a:2379/\", \"http://[::1]:2\"]\n";
    let keeper = "[ownership]\nkeeper = \"etcd\"\n";
    let found = ownership_of(&format!("{keeper}{section}")).expect("it is valid");
    let etcd = found.etcd.expect("it is asked for");
    assert_eq!(etcd.endpoints, ["http://a:2379", "http://[::1]:2"]);
    assert_eq!(etcd.prefix, "/tidegate");
    let refusals = [
        (
            keeper.to_owned(),
            "f.toml:4: keeper = \"etcd\" needs a section",
        ),
        (
            section.to_owned(),
            "f.toml:4: [ownership.etcd] is there and not used",
        ),
        (
            format!("{keeper}[ownership.etcd]\nprefix = \"/x\"\n"),
            "f.toml:5: \"endpoints\" is missing",
        ),
        (
            format!("{keeper}{section}paths = 1\n"),
            "f.toml:7: unknown key \"paths\" in [ownership.etcd]; known: endpoints",
        ),
        (
            format!("{keeper}ttl_ms = 1999\n{section}"),
            "f.toml:5: ttl_ms = 1999 must be at least 2000 with keeper = \"etcd\"",
        ),
        (
            format!("{keeper}{section}user = \"root\"\n"),
            "f.toml:6: user and password_file go together",
        ),
        (
            format!("{keeper}{section}ca = \"/ca.pem\"\n"),
            "f.toml:6: https:// in endpoints and ca go together",
        ),
        (
            format!("{keeper}[ownership.etcd]\nendpoints = [\"etcd1:2379\"]\n"),
            "f.toml:6: endpoint \"etcd1:2379\" must be http://HOST:PORT or https",
        ),
        (
            "[ownership]\nkeeper = \"zookeeper\"\n".to_owned(),
            "f.toml:4: keeper = \"zookeeper\" must be one of files, etcd",
        ),
        (
            "[ownership.zk]\nport = 3\n".to_owned(),
            "f.toml:3: unknown section [ownership.zk]; ",
        ),
    ];
    for (text, expected) in refusals {
        let error = ownership_of(&text).expect_err(&text);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn wrong_words_are_refused() {
    let error = ownership_of("[ownership]\ndurability = \"disk\"\n").expect_err("must be refused");
    assert!(error.starts_with("f.toml:4: durability = \"disk\" must be one of process, node"));
    let error = ownership_of("[ownership]\nttl_ms = 3\n").expect_err("must be refused");
    assert!(error.starts_with("f.toml:4: ttl_ms = 3 must be a number from 500"));
}

fn with(text: &str) -> Result<Config, String> {
    parse(&format!("{GOOD}{text}"))
}

#[test]
fn data_goes_through_the_page_cache_unless_asked_for() {
    let config = with("").expect("it is valid");
    let expected = StorageOptions {
        io: Io::Buffered,
        engine: Engine::Auto,
        depth: 32,
    };
    assert_eq!(config.storage, expected);
    assert_eq!((config.scheduler.depth, config.depth_written), (8, false));
    // As many batches at once as the ring takes calls, unless the file says it.
    let config = with("[storage]\nio = \"direct\"\ndepth = 16\n").expect("it is valid");
    assert_eq!(config.storage.io, Io::Direct);
    assert_eq!((config.scheduler.depth, config.depth_written), (16, false));
    let text = "[storage]\nio = \"direct\"\n[scheduler]\ndepth = 2\n";
    let config = with(text).expect("it is valid");
    assert_eq!((config.scheduler.depth, config.depth_written), (2, true));
    let text = "threads = 3\n[storage]\nio = \"direct\"\nengine = \"threads\"\n";
    assert_eq!(with(text).expect("it is valid").scheduler.depth, 3);
}

#[test]
fn what_does_not_fit_together_is_refused_with_advice() {
    let cases = [
        (
            "[storage]\nio = \"fast\"\n",
            "f.toml:4: io = \"fast\" must be one of buffered, direct",
        ),
        (
            "[storage]\nengine = \"aio\"\n",
            "f.toml:4: engine = \"aio\" must be one of auto, threads, uring",
        ),
        (
            "[storage]\nengine = \"uring\"\n",
            "f.toml:4: engine = \"uring\" is for io = \"direct\"",
        ),
        (
            "[storage]\nio = \"direct\"\nengine = \"uring\"\n[device]\nmodel = \"ideal\"\n",
            "f.toml:5: engine = \"uring\" does not go with [device]",
        ),
        (
            "[storage]\ndepth = 0\n",
            "f.toml:4: depth = 0 must be a number from 1 to 4096",
        ),
        (
            "[storage]\ncache = true\n",
            "f.toml:4: unknown key \"cache\" in [storage]; known: io, engine, depth",
        ),
    ];
    for (text, expected) in cases {
        let error = with(text).expect_err("must be refused");
        assert!(error.starts_with(expected), "{error}");
    }
}
