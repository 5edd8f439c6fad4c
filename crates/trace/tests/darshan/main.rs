//! Import of Darshan logs: logs made here, of every version, byte order and compression, whole,
//! cut anywhere and damaged; and the text of darshan-dxt-parser.

mod made;

use made::{Access, Made};
use tidegate_trace::darshan::{ImportError, Log, Module, Options, import_from};
use tidegate_trace::{AppId, Direction, Origin, Reader};

const VERSIONS: [&str; 5] = ["3.00", "3.10", "3.20", "3.21", "3.41"];

fn import(bytes: &[u8], options: &Options) -> Result<Log, ImportError> {
    import_from(bytes, "job", "fallback", options)
}

fn imported(bytes: &[u8]) -> Log {
    import(bytes, &Options::default()).expect("it is a log")
}

fn refusal(bytes: &[u8]) -> String {
    let error = import(bytes, &Options::default()).map(|_| ());
    error.expect_err("refused").to_string()
}

/// Two ranks of one file, and one of another; the last rank starts first.
fn accesses() -> Vec<(u64, i64, Vec<Access>)> {
    let write = |offset, begin| Access {
        write: true,
        offset,
        len: 4096,
        begin,
        end: begin + 0.25,
    };
    let read = |offset, begin| Access {
        write: false,
        ..write(offset, begin)
    };
    vec![
        (77, 0, vec![write(0, 1.0), write(4096, 2.0), read(0, 3.0)]),
        (77, 1, vec![write(1 << 40, 1.5)]),
        (99, 3, vec![]),
        (99, 2, vec![read(5, 0.5)]),
    ]
}

#[test]
fn logs_of_every_version_order_and_compression_are_imported() {
    for version in VERSIONS {
        for (big_endian, zlib) in [(false, true), (true, true), (false, false), (true, false)] {
            for threads in [false, true] {
                let made = Made {
                    version,
                    big_endian,
                    zlib,
                    threads,
                    posix: accesses(),
                    ..Made::default()
                };
                check(&imported(&made.bytes()), version == "3.41");
            }
        }
    }
}

fn check(log: &Log, wide: bool) {
    assert_eq!(
        (log.application.as_str(), log.module),
        ("ior", Module::Posix)
    );
    assert_eq!(log.command, "/apps/bin/ior -a POSIX");
    assert_eq!(log.header.origin, Origin::Darshan);
    let fraction = if wide { 5 } else { 0 };
    assert_eq!(
        log.header.zero_wall_ns,
        1_700_000_000_000_000_000 + fraction
    );
    assert!(log.warnings.is_empty(), "{:?}", log.warnings);
    let (r, w) = (Direction::Read, Direction::Write);
    let short: Vec<_> = log
        .records
        .iter()
        .map(|one| {
            (
                one.arrival_ns,
                one.client,
                one.operation,
                one.file.0,
                one.direction,
                one.offset,
            )
        })
        .collect();
    let ms = 1_000_000;
    let expected = [
        (500 * ms, 2, 1, 99, r, 5),
        (1000 * ms, 0, 1, 77, w, 0),
        (1500 * ms, 1, 1, 77, w, 1 << 40),
        (2000 * ms, 0, 2, 77, w, 4096),
        (3000 * ms, 0, 3, 77, r, 0),
    ];
    assert_eq!(short, expected);
    for record in &log.records {
        assert_eq!(record.service_ns, Some(250 * ms));
        assert_eq!(
            (record.len, record.done, record.wait_ns),
            (4096, 4096, None)
        );
        assert_eq!(
            (record.app, record.forwarder),
            (AppId::from_name("ior"), None)
        );
    }
    assert_eq!(log.bytes(), [2 * 4096, 3 * 4096]);
    let mut bytes = Vec::new();
    log.write(&mut bytes).expect("memory");
    let mut reader = Reader::new(&bytes[..], "made").expect("a trace");
    let records: Vec<_> = reader.by_ref().map(|one| one.expect("memory")).collect();
    assert_eq!(records, log.records);
    assert_eq!(reader.names()[&AppId::from_name("ior").0], "ior");
}

