//! The configuration of AGIOS: its file, its defaults, and the file of weights.

use super::libconfig::{self, Setting, Value};
use crate::files;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Read when `agios_init` is given no path; it need not exist.
pub(super) const DEFAULT_PATH: &str = "/etc/agios.conf";

/// Bytes of a configuration, or of a file of weights, beyond which it is none.
const BYTES_MAX: u64 = 1 << 24;

/// The algorithms, at the numbers that AGIOS gives them.
pub(super) const ALGORITHMS: [&str; 9] = [
    "MLF", "TO-agg", "SJF", "aIOLi", "TO", "SW", "NOOP", "TWINS", "WFQ",
];

/// The names that algorithms had before 2019, and their names since.
const OLD_ALGORITHMS: [(&str, &str); 3] = [
    ("TW", "SW"),
    ("EXCLUSIVE_TIME_WINDOW", "TWINS"),
    ("no_AGIOS", "NOOP"),
];

/// The paths that settings had before 2019, and their names since.
const OLD_SETTINGS: [(&str, &str); 3] = [
    ("library_options.time_window_size", "SW_window"),
    (
        "library_options.exclusive_tw_window_duration",
        "twins_window",
    ),
    ("user_info.max_trace_buffer_size", "max_trace_buffer_size"),
];

/// What a configuration file says. Fields have the names and units of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Config {
    pub(super) trace: bool,
    pub(super) trace_file_prefix: String,
    pub(super) trace_file_sufix: String,
    /// KiB.
    pub(super) max_trace_buffer_size: u64,
    /// Bytes.
    pub(super) aioli_quantum: u64,
    /// Bytes.
    pub(super) mlf_quantum: u64,
    /// Milliseconds.
    pub(super) sw_window: u64,
    /// Microseconds.
    pub(super) twins_window: u64,
    pub(super) default_algorithm: &'static str,
    /// By queue.
    pub(super) weights: Vec<u64>,
    /// Ours: whether the traces that are there foretell what comes, for `aIOLi`.
    pub(super) predict: bool,
    /// Ours: requests that may wait.
    pub(super) queued_max: u64,
    /// Ours: batches that may be with the program at once.
    pub(super) depth: u64,
    /// Settings of the file that mean nothing here, with their lines.
    pub(super) without_effect: Vec<String>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            trace: false,
            trace_file_prefix: String::new(),
            trace_file_sufix: String::new(),
            max_trace_buffer_size: 1024,
            aioli_quantum: 8192,
            mlf_quantum: 8192,
            sw_window: 1000,
            twins_window: 1000,
            default_algorithm: "SJF",
            weights: Vec::new(),
            predict: false,
            queued_max: 1 << 20,
            depth: 1 << 16,
            without_effect: Vec::new(),
        }
    }
}

/// The name of AGIOS for an algorithm, if it has it, or has had it.
pub(super) fn algorithm(name: &str) -> Option<&'static str> {
    let old = OLD_ALGORITHMS.iter().find(|(old, _)| *old == name);
    let name = old.map_or(name, |(_, new)| new);
    ALGORITHMS.into_iter().find(|known| *known == name)
}

/// Reads the file at `path`, or the default one if it is there. `queues` is how many numbers of
/// queues the program uses; a file of weights must have one for each.
pub(super) fn read(path: Option<&Path>, queues: u32) -> Result<Config, String> {
    let (text, path) = match path {
        Some(path) => (files::read_text(path, BYTES_MAX), path),
        None => {
            let path = Path::new(DEFAULT_PATH);
            match files::read_text(path, BYTES_MAX) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                    return Ok(Config::default());
                }
                text => (text, path),
            }
        }
    };
    let text = text.map_err(|error| format!("{}: {error}", path.display()))?;
    from_text(&text, path, queues)
}

fn from_text(text: &str, path: &Path, queues: u32) -> Result<Config, String> {
    let settings = libconfig::parse(text).map_err(|error| format!("{}:{error}", path.display()))?;
    let mut file = File {
        path,
        settings,
        without_effect: Vec::new(),
    };
    let mut config = Config::default();
    let mut wfq_conf = None;
    let wfq_line = file.line_of("wfq_conf");
    file.flag("trace", &mut config.trace)?;
    file.flag("predict", &mut config.predict)?;
    file.text("trace_file_prefix", &mut config.trace_file_prefix)?;
    file.text("trace_file_sufix", &mut config.trace_file_sufix)?;
    let int_max = i32::MAX as u64;
    let numbers: [(&str, &mut u64, u64, u64); 7] = [
        (
            "max_trace_buffer_size",
            &mut config.max_trace_buffer_size,
            1,
            1 << 20,
        ),
        ("aioli_quantum", &mut config.aioli_quantum, 1, int_max),
        ("mlf_quantum", &mut config.mlf_quantum, 1, int_max),
        ("SW_window", &mut config.sw_window, 1, 3_600_000),
        ("twins_window", &mut config.twins_window, 1, 60_000_000),
        ("queued_max", &mut config.queued_max, 1, 1 << 26),
        ("depth", &mut config.depth, 1, 1 << 16),
    ];
    for (name, into, min, max) in numbers {
        file.number(name, into, min, max)?;
    }
    file.algorithm("default_algorithm", &mut config.default_algorithm)?;
    file.without_effect()?;
    file.optional_text("wfq_conf", &mut wfq_conf)?;
    if (config.trace || config.predict) && config.trace_file_prefix.is_empty() {
        return Err(format!(
            "{}: trace or predict = true needs trace_file_prefix",
            path.display()
        ));
    }
    if config.default_algorithm == "WFQ" {
        let Some(from) = wfq_conf else {
            return Err(format!(
                "{}: default_algorithm = \"WFQ\" needs wfq_conf, the path of the weights",
                path.display()
            ));
        };
        config.weights = weights(&from, queues)?;
    } else if wfq_conf.is_some() {
        file.is_without_effect("wfq_conf", wfq_line);
    }
    config.without_effect = file.rest();
    Ok(config)
}

