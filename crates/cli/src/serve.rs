//! `tidegate serve`: one forwarder in the foreground.

use crate::fail::Fail;
use crate::keys::KeyFlags;
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
        config.faults.kill_at_request = self.kill_at_request;
        config.faults.kill_after_effect = self.kill_after_effect;
        config.faults.fail_call = self.fail_call;
        match tidegate_server::serve(&config) {
            Ok(true) => Ok(ExitCode::SUCCESS),
            Ok(false) => Err(Fail::runtime("stopped with requests unfinished after 30 s")),
            Err(error @ StartError::Stopped(_)) => Err(Fail::runtime(error)),
            Err(error) => Err(Fail::usage(error)),
        }
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
