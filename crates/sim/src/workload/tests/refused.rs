//! Tests that what is impossible is refused, and that the message names the key.

use super::*;

/// That a workload is refused, and the message names the key.
fn assert_refused(name: &str, text: &str, processes: u32, key: &str) {
    match read(name, text) {
        Err(error) => assert!(error.starts_with(key), "{name} {text}: {error}"),
        Ok(workload) => match workload.check(processes) {
            Ok(()) => panic!("{name} {text} is not refused"),
            Err((found, reason)) => assert_eq!(found, key, "{name} {text}: {reason}"),
        },
    }
}

#[test]
fn ior_refuses_what_is_impossible() {
    for (text, key) in [
        ("", "request is missing"),
        ("request = 0", "request"),
        ("request = '1 XB'", "request: "),
        ("request = '65 MiB'", "request"),
        ("request = 1\nrequests = 0", "requests"),
        ("request = 1\nrequests = 4611686018427387904", "requests"),
        ("request = 1\npattern = 'diagonal'", "pattern: "),
        ("request = 1\npattern = 'strided'\nfile = 'each'", "pattern"),
        ("request = 1\ndirection = 'both'", "direction: "),
        ("request = 1\ntink = '1 s'", "tink is no key"),
        ("request = 1\nin_flight = 0", "in_flight"),
        ("request = 1\nthink = '2 s'\nthink_max = '1 s'", "think_max"),
        ("request = 1\njitter = '1 s'", "jitter"),
        ("request = 1\ninterval = '1 s'\nrate = 5", "rate"),
        ("request = 1\ninterval = '1 s'\nrate_end = 5", "rate_end"),
        ("request = 1\ninterval = 0", "interval"),
        ("request = 1\nrate = 1\nbarrier = true", "barrier"),
        ("request = 1\nrate = 1\nthink = '1 s'", "think"),
        ("request = 1\nrate = 1\nin_flight = 2", "in_flight"),
        ("request = 1\nrate = 1\non = '1 s'", "on"),
        ("request = 1\nwaits = true", "waits"),
        ("request = 1\nrate = 1\nramp = '1 s'", "ramp"),
        ("request = 1\nstonewall = 0", "stonewall"),
        ("request = 1\nrate = 1\nstonewall = '1 s'", "stonewall"),
        (
            "request = 1\nbarrier = true\nstonewall = '1 s'",
            "stonewall",
        ),
        ("request = 1\naggregators = 1", "aggregators: "),
        ("request = 1\ncollective = true", "aggregators is missing"),
        (
            "request = 1\ncollective = true\naggregators = 5",
            "aggregators",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\nbuffer = 0",
            "buffer",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\nrate = 9",
            "rate",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\nfile = 'each'",
            "file",
        ),
        (
            "request = 1\ncollective = true\naggregators = 1\npattern = 'random'",
            "pattern",
        ),
    ] {
        assert_refused("ior", text, 4, key);
    }
    assert_refused("ior", "request = 1", 0, "processes");
    assert_refused(
        "oir",
        "request = 1",
        1,
        "\"oir\" is no workload; possible are ior",
    );
}

