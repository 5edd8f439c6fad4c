//! The section `[storage]`: how data reaches the back end.

use super::ConfigError;
use super::source::Section;

/// How data reaches the back end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageOptions {
    /// Through the page cache or past it.
    pub io: Io,
    /// Who makes the calls.
    pub engine: Engine,
    /// Calls that io_uring has at once.
    pub depth: u32,
}

/// Through the page cache of the forwarder's node or past it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// Through it.
    #[default]
    Buffered,
    /// Past it, by `O_DIRECT`, where files and requests allow.
    Direct,
}

/// Who makes the calls that move data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// io_uring for direct I/O where a trial at the start succeeds, else threads.
    #[default]
    Auto,
    /// A pool of threads.
    Threads,
    /// io_uring, or no start.
    Uring,
}

/// Reads the section. `device` says that the forwarder has an emulated device.
pub(super) fn storage(mut section: Section, device: bool) -> Result<StorageOptions, ConfigError> {
    let ios = [("buffered", Io::Buffered), ("direct", Io::Direct)];
    let engines = [
        ("auto", Engine::Auto),
        ("threads", Engine::Threads),
        ("uring", Engine::Uring),
    ];
    let (io, _) = word(&mut section, "io", &ios)?;
    let (engine, place) = word(&mut section, "engine", &engines)?;
    let depth = section.number("depth", 32, (1, 4096))? as u32;
    section.finish()?;
    let refused = |what: &str| Err(ConfigError::new(&place, what));
    match (engine, io) {
        (Engine::Uring, Io::Buffered) => refused(
            "engine = \"uring\" is for io = \"direct\": calls through the page cache are \
             slower by io_uring; leave engine out, or set io = \"direct\"",
        ),
        (Engine::Uring, Io::Direct) if device => refused(
            "engine = \"uring\" does not go with [device], which works with threads; leave one out",
        ),
        _ => Ok(StorageOptions { io, engine, depth }),
    }
}

/// One of several words, and where it stands.
fn word<T: Copy + Default>(
    section: &mut Section,
    key: &'static str,
    words: &[(&str, T)],
) -> Result<(T, String), ConfigError> {
    let Some((text, place)) = section.text(key)? else {
        return Ok((T::default(), String::new()));
    };
    match words.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok((*value, place)),
        None => {
            let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
            let known = known.join(", ");
            let what = format!("{key} = \"{text}\" must be one of {known}");
            Err(ConfigError::new(&place, what))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Source};

    fn parse(text: &str) -> Result<Config, String> {
        let text = format!("export = \"/tmp\"\nlisten = [\"unix:/tmp/x.sock\"]\n{text}");
        let source = Source::parse(&text, "f.toml").map_err(|error| error.to_string())?;
        Config::from_source(source).map_err(|error| error.to_string())
    }

    #[test]
    fn data_goes_through_the_page_cache_unless_asked_for() {
        let config = parse("").expect("it is valid");
        let expected = StorageOptions {
            io: Io::Buffered,
            engine: Engine::Auto,
            depth: 32,
        };
        assert_eq!(config.storage, expected);
        assert_eq!((config.scheduler.depth, config.depth_written), (8, false));
        // As many batches at once as the ring takes calls, unless the file says it.
        let config = parse("[storage]\nio = \"direct\"\ndepth = 16\n").expect("it is valid");
        assert_eq!(config.storage.io, Io::Direct);
        assert_eq!((config.scheduler.depth, config.depth_written), (16, false));
        let text = "[storage]\nio = \"direct\"\n[scheduler]\ndepth = 2\n";
        let config = parse(text).expect("it is valid");
        assert_eq!((config.scheduler.depth, config.depth_written), (2, true));
        let text = "threads = 3\n[storage]\nio = \"direct\"\nengine = \"threads\"\n";
        assert_eq!(parse(text).expect("it is valid").scheduler.depth, 3);
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
            let error = parse(text).expect_err("must be refused");
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