/// Reads whole numbers from 1 on with white space between, one for each queue.
fn weights(path: &Path, queues: u32) -> Result<Vec<u64>, String> {
    let text = files::read_text(path, BYTES_MAX)
        .map_err(|error| format!("{}: {error}: the weights of WFQ", path.display()))?;
    let mut weights = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for word in line.split_whitespace() {
            let weight = word.parse().ok().filter(|weight| *weight > 0);
            weights.push(weight.ok_or_else(|| {
                format!(
                    "{}:{}: \"{word}\" is not a weight, a whole number from 1 on",
                    path.display(),
                    number + 1
                )
            })?);
        }
    }
    if weights.len() < queues as usize {
        return Err(format!(
            "{}: {} weights for {queues} queues",
            path.display(),
            weights.len()
        ));
    }
    weights.truncate(queues as usize);
    Ok(weights)
}

/// A parsed file.
struct File<'a> {
    path: &'a Path,
    settings: BTreeMap<String, Setting>,
    /// Settings that were understood and mean nothing: their lines and names.
    without_effect: Vec<(u32, String)>,
}

impl File<'_> {
    fn setting(&mut self, name: &str) -> Option<Setting> {
        let found = self.settings.remove(&format!("library_options.{name}"));
        found.or_else(|| {
            let old = OLD_SETTINGS.iter().find(|(_, new)| *new == name)?;
            self.settings.remove(old.0)
        })
    }

    fn line_of(&self, name: &str) -> u32 {
        let setting = self.settings.get(&format!("library_options.{name}"));
        setting.map_or(0, |setting| setting.line)
    }

    fn is_without_effect(&mut self, name: &str, line: u32) {
        self.without_effect.push((line, name.to_string()));
    }

    /// Checks what AGIOS has and we do not need. There is no algorithm that selects others, in the
    /// public AGIOS neither; and our thread is woken, and does not look again after a time.
    fn without_effect(&mut self) -> Result<(), String> {
        let (mut number, int_max) = (0, i32::MAX as u64);
        for name in [
            "starting_algorithm",
            "select_algorithm_min_reqnumber",
            "performance_values",
            "waiting_time",
            "enable_SW",
            "select_algorithm_period",
        ] {
            let line = self.line_of(name);
            if line == 0 {
                continue;
            }
            match name {
                "starting_algorithm" => self.algorithm(name, &mut "")?,
                "enable_SW" => self.flag(name, &mut false)?,
                "select_algorithm_period" => self.period()?,
                _ => self.number(name, &mut number, 0, int_max)?,
            }
            self.is_without_effect(name, line);
        }
        Ok(())
    }

    /// All that means nothing, by line: what is known to, and what nobody has asked for.
    fn rest(self) -> Vec<String> {
        let mut all = self.without_effect;
        all.extend(self.settings.into_iter().map(|(path, setting)| {
            let name = path.strip_prefix("library_options.").unwrap_or(&path);
            (setting.line, name.to_string())
        }));
        all.sort();
        let named = |(line, name)| format!("{name} (line {line})");
        all.into_iter().map(named).collect()
    }

    fn wrong<T>(&self, setting: &Setting, name: &str, expected: &str) -> Result<T, String> {
        let (path, line) = (self.path.display(), setting.line);
        Err(match &setting.value {
            Value::Integer(number) => format!("{path}:{line}: {name} = {number} is not {expected}"),
            Value::Text(text) => format!("{path}:{line}: {name} = \"{text}\" is not {expected}"),
            _ => format!("{path}:{line}: {name} is not {expected}"),
        })
    }

    fn flag(&mut self, name: &str, into: &mut bool) -> Result<(), String> {
        let Some(setting) = self.setting(name) else {
            return Ok(());
        };
        let Value::Bool(flag) = setting.value else {
            return self.wrong(&setting, name, "true or false");
        };
        *into = flag;
        Ok(())
    }

    fn number(&mut self, name: &str, into: &mut u64, min: u64, max: u64) -> Result<(), String> {
        let Some(setting) = self.setting(name) else {
            return Ok(());
        };
        if let Value::Integer(number) = setting.value
            && let Ok(number) = u64::try_from(number)
            && (min..=max).contains(&number)
        {
            *into = number;
            return Ok(());
        }
        self.wrong(
            &setting,
            name,
            &format!("a whole number from {min} to {max}"),
        )
    }

    /// `select_algorithm_period`, of which -1 means once.
    fn period(&mut self) -> Result<(), String> {
        let name = "select_algorithm_period";
        match self.setting(name) {
            Some(setting) if !matches!(setting.value, Value::Integer(-1..)) => {
                self.wrong(&setting, name, "a whole number from -1 on")
            }
            _ => Ok(()),
        }
    }

    fn text(&mut self, name: &str, into: &mut String) -> Result<(), String> {
        let mut path = None;
        self.optional_text(name, &mut path)?;
        if let Some(path) = path {
            *into = path.to_string_lossy().into_owned();
        }
        Ok(())
    }

    fn optional_text(&mut self, name: &str, into: &mut Option<PathBuf>) -> Result<(), String> {
        let Some(setting) = self.setting(name) else {
            return Ok(());
        };
        let Value::Text(text) = &setting.value else {
            return self.wrong(&setting, name, "a text in double quotes");
        };
        *into = Some(text.into());
        Ok(())
    }

    fn algorithm(&mut self, name: &str, into: &mut &'static str) -> Result<(), String> {
        let Some(setting) = self.setting(name) else {
            return Ok(());
        };
        let found = match &setting.value {
            Value::Text(text) => algorithm(text),
            _ => None,
        };
        match found {
            Some(found) => *into = found,
            None => {
                let known = format!("one of {}", ALGORITHMS.join(", "));
                return self.wrong(&setting, name, &known);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(text: &str) -> Result<Config, String> {
        let text = format!("library_options: {{\n{text}\n}};\n");
        from_text(&text, Path::new("a.conf"), 2)
    }

    #[test]
    fn what_is_not_set_has_the_defaults_of_agios() {
        assert_eq!(from(""), Ok(Config::default()));
        let config = from("default_algorithm = \"TO-agg\"; SW_window = 250 unknown = 1").unwrap();
        assert_eq!(
            (config.default_algorithm, config.sw_window),
            ("TO-agg", 250)
        );
        assert_eq!(config.without_effect, ["unknown (line 2)"]);
    }

    #[test]
    fn a_file_of_2018_is_understood() {
        let text = "library_options: {
            default_algorithm = \"TW\"
            time_window_size = 250
            waiting_time = 900000
            exclusive_tw_window_duration = 2000
            enable_TW = true
            };
            user_info: {
            stripe_size = 32768;
            max_trace_buffer_size = 32768;
            };";
        let config = from_text(text, Path::new("a.conf"), 2).unwrap();
        assert_eq!(config.default_algorithm, "SW");
        assert_eq!((config.sw_window, config.twins_window), (250, 2000));
        assert_eq!(config.max_trace_buffer_size, 32768);
        let without_effect = [
            "waiting_time (line 4)",
            "enable_TW (line 6)",
            "user_info.stripe_size (line 9)",
        ];
        assert_eq!(config.without_effect, without_effect);
        assert_eq!(algorithm("EXCLUSIVE_TIME_WINDOW"), Some("TWINS"));
    }

    #[test]
    fn what_means_nothing_is_named_and_still_checked() {
        let config =
            from("starting_algorithm = \"SJF\"\nwfq_conf = \"/w\"\nperformance_values = 5")
                .unwrap();
        let without_effect = [
            "starting_algorithm (line 2)",
            "wfq_conf (line 3)",
            "performance_values (line 4)",
        ];
        assert_eq!(config.without_effect, without_effect);
        assert!(from("waiting_time = true").is_err());
    }

    #[test]
    fn wrong_values_are_told_with_file_and_line() {
        let wrong = [
            ("trace = 1", "a.conf:2: trace = 1 is not true or false"),
            (
                "\nSW_window = 0;",
                "a.conf:3: SW_window = 0 is not a whole number from 1",
            ),
            ("mlf_quantum = -5", "a.conf:2: mlf_quantum = -5"),
            ("mlf_quantum = 1.5", "a.conf:2: mlf_quantum is not"),
            ("default_algorithm = \"sjf\"", "one of MLF, TO-agg, SJF"),
            ("default_algorithm = 3", "one of MLF"),
            ("select_algorithm_period = -2", "a whole number from -1"),
            ("trace_file_prefix = 3", "double quotes"),
            ("predict = true", "needs trace_file_prefix"),
            ("default_algorithm = \"WFQ\"", "needs wfq_conf"),
            (
                "default_algorithm = \"WFQ\" wfq_conf = \"/nowhere/w.conf\"",
                "/nowhere/w.conf: No such file",
            ),
        ];
        for (text, words) in wrong {
            let error = from(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
