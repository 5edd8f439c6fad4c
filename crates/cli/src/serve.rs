//! `tidegate serve`: one forwarder in the foreground.

use crate::fail::Fail;
use std::path::PathBuf;
use std::process::ExitCode;
use tidegate_server::StartError;
use tidegate_server::config::{Config, Source, Value};

/// Serve a directory: one forwarder, from a configuration file, from flags, or both.
#[derive(clap::Args)]
pub struct Serve {
    /// Configuration file; flags below override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory to export
    #[arg(long, value_name = "DIR")]
    export: Option<String>,
    /// Where to listen: unix:/PATH or tcp:HOST:PORT; may be repeated
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// Index of this forwarder in the layout, from 0
    #[arg(long, value_name = "I")]
    forwarder: Option<i64>,
    /// Number of seats: how many forwarders the layout is made for
    #[arg(long, value_name = "N")]
    seats: Option<i64>,
    /// Bytes of one stripe, such as 1MiB
    #[arg(long, value_name = "BYTES")]
    stripe: Option<String>,
    /// File with the shared secret, for TCP
    #[arg(long, value_name = "FILE")]
    secret_file: Option<String>,
    /// Let anyone who can connect over TCP read and write
    #[arg(long)]
    insecure: bool,
    /// Whether to stand in for forwarders that died
    #[arg(long, value_name = "true|false")]
    fail_over: Option<bool>,
    /// All forwarders of the export run on this node and use the same mount of the back end
    #[arg(long)]
    one_node: bool,
    /// Scheduling policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// Emulated device: none, hdd-7200, ssd-sata, ssd-pcie or ideal
    #[arg(long, value_name = "MODEL")]
    device: Option<String>,
    /// How data reaches the back end: buffered, or direct (past the page cache)
    #[arg(long, value_name = "IO")]
    io: Option<String>,
    /// Who moves data: auto, threads or uring
    #[arg(long, value_name = "ENGINE")]
    engine: Option<String>,
    /// Record each request into this file
    #[arg(long, value_name = "FILE")]
    trace: Option<String>,
    /// What to log: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// For tests: die as by kill -9 when the K-th request has come
    #[arg(long, value_name = "K", hide_short_help = true)]
    kill_at_request: Option<u64>,
    /// For tests: die as by kill -9 after the K-th effect of an operation, before its result is
    /// recorded
    #[arg(long, value_name = "OP:K", hide_short_help = true, value_parser = effect)]
    kill_after_effect: Option<(String, u64)>,
}

impl Serve {
    /// Serves until SIGTERM or SIGINT.
    pub fn perform(self) -> Result<ExitCode, Fail> {
        let mut config = Config::from_source(self.source()?)?;
        config.faults.kill_at_request = self.kill_at_request;
        config.faults.kill_after_effect = self.kill_after_effect;
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
        let text = |value: &Option<String>| value.clone().map(Value::Text);
        let number = |value: Option<i64>| value.map(Value::Integer);
        let listen = self
            .listen
            .iter()
            .cloned()
            .map(Value::Text)
            .collect::<Vec<_>>();
        let settings = [
            ("", "export", "--export", text(&self.export)),
            (
                "",
                "listen",
                "--listen",
                (!listen.is_empty()).then_some(Value::List(listen)),
            ),
            ("", "forwarder", "--forwarder", number(self.forwarder)),
            ("", "seats", "--seats", number(self.seats)),
            ("", "stripe", "--stripe", text(&self.stripe)),
            ("", "secret_file", "--secret-file", text(&self.secret_file)),
            (
                "",
                "insecure",
                "--insecure",
                self.insecure.then_some(Value::Bool(true)),
            ),
            (
                "",
                "fail_over",
                "--fail-over",
                self.fail_over.map(Value::Bool),
            ),
            (
                "ownership",
                "one_node",
                "--one-node",
                self.one_node.then_some(Value::Bool(true)),
            ),
            ("scheduler", "policy", "--policy", text(&self.policy)),
            ("device", "model", "--device", text(&self.device)),
            ("storage", "io", "--io", text(&self.io)),
            ("storage", "engine", "--engine", text(&self.engine)),
            ("trace", "file", "--trace", text(&self.trace)),
            ("log", "level", "--log", text(&self.log)),
        ];
        for (section, key, flag, value) in settings {
            if let Some(value) = value {
                source.set(section, key, value, flag);
            }
        }
        Ok(source)
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