/// Workload, its keys, processes, and the key that is refused.
const IMPOSSIBLE: &[(&str, &str, u32, &str)] = &[
    ("pio-bench", "request = 1\ngroups = 2", 4, "groups"),
    (
        "pio-bench",
        "request = 1\npattern = 'segmented'",
        4,
        "segments",
    ),
    (
        "pio-bench",
        "request = 1\nrequests = 5\npattern = 'segmented'\nsegments = 2",
        4,
        "segments",
    ),
    (
        "pio-bench",
        "request = 1\npattern = 'nested-strided'\ngroups = 3\ninner = 1",
        4,
        "groups",
    ),
    (
        "pio-bench",
        "request = 1\npattern = 'nested-strided'\ngroups = 2\ninner = 0",
        4,
        "inner",
    ),
    (
        "pio-bench",
        "request = '50 MiB'\npattern = 'random-strided'",
        4,
        "request",
    ),
    (
        "pio-bench",
        "request = 1\ncollective = true",
        4,
        "collective is no key",
    ),
    ("noncontig", "block = 1\nblocks = 0", 4, "blocks"),
    ("noncontig", "block = 1\nblocks = 65537", 4, "blocks"),
    ("noncontig", "block = '1 MiB'\nblocks = 65", 4, "blocks"),
    (
        "noncontig",
        "block = '1 TiB'\nblocks = 4294967296",
        4,
        "blocks",
    ),
    (
        "mpi-tile-io",
        "tiles_x = 2\ntiles_y = 3\ntile_x = 1\ntile_y = 1\nelement = 1",
        4,
        "tiles_x",
    ),
    (
        "mpi-tile-io",
        "tiles_x = 2\ntiles_y = 2\ntile_x = 1\ntile_y = 1\nelement = 1\noverlap_y = 1",
        4,
        "overlap_y",
    ),
    ("mpi-tile-io", "tiles_x = 2", 4, "tiles_y is missing"),
    (
        "mpi-io-test",
        "request = 1\npattern = 'random'",
        4,
        "pattern",
    ),
    ("btio", "class = 'S'", 5, "processes"),
    ("btio", "class = 'S'", 169, "processes"),
    ("btio", "class = 'Z'", 4, "class: "),
    ("btio", "class = 'S'\nsteps = 0", 4, "steps"),
    ("phases", "bytes = 3\nrequest = 1", 4, "bytes"),
    ("phases", "bytes = 9\nrequest = 0", 4, "request"),
    (
        "phases",
        "bytes = 9\nrequest = 1\nrepeats = 0",
        4,
        "repeats",
    ),
    (
        "phases",
        "bytes = '1 TiB'\nrequest = 1\nrepeats = 4294967296",
        4,
        "repeats",
    ),
    (
        "phases",
        "bytes = 9\nrequest = 1\nthink = '9999 h'",
        4,
        "think",
    ),
];

#[test]
fn impossible_sizes_are_refused() {
    for (name, text, processes, key) in IMPOSSIBLE {
        assert_refused(name, text, *processes, key);
    }
}

#[test]
fn shuffles_that_are_impossible_are_refused() {
    let seventeen = format!("shuffle_each = [{}]", "'1 ms', ".repeat(17));
    for (text, key) in [
        ("shuffles = 'shuffle'", "shuffles: "),
        ("shuffles = 1", "shuffles: "),
        ("shuffle = '1 parsec'", "shuffle: "),
        ("shuffle = ['1 ms']", "shuffle: "),
        ("shuffle_max = 'long'", "shuffle_max: "),
        ("shuffle = '2 ms'\nshuffle_max = '1 ms'", "shuffle_max"),
        ("shuffle_each = '1 ms'", "shuffle_each: "),
        ("shuffle_each = ['1 ms', 'long']", "shuffle_each: "),
        ("shuffle_each = []", "shuffle_each: at least one"),
        (&seventeen, "shuffle_each: at most 16"),
        (
            "shuffle = '1 ms'\nshuffle_each = ['1 ms']",
            "shuffle_each: stands",
        ),
        (
            "shuffle_max = '1 ms'\nshuffle_each = ['1 ms']",
            "shuffle_each: stands",
        ),
        (
            "shuffle_turned = 'left'\nshuffle_each = ['1 ms']",
            "shuffle_turned: ",
        ),
        (
            "shuffle_turned = 'drawn'",
            "shuffle_turned: nothing is turned",
        ),
        (
            "shuffle = '1 ms'\nshuffle_turned = 'not'",
            "shuffle_turned: nothing is turned",
        ),
        ("shuffle_last = '1 ms'", "shuffle_last is no key"),
    ] {
        let text = format!("request = 1\ncollective = true\naggregators = 2\n{text}");
        assert_refused("ior", &text, 4, key);
    }
    // They say something about collective calls alone.
    for (text, key) in [
        ("shuffles = 'port'", "shuffles: only"),
        ("shuffle = '1 ms'", "shuffle: only"),
        ("shuffle_max = '1 ms'", "shuffle_max: only"),
        ("shuffle_each = ['1 ms']", "shuffle_each: only"),
        (
            "shuffle_each = ['1 ms']\nshuffle_turned = 'drawn'",
            "shuffle_each: only",
        ),
    ] {
        assert_refused("ior", &format!("request = 1\n{text}"), 4, key);
    }
}