#[test]
fn posix_is_taken_unless_mpiio_is_asked_for_or_alone() {
    let mpiio = vec![(77, 0, accesses()[0].2[..1].to_vec())];
    let both = Made {
        posix: accesses(),
        mpiio: mpiio.clone(),
        ..Made::default()
    };
    let options = |module| Options {
        module,
        application: Some("climate".to_string()),
    };
    let of = |made: &Made, module| import(&made.bytes(), &options(module));
    assert_eq!(of(&both, None).expect("both").module, Module::Posix);
    let log = of(&both, Some(Module::Mpiio)).expect("both");
    assert_eq!((log.module, log.records.len()), (Module::Mpiio, 1));
    assert_eq!(log.application, "climate");
    let alone = Made {
        mpiio,
        ..Made::default()
    };
    assert_eq!(of(&alone, None).expect("alone").module, Module::Mpiio);
    let error = of(&alone, Some(Module::Posix))
        .expect_err("none")
        .to_string();
    assert!(
        error.contains("no DXT_POSIX data") && error.contains("DXT_MPIIO"),
        "{error}"
    );
    // Traced, and nothing was done through these calls.
    let idle = Made {
        posix: vec![(1, 0, vec![])],
        ..alone
    };
    assert_eq!(of(&idle, None).expect("alone").module, Module::Mpiio);
}

#[test]
fn a_log_without_accesses_is_refused_with_what_it_has_and_what_to_do() {
    for version in VERSIONS {
        let made = Made {
            version,
            ..Made::default()
        };
        assert_eq!(
            refusal(&made.bytes()),
            "job: there is no DXT data in this log of \"/apps/bin/ior\", only that of POSIX, \
             STDIO; set DXT_ENABLE_IO_TRACE=1 for the program to have Darshan record each access"
        );
    }
}

#[test]
fn a_log_for_which_memory_ran_out_says_so() {
    for version in VERSIONS {
        let made = Made {
            version,
            partial: true,
            posix: accesses(),
            ..Made::default()
        };
        let warnings = imported(&made.bytes()).warnings;
        assert!(
            warnings.len() == 1 && warnings[0].contains("ran out of memory"),
            "{warnings:?}"
        );
    }
}

#[test]
fn what_is_no_log_is_refused_in_words() {
    for (bytes, expected) in [
        (&b""[..], "the file is empty"),
        (b"hello", "shorter than a log's header"),
        (&[0; 5000], "magic number"),
        (b"# a comment\n# another\n", "no line says the version"),
    ] {
        let error = refusal(bytes);
        assert!(
            error.starts_with("job: neither") && error.contains(expected),
            "{error}"
        );
    }
    let change = |at: usize, to: u8| {
        let mut bytes = Made::default().bytes();
        bytes[at] = to;
        refusal(&bytes)
    };
    assert!(change(0, b'2').contains("version is \"2.21\""));
    assert!(change(16, 1).contains("darshan-convert"));
    assert!(change(16, 9).contains("unknown kind 9"));
}

#[test]
fn a_log_cut_anywhere_is_an_error_that_says_where() {
    let made = Made {
        posix: accesses(),
        mpiio: accesses(),
        ..Made::default()
    };
    let bytes = made.bytes();
    for len in 0..bytes.len() {
        let error = refusal(&bytes[..len]);
        assert!(error.len() < 300 && !error.contains('\n'), "{error}");
        assert!(len < 400 || error.contains("cut short"), "{len}: {error}");
    }
}

#[test]
fn wrong_numbers_are_told_with_their_place() {
    let with = |edit: &dyn Fn(&mut Access)| {
        let mut posix = accesses();
        edit(&mut posix[0].2[1]);
        let made = Made {
            posix,
            ..Made::default()
        };
        refusal(&made.bytes())
    };
    let place = "job: DXT_POSIX, byte 136 of its data: ";
    let error = with(&|one| one.offset = -1);
    assert_eq!(error, format!("{place}the offset is -1, below 0"));
    let error = with(&|one| one.len = -9);
    assert_eq!(error, format!("{place}the length is -9, below 0"));
    let error = with(&|one| one.begin = f64::NAN);
    assert_eq!(error, format!("{place}the start is NaN s"));
    let error = with(&|one| one.end = 1e300);
    assert!(
        error.starts_with(&format!("{place}the end is 1")),
        "{error}"
    );
    let made = |count| {
        let made = Made {
            posix: accesses()[..1].to_vec(),
            count: Some(count),
            ..Made::default()
        };
        refusal(&made.bytes())
    };
    assert!(
        made(-5).contains("byte 0 of its data: the number of reads is -5"),
        "{}",
        made(-5)
    );
    // A number that no log has room for is not believed, and nothing is set aside for it.
    let error = made(i64::MAX);
    assert!(error.contains("it ends there"), "{error}");
}

