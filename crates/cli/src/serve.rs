//! `tidegate serve`: one forwarder in the foreground.

use crate::fail::Fail;
use crate::keys::KeyFlags;
use crate::outln;
use rustix::process::Resource;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_server::StartError;
use tidegate_server::config::{Config, Source};

/// Serve a directory: one forwarder, from a configuration file, from flags, or both.
#[derive(clap::Args)]
pub struct Serve {
    /// Configuration file; flags below override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only check the settings, the directory, and that the files of secrets can be read; changes
    /// nothing, and may be asked beside the forwarder that serves by the same file
    #[arg(long)]
    check_config: bool,
    #[command(flatten)]
    keys: KeyFlags<false>,
    /// For tests: die as by kill -9 when the K-th request has come
    #[arg(long, value_name = "K", hide_short_help = true)]
    kill_at_request: Option<u64>,
    /// For tests: die as by kill -9 after the K-th effect of an operation, before its result is
    /// recorded
    #[arg(long, value_name = "OP:K", hide_short_help = true, value_parser = effect)]
    kill_after_effect: Option<(String, u64)>,
    /// For tests: the K-th call of an operation to the back end, write (through the page cache) or
    /// fsync, fails with this errno, a number
    #[arg(long, value_name = "OP:K:ERRNO", hide_short_help = true, value_parser = failing)]
    fail_call: Option<(String, u64, u16)>,
}

impl Serve {
    /// Serves until SIGTERM or SIGINT.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut config = Config::from_source(self.source()?)?;
        if self.check_config {
            return self.say_right(&config);
        }
        config.faults.kill_at_request = self.kill_at_request;
        config.faults.kill_after_effect = self.kill_after_effect;
        config.faults.fail_call = self.fail_call;
        match tidegate_server::serve(&config) {
            Ok(true) => Ok(ExitCode::SUCCESS),
            Ok(false) => Err(Fail::runtime("stopped with requests unfinished after 30 s")),
            Err(error @ StartError::Stopped(_)) => Err(Fail::runtime(error)),
            Err(error) => {
                let limits = limits(&error.to_string(), limit);
                Err(Fail::usage(format!("{error}{limits}")))
            }
        }
    }

    /// Says that the settings are right, or what of the rest is not.
    fn say_right(&self, config: &Config) -> Result<ExitCode, Fail> {
        tidegate_server::check_config(config).map_err(Fail::usage)?;
        let listen: Vec<_> = config.listen.iter().map(ToString::to_string).collect();
        let name = match &self.config {
            Some(path) => path.display().to_string(),
            None => "these settings".to_string(),
        };
        outln!(
            "{name}: right; export {}, listen {}",
            config.export.display(),
            listen.join(", ")
        );
        Ok(ExitCode::SUCCESS)
    }

    /// The file's settings with the flags over them.
    fn source(&self) -> Result<Source, Fail> {
        let mut source = match &self.config {
            Some(path) => Source::read(path)?,
            None => Source::empty("serve"),
        };
        for (section, key, flag, value) in &self.keys.0 {
            source.set(section, key, value.clone(), flag);
        }
        Ok(source)
    }
}

/// The limits of this process that may be why a start failed with this message, in words.
fn limits(message: &str, limit: impl Fn(Resource) -> Option<u64>) -> String {
    let space = limit(Resource::As).map(|bytes| {
        let mib = bytes >> 20;
        format!("addresses for {mib} MiB of memory (`ulimit -v`)")
    });
    let threads = limit(Resource::Nproc)
        .map(|count| format!("{count} processes and threads of this user (`ulimit -u`)"));
    let reached: Vec<String> = match message {
        _ if message.contains("Cannot allocate memory") => space.into_iter().collect(),
        _ if message.contains("Resource temporarily unavailable") => {
            space.into_iter().chain(threads).collect()
        }
        _ => Vec::new(),
    };
    match reached.is_empty() {
        true => String::new(),
        false => format!("; raise the limit, which is {}", reached.join(", and ")),
    }
}

/// The limit that holds now; None if there is none.
fn limit(resource: Resource) -> Option<u64> {
    rustix::process::getrlimit(resource).current
}

/// `OP:K:ERRNO`.
fn failing(text: &str) -> Result<(String, u64, u16), String> {
    let parts = text
        .rsplit_once(':')
        .and_then(|(call, errno)| Some((effect(call).ok()?, errno.parse().ok()?)));
    match parts {
        Some(((op, count), errno)) if ["write", "fsync"].contains(&&*op) => Ok((op, count, errno)),
        _ => Err("must be write or fsync, which one, and an errno, such as fsync:1:5".to_string()),
    }
}

/// `OP:K`.
pub fn effect(text: &str) -> Result<(String, u64), String> {
    let parts = text
        .split_once(':')
        .and_then(|(op, count)| Some((op, count.parse().ok()?)));
    match parts {
        Some((op, count)) if !op.is_empty() && count > 0 => Ok((op.to_string(), count)),
        _ => Err("must be OPERATION:NUMBER, such as rename:1".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_named_that_may_be_why_nothing_starts() {
        let bound = |resource| match resource {
            Resource::As => Some(512 << 20),
            _ => Some(64),
        };
        let memory = limits(
            "/data/.tidegate/seat.0: Cannot allocate memory (os error 12)",
            bound,
        );
        assert!(
            memory.contains("512 MiB of memory (`ulimit -v`)"),
            "{memory}"
        );
        let thread = limits("starting a thread: Resource temporarily unavailable", bound);
        assert!(
            thread.contains("512 MiB") && thread.contains("64 processes"),
            "{thread}"
        );
        assert_eq!(
            limits(
                "starting a thread: Resource temporarily unavailable",
                |_| None
            ),
            ""
        );
        assert_eq!(limits("no such file", bound), "");
    }
}