/// A small generator of pseudo-random numbers (SplitMix64), so that a seed repeats a run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (tidegate_sched::mix64(self.0) % bound as u64) as usize
    }
}

#[test]
fn damaged_logs_never_panic() {
    let mut random = Random(7);
    let mut taken = 0;
    for round in 0..20_000 {
        let made = Made {
            version: VERSIONS[round % 5],
            zlib: round % 3 == 0,
            posix: accesses(),
            mpiio: accesses(),
            ..Made::default()
        };
        let mut bytes = made.bytes();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] = random.below(256) as u8;
        }
        bytes.truncate(bytes.len() - random.below(2) * random.below(bytes.len()));
        taken += usize::from(import(&bytes, &Options::default()).is_ok());
    }
    assert!(taken > 1000, "{taken} logs were still imported");
}

const TEXT: &str = "\
# darshan log version: 3.21
# compression method: ZLIB
# exe: /apps/bin/ior -a POSIX
# start_time: 1700000000
# nprocs: 4

# log file regions
# POSIX module: 186 bytes (compressed), ver=4
# DXT_POSIX module: 100 bytes (compressed), ver=1

# DXT, file_id: 77, file_name: /scratch/a file, with comma
# DXT, rank: 0, hostname: node1
# DXT, write_count: 2, read_count: 1
# DXT, mnt_pt: /scratch, fs_type: lustre
# Module    Rank  Wt/Rd  Segment          Offset          Length    Start(s)      End(s)  [OST]
 X_POSIX       0  write        0               0            4096      1.0000      1.2500  [  3]
 X_POSIX       0  write        1            4096            4096      2.0000      2.2500  [  3]
 X_POSIX       0   read        0               0            4096      3.0000      3.2500  [  3]

# DXT, file_id: 77, file_name: /scratch/a file, with comma
# DXT, rank: 1, hostname: node1
# DXT, write_count: 1, read_count: 0
 X_POSIX       1  write        0   1099511627776            4096      1.5000      1.7500   N/A

# DXT, file_id: 99, file_name: /scratch/other
# DXT, rank: 2, hostname: node2
# DXT, write_count: 0, read_count: 1
 X_POSIX       2   read        0               5            4096      0.5000      0.7500   14002
";

#[test]
fn the_text_of_a_log_gives_the_same_as_the_log() {
    check(&imported(TEXT.as_bytes()), false);
    let only_mpiio = TEXT.replace("X_POSIX", "X_MPIIO");
    assert_eq!(imported(only_mpiio.as_bytes()).module, Module::Mpiio);
    let (counters, _) = TEXT.split_once("# DXT, file_id").expect("it has some");
    assert!(refusal(counters.as_bytes()).contains("no DXT data in this log of \"/apps/bin/ior\""));
    let warned = format!("{TEXT}\n# *WARNING*: The DXT_POSIX module contains incomplete data!\n");
    assert_eq!(imported(warned.as_bytes()).warnings.len(), 1);
}

#[test]
fn wrong_text_is_told_with_its_line() {
    let with = |from: &str, to: &str| {
        let text = TEXT.replacen(from, to, 1);
        assert_ne!(text, TEXT);
        refusal(text.as_bytes())
    };
    let line = |number: u64| format!("job: text, line {number}: ");
    let cases = [
        (
            "2.0000",
            "soon",
            line(17) + "the start \"soon\" is no number",
        ),
        (
            "            4096      2.0",
            "     -1      2.0",
            line(17) + "the length is -1, below 0",
        ),
        ("   read ", "   seek ", line(18) + "the direction \"seek\""),
        (
            "      3.0000      3.2500  [  3]",
            "",
            line(18) + "the access ends before its start",
        ),
        (
            " X_POSIX       2",
            " POSIX 2",
            line(28) + "\"POSIX\" is neither a comment nor an access",
        ),
        (
            "file_id: 77",
            "file_id: it",
            line(11) + "a file_id that is no number",
        ),
        (
            "write_count: 2",
            "write_count: 3",
            line(20) + "the file before has 3 accesses, and 4",
        ),
    ];
    for (from, to, expected) in cases {
        let error = with(from, to);
        assert!(error.starts_with(&expected), "{error}");
    }
    let last = TEXT.rfind(" X_POSIX").expect("it has some");
    let cut = &TEXT[..last];
    assert!(refusal(cut.as_bytes()).contains("cut short"));
}
